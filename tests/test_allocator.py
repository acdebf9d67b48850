"""Freed memory stays with the process, but for that of large arrays."""

import ctypes
import platform
import subprocess
import sys
from types import SimpleNamespace

import pytest

from turnwise.base.allocator import LARGEST, MOST, keep_freed_memory

SCRIPT = """
import resource
import numpy as np
from turnwise.base.allocator import keep_freed_memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() // 2**20

keep_freed_memory()
for _ in range(20):
    before = faults()
    arrays = [np.ones(2**21) for _ in range(4)]  # 16 MiB each
    del arrays
    again = faults() - before
before = resident()
large = np.ones(2**25)  # 256 MiB
del large
print(again, resident() - before)
"""


@pytest.fixture
def options(monkeypatch):
    """What the C library is told."""
    told = []
    library = SimpleNamespace(mallopt=lambda *option: told.append(option) or 1, gnu_get_libc_version=None)
    monkeypatch.setattr(ctypes, "CDLL", lambda _: library)
    for name in ("GLIBC_TUNABLES", "MALLOC_ARENA_MAX", "MALLOC_TRIM_THRESHOLD_"):
        monkeypatch.delenv(name, raising=False)
    return SimpleNamespace(told=told, library=library)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc: other C libraries are left as they are")
def test_arrays_take_the_pages_of_those_before_and_a_large_one_is_returned():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env={}, capture_output=True, text=True, check=True, timeout=120
    )
    again, grown = map(int, done.stdout.split())
    assert again < 50  # without it about 2,000 with pages of 2 MiB, 16,000 with pages of 4 KiB
    assert grown < 32


def test_an_older_library_gets_the_most_that_it_takes(options):
    options.library.mallopt = lambda name, value: options.told.append((name, value)) or value != LARGEST
    keep_freed_memory()
    assert options.told == [(-3, LARGEST), (-3, LARGEST // 2), (-1, MOST)]


@pytest.mark.parametrize("name", ["GLIBC_TUNABLES", "MALLOC_ARENA_MAX", "MALLOC_TRIM_THRESHOLD_"])
def test_the_environment_goes_first(name, options, monkeypatch):
    monkeypatch.setenv(name, "1")
    keep_freed_memory()
    assert not options.told


def test_another_library_is_left_alone(options):
    del options.library.gnu_get_libc_version
    keep_freed_memory()
    assert not options.told
