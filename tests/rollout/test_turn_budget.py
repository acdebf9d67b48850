"""Limits on turns: when a trajectory stops, that limits leave the rest as it was, and what the quantile learns from."""

import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.toys import Colors, color_policy, small_config
from tests.train.uneven import Uneven

from turnwise.base.errors import ConfigError
from turnwise.commands.cli import main
from turnwise.config import override_config
from turnwise.engines.local import LocalEngine
from turnwise.engines.models import Models, NamedModel
from turnwise.environments.hosts import InProcessEnvironments
from turnwise.environments.splits import split_seeds
from turnwise.extensions.continuations.play import Histories
from turnwise.extensions.turn_budget.budget import (
    Budgeted,
    TurnBudget,
    quantile_of,
    stops_after,
    turns_within,
)
from turnwise.extensions.turn_budget.settings import TurnBudgetConfig
from turnwise.lab.diagnostics.stage import Stage
from turnwise.lab.diagnostics.turn_budgets import Limit, compare_limits, spent
from turnwise.rollout.collectors import Independent
from turnwise.rollout.plays import play_tasks
from turnwise.rollout.settings import RolloutConfig
from turnwise.rollout.trajectory import Trajectory, Turn
from turnwise.train.checkpoint import latest_checkpoint, load_checkpoint
from turnwise.train.evaluation.play import panel
from turnwise.train.loop import train


@pytest.mark.parametrize(
    ("progress", "limit", "extend", "stop"),
    [
        ("11", 3, 0, False),
        ("111", 3, 0, True),
        ("001", 3, 2, False),
        ("100", 3, 2, True),
        ("0010", 3, 2, False),  # between two looks
        ("00100", 3, 2, True),
        ("00110", 3, 2, False),
        ("0000", 3, 1, True),
    ],
)
def test_a_trajectory_goes_on_while_it_progresses(progress, limit, extend, stop):
    assert stops_after([each == "1" for each in progress], limit, extend) == stop


def played(settings: dict[str, Any] | None, *, turns: int = 7, tasks: int = 6) -> list[Trajectory]:
    """Trajectories of a policy that guesses colors, with a budget as in an evaluation, or without one."""
    environments: Any = InProcessEnvironments(lambda task: Colors(task, turns=turns))
    rollout, policy = RolloutConfig(max_new_tokens=3), color_policy(spread=20.0, context=256)
    models = Models(policy=NamedModel(policy, LocalEngine(policy.model)))
    models.publish()
    if settings is None:
        collector: Any = Independent(environments, rollout)
    else:
        budget = TurnBudget(TurnBudgetConfig(**settings))
        collector = Budgeted(Independent(environments, rollout), budget)
    return play_tasks(collector, models, range(tasks), seed=0, group_size=2)


@pytest.mark.parametrize("extend", [0, 1, 2])
@pytest.mark.parametrize("limit", [1, 2, 4, 7])
def test_a_limited_trajectory_is_the_beginning_of_the_whole_one(limit, extend):
    """So that limits can be compared on one set of trajectories."""
    whole = played(None)
    limited = played({"name": "fixed", "turns": limit, "extend": extend})
    assert all(len(trajectory.turns) == 7 for trajectory in whole)
    for one, other in zip(limited, whole, strict=True):
        assert [turn.response_ids for turn in one.turns] == [t.response_ids for t in other.turns[: len(one.turns)]]
        assert len(one.turns) == turns_within(other, limit, extend)
        assert ("turn_budget" in one.info) == (len(one.turns) < 7)
        assert one.ended == ("truncated" if len(one.turns) < 7 else "terminated")
    if not extend:
        assert {len(one.turns) for one in limited} == {limit}
    elif limit == 1:
        assert len({len(one.turns) for one in limited}) > 1, "those that progress go on"


def test_training_spares_some_trajectories_and_learns_from_them_alone():
    """An evaluation limits every trajectory, and teaches nothing."""
    settings = TurnBudgetConfig(name="quantile", quantile=0.75, free_every=2, history=64)
    budget, tasks = TurnBudget(settings), range(8)
    budget.learn([3] * 16)
    rollout = RolloutConfig(group_size=2, max_new_tokens=3)
    collector = Budgeted(Independent(InProcessEnvironments(Uneven), rollout), budget)
    policy = color_policy(context=256)
    models = Models(policy=NamedModel(policy, LocalEngine(policy.model)))
    models.publish()
    whole = [Uneven(task).turns for task in tasks for _ in range(2)]
    evaluated = [len(each.turns) for each in play_tasks(collector, models, tasks, seed=0, group_size=2)]
    assert evaluated == [min(3, turns) for turns in whole] != whole
    assert budget.counts == [3] * 16
    trained = [len(each.turns) for each in play_tasks(collector, models, tasks, seed=0)]
    assert trained[::2] == whole[::2]
    assert trained[1::2] == evaluated[1::2]
    assert budget.counts == [3] * 16 + whole[::2]
    restored = TurnBudget(settings)
    restored.load_state_dict(json.loads(json.dumps(collector.state_dict())))
    assert restored.counts == budget.counts


def test_only_trajectories_without_a_limit_teach_the_quantile():
    """Known wrong: to count limited ones too. The limit can then fall but never rise, even if tasks get longer."""
    generator = np.random.default_rng(0)
    settings = TurnBudgetConfig(name="quantile", quantile=0.75, free_every=8, history=64)
    right, wrong = TurnBudget(settings), TurnBudget(settings)
    for step in range(80):
        whole = generator.geometric(0.3 if step < 20 else 0.1, size=32)
        right.learn([n for number, n in enumerate(whole) if right.is_free(number)])
        wrong.learn([min(n, wrong.limit or 1000) for n in whole])
    truth = np.quantile(generator.geometric(0.1, size=100_000), 0.75)  # 14, against 4 of the first tasks
    assert right.limit == pytest.approx(truth, abs=5)
    assert (wrong.limit or 0) <= 6


def test_no_limit_before_there_are_enough_counts():
    budget = TurnBudget(TurnBudgetConfig(name="quantile"))
    budget.learn([3] * 15)
    assert budget.limit is None
    budget.learn([9] * 4)
    assert budget.limit == 3
    budget.learn([9] * 600)
    assert (budget.limit, len(budget.counts)) == (9, 512)


def test_what_a_limit_saves_and_loses_by_hand():
    def trajectory(success: bool, turns: int) -> Trajectory:
        made = [Turn(f"o{i}", f"o{i}", [1, 2], [3], [0.0], "r", False) for i in range(turns)]
        return Trajectory(0, "t", made, success=success, ended="terminated")

    trajectories = [trajectory(True, 2), trajectory(True, 4), trajectory(False, 4)]
    whole, two = spent(trajectories), spent(trajectories, Limit(2))
    assert whole.read.tolist() == [2 + 5, 2 + 5 + 8 + 11, 26]
    assert whole.written.tolist() == [2, 4, 4]
    assert (two.success.tolist(), two.turns.tolist(), two.read.tolist()) == ([1, 0, 0], [2, 2, 2], [7, 7, 7])
    saved = compare_limits(trajectories, {"2": Limit(2)})["2"]
    assert saved.success.value == pytest.approx(-1 / 3)
    assert (saved.turns_frac, saved.written_frac, saved.read_frac) == pytest.approx((0.4, 0.4, 1 - 21 / 59))
    assert two.cost((2.0, 10.0)).tolist() == pytest.approx([(14 + 20) / 1e6] * 3)


def config_of(folder: Path, budget: dict[str, Any], environment: dict[str, Any] | None = None, **run: Any):
    return small_config(
        folder,
        run=run,
        environment=environment or {"options": {"turns": 4}},
        model={"max_context": 128},
        rollout={"groups": 4, "group_size": 8, "turn_budget": budget},
    )


def test_a_run_trains_and_evaluates_under_a_budget(tmp_path):
    records = train(config_of(tmp_path, {"name": "fixed", "turns": 2})).metrics()
    assert [record["rollout/turns"] for record in records if "rollout/turns" in record] == [2.0, 2.0]
    assert {record["eval/turns"] for record in records if "eval/turns" in record} == {2.0}
    assert all(record["rollout/turn_budget_frac"] == 1.0 for record in records if "rollout/turns" in record)


def test_a_learned_budget_resumes_and_evaluates(tmp_path, capsys):
    def config(folder: str, **run: Any):
        budget = {"name": "quantile", "quantile": 0.5, "free_every": 2, "history": 32}
        return config_of(tmp_path / folder, budget, {"name": "tests.train.uneven:Uneven"}, **run)

    whole, part = train(config("a", steps=4)), train(config("b", steps=2))
    resumed = train(override_config(config("b"), ["run.steps=4"]), resume=part.path)
    told = [[r.get("rollout/turns"), r.get("rollout/reward"), r.get("eval/turns")] for r in whole.metrics()]
    again = [[r.get("rollout/turns"), r.get("rollout/reward"), r.get("eval/turns")] for r in resumed.metrics()]
    assert told[-1] == again[-1]
    assert told[-2] == again[-2]
    _, _, states = load_checkpoint(latest_checkpoint(whole))
    limit = quantile_of(states["collector"]["counts"], 0.5)
    turns = [Uneven(task).turns for task in panel(split_seeds("valid", of="Uneven"), 16)]
    assert main(["eval", str(whole.path), "--episodes", "16"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["turns"] == np.minimum(turns, limit).mean() < np.mean(turns)


def test_the_command_compares_limits(tmp_path, capsys):
    made = train(config_of(tmp_path, {"name": "fixed", "turns": 4}))
    assert main(["analyse", "turns", str(made.path), "--limit", "1", "--tasks", "8", "--prices", "1,5"]) == 0
    lines = capsys.readouterr().out.split("\n")
    assert any(line.startswith("none") and "4.0" in line for line in lines)
    assert any(line.startswith("1 ") and "75%" in line for line in lines)
    assert main(["eval", str(made.path), 'rollout.turn_budget={name = "quantile"}']) == 2
    assert "has none; set rollout.turn_budget.name=fixed" in " ".join(capsys.readouterr().err.split())


def test_mistakes_are_told(tmp_path):
    for rollout, message in (
        ({"turn_budget": {"name": "fixed"}}, "set turns for 'fixed', and only there"),
        ({"turn_budget": {"name": "quantile", "turns": 3}}, "set turns for 'fixed', and only there"),
    ):
        with pytest.raises(ConfigError, match=message):
            small_config(tmp_path, rollout=rollout)


def test_an_analysis_goes_on_within_the_limit_of_the_trajectory_itself(tmp_path):
    """A second limit around a fork looked for progress one turn after the fork, and stopped there."""
    budget = {"name": "fixed", "turns": 4, "extend": 2}
    run = train(config_of(tmp_path, budget, {"options": {"turns": 9}}, steps=1))
    with contextlib.closing(Stage.open(run, 0)) as stage:
        played, tasks = stage.play_groups(8, 0)
        starts = [start for start in Histories.of(played, tasks).starts if len(start.turns) in (4, 6)]
        told = stage.play([start for start in starts for _ in range(8)], seed=7)
    lengths = {len(trajectory.turns) for trajectory in told}
    assert lengths <= {6, 8, 9}
    assert len(lengths) > 1


def test_histories_within_other_limits_are_other_histories(tmp_path):
    """The value of a first state is not that of a trajectory that is spared the limit."""
    environments: Any = InProcessEnvironments(lambda task: Colors(task, turns=7))
    budget = TurnBudget(TurnBudgetConfig(name="quantile", free_every=2))
    budget.learn([2] * 16)
    collector = Budgeted(Independent(environments, RolloutConfig(group_size=4, max_new_tokens=3)), budget)
    policy = color_policy(spread=20.0, context=256)
    models = Models(policy=NamedModel(policy, LocalEngine(policy.model)))
    models.publish()
    trajectories = play_tasks(collector, models, range(1), seed=0)
    assert [len(each.turns) for each in trajectories] == [7, 2, 7, 2]
    made = Histories.of(trajectories, [0])
    first = [made.before_R[row] for row in np.cumsum([0, 7, 2, 7])]
    assert first[0] == first[2] != first[1] == first[3]


def test_before_the_first_step_there_is_no_quantile_and_so_no_limit(tmp_path, capsys):
    budget = {"name": "quantile", "quantile": 0.5, "free_every": 2}
    run = train(config_of(tmp_path, budget, {"name": "tests.train.uneven:Uneven"}))
    asked = ["analyse", "pass-at-k", str(run.path), "--tasks", "4", "--samples", "2"]
    assert main(asked) == 0, capsys.readouterr().err
