"""What plays trajectories again, for an agent behind the gateway: the numbers of the same game played natively."""

import contextlib
import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.gateway_fidelity import two_runs

from tests.gateway import late
from tests.gateway.late import late_config
from turnwise.base.errors import ConfigError, RunError
from turnwise.config import load_config
from turnwise.lab.diagnostics.fidelity_run import measure_run
from turnwise.lab.diagnostics.noise import measure_noise
from turnwise.lab.diagnostics.runs import RunLog
from turnwise.lab.diagnostics.stage import Stage
from turnwise.lab.diagnostics.turn_budgets import play_unlimited, spent
from turnwise.rollout.record import read_rollouts
from turnwise.rollout.starts import fork
from turnwise.train.folder import RunFolder
from turnwise.train.loop import train

BOTH = ("native", "harness")
CONTINUED = {"continuations": {"number": 2}}


def branching(rule: str, **options: Any) -> dict[str, Any]:
    return {"rollout": {"group_size": 6, "collector": {"name": "branching", "rule": rule, **options}}}


CASES: dict[str, dict[str, Any]] = {
    "vine_ppo": {"method": "vine_ppo", **CONTINUED},
    "tp_grpo": {"method": "tp_grpo", **CONTINUED},
    "spo_chain": {"method": "spo_chain", **CONTINUED},
    "the measure continued": {"measures": ["continued"], **CONTINUED},
    "prefix sampling": {
        "store": {"name": "prefix_sampling", "capacity": 64, "remaining": 0.45, "handicap": 0.55},
        "rollout": {"groups": 6, "group_size": 6},
    },
    **{rule: branching(rule) for rule in ("tree_grpo", "arpo", "v05", "rose")},
    "at2po": branching("at2po", expand=2),
    "carl": branching("carl", starts=3),
    "spo_tree": branching("spo_tree", branching=[3, 2], tokens=2),
    "treerl": branching("treerl", starts=2, tokens=1),
    "trees that are continued": {"method": "vine_ppo", **CONTINUED, **branching("tree_grpo")},
    "ahead": {"method": "vine_ppo", **CONTINUED, "rollout": {"max_lag": 1}},
}


@pytest.mark.parametrize("name", CASES)
def test_training_that_plays_again_has_the_numbers_of_the_native_game(tmp_path, name):
    runs = [train(late_config(tmp_path, player, **CASES[name])) for player in BOTH]
    for step in (1, 2):
        (one, columns), (other, theirs) = (read_rollouts(run.rollouts / f"step-00000{step}.parquet") for run in runs)
        assert [trajectory.failure for trajectory in other] == [None] * len(one)
        tokens = [[[turn.response_ids for turn in each.turns] for each in played] for played in (one, other)]
        assert tokens[0] == tokens[1]
        assert [each.shared for each in one] == [each.shared for each in other]
        assert columns.keys() == theirs.keys()
        for column in ("advantage", "value", "reward"):
            if column in columns:
                np.testing.assert_allclose(columns[column], theirs[column], atol=1e-5)
    assert any(columns["advantage"] != 0)


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> list[RunFolder]:
    folder = tmp_path_factory.mktemp("runs")
    return [train(late_config(folder, player)) for player in BOTH]


def test_fidelity_of_a_harness_is_that_of_its_environment(runs):
    native, harness = (
        measure_run(run, ["grpo", "gigpo", "vine_ppo"], groups=4, continuations=4, gradient=True) for run in runs
    )
    assert (harness.failed, harness.histories) == (0, native.histories)
    for name, one in native.fidelities.by_method.items():
        assert harness.fidelities.by_method[name].value == pytest.approx(one.value, abs=1e-4)
    assert harness.gradient is not None
    effects = [one.replayed.effects for one in (native, harness)]
    np.testing.assert_allclose(effects[0].effect_R, effects[1].effect_R)
    assert effects[0].defined_R.any()


def test_noise_of_a_harness_is_that_of_its_environment(runs):
    native, harness = (measure_noise(run, ["grpo", "gigpo"], groups=4) for run in runs)
    for name, one in native.items():
        assert harness[name].noise == pytest.approx(one.noise, rel=1e-3)


def test_limits_on_turns_of_a_harness_are_those_of_its_environment(runs):
    native, harness = (play_unlimited(RunLog(*RunFolder.open(run.path)), None, tasks=4) for run in runs)
    np.testing.assert_array_equal(spent(native).turns, spent(harness).turns)
    np.testing.assert_array_equal(spent(native).read, spent(harness).read)


@pytest.mark.parametrize("player", BOTH)
def test_a_turn_budget_ends_what_is_analysed(tmp_path, player):
    config = late_config(tmp_path, player, rollout={"turn_budget": {"name": "fixed", "turns": 2}}, run={"steps": 1})
    with contextlib.closing(Stage.open(train(config), None)) as stage:
        played, tasks = stage.play_groups(3, seed=0)
        again = stage.play([fork(each, 1, tasks[each.group]) for each in played if len(each.turns) > 1], seed=1)
    assert {len(each.turns) for each in played} <= {1, 2}
    assert {(each.failure, len(each.turns), each.ended) for each in again} == {(None, 2, "truncated")}


def test_an_agent_whose_suite_has_no_environment_is_played_again_all_the_same(tmp_path):
    config = late_config(
        tmp_path, "harness", environment={"name": "tests.gateway.late:OnlyTasks"}, method="vine_ppo", **CONTINUED
    )
    found = measure_run(train(config), ["grpo", "gigpo"], groups=4, continuations=4)
    assert found.failed == found.diverged == 0


RATE = r"(\d+) of (\d+) replays diverged \((\d+)%\).* `turnwise check-harness` .*; the last one: harness: the replay "


NEEDING: dict[str, Any] = {
    r"\[continuations\]": {"method": "vine_ppo", **CONTINUED},
    "rollout.collector='branching'": branching("tree_grpo"),
    "store.name='prefix_sampling'": CASES["prefix sampling"],
}
REFUSED = r".* replays turns, but the agent repeats in only (\d) of 8 tasks \((\d+)%\) .*; the first difference: task "


@pytest.mark.parametrize("setting", NEEDING)
def test_an_agent_that_does_not_repeat_is_refused_at_first_with_the_measured_rate(tmp_path, setting):
    with pytest.raises(ConfigError, match=setting + REFUSED) as refused:
        train(late_config(tmp_path, "clock", **NEEDING[setting]))
    same, share = map(int, re.match(REFUSED, str(refused.value)).groups())  # pyright: ignore
    assert share == round(100 * same / 8) < 50
    assert not [*tmp_path.iterdir()], "the corrected recipe finds the name free"


def test_an_analysis_refuses_an_agent_that_does_not_repeat_before_it_plays_on(tmp_path):
    run = train(late_config(tmp_path, "clock"))
    with pytest.raises(ConfigError, match=f"this analysis{REFUSED}"):
        measure_run(run, ["grpo"], groups=4, continuations=4)


def test_an_agent_that_stops_repeating_ends_what_needs_it_with_the_measured_rate(tmp_path, monkeypatch):
    monkeypatch.setattr(late, "STARTED", itertools.count())
    with pytest.raises(RunError, match=RATE) as refused:
        train(late_config(tmp_path, "late clock", method="vine_ppo", **CONTINUED))
    diverged, played, share = map(int, re.match(RATE, str(refused.value)).groups())  # pyright: ignore
    assert 16 <= played <= 72
    assert share == round(100 * diverged / played) > 50


@pytest.mark.slow
def test_fidelity_in_household_games_through_the_gateway_agrees_within_its_interval(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    sizes = ["run.steps=4", "evaluate.every=0", "evaluate.final_episodes=8", "run.threads=1", "rollout.groups=8"]
    config = load_config(Path("household-tiny-aem"), [f"run.folder={tmp_path}", "run.name=native", *sizes])
    runs = two_runs(config, "household_agent:play_tiny")
    native, gateway = (measure_run(run, ["grpo", "gigpo"], groups=10, continuations=4) for run in runs.values())
    assert (gateway.failed, gateway.histories) == (0, native.histories)
    for name, one in native.fidelities.by_method.items():
        assert one.low <= gateway.fidelities.by_method[name].value <= one.high
        assert one.value > 0
