"""Processor time in units of a reference's, which runs in turns with it: what slows the machine slows both."""

import time
from collections.abc import Callable

import numpy as np

_GENERATOR = np.random.default_rng(0)
_VALUES, _GROUPS = _GENERATOR.uniform(size=30_720), _GENERATOR.integers(0, 1024, 30_720)


def reference() -> None:
    """Sort and add up 30,720 numbers by group and make a list of 20,000: 1.5 to 2.5 ms of a quiet machine."""
    order = np.argsort(_GROUPS, kind="stable")
    np.add.reduceat(_VALUES[order], np.arange(0, 30_720, 30))
    np.bincount(_GROUPS, np.exp(_VALUES))
    [None for _ in range(20_000)]


def seconds(call: Callable[[], object]) -> float:
    """Processor time of this thread alone: what another thread that a test left does is not the call's."""
    begun = time.thread_time()
    call()
    return time.thread_time() - begun


def in_references(call: Callable[[], object], repeats: int = 7) -> float:
    """Return the best of several times as a multiple of the reference's best."""
    times = [(seconds(call), seconds(reference)) for _ in range(repeats)]
    best, unit = np.min(times, axis=0)
    return float(best / unit)
