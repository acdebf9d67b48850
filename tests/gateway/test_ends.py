"""How harnesses end: with all that they started, with the reward that they printed, and with their own faults alone."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.gateway.test_agents import harness, play_colors, played
from turnwise.base.errors import EnvironmentFault
from turnwise.environments import supervise
from turnwise.environments.base import MAX_REWARD
from turnwise.extensions.gateway.outcome import as_outcome, last_line
from turnwise.extensions.gateway.settings import HarnessConfig

linux = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere only the session ends with the program")
ALIVE = "(while :; do touch {mark}; sleep 0.05; done) > /dev/null 2>&1 < /dev/null &"
ASK = """
import json, os, urllib.request
body = json.dumps({"messages": [{"role": "user", "content": "say red"}]}).encode()
headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
address = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
urllib.request.urlopen(urllib.request.Request(address, body, headers)).read()
"""


def is_alive(mark: Path) -> bool:
    mark.unlink(missing_ok=True)
    time.sleep(0.4)
    return mark.exists()


@linux
@pytest.mark.parametrize("how", ["hangs", "exits", "fails"])
def test_what_left_the_session_ends_with_the_program(tmp_path, how):
    mark = tmp_path / "alive"
    loop = ALIVE.format(mark=mark)
    script = f"setsid sh -c '{loop} {loop}' & setsid setsid sh -c '{loop} sleep 60' & sleep 0.3; "
    script += {"hangs": "sleep 60", "exits": "echo 1", "fails": "exit 3"}[how]
    (trajectory,) = played(HarnessConfig(run=("sh", "-c", script), timeout_s=2.0), tasks=(0,))
    assert trajectory.failure is not None
    assert not is_alive(mark)


@linux
def test_what_a_program_started_ends_with_the_trainer(tmp_path):
    mark = tmp_path / "alive"
    script = f"setsid sh -c '{ALIVE.format(mark=mark)}'; sleep 60"
    code = (
        "from tests.gateway.test_agents import played; from turnwise.extensions.gateway.settings import HarnessConfig\n"
    )
    code += f"played(HarnessConfig(run=('sh', '-c', {script!r})), tasks=(0,))"
    trainer = subprocess.Popen([sys.executable, "-W", "ignore", "-c", code])
    try:
        until = time.monotonic() + 60
        while not mark.exists() and time.monotonic() < until:
            time.sleep(0.05)
        assert mark.exists()
    finally:
        trainer.kill()
        trainer.wait()
    assert not is_alive(mark)


@pytest.mark.parametrize("supervised", [True, False])
def test_a_reward_counts_when_the_program_exits_whoever_holds_its_output(monkeypatch, supervised):
    if supervised and sys.platform != "linux":
        pytest.skip("only Linux")
    monkeypatch.setattr("turnwise.environments.supervise.SUPERVISED", supervised)
    program = f"{ASK}\nimport subprocess\nsubprocess.Popen(['sleep', '8'], start_new_session=True)\nprint(0.5)"
    begun = time.monotonic()
    (trajectory,) = played(HarnessConfig(run=(sys.executable, "-c", program), timeout_s=7.0), tasks=(0,))
    assert (trajectory.failure, trajectory.reward) == (None, 0.5)
    assert time.monotonic() - begun < 7


@linux
def test_a_signal_and_a_long_name_are_seen_through_the_supervisor(tmp_path):
    (trajectory,) = played(HarnessConfig(run=("sh", "-c", "kill -SEGV $$")), tasks=(0,))
    assert trajectory.failure == "harness: signal SIGSEGV: it wrote nothing to stderr"
    child = subprocess.Popen(["sh", "-c", "exec -a ') (x' sleep 60 2>/dev/null || exec sleep 60"])
    try:
        assert child.pid in supervise.descendants(os.getpid())
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()


def test_what_a_program_says_has_no_control_characters():
    script = r"printf '\033]0;owned\007bad' >&2; exit 1"
    (trajectory,) = played(HarnessConfig(run=("sh", "-c", script)), tasks=(0,))
    assert trajectory.failure == r"harness: exit code 1: \x1b]0;owned\x07bad"


class Odd:
    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__

    def __float__(self) -> float:
        raise RuntimeError("no number")


def nested(depth: int) -> list:
    value: list = []
    for _ in range(depth):
        value = [value]
    return value


GIVEN = {
    "digits": lambda: {"reward": 1.0, "info": {"x": 10**5000}},
    "no text": lambda: {"reward": 1.0, "info": {"x": Odd()}},
    "key": lambda: {"reward": 1.0, "info": {10**5000: 1}},
    "odd key": lambda: {"reward": 1.0, "info": {Odd(): 1}},
    "deep": lambda: {"reward": 1.0, "info": {"x": nested(20_000)}},
    "less deep": lambda: {"reward": 1.0, "info": {"x": nested(900)}},
    "reward": lambda: 10**5000,
    "number": lambda: Odd(),
    "name": lambda: {"reward": 1.0, Odd(): 1},
}


@pytest.mark.parametrize("name", list(GIVEN))
def test_what_cannot_be_read_or_recorded_is_a_fault(name):
    with pytest.raises(EnvironmentFault) as raised:
        as_outcome(GIVEN[name]())
    assert "\n" not in str(raised.value)


def give_what_cannot_be_written(task, endpoint):
    reward = play_colors(task, endpoint)
    return GIVEN["no text"]() if task else reward


def test_info_that_cannot_be_written_fails_its_own_trajectory():
    good, lost = played(harness("give_what_cannot_be_written").model_copy(update={"run": f"{__name__}:{WRONG}"}))
    assert good.failure is None
    assert str(lost.failure).startswith("harness: ")


WRONG = "give_what_cannot_be_written"


def test_a_line_that_is_no_json_to_be_written_is_no_reward():
    assert last_line("[" * 20_000) is None
    assert last_line("1" * 5000) is None
    assert last_line('{"reward": 1, "info": ' + "[" * 900 + "]" * 900 + "}") is None
    with pytest.raises(EnvironmentFault, match="finite number"):
        last_line(str(int(MAX_REWARD) * 10**400))
