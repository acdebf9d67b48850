"""A failure names its turn where a person reads one trajectory, and not where failures are counted."""

import io

import pytest
from tests.rollout.hostile import Hostile
from tests.rollout.test_workers import play
from tests.toys import Colors

from turnwise.commands.cli import main
from turnwise.environments.base import Step
from turnwise.environments.check import check_environment
from turnwise.environments.hosts import InProcessEnvironments
from turnwise.environments.settings import EnvironmentConfig
from turnwise.environments.suites import make_suite
from turnwise.environments.workers import WorkerEnvironments
from turnwise.rollout.failures import placed_failure
from turnwise.rollout.trajectory import Trajectory, Turn
from turnwise.train.evaluation.play import common_failure

NAN = "environment: EnvironmentFault: the environment returned a reward of nan, expected a finite number"


def turn() -> Turn:
    return Turn("", "", [1], [1], [0.0], "", False)


@pytest.mark.parametrize("make", [InProcessEnvironments, lambda made: WorkerEnvironments(made, workers=1)])
def test_a_failure_names_its_turn_and_equal_causes_stay_equal(make):
    trajectories = play(make(Hostile), [(0, 4, "nan"), (1, 4, "constructor"), (2, 4, "nan")])
    nan, built, again = trajectories
    assert nan.failure == again.failure
    assert (nan.failure or "").startswith(NAN)
    assert (placed_failure(nan) or "").endswith(" (at turn 2)")
    assert (placed_failure(built) or "").endswith(" (at the start)")
    assert common_failure(trajectories) == f"2 x {nan.failure} (first in task {nan.task!r}, at turn 2)"
    assert common_failure([built]) == f"1 x {built.failure} (in task {built.task!r}, at the start)"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"failure": "engine: lost", "turns": [turn()]}, "engine: lost (at turn 1)"),
        ({"failure": "harness: exit code 3", "turns": [turn(), turn()]}, "harness: exit code 3 (after turn 2)"),
        ({"failure": "harness: exit code 3"}, "harness: exit code 3 (at the start)"),
        ({"failure": "log: the log gives no reward", "turns": [turn()]}, "log: the log gives no reward"),
        ({"failure": "environment: a replay, turn 1", "turns": [turn()], "shared": 1}, "environment: a replay, turn 1"),
        ({}, None),
    ],
)
def test_every_kind_of_failure_says_where(given, told):
    assert placed_failure(Trajectory(0, "task", **given)) == told


def test_turns_that_differ_are_one_cause():
    failed = [Trajectory(0, f"task {number}", [turn()] * number, failure="environment: nan") for number in (3, 1, 2)]
    assert common_failure(failed) == "3 x environment: nan (first in task 'task 3', at turn 3)"


class Nan(Colors):
    """Gives a reward of nan, or rewards with None, in the second turn."""

    def __init__(self, seed: int, *, several: bool = False):
        super().__init__(seed)
        self.played, self.several = 0, several

    def step(self, response: str) -> Step:
        self.played += 1
        wrong = {"rewards": {"goal": None}} if self.several else {"reward": float("nan")}
        return Step(observation="again", terminated=self.played == 3, **(wrong if self.played == 2 else {}))


def test_a_person_who_plays_is_told_the_turn(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO("red\nred\nred\n"))
    assert main(["play", f"{__name__}:Nan"]) == 2
    told = capsys.readouterr().err
    assert "reward of nan" in told
    assert told.rstrip().endswith("(at turn 2)")


@pytest.mark.parametrize("several", [False, True])
def test_the_check_names_the_key_and_the_turn(several):
    config = EnvironmentConfig(name=f"{__name__}:Nan", options={"several": several})
    (found, *_) = [problem.what for problem in check_environment(make_suite(config))]
    assert "turn 2" in found
    assert ("rewards['goal']" if several else "reward at turn 2 is nan") in found
