"""Measure the update's forward and backward pass over a tree of turns, packed, and over its paths one by one.

    OMP_NUM_THREADS=1 python -m benchmarks.tree_packing

The binary tree has eight leaves of 20 turns that part after 5, 10 and 15 turns: 75 turns, and 160 in its paths. The
model has SmolLM2-135M's width and vocabulary, and fewer layers. Both passes alternate in one process.
"""

import argparse
import copy

import numpy as np
import torch
from benchmarks.common import describe, interleaved, make_smollm2, one_thread
from benchmarks.tables import ratios, spread, table
from benchmarks.update_packing import apart, make_pass

from turnwise.credit.segments import Segments
from turnwise.objective.tokens import Sequences
from turnwise.rollout.trajectory import Trajectory, Turn


def make_tree(turns: int, forks: tuple[int, ...], prompt: int, response: int) -> list[Trajectory]:
    """Make all paths of a tree in which every path parts in two after some turns."""
    draw = np.random.default_rng(0)
    ids = lambda size: draw.integers(0, 49152, size).tolist()  # noqa: E731
    paths: list[list[Turn]] = [[]]
    for number in range(turns):
        if number in forks:
            paths = [list(path) for path in paths for _ in range(2)]
        for path in paths:
            path.append(Turn("", None, ids(prompt), ids(response), [], "", False))
    return [Trajectory(0, "", path) for path in paths]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--prompt", type=int, default=16, help="tokens of an observation")
    parser.add_argument("--response", type=int, default=8, help="tokens of a response")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--max-tokens", type=int, default=16384, help="of a micro-batch")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    one_thread()
    model = make_smollm2(options.layers, options.device)
    print(f"{options.layers} layers, {describe(model)}")
    quarter = options.turns // 4
    tree = make_tree(options.turns, (quarter, 2 * quarter, 3 * quarter), options.prompt, options.response)
    variants = {
        "paths": Sequences.from_trajectories([copy.deepcopy(path) for path in tree]),
        "packed tree": Sequences.from_trajectories(tree),
    }
    num_tokens = variants["paths"].tokens.num_elements
    responses = Segments.from_lengths([options.response] * (num_tokens // options.response))
    draw = np.random.default_rng(1)
    columns_T = (
        draw.normal(-11, 0.2, num_tokens),
        responses.broadcast(draw.normal(0, 1, len(responses))),
        np.full(num_tokens, 1 / num_tokens),
    )
    columns = [torch.tensor(column, dtype=torch.float32, device=options.device) for column in columns_T]
    calls = {name: make_pass(model, own, columns, options.max_tokens) for name, own in variants.items()}
    calls["paths"]()  # what libraries set up once is done
    measured = interleaved(calls, options.repeats, options.device)
    wall_0, own_0, (reference, _) = measured["paths"]
    rows = []
    for name, (wall, own, (gradient, fed)) in measured.items():
        norm, greatest = apart(gradient, reference)
        rows.append((name, f"{fed:,}", spread(wall), spread(own), spread(ratios(wall, wall_0)),
                     spread(ratios(own, own_0)), f"{norm:.1e}", f"{greatest:.1e}"))  # fmt: skip
    header = ("", "tokens", "wall s", "CPU s", "wall, times", "CPU, times", "gradient apart, norm", "greatest")
    table(f"8 paths of {options.turns} turns of {options.prompt} + {options.response} tokens", header, rows)


if __name__ == "__main__":
    main()
