"""Measure our estimators inside verl, conversion included, and verl's own, in one run (processor time).

    PYTHONPATH=.:src <python with verl and turnwise> -m benchmarks.verl_estimators --markdown

A row has 512 tokens at most, 1 to 3 responses with observations between them; a prompt has 8 rows. Every function gets
what verl gives an estimator: token-level rewards in float32, a mask in int64 (from agent loops) or float32, one uid
per row. Ours also read the names of the rows. Functions take turns, so that other work on the machine slows all of
them. A figure is the least processor time of several calls, on one thread.
"""

# ruff: noqa: E402
import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")  # before NumPy starts its threads

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from benchmarks.credit_speed import versions

LENGTH, ROLLOUTS = 512, 8
SIZES = (16_000, 100_000)


def make_rows(num_rows: int, dtype: torch.dtype) -> dict[str, Any]:
    """Make what verl gives to an estimator."""
    generator = np.random.default_rng(0)
    length = generator.integers(64, LENGTH + 1, num_rows)
    mask = np.arange(LENGTH) < length[:, None]
    for _ in range(2):  # observations
        start = generator.integers(1, LENGTH, num_rows)
        place = np.arange(LENGTH)
        mask &= ~((place >= start[:, None]) & (place < start[:, None] + generator.integers(1, 60, num_rows)[:, None]))
    mask[:, 0] = True
    rewards = torch.zeros(num_rows, LENGTH)
    last = LENGTH - 1 - np.argmax(mask[:, ::-1], axis=1)
    rewards[np.arange(num_rows), last] = torch.from_numpy(generator.integers(0, 2, num_rows).astype(np.float32))
    return {
        "token_level_rewards": rewards,
        "response_mask": torch.from_numpy(mask).to(dtype),
        "index": np.array(
            [f"{row // ROLLOUTS:08d}-5c41-4f0e-9d4e-8a2f6f0f0a11" for row in range(num_rows)], dtype=object
        ),
    }


def functions(rows: dict[str, Any]) -> dict[str, Callable[[], Any]]:
    """Return the functions by name."""
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY as registry

    from turnwise.integrations.verl import seeing

    num_rows = len(rows["index"])
    entropies = torch.rand(num_rows, LENGTH, generator=torch.Generator().manual_seed(0))
    keys = [f"{uid}_{row % ROLLOUTS}_0" for row, uid in enumerate(rows["index"])]

    def ours(name: str, config: dict[str, Any], **known: Any) -> Callable[[], Any]:
        def call() -> Any:
            with seeing(keys=keys, scores=rows["token_level_rewards"], **known):
                return registry[name](**rows, config=config)

        return call

    return {
        "verl grpo (loop)": lambda: registry["grpo"](**rows),
        "verl rloo (loop)": lambda: registry["rloo"](**rows),
        "verl grpo_vectorized": lambda: registry["grpo_vectorized"](**rows),
        "verl rloo_vectorized": lambda: registry["rloo_vectorized"](**rows),
        "turnwise_grpo": ours("turnwise_grpo", {}),
        "turnwise_rloo": ours("turnwise_rloo", {}),
        "turnwise, AEM on GRPO": ours("turnwise", {"turnwise": {"method": "grpo+aem"}}, entropies=entropies),
    }


def measure(num_rows: int, dtype: torch.dtype, repeats: int, *, loops: bool = True) -> dict[str, float]:
    """Measure the least processor time of each function (ms)."""
    calls = {name: call for name, call in functions(make_rows(num_rows, dtype)).items() if loops or "loop" not in name}
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(repeats):
        for name, call in calls.items():
            start = time.process_time()
            call()
            best[name] = min(best[name], 1e3 * (time.process_time() - start))
    return best


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--markdown", action="store_true", help="print a Markdown table")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--no-loops", action="store_true", help="leave out verl's loops, which take seconds")
    parser.add_argument("--rows", type=int, nargs="+", default=SIZES)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of verl's imports
        import verl  # noqa: F401
    columns = {
        f"{num_rows:,}, {name} mask": measure(num_rows, dtype, arguments.repeats, loops=not arguments.no_loops)
        for num_rows in arguments.rows
        for name, dtype in (("int64", torch.int64), ("float32", torch.float32))
    }
    bar = "|" if arguments.markdown else " "
    print(f"{bar} {'processor ms':24} {bar} " + f" {bar} ".join(columns) + f" {bar}".rstrip())
    if arguments.markdown:
        print("|-|" + "-:|" * len(columns))
    for name in next(iter(columns.values())):
        cells = f" {bar} ".join(f"{column[name]:{len(head)}.0f}" for head, column in columns.items())
        print(f"{bar} {name:24} {bar} {cells} {bar}".rstrip())
    print(f"\n{versions()}")


if __name__ == "__main__":
    main()
