"""What a fidelity analysis of a run measures: exact values, and what it says of what fails, ties or does not fit."""

import dataclasses
import json
import re
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from tests.toys import COLORS, Colors, small_config, trajectory

from turnwise.base.errors import ConfigError, RunError
from turnwise.commands.cli import main
from turnwise.credit.batch import Batch
from turnwise.credit.segments import Segments
from turnwise.environments.base import Step
from turnwise.environments.suites import Seeded
from turnwise.extensions.continuations.play import Histories
from turnwise.lab.diagnostics import fidelity_run
from turnwise.lab.diagnostics.fidelity import Fidelities, Importance
from turnwise.lab.diagnostics.fidelity_gradient import Errors, compare_gradients
from turnwise.lab.diagnostics.fidelity_run import FidelityOfRun, fidelity_method, measure_run
from turnwise.lab.diagnostics.fidelity_show import (
    as_json,
    critics_lines,
    fidelity_table,
    lacking_lines,
    places_table,
    verdict,
)
from turnwise.lab.diagnostics.stage import Stage
from turnwise.lab.diagnostics.statistics import Interval
from turnwise.lab.diagnostics.values import Truth, continue_histories, estimated_values, true_advantages
from turnwise.models.policy import Policy
from turnwise.rollout.context import make_context
from turnwise.rollout.starts import Start
from turnwise.train.folder import RunFolder
from turnwise.train.loop import train

HERE = "tests.diagnostics.test_fidelity_run"


class Moody(Colors):
    """Breaks down in a fifth of its continuations, which no trajectory tells apart."""

    calls = 0

    def step(self, response: str) -> Step:
        Moody.calls += 1
        if Moody.calls > 60 and Moody.calls % 5 == 0:
            raise OSError("gone")
        return super().step(response)


def opened(folder, **sections: Any) -> RunFolder:
    return RunFolder.open(train(small_config(folder, run={"steps": 1}, **sections)).path)[0]


def chance_of(policy: Policy, ids: list[int], color: str, said: tuple[int, ...] = ()) -> float:
    """Compute the probability that a response's first word is a color; some tokens, such as the end, show no word."""
    if words := policy.format.text(list(said)).split():
        return float(words[0] == color)
    if len(said) == 3 or (said and said[-1] == policy.format.stop_id):
        return 0.0
    with torch.no_grad():
        chances = torch.softmax(policy.model(torch.tensor([[*ids, *said]])).logits[0, -1], -1).tolist()
    return sum(chance * chance_of(policy, ids, color, (*said, token)) for token, chance in enumerate(chances))


def test_values_are_the_exact_ones(tmp_path):
    """With one turn V is the probability that the policy's first word is the right color, read from its softmax."""
    folder = opened(tmp_path)
    found = measure_run(folder, ["grpo"], step=0, groups=8, continuations=200)
    stage = Stage.open(folder, 0)
    stage.close()
    table, exact = found.responses.to_pylist(), []
    for row in table:
        context = make_context(stage.policy.format, 0, window=None, stride=1)
        context.observe(Step(observation=row["observation"]))
        value = chance_of(stage.policy, context.ids, Colors.color(int(row["task"]), 0))
        exact.append(row["reward"] - value)
    z = (np.array([row["true"] for row in table]) - exact) / [row["error"] for row in table]
    per_group = z[:: len(z) // 8]  # responses of a group share their history
    assert len(set(per_group.round(6))) == 8
    assert np.abs(per_group).max() < 4
    assert 0.2 < np.mean(per_group**2) < 3


def test_a_failed_continuation_is_left_out_and_its_history_stays_known(tmp_path, monkeypatch):
    return_HK = np.array([[1.0, np.nan, 3.0], [np.nan, np.nan, 4.0], [2.0, 2.0, 5.0]])
    mean_H, variance_H = estimated_values(return_HK)
    assert mean_H == pytest.approx([2.0, np.nan, 3.0], nan_ok=True)
    assert variance_H == pytest.approx([2 / 2, np.nan, 3 / 3], nan_ok=True)
    truth = true_advantages(np.zeros(2), np.array([0, 2]), np.array([1, -1]), return_HK)
    assert truth.known_R.tolist() == [False, True]

    folder = opened(tmp_path, environment={"name": f"{HERE}:Moody", "options": {"turns": 2}})
    monkeypatch.setattr(Moody, "calls", 0)
    found = measure_run(folder, ["grpo"], step=0, groups=6, continuations=8)
    assert found.failed > 20
    assert found.unknown == 0
    assert f"{found.failed} of {8 * found.histories} continuations failed" in lacking_lines(found)[0]
    assert as_json(found)["failed"] == found.failed


def test_one_task_that_does_not_repeat_costs_its_own_histories_only():
    def play(starts, *, seed):
        return [trajectory(0, ([1], [5]), failure="differs" if start.task == "bad" else None) for start in starts]

    tasks = ["bad", "good", "good"]
    starts = [Start(task, group, task) for group, task in enumerate(tasks)]
    returns = continue_histories(starts, 2, play, at_once=2, seed=0)
    assert np.isnan(returns).all(1).tolist() == [True, False, False]
    with pytest.raises(RunError, match="all 6 continuations failed; the last one: differs"):
        continue_histories([Start("bad", 0, "bad")] * 9, 2, play, at_once=2, seed=0)


def test_another_seed_or_one_other_token_does_not_read_kept_returns(tmp_path):
    def kept(token: int, continuations: int = 2, seed: int = 0, step: int = 3):
        found = Histories.of([trajectory(0, ([1], [token]), ([1], [6]))], ["x"])
        return fidelity_run._Kept(tmp_path, step, found, continuations, seed).path

    paths = [kept(5), kept(7), kept(5, continuations=3), kept(5, seed=1), kept(5, step=4)]
    assert len(set(paths)) == 5
    assert kept(5) == paths[0]


def two_groups(entropy: list[float], states: list[str]) -> tuple[Batch, list]:
    """Two groups of two trajectories of two turns."""
    batch = Batch(
        Segments.from_lengths([2, 2]),
        Segments.from_lengths([2] * 4),
        [0.0] * 8,
        {"entropy": np.array(entropy), "state_key": states},
    )
    played = [trajectory(number // 2, ([1], [5]), ([1], [6])) for number in range(4)]
    return batch, played


def test_the_breakdown_by_hand():
    batch, played = two_groups([0.1, 0.9, 0.2, 0.8, 0.3, 0.7, 0.4, 0.6], ["a", "b", "a", "c", "a", "a", "d", "e"])
    played[1].turns[1].valid = False
    truth = Truth(np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]), np.zeros(8))
    kinds = {one.kind: one for one in fidelity_run._importance(batch, truth, played, {})}
    assert kinds["entropy, surest fifth"].square.value == pytest.approx((1 + 9) / 2)  # 0.1, 0.2
    assert kinds["entropy, most uncertain fifth"].square.value == pytest.approx((4 + 16) / 2)  # 0.9, 0.8
    assert kinds["entropy, surest fifth"].alpha > 1 > kinds["entropy, most uncertain fifth"].alpha
    assert kinds["turn 1"].square.value == pytest.approx((1 + 9 + 25 + 49) / 4)
    assert (kinds["invalid"].share, kinds["invalid"].square.value) == (1 / 8, 16)
    several = kinds["state of several trajectories"]  # "a" of the first group; the second has it in one trajectory
    assert (several.share, several.square.value) == (2 / 8, (1 + 9) / 2)


def test_tied_entropies_stay_in_one_fifth_and_leave_the_ends_their_names():
    batch, played = two_groups([0.0, 0.0, 0.5, 0.6, 0.7, 0.8, 2.0, 2.0], list("abcdefgh"))
    truth = Truth(np.ones(8), np.zeros(8))
    kinds = {one.kind: one for one in fidelity_run._importance(batch, truth, played, {})}
    assert kinds["entropy, surest fifth"].share == kinds["entropy, most uncertain fifth"].share == 2 / 8
    batch, played = two_groups([0.5] * 8, list("abcdefgh"))
    kinds = [one.kind for one in fidelity_run._importance(batch, truth, played, {})]
    assert [kind for kind in kinds if kind.startswith("entropy")] == ["entropy, third fifth"]


def test_turns_are_told_apart_up_to_the_third_and_then_in_ranges_whose_ends_double():
    lengths = [7, 3, 4, 60]
    columns = {"entropy": np.zeros(74), "state_key": list(range(74))}
    batch = Batch(Segments.from_lengths([2, 2]), Segments.from_lengths(lengths), [0.0] * 74, columns)
    played = [trajectory(number // 2, *[([1], [5])] * turns) for number, turns in enumerate(lengths)]
    truth = Truth(np.arange(74.0), np.zeros(74))
    kinds = {one.kind: one for one in fidelity_run._importance(batch, truth, played, {}) if one.kind.startswith("turn")}
    counts = {"turn 1": 4, "turn 2": 4, "turn 3": 4, "turns 4 to 6": 3 + 1 + 3, "turns 7 to 12": 1 + 6}
    counts |= {"turns 13 to 24": 12, "turns 25 to 48": 24, "turn 49 and later": 12}
    assert {name: one.share for name, one in kinds.items()} == pytest.approx({n: c / 74 for n, c in counts.items()})
    assert kinds["turn 3"].square.value == pytest.approx((2**2 + 9**2 + 12**2 + 16**2) / 4)
    fourth_to_sixth = np.array([3, 4, 5, 13, 17, 18, 19])
    assert kinds["turns 4 to 6"].square.value == pytest.approx((fourth_to_sixth**2).mean())
    assert kinds["turn 49 and later"].square.value == pytest.approx((np.arange(62, 74) ** 2).mean())


def measured(**fields: Any) -> FidelityOfRun:
    """An analysis that found nothing but what is given."""
    names = (field.name for field in dataclasses.fields(FidelityOfRun))
    return FidelityOfRun(**(dict.fromkeys(names) | fields))


@pytest.mark.parametrize(
    ("surest", "least_sure", "said"),
    [
        ((0.8, 1.2), (0.2, 0.7), "The surest fifth .* modulation favours the right ones"),
        ((0.2, 0.7), (0.8, 1.2), "The most uncertain fifth .* modulation favours the wrong ones"),
        ((0.8, 1.2), (0.7, 1.1), "not shown: their intervals overlap"),
        ((0.7, 1.1), (0.8, 1.2), "not shown: their intervals overlap"),
        (None, (0.8, 1.2), "Entropies hardly differ"),
    ],
)
def test_the_verdict_on_aem_follows_from_the_intervals(surest, least_sure, said):
    ends = {"entropy, surest fifth": surest, "entropy, most uncertain fifth": least_sure}
    found = [Importance(kind, 0.2, Interval(sum(at) / 2, *at), 1.0, None) for kind, at in ends.items() if at]
    assert re.search(said, verdict(measured(importance=found)))


def test_the_table_and_what_critics_explain_by_hand():
    by_method = {"grpo": Interval(0.5, 0.4, 0.6), "gigpo": Interval(0.8, 0.7, 0.9), "rloo": Interval(0.1, -0.1, 0.3)}
    above = {"gigpo": Interval(0.3, 0.1, 0.5), "rloo": Interval(-0.4, -0.6, -0.2)}
    found = measured(fidelities=Fidelities(by_method, above), explained={"state": 0.456, "state and peers": -0.2})
    assert fidelity_table(found) == [
        ("method", "fidelity", "minus grpo", "needed", "entropy drift"),
        ("gigpo", "0.800 [0.700, 0.900]", "+0.300 [+0.100, +0.500]", "1.6 x", "-"),
        ("grpo", "0.500 [0.400, 0.600]", "-", "4.0 x", "-"),
        ("rloo", "0.100 [-0.100, 0.300]", "-0.400 [-0.600, -0.200]", "not seen", "-"),
    ]
    assert critics_lines(found) == [
        "Share of the variance of true values that a critic explains: 0.46 from the state, -0.20 from the state and "
        "peers."
    ]
    assert critics_lines(measured(explained={})) == []


def test_methods_with_the_same_credit_are_one_row():
    by_method = {"grpo": Interval(0.5, 0.4, 0.6), "rloo": Interval(0.8, 0.7, 0.9), "dr_grpo": Interval(0.8, 0.7, 0.9)}
    above = {name: Interval(0.3, 0.1, 0.5) for name in ("rloo", "dr_grpo")}
    credit = {"as:grpo": [1.0, 2.0], "as:rloo": [3.0, -1.0], "as:dr_grpo": [3.0, -1.0]}
    found = measured(fidelities=Fidelities(by_method, above), responses=pa.table(credit))
    assert [row[0] for row in fidelity_table(found)] == ["method", "rloo = dr_grpo", "grpo"]
    other = measured(fidelities=Fidelities(by_method, above), responses=pa.table(credit | {"as:dr_grpo": [3.0, -2.0]}))
    assert [row[0] for row in fidelity_table(other)] == ["method", "rloo", "dr_grpo", "grpo"]


def test_where_credit_is_close_to_the_truth_by_hand():
    by_method = {"grpo": Interval(0.5, 0.4, 0.6), "gigpo": Interval(0.8, 0.7, 0.9)}
    found = Fidelities(by_method, {"gigpo": Interval(0.3, 0.1, 0.5)})
    credit = {"as:grpo": [1.0, 2.0], "as:gigpo": [3.0, -1.0]}
    kinds = [Importance(kind, 0.2, Interval(1.0, 1.0, 1.0), 1.0, there) for kind, there in (("a", found), ("b", None))]
    given = {"fidelities": found, "responses": pa.table(credit), "importance": kinds}
    assert places_table(measured(**given)) == [
        ("responses", "grpo", "gigpo - grpo"),
        ("a", "0.500 [0.400, 0.600]", "+0.300 [+0.100, +0.500]"),
    ]
    equal = pa.table({"as:grpo": [1.0, 2.0], "as:gigpo": [1.0, 2.0]})
    assert places_table(measured(**given | {"responses": equal})) == [], "nothing to compare"


def test_the_interval_of_a_mean_square_does_not_go_below_0():
    batch, played = two_groups([0.1, 0.9, 0.2, 0.8, 0.3, 0.7, 0.4, 0.6], ["a", "b", "a", "c", "a", "a", "d", "e"])
    truth = Truth(np.array([9.0, 9.0, 9.0, 9.0, 0.1, 0.1, 0.1, 0.1]), np.zeros(8))
    for one in fidelity_run._importance(batch, truth, played, {}):
        assert 0 <= one.square.low <= one.square.value < one.square.high


def test_gradients_that_cannot_be_told_from_zero_leave_the_rest(tmp_path):
    """Noise of the estimates is larger than the true gradients: noise and credit are measured all the same."""
    batch = Batch(Segments.from_lengths([2, 1, 1]), Segments.from_lengths([2] * 4), [0.0] * 8, {})
    gradients = [np.eye(4), np.eye(2, 4), np.eye(2, 4)]
    truth = Truth(np.full(8, 0.1), np.full(8, 1.0))
    errors = Errors(np.arange(8), np.array([1, -1, 3, -1, 5, -1, 7, -1]), np.ones(8))
    found = compare_gradients(gradients, {"a": np.ones(8), "b": np.arange(8.0)}, truth, errors, batch)
    assert found.fidelities is None
    assert set(found.noise) > {"a", "b"}
    whole = measure_run(opened(tmp_path), ["grpo", "rloo"], groups=6, continuations=4, gradient=True)
    assert whole.gradient is not None
    lost = dataclasses.replace(whole, gradient=dataclasses.replace(whole.gradient, fidelities=None))
    assert "True gradients are not significantly different from zero" in lacking_lines(lost)[0]
    assert not lacking_lines(whole)
    assert [len(row) for row in fidelity_table(lost)] == [len(row) for row in fidelity_table(whole)]
    told = json.loads(json.dumps(as_json(lost)))["gradient"]
    assert "fidelity" not in told
    assert set(told["noise"]) > {"grpo", "rloo"}


def test_a_turn_budget_ends_what_is_analysed(tmp_path):
    budget = {"name": "fixed", "turns": 2}
    folder = opened(tmp_path, environment={"options": {"turns": 3}}, rollout={"turn_budget": budget})
    found = measure_run(folder, ["grpo"], groups=4, continuations=4)
    assert {row["turn"] for row in found.responses.to_pylist()} == {0, 1}


def test_too_few_tasks_are_said_before_anything_is_continued(tmp_path, monkeypatch):
    folder = opened(tmp_path)
    tasks = Seeded.tasks
    monkeypatch.setattr(Seeded, "tasks", lambda self, split: tasks(self, split)[:2])
    monkeypatch.setattr(fidelity_run, "continue_histories", lambda *_, **__: pytest.fail("too late"))
    with pytest.raises(RunError, match="2 groups could be played of 2 training tasks, expected 3"):
        measure_run(folder, ["grpo"], groups=3, continuations=2)


def test_self_play_is_refused(tmp_path):
    environment = {"name": "seats", "options": {"game": "kuhn"}, "max_steps": 8}
    rollout = {"groups": 2, "collector": {"name": "self_play"}}
    folder = opened(tmp_path, environment=environment, rollout=rollout, method="rloo")
    with pytest.raises(ConfigError, match=r"collector='self_play', whose trajectories need the other seats"):
        measure_run(folder, ["grpo"], groups=3, continuations=2)


def test_the_report_finds_its_responses_wherever_the_page_goes(tmp_path, capsys):
    folder = opened(tmp_path / "run")
    command = ["analyse", "fidelity", str(folder.path), "--groups", "6", "--continuations", "6"]
    assert main([*command, "--out", str(tmp_path / "out")]) == 0
    assert (folder.path / "analyses" / "fidelity-responses.parquet").exists()
    assert (tmp_path / "out" / "fidelity.json").exists()
    assert "histories of 6 groups" in capsys.readouterr().out
    assert main([*command, "--out", str(tmp_path / "out")]) == 2
    assert "fidelity.md exists, and nothing is overwritten" in capsys.readouterr().err
    assert main(command) == 0
    assert main(command) == 0, "a run keeps the last analysis of each kind"


def test_colors_are_as_the_exact_values_assume():
    assert [Colors.color(task, 0) for task in range(4)] == list(COLORS)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("turn_ppo+visit", r"'turn_ppo\+visit': '\+visit' is not a suffix of a method's name. Did you mean 'visits'\?"),
        ("grpo+visits", r"'grpo' has no critic that could see more"),
        ("gae(decay=2)", r"gae: decay=2.0 must lie in \[0, 1\]"),
    ],
)
def test_a_name_that_is_wrong_says_what_is(name, said):
    with pytest.raises(ConfigError, match=said):
        fidelity_method(name)


def test_a_method_is_refused_for_what_the_environment_or_the_run_does_not_give(tmp_path):
    folder = opened(tmp_path)
    with pytest.raises(ConfigError, match=r"\(gold_logprob\) reads info\['gold'\], .* does not provide"):
        measure_run(folder, ["grpo", "igpo"], groups=3, continuations=2)
    with pytest.raises(ConfigError, match=r"^method 'istar' needs the column 'implicit_reward' .*reward_model"):
        measure_run(folder, ["grpo", "istar"], groups=3, continuations=2)
