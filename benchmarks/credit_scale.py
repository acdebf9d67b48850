"""Measure credit at up to ten million responses per step: milliseconds and memory of GRPO, AEM and GiGPO.

    PYTHONPATH=.:src python -m benchmarks.credit_scale --out benchmarks/results/credit-scale.json

Groups are independent, so a large step is credited in chunks of whole groups: memory is that of one chunk, and chunks
could go to several processes. Each case runs three times on one thread, each time in a process of its own, methods in
turn; figures are medians. Memory is the peak of what Python and NumPy allocate to credit a chunk, above its rows, in a
further call. Trajectories have 30 turns, groups 8 trajectories, prompts 40 states.
"""

# ruff: noqa: E402
import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")  # before NumPy starts its threads

import argparse
import datetime
import json
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.credit_speed import ROLLOUTS, TURNS, cpu, make_rows, traced_peak

import turnwise as tw

SIZES = (10_000, 100_000, 1_000_000, 10_000_000)
CHUNK = 1_000_000
"""Responses per chunk, about."""
METHODS = {"GRPO": tw.grpo, "GRPO + AEM": lambda: tw.aem(tw.grpo()), "GiGPO": tw.gigpo}


def credit(method: tw.Transform, rows: dict[str, Any]) -> tuple[float, float]:
    """Make a batch and assign credit; return the processor seconds of the one and of the other."""
    start = time.process_time()
    batch, order = tw.Batch.from_arrays(**rows)
    middle = time.process_time()
    advantage = np.empty(len(order))
    advantage[order] = method(batch)
    return middle - start, time.process_time() - middle


def case(name: str, size: int) -> dict[str, float]:
    """Credit a step in chunks; processor milliseconds of making batches and of the method, and peak MiB."""
    of_group = ROLLOUTS * TURNS
    groups, chunk = max(1, size // of_group), max(1, min(size, CHUNK) // of_group)
    method = METHODS[name]()
    credit(method, make_rows(1))  # imports and first calls
    seconds = [credit(method, make_rows(min(chunk, groups - done))) for done in range(0, groups, chunk)]
    making, crediting = (sum(each) for each in zip(*seconds, strict=True))
    rows = make_rows(chunk)
    peak = traced_peak(lambda: credit(method, rows))
    return {"batch_ms": 1e3 * making, "method_ms": 1e3 * crediting, "peak_mib": peak / 2**20}


def run(name: str, size: int) -> dict[str, float]:
    """Measure a case in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.credit_scale", "--case", name, str(size)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    """Measure all cases, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", nargs=2, metavar=("METHOD", "SIZE"), help="measure one case in this process")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(case(arguments.case[0], int(arguments.case[1]))))
        return
    cases = []
    for size in arguments.sizes:
        rounds = [{name: run(name, size) for name in METHODS} for _ in range(arguments.repeats)]
        for name in METHODS:
            columns = {key: [measured[name][key] for measured in rounds] for key in rounds[0][name]}
            medians = {key: round(statistics.median(values), 2) for key, values in columns.items()}
            ranges = {key: [round(min(values), 2), round(max(values), 2)] for key, values in columns.items()}
            cases.append({"method": name, "responses": size, **medians, "range": ranges})
            print(cases[-1], flush=True)
    about = {
        "date": datetime.date.today().isoformat(),
        "machine": f"{cpu()}, Python {platform.python_version()}, numpy {np.__version__}, one thread",
        "repeats": arguments.repeats,
        "chunk": CHUNK,
    }
    if arguments.out:
        arguments.out.write_text(json.dumps({**about, "cases": cases}, indent=1) + "\n")


if __name__ == "__main__":
    main()
