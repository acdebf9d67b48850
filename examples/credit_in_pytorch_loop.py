"""Use the credit in a plain PyTorch loop: no trainer, no transformers, a policy of one table.

    python examples/credit_in_pytorch_loop.py

A game has four rooms in a row, and one of three doors leads on in each. A wrong door ends the episode.
"""

import numpy as np
import torch

import turnwise as tw

ROOMS, DOORS, GROUP = 4, 3, 16
RIGHT_DOOR = [2, 0, 1, 2]


def play(policy: torch.nn.Module, generator: torch.Generator) -> list[dict]:
    """Play one trajectory and return its responses; the reward comes with the last room."""
    turns = []
    for room in range(ROOMS):
        with torch.no_grad():
            choice = torch.distributions.Categorical(logits=policy(torch.tensor(room)))
            door = int(torch.multinomial(choice.probs, 1, generator=generator))
        right = door == RIGHT_DOOR[room]
        won = right and room == ROOMS - 1
        turns.append({"room": room, "door": door, "reward": float(won), "entropy": float(choice.entropy())})
        if not right:
            break
    return turns


def learn(method: tw.Transform, *, steps: int = 50, seed: int = 0) -> list[float]:
    """Train with a method and return the share of trajectories that reached the end, by step."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    policy = torch.nn.Embedding(ROOMS, DOORS)
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.1)
    success = []
    for _ in range(steps):
        trajectories = [play(policy, generator) for _ in range(GROUP)]
        rows = [(number, turn) for number, trajectory in enumerate(trajectories) for turn in trajectory]
        batch, order = tw.Batch.from_arrays(
            group=[0] * len(rows),  # one prompt; in a real batch, the prompt of each response
            trajectory=[number for number, _ in rows],
            reward=[turn["reward"] for _, turn in rows],
            columns={
                "entropy": [turn["entropy"] for _, turn in rows],
                "state_key": [turn["room"] for _, turn in rows],
            },
        )
        advantage = np.empty(len(rows))
        advantage[order] = method(batch)

        rooms, doors = (torch.tensor([turn[name] for _, turn in rows]) for name in ("room", "door"))
        logprob = torch.log_softmax(policy(rooms), dim=-1).gather(1, doors[:, None])[:, 0]
        loss = -(torch.as_tensor(advantage, dtype=logprob.dtype) * logprob).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        success.append(float(np.mean([trajectory[-1]["reward"] for trajectory in trajectories])))
    return success


if __name__ == "__main__":
    curves = {name: learn(method) for name, method in {"gigpo": tw.gigpo(), "aem(grpo)": tw.aem(tw.grpo())}.items()}
    for name, success in curves.items():
        print(f"{name:10s} {np.mean(success[:5]):.2f} -> {np.mean(success[-5:]):.2f}")
    print(bool(np.mean(curves["gigpo"][-5:]) > 0.8))  # True
