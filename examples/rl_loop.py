"""Train a policy with the parts of turnwise in your own loop: play, batch, method, loss, step. About a minute.

    python examples/rl_loop.py              # 20 steps
    python examples/rl_loop.py --steps 2

A policy from random weights imitates an expert on frozen lakes for some seconds, then learns from its own rewards.
`turnwise train` has the same loop in `turnwise.train.loop`, with checkpoints, records and all else that a run needs.
"""

import argparse
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

import turnwise as tw
from turnwise.base.blocking import blocking
from turnwise.config import EngineConfig, ModelConfig, RolloutConfig, WarmStartConfig
from turnwise.engines.base import Sampling
from turnwise.engines.local import LocalEngine
from turnwise.environments.hosts import InProcessEnvironments
from turnwise.environments.settings import EnvironmentConfig
from turnwise.environments.suites import make_suite
from turnwise.measures import Played
from turnwise.measures.plan import plan_measures
from turnwise.models.tiny import tiny_policy
from turnwise.objective.losses import policy_loss, token_weights
from turnwise.objective.terms import as_tensor
from turnwise.objective.tokens import Sequences, generated_logprobs, score
from turnwise.rollout.agents import Request
from turnwise.rollout.collect import play
from turnwise.rollout.starts import make_starts
from turnwise.train.demonstrate import Teaching, demonstrations
from turnwise.train.warmstart import imitate

TASKS, GROUP_SIZE, EPISODES = 16, 8, 256  # tasks to learn, trajectories of each in a step, held-out tasks
MAX_TOKENS = 16_384  # of a micro-batch, padding included
METHOD = tw.gigpo()  # any method that keeps no state; `turnwise methods` lists them

# -- an environment and a policy that knows its words ------------------------------------------------------------------

lakes = EnvironmentConfig(name="frozen_lake", max_steps=12, options={"size": 4, "frozen_frac": 0.7, "num_train": 1500})
suite: Any = make_suite(lakes)  # this one has words and an expert too
environments = InProcessEnvironments(suite.environment)
train_tasks, held_out = suite.tasks("train")[:TASKS], suite.tasks("valid")
policy = tiny_policy(suite.words(), ModelConfig(max_context=512), seed=0)
model = policy.model


def warm_up(steps: int) -> None:
    """Imitate an expert that errs at times, so that the policy succeeds at times."""
    how = Teaching(
        WarmStartConfig(games=400, steps=steps, batch_size=16, noise=0.3, imitate_noise=True),
        ModelConfig(max_context=512),
        seed=0,
        world=lakes,
        rollout=RolloutConfig(max_new_tokens=4),
        max_tokens=MAX_TOKENS,
        engine=EngineConfig(),
    )
    imitate(policy, demonstrations(how, policy, suite), how)


# -- play --------------------------------------------------------------------------------------------------------------


def play_groups(engine: LocalEngine, tasks: Sequence, group_size: int, seed: int) -> list:
    """Play each task `group_size` times; a trajectory alternates between engine and environment at its own pace."""
    sampling = Sampling(max_new_tokens=4, stop_ids=(policy.format.stop_id,), seed=seed)
    starts = make_starts(tasks, group_size, suite.task_name)
    how = {"environments": environments, "fmt": policy.format, "max_context": policy.max_context}
    played = blocking(play(starts, Request(engine=engine, sampling=sampling, **how)))
    return [trajectory for trajectory in played if trajectory.usable]  # without those whose environment failed


def success_of(engine: LocalEngine) -> float:
    """Play held-out tasks once."""
    played = play_groups(engine, held_out[:EPISODES], 1, seed=1_000_000)
    return float(np.mean([trajectory.success for trajectory in played]))


# -- learn -------------------------------------------------------------------------------------------------------------


def learn(trajectories: list, optimizer: torch.optim.Optimizer) -> float:
    """Take one optimiser step on trajectories, and return the loss."""
    sequences = Sequences.from_trajectories(trajectories)  # the tokens, as the model reads them
    needed = {"the method": METHOD.needs, "the loss": ("logprob_T",)}
    measures = plan_measures(needed)  # those that fill these columns
    scored = Played(trajectories, models={"policy": model}, score=lambda of: score(of, sequences))
    batch, _ = measures.take(scored)  # groups > trajectories > responses > tokens
    assert batch.tokens is not None

    advantage_R = METHOD(batch)  # one per response; `METHOD.trace(batch)` says how it came about
    advantage_T = as_tensor(batch.tokens.broadcast(advantage_R))
    old_T = as_tensor(batch.column("logprob_T", needed_by="the loss"))
    weight_T = as_tensor(token_weights(batch.tokens, batch.trajectories, aggregate="token-mean"))

    model.train()
    optimizer.zero_grad()
    total = 0.0
    for indices in sequences.micro_batches(MAX_TOKENS):  # weights are of the whole step, so their losses add up
        where = torch.from_numpy(sequences.token_index(indices))
        logprob, _ = generated_logprobs(model, sequences, indices)
        loss = policy_loss(logprob, old_T[where], advantage_T[where], weight_T[where], clip="ppo").loss
        loss.backward()
        total += loss.item()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    model.eval()
    return total


def main(steps: int, warm_steps: int) -> None:
    """Train, and print how many episodes succeed."""
    torch.set_num_threads(1)
    begun = time.perf_counter()
    warm_up(warm_steps)
    engine = LocalEngine(model)  # samples from the trained model itself
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-4)
    before = success_of(engine)
    print(f"held-out success after imitation: {before:.2f} ({time.perf_counter() - begun:.0f} s)")
    for step in range(1, steps + 1):
        trajectories = play_groups(engine, train_tasks, GROUP_SIZE, seed=step)  # a group per task
        loss = learn(trajectories, optimizer)
        blocking(engine.update_weights(step))  # forget keys and values of the old weights
        success = np.mean([trajectory.success for trajectory in trajectories])
        print(f"step {step:2d}: success {success:.2f}, loss {loss:+.3f} ({time.perf_counter() - begun:.0f} s)")
    after = success_of(engine)
    print(f"held-out success: {before:.2f} before, {after:.2f} after {steps} steps")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warm-steps", type=int, default=300, help="of imitation")
    options = parser.parse_args()
    main(options.steps, options.warm_steps)
