"""Measure credit at up to ten million responses per step: milliseconds and memory of GRPO, AEM and GiGPO.

    PYTHONPATH=.:src python -m benchmarks.credit_scale --out benchmarks/results/credit-scale.json

Groups are independent, so a large step is credited in chunks of whole groups: memory is that of one chunk, and chunks
could go to several processes. Each case runs in a process of its own on one thread; memory is the process's peak minus
its peak before the first chunk. Trajectories have 30 turns, groups 8 trajectories, prompts 40 states.
"""

# ruff: noqa: E402
import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")  # before NumPy starts its threads

import argparse
import json
import platform
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from benchmarks.credit_speed import ROLLOUTS, TURNS, make_rows

import turnwise as tw

SIZES = (10_000, 100_000, 1_000_000, 10_000_000)
CHUNK = 1_000_000
"""Responses per chunk, about."""
METHODS = {"GRPO": tw.grpo, "GRPO + AEM": lambda: tw.aem(tw.grpo()), "GiGPO": tw.gigpo}


def case(name: str, size: int) -> dict[str, float]:
    """Credit a step in chunks; processor milliseconds of making batches and of the method, and peak MiB."""
    of_group = ROLLOUTS * TURNS
    groups, chunk = max(1, size // of_group), max(1, min(size, CHUNK) // of_group)
    method = METHODS[name]()
    rows = make_rows(1)
    method(tw.Batch.from_arrays(**rows)[0])  # imports and first calls
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    making = crediting = 0.0
    done = 0
    while done < groups:
        rows = make_rows(min(chunk, groups - done))
        start = time.process_time()
        batch, order = tw.Batch.from_arrays(**rows)
        middle = time.process_time()
        advantage = np.empty(len(order))
        advantage[order] = method(batch)
        making, crediting = making + middle - start, crediting + time.process_time() - middle
        done += min(chunk, groups - done)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {"batch_ms": 1e3 * making, "method_ms": 1e3 * crediting, "peak_mib": peak / 1024}


def main() -> None:
    """Measure all cases, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", nargs=2, metavar=("METHOD", "SIZE"), help="measure one case in this process")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(case(arguments.case[0], int(arguments.case[1]))))
        return
    cases = []
    for size in arguments.sizes:
        for name in METHODS:
            command = [sys.executable, "-m", "benchmarks.credit_scale", "--case", name, str(size)]
            measured = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            cases.append({"method": name, "responses": size, **{k: round(v, 2) for k, v in measured.items()}})
            print(cases[-1], flush=True)
    machine = f"{platform.machine()}, Python {platform.python_version()}, numpy {np.__version__}, one thread"
    if arguments.out:
        arguments.out.write_text(json.dumps({"machine": machine, "chunk": CHUNK, "cases": cases}, indent=1) + "\n")


if __name__ == "__main__":
    main()
