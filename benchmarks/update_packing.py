"""Measure the update's forward and backward pass over whole trajectories, and over one sequence per turn.

    OMP_NUM_THREADS=1 python -m benchmarks.update_packing
    python -m benchmarks.update_packing --layers 30 --device cuda --trajectories 16 --repeats 3

The same trajectories three times: one sequence per trajectory, as turnwise trains; one sequence per turn that begins
with all turns before it, whose loss counts the turn's own tokens; and one per turn with a window of two turns, which
is another policy with another gradient. The model has SmolLM2-135M's width and vocabulary, and fewer layers. Loss,
micro-batches and log-probabilities are the trainer's own.
"""

import argparse
from collections.abc import Callable, Sequence

import numpy as np
import torch
from benchmarks.common import counted, describe, interleaved, make_smollm2, one_thread
from benchmarks.tables import ratios, spread, table
from transformers import PreTrainedModel

from turnwise.credit.segments import Segments
from turnwise.objective.losses import policy_loss, token_weights
from turnwise.objective.tokens import Sequences, generated_logprobs, score
from turnwise.rollout.trajectory import Trajectory, Turn

Gradient = list[torch.Tensor]


def make_trajectories(count: int, turns: int) -> list[Trajectory]:
    """Make trajectories: observations of 20 to 60 tokens, responses of 4 to 16."""
    draw = np.random.default_rng(0)
    ids = lambda low, high: draw.integers(0, 49152, draw.integers(low, high + 1)).tolist()  # noqa: E731
    return [
        Trajectory(0, "", [Turn("", None, ids(20, 60), ids(4, 16), [], "", False) for _ in range(turns)])
        for _ in range(count)
    ]


def one_a_turn(trajectories: Sequence[Trajectory], window: int | None = None) -> Sequences:
    """Make one sequence per turn, with all turns before it or the latest `window`."""
    anew = []
    for trajectory in trajectories:
        turns = []
        for number, turn in enumerate(trajectory.turns):
            first = 0 if window is None else max(0, number - window)
            before = [
                i for earlier in trajectory.turns[first:number] for i in earlier.prompt_ids + earlier.response_ids
            ]
            turns.append(Turn("", None, before + turn.prompt_ids, turn.response_ids, [], "", False, fresh=True))
        anew.append(Trajectory(trajectory.group, "", turns))
    return Sequences.from_trajectories(anew)


def make_pass(
    model: PreTrainedModel, sequences: Sequences, columns_T: Sequence[torch.Tensor], max_tokens: int
) -> Callable[[], tuple[Gradient, int]]:
    """Run forward and backward over all micro-batches; return the gradient and the number of tokens."""
    old_T, advantage_T, weight_T = columns_T

    def run() -> tuple[Gradient, int]:
        model.zero_grad()
        with counted(model) as fed:
            for indices in sequences.micro_batches(max_tokens):
                where = torch.from_numpy(sequences.token_index(indices)).to(model.device)
                logprob, _ = generated_logprobs(model, sequences, indices)
                policy_loss(logprob, old_T[where], advantage_T[where], weight_T[where]).loss.backward()
        return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None], fed[0]

    return run


def apart(gradient: Gradient, reference: Gradient) -> tuple[float, float]:
    """Return the difference relative to the reference, in norm and in the greatest element."""
    one, other = (torch.cat([part.flatten() for part in parts]).double() for parts in (gradient, reference))
    difference = one - other
    return float(difference.norm() / other.norm()), float(difference.abs().max() / other.abs().max())


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trajectories", type=int, default=2)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--max-tokens", type=int, default=4096, help="of a micro-batch, padding included")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    one_thread()
    model = make_smollm2(options.layers, options.device)
    print(f"{options.layers} layers, {describe(model)}")
    trajectories = make_trajectories(options.trajectories, options.turns)
    variants = {
        "one sequence a trajectory": Sequences.from_trajectories(trajectories),
        "one a turn, all turns before": one_a_turn(trajectories),
        "one a turn, two turns before": one_a_turn(trajectories, window=2),
    }
    responses = Segments.from_lengths([len(turn.response_ids) for own in trajectories for turn in own.turns])
    draw = np.random.default_rng(1)
    old_T, _ = score(model, variants["one sequence a trajectory"])  # and what libraries set up once is done
    columns_T = (
        old_T + draw.normal(0, 0.2, len(old_T)),  # ratios on both sides of the clip
        responses.broadcast(draw.normal(0, 1, len(responses))),
        token_weights(responses, Segments.from_lengths([len(own.turns) for own in trajectories])),
    )
    columns = [torch.tensor(column, dtype=torch.float32, device=options.device) for column in columns_T]
    calls = {name: make_pass(model, own, columns, options.max_tokens) for name, own in variants.items()}
    measured = interleaved(calls, options.repeats, options.device)
    (wall_0, own_0, (reference, _)), *_ = measured.values()
    rows = []
    for name, (wall, own, (gradient, fed)) in measured.items():
        unpadded = sum(map(len, variants[name].token_ids))
        norm, greatest = apart(gradient, reference)
        rows.append((name, len(variants[name]), f"{unpadded:,}", f"{fed:,}", spread(wall), spread(own),
                     spread(ratios(wall, wall_0)), spread(ratios(own, own_0)), f"{norm:.1e}",
                     f"{greatest:.1e}"))  # fmt: skip
    title = f"{options.trajectories} trajectories of {options.turns} turns, {len(old_T)} generated tokens"
    header = (
        "",
        "sequences",
        "tokens",
        "with padding",
        "wall s",
        "CPU s",
        "wall, times",
        "CPU, times",
        "gradient apart, norm",
        "greatest",
    )
    table(title, header, rows)


if __name__ == "__main__":
    main()
