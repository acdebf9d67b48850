"""A supervisor ends all that its program started, by a control group where it may make one."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.rollout.straying import is_alive

from turnwise.environments import supervise

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux only")
STRAY = "setsid sh -c 'while :; do touch {mark}; sleep 0.05; done' > /dev/null 2>&1 < /dev/null &"
CHAIN = """
import os, sys, time
if os.fork():
    time.sleep(0.3)
    sys.exit(4)
end = time.monotonic() + 90
while time.monotonic() < end:
    os.setsid()
    open(sys.argv[1], "w").close()
    if os.fork():
        os._exit(0)
"""
"""Each process starts the next one in a session of its own and ends, so that a list of them is old at once. It ends
after what `supervised` waits for, so that a test that fails leaves no processes behind that nobody can catch."""
UNGROUPED = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /sys/fs/cgroup && exec "$@"', "sh"]


@pytest.fixture
def group():
    made = supervise.ControlGroup.make()
    if made is None:
        pytest.skip("needs a control group of version 2 that this process may make: run as root, or delegate one")
    yield made
    made.leave()
    made.kill()
    deadline = time.monotonic() + 10
    while Path(made._folder).exists() and time.monotonic() < deadline:
        made.remove()
    assert not Path(made._folder).exists()


def supervised(*command: str, before: tuple[str, ...] = ()) -> tuple[list[str], int]:
    """Run a program under a supervisor; returns its lines of output and its exit code."""
    ours, theirs = socket.socketpair()
    line = [*before, sys.executable, "-I", "-S", supervise.__file__, str(theirs.fileno()), *command]
    with ours, theirs:
        done = subprocess.run(line, pass_fds=[theirs.fileno()], capture_output=True, text=True, check=False, timeout=60)
    return done.stdout.splitlines(), done.returncode


def test_a_group_ends_with_all_that_was_started_in_it(group, tmp_path):
    mark = tmp_path / "alive"
    assert group.join()
    child = subprocess.Popen(["sh", "-c", STRAY.format(mark=mark) + " sleep 60"])
    assert group.leave()
    try:
        deadline = time.monotonic() + 10
        while not mark.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert is_alive(mark)
        group.kill()
        assert child.wait(10) == -signal.SIGKILL
        assert not is_alive(mark)
    finally:
        child.kill()
        child.wait()


def test_a_program_is_in_a_group_of_its_own_and_the_supervisor_is_not(group):
    (inside, outside), code = supervised("sh", "-c", "sleep 1; cat /proc/self/cgroup /proc/$PPID/cgroup | grep ^0::")
    assert code == 0
    assert inside.startswith(outside.rstrip("/") + "/turnwise-")
    assert not Path(group._own, Path(inside).name).exists(), "the group is left"


@pytest.mark.parametrize("grouped", [True, False])
def test_what_forks_without_end_ends(grouped, tmp_path, request):
    if grouped:
        request.getfixturevalue("group")
    elif subprocess.run([*UNGROUPED, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs root, to hide the control groups")
    mark = tmp_path / "alive"
    program = (sys.executable, "-I", "-S", "-c", CHAIN, str(mark))
    _, code = supervised(*program, before=() if grouped else tuple(UNGROUPED))
    assert code == 4
    assert not is_alive(mark)


def test_strays_of_a_supervisor_that_died_are_told_from_the_children_of_others():
    children = [subprocess.Popen(["sleep", "60"]) for _ in range(2)]
    known, stray = (child.pid for child in children)
    try:
        assert {known, stray} <= set(supervise.descendants(os.getpid()))
        assert known not in supervise.descendants(os.getpid(), without=[known])
        assert stray in supervise.descendants(os.getpid(), without=[known])
    finally:
        for child in children:
            child.kill()
            child.wait()
