"""Measure seconds and memory of each stage of a step."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

MIB = 2**20
STATM = Path("/proc/self/statm")


class Clock:
    """Measure the stages of one step.

    Args:
        device: Device of the model. Memory is torch's peak there during a stage. On a CPU, it is the memory of the
            process at the end of the stage (Linux only).
    """

    def __init__(self, device: torch.device):
        self.device = device
        self.metrics: dict[str, float] = {}

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        """Measure the code inside the block."""
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        start = time.perf_counter()
        yield
        self.metrics[f"time/{stage}_s"] = time.perf_counter() - start
        if self.device.type == "cuda":
            self.metrics[f"memory/{stage}_mb"] = torch.cuda.max_memory_allocated(self.device) / MIB
        elif STATM.exists():
            self.metrics[f"memory/{stage}_mb"] = int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / MIB
