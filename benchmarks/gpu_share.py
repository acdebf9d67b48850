"""Measure how several processes share a GPU: tokens a second, all processes together.

    python -m benchmarks.gpu_share --processes 1 8 16             # and once more with --no-graphs
    nvidia-cuda-mps-control -d; python -m benchmarks.gpu_share --processes 8 16; echo quit | nvidia-cuda-mps-control

Each process generates with its own copy of a model of SmolLM2-135M's shape, all from the same moment on.
"""

import argparse
import json
import subprocess
import sys
import time

import torch
from benchmarks.common import make_smollm2
from benchmarks.rollout_speed import NO_STOP, make_model, prompts, together
from benchmarks.tables import table

from turnwise.base.blocking import blocking
from turnwise.engines.base import Sampling
from turnwise.engines.local import LocalEngine

RESPONSE = 8
"""Tokens of a response."""


def generate(begin: float, rows: int, turns: int, device: str, graphs: bool = True) -> dict[str, float]:
    """Generate from a moment on; returns seconds, and by how many the process was late for it."""
    torch.set_num_threads(1)
    model = make_smollm2(30, device) if device == "cuda" else make_model(32, 2)
    engine = LocalEngine(model, rounded=True, graphs=graphs and device == "cuda")
    sampling = Sampling(max_new_tokens=RESPONSE, stop_ids=NO_STOP)
    for _ in range(2):  # sets up what the device needs for this size
        blocking(together(engine, prompts(rows, turns, 32), sampling))
        engine.close()
    late = max(0.0, time.time() - begin)
    time.sleep(max(0.0, begin - time.time()))
    began = time.perf_counter()
    blocking(together(engine, prompts(rows, turns, 32), sampling))
    return {"seconds": time.perf_counter() - began, "late": late}


def share(processes: int, options: argparse.Namespace) -> list[dict[str, float]]:
    """Let several processes generate at once; returns what each measured."""
    begin = time.time() + options.setup_s
    told = {"begin": begin, "device": options.device, "rows": options.rows, "turns": options.turns}
    given = [part for name, value in told.items() for part in (f"--{name}", str(value))]
    given += ["--graphs" if options.graphs else "--no-graphs"]
    command = [sys.executable, "-m", "benchmarks.gpu_share", *given]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(processes)]
    return [json.loads(process.communicate()[0]) for process in running]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rows", type=int, default=128, help="conversations of a process")
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--setup-s", type=float, default=60.0, help="seconds until all processes are ready")
    parser.add_argument("--graphs", action=argparse.BooleanOptionalAction, default=True, help="replay CUDA graphs")
    parser.add_argument("--begin", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.begin:
        print(json.dumps(generate(options.begin, options.rows, options.turns, options.device, options.graphs)))
        return
    rows = []
    for processes in options.processes:
        found = share(processes, options)
        seconds = [one["seconds"] for one in found]
        tokens = processes * options.rows * options.turns * RESPONSE / max(seconds)
        late = max(one["late"] for one in found)
        rate = "-" if late else f"{tokens:,.0f}"  # others have the device to themselves while one is late
        rows.append((str(processes), f"{min(seconds):.2f} to {max(seconds):.2f}", rate, f"{late:.1f}"))
    table("Processes that share a GPU", ("processes", "seconds", "tokens a second, all", "late by s"), rows)


if __name__ == "__main__":
    main()
