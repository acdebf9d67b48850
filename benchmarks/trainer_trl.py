"""Measure training steps beside TRL's GRPO trainer with a `rollout_func`: trajectories a CPU hour.

    OMP_NUM_THREADS=1 python -m benchmarks.trainer_trl                # 19 M parameters
    OMP_NUM_THREADS=1 python -m benchmarks.trainer_trl --smollm2      # SmolLM2-135M's shape
    python -m benchmarks.trainer_trl --smollm2 --device cuda --precision bf16 --groups 16 --micro 16

Needs what benchmarks/requirements-trl.txt lists. Both train the same random weights with GRPO on the same tasks, one
update per step, in turn in one process. Every conversation has the same number of turns and, but for a response that
ends early, of tokens; the number of generated ones is shown. TRL's rollout function generates for all conversations at
once, turn by turn, with `model.generate`. One reads each conversation anew in each turn, as TRL's own loop over tool
calls does; "TRL, cached" hands the cache of the turns before to `model.generate`, which is TRL written well. "TRL,
tools" is that loop, on an environment of `environment_factory`, "TRL, tools, batched" the same with transformers'
continuous batching, "TRL, tools, vLLM" with vLLM (benchmarks/requirements-trl-vllm.txt). In bfloat16 the rollout
functions and turnwise generate from a rounded copy of the step's weights, TRL's loop under autocast.
"""

import argparse
import functools
import tempfile
from collections.abc import Callable

import numpy as np
import torch
from benchmarks.common import one_thread
from benchmarks.tables import ratios, spread, table
from benchmarks.trainer_trl_parts import WARM_UP, Ends, make_model
from benchmarks.trainer_trl_sides import theirs, tools, vllm_tools

from turnwise.config import parse_config
from turnwise.train.loop import train


def ours(model: str, options: argparse.Namespace) -> tuple[np.ndarray, float]:
    """Train with turnwise; return a step's seconds (see `Ends.seconds`) and a trajectory's generated tokens."""
    with tempfile.TemporaryDirectory() as folder:
        config = parse_config({
            "method": "grpo",
            "run": {"folder": folder, "steps": options.steps + WARM_UP, "threads": torch.get_num_threads(),
                    "device": options.device},
            "environment": {"name": "benchmarks.trainer_trl_parts:Words", "max_steps": options.turns,
                            "options": {"turns": options.turns, "length": options.observation}},
            "model": {"name": model, "max_context": 4096, "precision": options.precision},
            "warmstart": {"steps": 0},
            "rollout": {"groups": options.groups, "group_size": options.size, "max_new_tokens": options.response},
            "update": {"scoring": "engine", "max_tokens": options.max_tokens, "warmup_steps": 0,
                       "learning_rate": 1e-6},
            "evaluate": {"every": 0, "episodes": 1, "final_episodes": 1},
            "checkpoint": {"every": 1000},
        })  # fmt: skip
        ends = Ends()
        train(config, display=ends)
    return ends.seconds(), ends.generated / (options.steps + WARM_UP) / (options.groups * options.size)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smollm2", action="store_true", help="the shape of SmolLM2-135M")
    parser.add_argument("--groups", type=int, default=2)
    parser.add_argument("--size", type=int, default=8, help="trajectories of a group")
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--observation", type=int, default=24, help="words")
    parser.add_argument("--response", type=int, default=12, help="tokens")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--micro", type=int, default=4, help="trajectories of a micro-batch in TRL")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--max-tokens", type=int, default=4096, help="tokens of a micro-batch in turnwise")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--only", nargs="+", choices=TRAINERS, default=DEFAULT, help="sides to measure")
    options = parser.parse_args()
    one_thread()
    with tempfile.TemporaryDirectory() as model:
        make_model(model, options.smollm2)
        rounds = [{name: TRAINERS[name](model, options) for name in options.only} for _ in range(options.rounds)]
    rows, count = [], options.groups * options.size
    columns = {name: np.array([measured[name][0] for measured in rounds]).T for name in options.only}
    bases = [name for name in ("TRL", "TRL, cached") if name in columns]
    for name, (own, wall, played) in columns.items():
        tokens = np.mean([measured[name][1] for measured in rounds])
        times = (spread(ratios(columns[base][i], columns[name][i])) for base in bases for i in (0, 1))
        rows.append((name, f"{tokens:,.1f}", spread(own, 1), spread(wall, 1), spread(played, 1),
                     spread(wall - played, 1), spread(3600 * count / own, 0), *times))  # fmt: skip
    times = [text for base in bases for text in (f"times {base}: CPU", "wall")]
    header = ("", "generated a trajectory", "CPU s a step", "wall s a step", "of it the rollout", "the rest",
              "trajectories a CPU hour", *times)  # fmt: skip
    title = (
        f"{count} trajectories of {options.turns} turns a step, {options.precision}, {options.steps} steps, "
        f"{options.rounds} rounds"
    )
    table(title, header, rows)


TRAINERS: dict[str, Callable[[str, argparse.Namespace], tuple[np.ndarray, float]]] = {
    "TRL": theirs,
    "TRL, cached": functools.partial(theirs, cached=True),
    "TRL, tools": tools,
    "TRL, tools, batched": functools.partial(tools, use_transformers_continuous_batching=True),
    "TRL, tools, vLLM": vllm_tools,
    "turnwise": ours,
}
DEFAULT = ["TRL", "TRL, cached", "turnwise"]

if __name__ == "__main__":
    main()
