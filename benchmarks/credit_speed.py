"""Measure credit assignment on one thread, and verl's own functions where verl can be imported.

    PYTHONPATH=src python benchmarks/credit_speed.py
    PYTHONPATH=src <python of requirements-verl.txt> benchmarks/credit_speed.py --markdown > table.md

The batch is a large ALFWorld step: prompts x 8 rollouts x 30 turns, reward at the end, 40 states per prompt. Every
figure is the best of several runs, in milliseconds. verl's functions get their tensors, made before the clock starts.
Ours get the batch; making it is a row of its own. verl also sums rewards over tokens and writes an advantage for every
token. With 512 tokens per row the figure is verl's cost in use; with 1 token per row it is the credit alone, which is
what ours computes.
"""

# ruff: noqa: E402
import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")  # before NumPy starts its threads

import argparse
import platform
import sys
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np

import turnwise as tw

ROLLOUTS, TURNS, STATES, TOKENS = 8, 30, 40, 512
SIZES = (32, 128, 410, 512)  # prompts: 7,680, 30,720, 98,400 and 122,880 responses


def make_rows(num_prompts: int) -> dict[str, Any]:
    """Make arguments for `Batch.from_arrays`."""
    generator = np.random.default_rng(0)
    num_trajectories = num_prompts * ROLLOUTS
    num_rows = num_trajectories * TURNS
    reward = np.zeros(num_rows)
    reward[TURNS - 1 :: TURNS] = generator.integers(0, 2, num_trajectories)
    return {
        "group": np.repeat(np.arange(num_prompts), ROLLOUTS * TURNS),
        "trajectory": np.repeat(np.arange(num_trajectories), TURNS),
        "reward": reward,
        "columns": {
            "entropy": generator.uniform(0, 2, num_rows),
            "state_key": generator.integers(0, STATES, num_rows),
        },
    }


def best_ms(call: Callable[[], object], *, seconds: float = 1.0, least: int = 3) -> float:
    """Measure the best of the runs that fit in about a second."""
    result, spent, runs = float("inf"), 0.0, 0
    while runs < least or spent < seconds:
        start = time.perf_counter()
        call()
        taken = time.perf_counter() - start
        result, spent, runs = min(result, taken), spent + taken, runs + 1
    return 1e3 * result


def traced_peak(call: Callable[[], object]) -> int:
    """Measure the most bytes that a call holds at once; tracing ends with it, since all after it would be slower."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def ours(num_prompts: int) -> dict[str, float]:
    """Measure our functions: name to milliseconds."""
    rows = make_rows(num_prompts)
    labels = rows | {"group": [f"prompt {g}" for g in rows["group"]], "trajectory": rows["trajectory"].tolist()}
    batch, _ = tw.Batch.from_arrays(**rows)
    methods = {
        "turnwise GRPO": tw.grpo(),
        "turnwise GRPO + AEM": tw.aem(tw.grpo()),
        "turnwise RLOO": tw.rloo(),
        "turnwise discounted returns": tw.discounted_return(discount=0.95),
        "turnwise returns + GiGPO": tw.gigpo(),
        "turnwise returns + GiGPO + AEM": tw.aem(tw.gigpo()),
    }
    modulate = tw.modulate_by_entropy()
    return {
        "turnwise Batch.from_arrays, integer labels": best_ms(lambda: tw.Batch.from_arrays(**rows)),
        "turnwise Batch.from_arrays, string labels": best_ms(lambda: tw.Batch.from_arrays(**labels)),
        "turnwise AEM's modulation alone": best_ms(lambda: modulate.update(batch.reward_R, None, batch)),
        **{name: best_ms(lambda method=method: method(batch)) for name, method in methods.items()},
    }


def verls(num_prompts: int, num_tokens: int) -> dict[str, float]:
    """Measure verl's functions, with one row per turn and one uid per prompt."""
    import torch
    from verl.trainer.ppo import core_algos

    torch.set_num_threads(1)
    rows = make_rows(num_prompts)
    num_rows = len(rows["reward"])
    outcome = np.repeat(np.add.reduceat(rows["reward"], np.arange(0, num_rows, TURNS)), TURNS)
    rewards = torch.zeros(num_rows, num_tokens)
    rewards[:, -1] = torch.from_numpy(outcome)
    arguments = {
        "token_level_rewards": rewards,
        "response_mask": torch.ones(num_rows, num_tokens),
        "index": np.array([f"prompt {g}" for g in rows["group"]], dtype=object),
    }
    functions = {
        "GRPO (loop)": core_algos.compute_grpo_outcome_advantage,
        "GRPO (vectorized)": core_algos.compute_grpo_vectorized_outcome_advantage,
        "RLOO (loop)": core_algos.compute_rloo_outcome_advantage,
        "RLOO (vectorized)": core_algos.compute_rloo_vectorized_outcome_advantage,
    }
    tokens = f"{num_tokens} token{'s' if num_tokens > 1 else ''} a row"
    return {f"verl {name}, {tokens}": best_ms(lambda call=call: call(**arguments)) for name, call in functions.items()}


def cpu() -> str:
    """Return the name of the processor."""
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def versions() -> str:
    """Describe the batch, the machine and the versions."""
    from importlib.metadata import PackageNotFoundError, version

    known = []
    for name in ("numpy", "torch", "verl"):
        try:
            known.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            known.append(f"{name} absent")
    return f"{cpu()}, {os.cpu_count()} cores, one thread used; Python {platform.python_version()}, {', '.join(known)}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--markdown", action="store_true", help="print a Markdown table")
    arguments = parser.parse_args()
    columns = {num_prompts: ours(num_prompts) for num_prompts in SIZES}
    try:
        for num_prompts in SIZES:
            columns[num_prompts] |= verls(num_prompts, 1) | verls(num_prompts, TOKENS)
    except ImportError as error:
        print(f"verl is left out: {error}; see requirements-verl.txt", file=sys.stderr)
    heads = [f"{num_prompts * ROLLOUTS * TURNS:,}" for num_prompts in SIZES]
    bar = "|" if arguments.markdown else " "
    print(f"{bar} {'ms, best run':44} {bar} " + f" {bar} ".join(f"{head:>9}" for head in heads) + f" {bar}".rstrip())
    if arguments.markdown:
        print("|-|" + "-:|" * len(heads))
    for name in columns[SIZES[0]]:
        cells = f" {bar} ".join(f"{columns[num_prompts][name]:9.2f}" for num_prompts in SIZES)
        print(f"{bar} {name:44} {bar} {cells} {bar}".rstrip())
    print(f"\n{versions()}")


if __name__ == "__main__":
    main()
