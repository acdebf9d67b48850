"""Hypothesis profiles, one thread for torch, a warm-start cache of the tests' own, and less waiting.

The default profile is deterministic: the same examples on every machine, and none kept between runs.
`HYPOTHESIS_PROFILE=thorough pytest tests/properties` searches at random and long.
"""

import gc
import os
import signal
import sys
import tracemalloc
from collections.abc import Generator, Iterator

import jaxtyping
import pytest
from hypothesis import settings

sys.modules["turnwise.base.shapes"] = jaxtyping  # so that annotations are checked; see the module

from tests.needs import summarise  # noqa: E402

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: tiny models are slower on more threads

settings.register_profile("default", max_examples=25, derandomize=True, deadline=None, database=None)
settings.register_profile("quick", max_examples=5, derandomize=True, database=None, deadline=None)  # make test-quick
settings.register_profile("thorough", max_examples=2000, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background jobs ignore it, and hand that on
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)  # environments of the crosschecks have no xdist
def pytest_xdist_auto_num_workers() -> int:
    """One worker more than cores, since tests wait for time limits and processes; each takes about a GiB of memory."""
    return int(os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS") or min(os.cpu_count() or 1, 8) + 1)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is there once tests are collected, a million objects, is not looked through again for garbage."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None, object, object]:
    """Fail the test that leaves memory traced: all after it in this process would take several times as long."""
    try:
        return (yield)
    finally:
        if tracemalloc.is_tracing() and not os.environ.get("PYTHONTRACEMALLOC"):
            tracemalloc.stop()
            pytest.fail("it left tracemalloc on: call tracemalloc.stop()")


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test, and no process that a test starts, touches the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TURNWISE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_wait_for_the_disk() -> Iterator[None]:
    """Runs in this process do not wait until a record is on the disk, milliseconds each: no test cuts the power.

    Processes that are killed are tested in children, which do wait.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture
def array_types_unchecked() -> Iterator[None]:
    """Array types, most of the time of a small batch, are not checked: for tests of numbers only.

    Every method is run with checks on batches of the same kind, by `test_array_types_hold_in_every_method` among the
    laws and in `test_conformance.py`.
    """
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what the skipped tests need."""
    skipped = [report.longrepr for report in terminalreporter.stats.get("skipped", ())]
    if skipped:
        terminalreporter.section(f"skipped: {len(skipped)}; what they need", sep="-")
        for line in summarise((path, why.removeprefix("Skipped: ")) for path, _, why in skipped):
            terminalreporter.write_line(line)
