"""`turnwise play`: a policy plays turn by turn, or a person does; mistakes are one line, and Ctrl-C ends it cleanly."""

import io
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.toys import color_policy

from turnwise.base.errors import EnvironmentFault
from turnwise.commands import demo
from turnwise.commands.cli import main
from turnwise.engines.local import LocalEngine
from turnwise.environments.base import Step
from turnwise.environments.hosts import InProcessEnvironments
from turnwise.rollout.settings import RolloutConfig
from turnwise.train.evaluation.watch import Observed, Responded, watch

DOORS = """
from turnwise.environments.base import Step

class Doors:
    def __init__(self, seed, fails=False, names=()):
        self.seed, self.fails, self.names, self.turn = seed, fails, names, 0

    def start(self):
        return Step(observation=f"[bold]door {self.seed}", admissible=["open [door]", "wait"] if self.names else None)

    async def step(self, response):
        if self.fails:
            raise OSError("the door is gone")
        self.turn += 1
        won = response == "open [door]"
        return Step(
            observation="it opens" if won else "nothing", reward=float(won), terminated=won, truncated=self.turn == 3,
            valid=won, info={"success": won}, admissible=["open [door]", "wait"] if self.names else None,
        )
"""
LISTED = 'environment.options.names=["a"]'


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """An empty working directory with an environment of one's own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_doors.py").write_text(DOORS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_doors", raising=False)
    return tmp_path


def play(monkeypatch, capsys, *arguments: str, typed: str = "") -> str:
    """Run `turnwise play` with what a person types; returns what is shown."""
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    assert main(["play", *arguments]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def refused(capsys, *arguments: str) -> str:
    assert main(["play", *arguments]) == 2
    err = capsys.readouterr().err
    assert err.startswith("turnwise: ")
    assert err.count("\n") == 1
    return err


def test_the_recorded_policy_plays_turn_by_turn(monkeypatch, capsys):
    shown = play(monkeypatch, capsys, "demo", "--seed", "3", "--task", "5")
    assert shown == play(monkeypatch, capsys, "demo", "--seed", "3", "--task", "5", "--delay", "0")
    assert "Your task is to:" in shown
    assert shown.count("\n> ") == shown.count(" nats\n") == shown.count("\n  reward ")
    assert "return " in shown.splitlines()[-1]
    assert shown != play(monkeypatch, capsys, "demo", "--seed", "3", "--task", "6")
    name = shown.splitlines()[0].split(": ")[1]
    assert play(monkeypatch, capsys, "demo", "--seed", "3", "--task", name) == shown
    assert name not in play(monkeypatch, capsys, "demo", "--split", "train")


def test_overrides_reach_environment_and_sampling(monkeypatch, capsys):
    shown = play(monkeypatch, capsys, "demo", "environment.max_steps=1", "evaluate.temperature=0")
    assert shown.count("\n> ") == 1
    assert shown.splitlines()[-1] == "no success, turn limit after 1 turn, return 0"


def test_what_is_watched_is_what_happened():
    """Every observation and response, with the mean entropy of its tokens, and the trajectory at the end."""
    policy = color_policy()

    class Twice:
        def start(self):
            self.turn = 0
            return "say red"

        def step(self, response):
            self.turn += 1
            return Step(observation="say blue", reward=1.5, truncated=self.turn == 2)

    environments = InProcessEnvironments(lambda task: Twice())
    *events, trajectory = watch(
        policy, LocalEngine(policy.model), environments, 0, RolloutConfig(), temperature=1.0, seed=4
    )
    kinds = [type(event) for event in events]
    assert kinds == [Observed, Responded, Observed, Responded, Observed]
    assert [event.response for event in events[1::2]] == [turn.response for turn in trajectory.turns]
    for event, turn in zip(events[1::2], trajectory.turns, strict=True):
        assert event.entropy == pytest.approx(sum(turn.behavior_entropies) / len(turn.behavior_entropies))
        assert event.entropy > 0
    assert [event.step.observation for event in events[::2]] == ["say red", "say blue", "say blue"]


def test_who_stops_watching_stops_the_game():
    policy, turns = color_policy(), []

    class Endless:
        def start(self):
            return "say red"

        def step(self, response):
            turns.append(response)
            time.sleep(0.01)
            return Step(observation="say red")

    settings = RolloutConfig(context="window", window=1)
    game = watch(
        policy,
        LocalEngine(policy.model),
        InProcessEnvironments(lambda task: Endless()),
        0,
        settings,
        temperature=1.0,
        seed=0,
    )
    next(game)
    game.close()
    played = len(turns)
    time.sleep(0.1)
    assert len(turns) == played


def test_a_person_plays_by_text_or_number(here, monkeypatch, capsys):
    shown = play(monkeypatch, capsys, "own_doors:Doors", LISTED, typed="?\n\n7\nopen [door]\n")
    assert "[bold]door" in shown  # not read as markup
    assert "  0 open [door]\n  1 wait\n" in shown
    assert "> 7\n  reward 0, not accepted\n\nnothing\n" in shown
    assert shown.endswith("  reward 1\n\nit opens\n\nsuccess after 2 turns, return 1\n")
    assert "success after 1 turn, return 1" in play(monkeypatch, capsys, "own_doors:Doors", LISTED, typed="0\n")
    assert "does not list its admissible actions" in play(monkeypatch, capsys, "own_doors:Doors", typed="?\nq\n")


def test_a_person_leaves_by_q_or_by_the_end_of_the_input(here, monkeypatch, capsys):
    for typed in ("wait\nq\nopen [door]\n", "wait\n"):
        shown = play(monkeypatch, capsys, "own_doors:Doors", "--task", "7", typed=typed)
        assert shown.endswith("nothing\n> you left the game\n" if "q" not in typed else "q\nyou left the game\n")


def test_a_person_plays_the_environment_of_a_run_or_a_recipe(monkeypatch, capsys):
    of_run = play(monkeypatch, capsys, "demo", "--human", typed="look\nq\n").splitlines()
    of_recipe = play(monkeypatch, capsys, "household-tiny-aem", typed="look\nq\n").splitlines()
    assert of_run == of_recipe
    assert "Your task is to:" in "\n".join(of_run)


def test_mistakes_are_one_line(here, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO("wait\n"))
    assert "Did you mean 'household'?" in refused(capsys, "houshold")
    assert "runs/nothing is not a run folder" in refused(capsys, "runs/nothing")
    assert "numbered from 0" in refused(capsys, "demo", "--task", "999999")
    assert "has no checkpoint of step 7; saved steps: 60" in refused(capsys, "demo", "--step", "7")
    assert "--step needs a run" in refused(capsys, "household", "--step", "7")
    assert "the door is gone" in refused(capsys, "own_doors:Doors", "environment.options.fails=true")
    with pytest.raises(SystemExit):
        main(["play", "demo", "--delay", "-1"])
    assert "expected seconds, 0 or more" in capsys.readouterr().err


def test_a_fault_of_the_environment_is_told(monkeypatch):
    policy = color_policy()

    class Broken:
        def start(self):
            raise OSError("the door is gone")

    environments = InProcessEnvironments(lambda task: Broken())
    (trajectory,) = watch(policy, LocalEngine(policy.model), environments, 0, RolloutConfig(), temperature=1, seed=0)
    assert "the door is gone" in trajectory.failure
    assert issubclass(EnvironmentFault, RuntimeError)


def test_on_a_terminal_enter_shows_the_next_turn_and_ctrl_c_ends_cleanly():
    demo.demo_run()
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "turnwise.commands.cli", "play", "demo"]
    player = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
    os.close(theirs)
    try:
        shown = read_until(ours, "Your task is to:")
        time.sleep(0.5)
        assert "nats" not in shown + read_now(ours)  # waits
        os.write(ours, b"\n")
        read_until(ours, "reward")
        time.sleep(0.5)  # it waits again: a signal on the way into input() counts only with the next key, as in Python
        player.send_signal(signal.SIGINT)
        rest = read_until(ours, "turnwise: interrupted")
        assert player.wait(30) == 130
        assert "Traceback" not in rest
    finally:
        player.kill()
        player.wait()
        os.close(ours)


def read_now(terminal: int) -> str:
    return os.read(terminal, 65536).decode() if select.select([terminal], [], [], 0)[0] else ""


def read_until(terminal: int, awaited: str, patience_s: float = 120) -> str:
    shown, end = "", time.monotonic() + patience_s
    while awaited not in shown:
        assert time.monotonic() < end, f"waited for {awaited!r}, got {shown!r}"
        if select.select([terminal], [], [], 0.1)[0]:
            shown += os.read(terminal, 65536).decode()
    return shown
