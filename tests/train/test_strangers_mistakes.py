"""What strangers do: an agent that changes the working directory, names that are numbers, no evaluation."""

import os
from pathlib import Path

import pytest
from tests.gateway.asking import play_toy
from tests.toys import Colors, small_config

from turnwise.base.errors import RunError
from turnwise.commands.cli import main
from turnwise.environments.suites import make_suite
from turnwise.rollout.record import read_rollouts
from turnwise.train.loop import train


def play_elsewhere(task, endpoint):
    """Plays, and changes the working directory as agents that edit files do."""
    os.chdir("/")
    return play_toy(task, endpoint)


class Numbered:
    """Tasks whose names are numbers."""

    def __init__(self, config):
        self.config = config

    def tasks(self, split):
        return range(8)

    def task_name(self, task):
        return task

    def environment(self, task):
        return Colors(task)

    @staticmethod
    def words(**options):
        return Colors.words(**options)


def test_an_agent_that_changes_the_working_directory_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = small_config(
        Path("runs"), harness={"run": f"{__name__}:play_elsewhere"}, evaluate={"episodes": 0, "final_episodes": 0}
    )
    with pytest.raises(RunError, match=r'working directory changed from .* to /.*harness.isolation = "process"'):
        train(settings)
    monkeypatch.chdir(tmp_path)
    assert train(small_config(tmp_path / "absolute", harness={"run": f"{__name__}:play_elsewhere"})).metrics()


def test_names_of_tasks_may_be_numbers(tmp_path):
    settings = small_config(tmp_path, environment={"name": f"{__name__}:Numbered"})
    assert make_suite(settings.environment).task_name(3) == "3"
    run = train(settings)
    assert all(each.task.isdecimal() for each in read_rollouts(run.table("rollouts", 1))[0])


def test_a_comparison_of_runs_without_an_evaluation_says_so(tmp_path, capsys):
    never = {"episodes": 0, "final_episodes": 0}
    runs = [train(small_config(tmp_path / name, evaluate=never, run={"steps": 1})).path for name in "ab"]
    assert main(["compare", str(runs[0]), "--", str(runs[1])]) == 2
    said = capsys.readouterr().err
    assert "no run of A has an evaluation" in said
    assert "run `turnwise eval` on it, with a --panel for both" in said
