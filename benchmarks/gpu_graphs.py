"""Compare generating with CUDA graphs and without: tokens per second, captures, memory, log-probabilities, and phases.

    python -m benchmarks.gpu_graphs            # where the time of 16 conversations goes, by phase and by kernel
    python -m benchmarks.gpu --only graphs     # the figures

Both engines run in turn in one process, on the same weights, in bfloat16.
"""

import argparse
import asyncio
import functools
import logging
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from benchmarks.common import interleaved, make_smollm2, timed
from benchmarks.rollout_speed import NO_STOP, make_model, prompts, together
from transformers import PreTrainedModel

from turnwise.base.blocking import blocking
from turnwise.engines import local, passes
from turnwise.engines.base import Generation, Sampling
from turnwise.engines.local import LocalEngine
from turnwise.engines.passes import Feed, Passes

SAMPLING = Sampling(max_new_tokens=12, stop_ids=NO_STOP)
ROUNDS = 3
MOST_WARM = 6
"""Runs until all shapes are captured, at most."""


def _runs(engine: LocalEngine, count: int, turns: int) -> Callable[[], int]:
    def run() -> int:
        engine.close()
        return blocking(together(engine, prompts(count, turns, 32), SAMPLING))

    return run


@contextmanager
def _patched(owner: Any, name: str, wrap: Callable[[Any], Any]) -> Iterator[None]:
    real = getattr(owner, name)
    setattr(owner, name, wrap(real))
    try:
        yield
    finally:
        setattr(owner, name, real)


def _clocked(spent: list[float], waits: bool) -> Callable[[Any], Any]:
    """Wrap a function so that its calls' seconds are appended to a list."""

    def wrap(real: Any) -> Any:
        def call(*given: Any, **more: Any) -> Any:
            waiting = waits and torch.cuda.is_available() and not torch.cuda.is_current_stream_capturing()
            if waiting:
                torch.cuda.synchronize()
            begun = time.perf_counter()
            result = real(*given, **more)
            if waiting:
                torch.cuda.synchronize()
            spent.append(time.perf_counter() - begun)
            return result

        return call

    return wrap


def _free_mb() -> float:
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info()[0] / 2**20


async def _responses(engine: LocalEngine, added: np.ndarray) -> list[list[Generation]]:
    async def one(number: int, turns: np.ndarray) -> list[Generation]:
        ids: list[int] = []
        got = []
        for prompt in turns.tolist():
            ids += prompt
            got.append(await engine.generate(number, ids, SAMPLING))
            ids += got[-1].token_ids
        return got

    return await asyncio.gather(*(one(*each) for each in enumerate(added)))


def _differences(engines: Sequence[LocalEngine], count: int, turns: int) -> dict[str, Any]:
    """Compare log-probabilities of the same tokens after the same tokens (nats)."""
    answers = []
    for engine in engines:
        engine.close()
        answers.append(blocking(_responses(engine, prompts(count, turns, 32))))
    apart: list[float] = []
    forked = 0
    for one, other in zip(*answers, strict=True):
        for ours, theirs in zip(one, other, strict=True):
            same = np.cumprod(np.array(ours.token_ids) == np.array(theirs.token_ids)).astype(bool)
            apart += np.abs(np.array(ours.logprobs) - np.array(theirs.logprobs))[same].tolist()
            if not same.all():
                forked += 1
                break
    return {"tokens": len(apart), "mean": statistics.fmean(apart), "max": max(apart), "conversations_that_fork": forked}


def compare(model: PreTrainedModel, counts: Sequence[int], turns: int) -> dict[str, Any]:
    """Measure conversations of so many turns with graphs and without."""
    device = model.device.type
    plain, graphed = (LocalEngine(model, rounded=True, graphs=graphs) for graphs in (False, True))
    blocking(plain.update_weights())
    blocking(graphed.update_weights())
    result: dict[str, Any] = {}
    for count in counts:
        runs = {"plain": _runs(plain, count, turns), "graphs": _runs(graphed, count, turns)}
        captured: list[float] = []
        runs["plain"]()
        with _patched(Passes, "_capture", _clocked(captured, waits=True)):
            for _ in range(MOST_WARM):
                before = len(captured)
                runs["graphs"]()
                if len(captured) == before:
                    break
        measured = interleaved(runs, ROUNDS, device)
        rates = {name: [each.answer / wall for wall in each.wall] for name, each in measured.items()}
        ratios = [ours / theirs for ours, theirs in zip(rates["graphs"], rates["plain"], strict=True)]
        result[f"{count}"] = {
            **{f"{name}_tokens_per_s": round(statistics.median(rate), 1) for name, rate in rates.items()},
            "ratio": round(statistics.median(ratios), 3),
            "ratios": [round(each, 3) for each in ratios],
            "captures": len(captured),
            "capture_s": round(sum(captured), 3),
        }
        print(f"graphs, {count} conversations: {result[f'{count}']}", flush=True)
    result["captures_work"] = graphed._passes.static
    result["graphs"] = graphed._passes.num_graphs
    result["logprobs_apart"] = _differences((plain, graphed), max(counts), min(turns, 4))
    if device == "cuda":
        held = _free_mb()
        graphed._passes._forget()
        result["graphs_mb"] = round(_free_mb() - held, 1)
    return result


def pass_times(model: PreTrainedModel, sizes: Sequence[tuple[int, int]], repeats: int = 12) -> dict[str, Any]:
    """Measure passes of so many rows of so many tokens each, with graphs and without (ms, medians).

    What a pass takes besides its tokens decides which prompts are fed together; see `turnwise.engines.passes.OWN_TIME`.
    """
    rows, tokens = (max(each) for each in zip(*sizes, strict=True))
    result: dict[str, Any] = {}
    for name, static in (("plain", False), ("graphs", True)):
        fed = Passes(model.config.get_text_config().num_hidden_layers, static)
        fed.reserve(rows, tokens + 1)
        for num_rows, num_tokens in sizes:
            own, width = np.arange(num_rows), np.arange(num_tokens)
            feed = Feed(
                own, np.full((num_rows, num_tokens), 7), np.tile(width, (num_rows, 1)),
                np.stack([own, np.full(num_rows, num_tokens - 1)]), num_tokens,
            )  # fmt: skip
            once = functools.partial(fed.forward, model, feed)
            spent = [timed(once, model.device.type)[0] for _ in range(repeats)]
            result.setdefault(f"{num_rows} x {num_tokens}", {})[name] = round(1000 * statistics.median(spent[3:]), 3)
    return result


PHASES = (
    (LocalEngine, "_prefill"), (LocalEngine, "_decode"), (LocalEngine, "_forward"), (LocalEngine, "_draw"),
    (Passes, "_repeat"), (Passes, "_compute"), (Passes, "_capture"), (local, "sample"), (local, "uniform"),
    (local, "on_device"), (passes, "on_device"),
)  # fmt: skip


def phases(engine: LocalEngine, count: int, turns: int, waits: bool) -> dict[str, tuple[int, float]]:
    """Measure calls and milliseconds per call of what a run consists of; phases contain each other."""
    spent: defaultdict[str, list[float]] = defaultdict(list)
    patches = []
    for owner, name in PHASES:
        where = f"{str(owner.__name__).rsplit('.', 1)[-1]}.{name}"
        patch = _patched(owner, name, _clocked(spent[where], waits))
        patch.__enter__()
        patches.append(patch)
    begun = time.perf_counter()
    try:
        _runs(engine, count, turns)()
    finally:
        for patch in reversed(patches):
            patch.__exit__(None, None, None)
    spent["whole run"].append(time.perf_counter() - begun)
    return {name: (len(each), 1000 * statistics.fmean(each)) for name, each in spent.items() if each}


def profile(engine: LocalEngine, count: int) -> str:
    """Return what the kernels of two turns took, those that took most first."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiled:
        _runs(engine, count, 2)()
        torch.cuda.synchronize()
    averages = profiled.key_averages()
    rows = [each for each in averages if each.self_device_time_total]
    rows.sort(key=lambda each: -each.self_device_time_total)
    kernels = [each for each in rows if str(each.device_type).endswith("CUDA")] or rows
    total, number = sum(each.self_device_time_total for each in kernels), sum(each.count for each in kernels)
    lines = [f"{number} kernels, {total / 1000:.2f} ms on the device; calls, us each, ms, name"]
    for each in kernels[:25]:
        own = each.self_device_time_total
        lines.append(f"{each.count:6d} {own / each.count:8.2f} {own / 1000:8.2f}  {each.key[:100]}")
    return "\n".join(lines)


def main() -> None:
    """Print where the time goes, with graphs and without."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--turns", type=int, default=20)
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    logging.getLogger(passes.__name__).setLevel(logging.DEBUG)  # with the traceback of a capture that fails
    on_gpu = torch.cuda.is_available()
    model = make_smollm2(30, "cuda") if on_gpu else make_model(32, 2)
    for graphs in (False, True):
        engine = LocalEngine(model, rounded=True, graphs=graphs)
        for _ in range(MOST_WARM):
            before = engine._passes.num_graphs
            _runs(engine, options.rows, options.turns)()
            if engine._passes.num_graphs == before:
                break
        print(f"\n== graphs={graphs}: {engine._passes.num_graphs} captured, still static: {engine._passes.static}")
        for waits in (False, True) if on_gpu else (False,):
            print("milliseconds per call" + (", waiting for the device" if waits else ""))
            for name, (calls, ms) in phases(engine, options.rows, options.turns, waits).items():
                print(f"  {name:24} {calls:6d} calls {ms:9.3f} ms", flush=True)
        if on_gpu:
            print(profile(engine, options.rows), flush=True)


if __name__ == "__main__":
    main()
