"""Measure time and memory of every published method on one thread, and verl's estimators where verl can be imported.

    python -m benchmarks.family_speed                  # 30,720 to 983,040 responses, some minutes
    python -m benchmarks.family_speed --markdown --sizes 128 512

The batch is a large agent step: prompts x 8 trajectories x 1 to 59 turns (30 on average), with only the columns that
the method needs.

* "prepare" is `Batch.from_arrays` from plain arrays in shuffled order with text labels, state keys and turn indices.
* "credit" is the method, the best of several runs.
* "growth" is the ratio of the times at the largest and the smallest size, divided by the ratio of the sizes: 1 is
  linear.
* "memory" is the peak that the method allocates, divided by the bytes of its batch.
* A line of its own says what `proxmo` takes if the texts of all responses differ, as the median processor time.
"""

# ruff: noqa: E402
import functools
import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")  # before NumPy starts its threads

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from benchmarks.credit_speed import best_ms, traced_peak, versions
from tests.columns import make_columns

import turnwise as tw

TRAJECTORIES, TURNS = 8, 30
SIZES = (128, 1024, 4096)
"""Numbers of prompts: 30,720, 245,760 and 983,040 responses."""


def make_rows(num_prompts: int, names: tuple[str, ...], *, shuffled: bool = False) -> dict[str, Any]:
    """Make arguments for `Batch.from_arrays` with these columns; turns of a trajectory stay in order."""
    generator = np.random.default_rng(0)
    num_trajectories = num_prompts * TRAJECTORIES
    half = generator.integers(1, 2 * TURNS, num_trajectories // 2)
    lengths = np.concatenate([half, 2 * TURNS - half])  # 30 on average, exactly
    trajectory = np.repeat(np.arange(num_trajectories), lengths)
    group = trajectory // TRAJECTORIES
    num_rows = len(group)
    reward = np.zeros(num_rows)
    reward[np.cumsum(lengths) - 1] = generator.integers(0, 2, num_trajectories)
    columns = make_columns(names, np.arange(num_rows), trajectory, group, trajectory % TRAJECTORIES)
    if shuffled:
        order = np.argsort(generator.random(num_trajectories), kind="stable")[trajectory]
        order = np.argsort(order, kind="stable")
        group, trajectory, reward = group[order], trajectory[order], reward[order]
        columns = {
            n: c[order] if isinstance(c, np.ndarray) else [c[i] for i in order.tolist()] for n, c in columns.items()
        }
    return {"group": group, "trajectory": trajectory, "reward": reward, "columns": columns}


def call(method: tw.Transform, batch: tw.Batch) -> Callable[[], object]:
    """Call the method from its first state."""
    state = method.init() if method.init else None
    return lambda: method.update(batch.reward_R, state, batch)


def size_of(batch: tw.Batch) -> int:
    """Count the bytes of the batch's arrays."""
    arrays = [batch.reward_R, batch.groups.offsets, batch.trajectories.offsets, *batch.columns.values()]
    return sum(array.nbytes for array in arrays)


def peak(method: tw.Transform, batch: tw.Batch) -> float:
    """Measure the method's peak memory, divided by the size of its batch."""
    run = call(method, batch)
    run()
    return traced_peak(run) / size_of(batch)


def measure(name: str, sizes: tuple[int, ...]) -> list[float]:
    """Make a row: prepare (ms), credit at each size (ms), growth, memory."""
    method = tw.trial(tw.METHODS[name])
    labelled = make_rows(sizes[0], method.needs, shuffled=True)
    labelled["group"] = [f"prompt {g}" for g in labelled["group"]]
    prepare = best_ms(lambda: tw.Batch.from_arrays(**labelled), seconds=0.3)
    times = []
    memory = 0.0
    for num_prompts in sizes:
        batch, _ = tw.Batch.from_arrays(**make_rows(num_prompts, method.needs))
        times.append(best_ms(call(method, batch), seconds=0.3, least=2))
        if num_prompts == sizes[0]:
            memory = peak(method, batch)
    return [prepare, *times, times[-1] / times[0] / (sizes[-1] / sizes[0]), memory]


def different_texts(num_texts: int, num_words: int) -> list[str]:
    """Make texts of 18 words of 2 to 12 letters; the k-th word is 1 / k as frequent as the first."""
    generator = np.random.default_rng(1)
    letters = [chr(ord("a") + k) for k in range(26)]
    words = np.array(["".join(generator.choice(letters, generator.integers(2, 13))) for _ in range(num_words)])
    frequency = 1 / np.arange(1, num_words + 1)
    return [" ".join(row) for row in words[generator.choice(num_words, (num_texts, 18), p=frequency / frequency.sum())]]


def texts_ms(num_prompts: int, num_words: int) -> float:
    """Measure `proxmo` on texts that all differ: median processor time of 15 runs."""
    method = tw.trial(tw.METHODS["proxmo"])
    rows = make_rows(num_prompts, method.needs)
    rows["columns"]["state_text"] = different_texts(len(rows["group"]), num_words)
    run = call(method, tw.Batch.from_arrays(**rows)[0])
    times = []
    for _ in range(15):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return 1e3 * float(np.median(times))


def verls(num_prompts: int) -> dict[str, float]:
    """Measure verl's estimators on the same trajectories (ms): one row per turn, one token per row.

    Their tensors are made before the clock starts.
    """
    import torch
    from omegaconf import OmegaConf
    from verl.trainer.ppo import core_algos

    torch.set_num_threads(1)
    rows = make_rows(num_prompts, ())
    rewards = torch.tensor(rows["reward"], dtype=torch.float32)[:, None]
    mask, index = torch.ones_like(rewards), np.array([f"prompt {g}" for g in rows["group"]], dtype=object)
    config: Any = OmegaConf.create({"gamma": 1.0})
    result = {}
    for short in (
        "grpo",
        "grpo_vectorized",
        "rloo",
        "rloo_vectorized",
        "reinforce_plus_plus_baseline",
        "opo",
        "grpo_passk",
    ):
        estimator = core_algos.ADV_ESTIMATOR_REGISTRY.get(short)
        if estimator is not None:
            run = functools.partial(
                estimator, token_level_rewards=rewards, response_mask=mask, index=index, config=config
            )
            try:
                run()
            except Exception as error:  # an estimator of another signature is left out, visibly
                print(f"verl {short} is left out: {type(error).__name__}: {error}", file=sys.stderr)
                continue
            result[f"verl {short}"] = best_ms(run, seconds=0.3, least=2)
    return result


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--markdown", action="store_true", help="print a Markdown table")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="prompts")
    parser.add_argument("--methods", nargs="+", default=list(tw.METHODS))
    options = parser.parse_args()
    sizes = tuple(options.sizes)
    heads = ["prepare", *(f"{size * TRAJECTORIES * TURNS:,}" for size in sizes), "growth", "memory"]
    bar = "|" if options.markdown else " "
    print(f"{bar} {'ms, best run':34} {bar} " + f" {bar} ".join(f"{head:>9}" for head in heads) + f" {bar}".rstrip())
    if options.markdown:
        print("|-|" + "-:|" * len(heads))
    for name in options.methods:
        cells = f" {bar} ".join(f"{value:9.2f}" for value in measure(name, sizes))
        print(f"{bar} {name:34} {bar} {cells} {bar}".rstrip(), flush=True)
    try:
        for name, value in verls(sizes[0]).items():
            cells = f" {bar} ".join([f"{'':9}", f"{value:9.2f}", *[f"{'':9}"] * (len(heads) - 2)])
            print(f"{bar} {name:34} {bar} {cells} {bar}".rstrip(), flush=True)
    except ImportError as error:
        print(f"verl is left out: {error}; see requirements-verl.txt", file=sys.stderr)
    if "proxmo" in options.methods:
        shown = ", ".join(f"{texts_ms(sizes[0], words):.0f} ms with {words:,} words" for words in (100, 300, 2000))
        print(f"\nproxmo, all texts different: {shown}")
    print(f"\n{versions()}")


if __name__ == "__main__":
    main()
