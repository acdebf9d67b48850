"""What the process of a harness can read of the trainer: sentinels in its environment, arguments, and names of maps."""

import os
import subprocess
import sys

import pytest

from tests.gateway.test_agents import played
from tests.needs import needs
from tests.rollout.curious import SECRET
from tests.rollout.test_isolation import holder  # noqa: F401 (a fixture)
from turnwise.extensions.gateway.settings import HarnessConfig

COMMAND = (sys.executable, "-m", "tests.rollout.curious")
needs_bubblewrap = needs("bwrap")


@needs_bubblewrap
@pytest.mark.parametrize("run", ["tests.rollout.curious:play", COMMAND])
def test_a_harness_in_bubblewrap_finds_no_secret_in_proc(run, monkeypatch, holder):  # noqa: F811
    monkeypatch.setenv("HF_TOKEN", SECRET)
    (trajectory,) = played(HarnessConfig(run=run, isolation="bubblewrap"), tasks=(0,))
    assert (trajectory.failure, trajectory.reward, len(trajectory.turns)) == (None, 1.0, 1)
    assert trajectory.info["found"] == []


def test_the_sweep_finds_what_the_command_of_a_harness_can_read_without_bubblewrap(holder):  # noqa: F811
    (trajectory,) = played(HarnessConfig(run=COMMAND), tasks=(0,))
    assert f"/proc/{holder.pid}/cmdline" in trajectory.info["found"]


HIDDEN = """
import ctypes, sys
from turnwise.extensions.gateway.harness import make_harness
from turnwise.extensions.gateway.settings import HarnessConfig
make_harness(HarnessConfig(run=sys.argv[1], isolation=sys.argv[2]))
print(ctypes.CDLL(None).prctl(3))  # PR_GET_DUMPABLE: 0 hides environment and memory from the same user
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux only")
@pytest.mark.parametrize(
    ("run", "isolation", "dumpable"),
    [("json:dumps", "process", "0"), ("python agent.py", "thread", "0"), ("json:dumps", "thread", "1")],
)
def test_a_trainer_hides_itself_from_harnesses_that_are_processes(run, isolation, dumpable):
    line = [sys.executable, "-c", HIDDEN, run, isolation]
    done = subprocess.run(line, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [dumpable]
