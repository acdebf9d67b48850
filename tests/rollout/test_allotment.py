"""V_0's use in training: the utility, how it is divided, what the value model predicts, and that a run resumes."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.toys import COLORS, color_policy, small_config

from turnwise.base.errors import ConfigError
from turnwise.commands.cli import main
from turnwise.config import override_config
from turnwise.engines.local import LocalEngine
from turnwise.engines.models import Models, NamedModel
from turnwise.environments.base import Step
from turnwise.environments.hosts import InProcessEnvironments
from turnwise.extensions.v0.collector import Allotted, ValueModel, allot, utility
from turnwise.rollout.collectors import make_collector
from turnwise.rollout.plays import play_tasks
from turnwise.rollout.settings import RolloutConfig
from turnwise.train.checkpoint import latest_checkpoint
from turnwise.train.folder import RunFolder
from turnwise.train.loop import train

V0: dict[str, Any] = {"name": "v0", "least": 2, "most": 16, "sharpness": 4.0}


@pytest.mark.parametrize(("p", "expected"), [(0.1, 3.76), (0.25, 5.20), (0.5, 3.97), (0.9, 0.80), (0.0, 0), (1.0, 0)])
def test_the_utility_of_eight_trajectories(p, expected):
    assert utility(np.array([8]), np.array([p]))[0] == pytest.approx(expected, abs=0.005)
    assert utility(np.array([0, 1]), np.array([p, p])).tolist() == [0, 0]


@pytest.mark.parametrize("p", [0.2, 0.5, 0.8])
def test_the_utility_counts_failures_beside_a_success(p):
    """By all outcomes of four trajectories."""
    total = 0.0
    for outcome in itertools.product([0, 1], repeat=4):
        if any(outcome):
            total += outcome.count(0) * p ** sum(outcome) * (1 - p) ** outcome.count(0)
    assert utility(np.array([4]), np.array([p]))[0] == pytest.approx(total)


def test_trajectories_go_where_the_next_one_adds_most():
    p = np.array([0.01, 0.3, 0.6, 0.99])
    sizes = allot(p, 32, least=2, most=14)
    assert sizes.sum() == 32
    assert sizes[1] == 14, "the most"
    assert sizes.min() == 2
    assert sizes[2] > 8
    none = allot(p, 32, least=0, most=16)
    assert none.tolist() == [0, 16, 16, 0]
    for place in range(4):  # no trajectory would add more elsewhere
        gain = utility(sizes + 1, p) - utility(sizes, p)
        lost = utility(sizes, p) - utility(sizes - 1, p)
        if sizes[place] > 2:
            assert lost[place] >= gain[sizes < 14].max() - 1e-12


def test_without_a_difference_all_get_the_same():
    assert allot(np.full(4, 0.5), 32, least=2, most=16).tolist() == [8] * 4


@pytest.mark.parametrize("least", [0, 2])
def test_the_budget_is_played_and_no_task_gets_one_trajectory(least):
    assert allot(np.zeros(3), 12, least=least, most=16).sum() == 12
    assert allot(np.full(2, 0.5), 100, least=least, most=9).tolist() == [9, 9], "the rest is not played"
    assert 1 not in allot(np.full(3, 0.5), 7, least=0, most=9)


def test_the_value_model_by_hand():
    """Likeness of "a b" and "a c": 2 * 1 / 4."""
    model = ValueModel(4, sharpness=1.0)
    assert model.predict(["x"]).tolist() == [0.5]
    model.learn([("a b", True), ("a b", True), ("a c", False)])
    assert model.predict(["a b", "a c", "d"]) == pytest.approx([3 / 4.5, 2 / 4, 1 / 2])
    sharp = ValueModel(4, sharpness=2.0)
    sharp.learn(list(model.pairs))
    assert sharp.predict(["a b"]) == pytest.approx([3 / 4.25])
    model.learn([("d", False), ("d", False)])
    assert list(model.pairs) == [("a b", True), ("a c", False), ("d", False), ("d", False)], "the oldest left"


KINDS = ("hard", "fair", "easy")


class Kinds:
    """Tasks of three kinds, which the prompt names; the words are numbers of each task."""

    def __init__(self, task: int):
        self.task, self.kind = task, KINDS[task % 3]

    @staticmethod
    def words() -> list[str]:
        return [*KINDS, *COLORS, *(str(number) for number in range(10))]

    def start(self) -> str:
        return f"{self.kind} {self.kind} {self.kind} {self.task}"

    def step(self, response: str) -> Step:
        word = response.split()[:1]
        won = self.kind == "easy" or (self.kind == "fair" and word != ["red"] and len(response) % 2 == 0)
        return Step(observation="", reward=float(won), terminated=True, info={"success": won})


def collector_of(environment: Any = Kinds, **options: Any) -> Any:
    settings = RolloutConfig.model_validate(
        {"groups": 6, "group_size": 8, "max_new_tokens": 3, "collector": {**V0, **options}}
    )
    return make_collector(settings, InProcessEnvironments(environment), str)


def models_of() -> Models:
    policy = color_policy(spread=4.0)
    models = Models(policy=NamedModel(policy, LocalEngine(policy.model)))
    models.publish()
    return models


def sizes_of(played: Any, num: int) -> np.ndarray:
    return np.bincount([each.group for each in played], minlength=num)


def test_tasks_that_teach_get_the_trajectories():
    """Fails if the budget is not allotted. The tasks of the last step are new: only their prompts are known."""
    collector, models = collector_of(), models_of()
    first = play_tasks(collector, models, range(6), seed=1)
    assert sizes_of(first, 6).tolist() == [8] * 6
    for step in range(2, 6):
        play_tasks(collector, models, range(6 * step, 6 * step + 6), seed=step)
    last = play_tasks(collector, models, range(90, 96), seed=9)
    sizes = sizes_of(last, 6)
    assert sizes.sum() == 48
    assert (sizes[[1, 4]] == 16).all(), "the fair ones get the most"
    assert sizes[[0, 2, 3, 5]].sum() == 16
    told = {each.group: each.info["predicted_success"] for each in last}
    assert told[0] < 0.2 < told[1] < 0.9 < told[2]
    none = collector_of(least=0)
    assert sizes_of(play_tasks(none, models, range(6), seed=1), 6).tolist() == [8] * 6, "nothing is known yet"
    none.load_state_dict(collector.state_dict())
    assert 0 in sizes_of(play_tasks(none, models, range(90, 96), seed=9), 6)


def test_evaluations_have_one_size_and_teach_nothing():
    collector, models = collector_of(), models_of()
    play_tasks(collector, models, range(6), seed=1)
    state = collector.state_dict()
    played = play_tasks(collector, models, range(6), seed=1, group_size=3, temperature=1.0)
    assert sizes_of(played, 6).tolist() == [3] * 6
    assert collector.state_dict() == state
    assert "predicted_success" not in played[0].info


class Gone(Kinds):
    """Has no first observation."""

    def start(self) -> str:
        raise OSError("gone")


def test_an_environment_that_fails_loses_its_trajectories_only():
    collector = collector_of(lambda task: (Gone if task == 1 else Kinds)(task))
    played = play_tasks(collector, models_of(), range(3), seed=1)
    assert {each.group for each in played if each.failure} == {1}
    assert len(collector.state_dict()["pairs"]) == 16


def config_of(folder: Path, **sections: Any):
    return small_config(
        folder,
        **{
            "environment": {"name": "tests.rollout.test_allotment:Kinds"},
            "rollout": {"groups": 6, "group_size": 8, "collector": V0},
            "evaluate": {"every": 0},
            "checkpoint": {"every": 1},
            **sections,
        },
    )


@pytest.mark.parametrize("least", [0, 2])
def test_a_resumed_run_is_the_same_to_the_bit(tmp_path, least):
    given = {"rollout": {"groups": 6, "group_size": 4, "collector": {**V0, "least": least}}}
    whole = train(config_of(tmp_path / "whole", run={"steps": 4}, **given))
    part = train(config_of(tmp_path / "part", run={"steps": 2}, **given))
    part = train(override_config(RunFolder.open(part.path)[1], ["run.steps=4"]), resume=part.path)
    one, other = ((latest_checkpoint(folder) / "model.safetensors").read_bytes() for folder in (whole, part))
    assert one == other
    lines = [[line for line in folder.metrics() if "rollout/success" in line] for folder in (whole, part)]
    last = [(each[-1]["rollout/brier"], each[-1]["rollout/group_size_max"], each[-1]["update/loss"]) for each in lines]
    assert last[0] == last[1]
    assert lines[0][-1]["rollout/group_size_max"] > 4
    assert main(["eval", str(part.path), "--episodes", "4"]) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"least": 1}, r"rollout\.collector\.least=1: expected 0, or 2 to rollout\.group_size=8"),
        ({"most": 4}, r"rollout\.collector\.most=4: expected rollout\.group_size=8 or more"),
        ({"sharpness": 0.0}, r"rollout\.collector\.sharpness=0\.0: expected a positive number"),
        ({"context": 0}, r"rollout\.collector\.context=0: expected 1 or more"),
    ],
)
def test_wrong_options_are_said(options, message):
    with pytest.raises(ConfigError, match=message):
        collector_of(**options)


@pytest.mark.parametrize(
    ("rollout", "message"),
    [
        ({"collector": {"name": "v0", "least": 2, "most": 8}}, r"sharpness"),
        ({"collector": {**V0, "leest": 2}}, r"leest"),
    ],
    ids=str,
)
def test_a_run_that_cannot_start_says_why(tmp_path, rollout, message):
    with pytest.raises(ConfigError, match=message):
        train(config_of(tmp_path, rollout={"groups": 6, "group_size": 8, **rollout}))


def test_it_is_the_collector_that_the_recipe_names():
    assert isinstance(collector_of(), Allotted)
