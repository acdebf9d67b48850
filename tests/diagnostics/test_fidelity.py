"""Fidelity: exact on problems that can be enumerated, honest intervals, and measured on a run's policy."""

import json

import numpy as np
import pytest
from tests.diagnostics.drawn_decisions import draw_groups, estimated_advantages, exact_advantages
from tests.toys import Colors, small_config, trajectory

import turnwise as tw
from turnwise.base.errors import ConfigError, RunError
from turnwise.commands.cli import main
from turnwise.credit.analysis.decisions import PROBLEMS
from turnwise.credit.segments import Segments
from turnwise.extensions.continuations.play import Histories
from turnwise.lab.diagnostics import fidelity_run
from turnwise.lab.diagnostics.critics import explained
from turnwise.lab.diagnostics.fidelity import (
    compare,
    cosine,
    group_sums,
    importance,
    jackknife_interval,
    measure_fidelity,
)
from turnwise.lab.diagnostics.fidelity_run import measure_run
from turnwise.lab.diagnostics.fidelity_show import fidelity_table
from turnwise.lab.diagnostics.stage import Stage
from turnwise.lab.diagnostics.values import Truth, continue_histories, true_advantages
from turnwise.objective.scorer import Scorer
from turnwise.train.folder import RunFolder
from turnwise.train.loop import train

METHODS = {"grpo": tw.grpo(), "gigpo": tw.gigpo(), "grpo+aem": tw.aem(tw.grpo())}


def test_true_advantages_by_hand():
    # one trajectory of two responses: history 0, then history 1, then the end
    truth = true_advantages(
        np.array([0.5, 2.0]), np.array([0, 1]), np.array([1, -1]), np.array([[1.0, 3.0], [4.0, 4.0]])
    )
    assert truth.advantage_R == pytest.approx([0.5 + 4 - 2, 2 - 4])
    assert truth.variance_R == pytest.approx([2.0 / 2 + 0, 0])
    assert truth.square_R == pytest.approx([2.5**2 - 1, 4])


def test_histories_that_trajectories_share_are_numbered_once():
    a = trajectory(0, ([1], [5]), ([1], [6]))
    b = trajectory(0, ([1], [5]), ([1], [7]), ([1], [6]))
    c = trajectory(1, ([1], [5]))
    found = Histories.of([a, b, c], ["x", "y"])
    assert found.before_R.tolist() == [0, 1, 0, 1, 2, 3]
    assert found.after_R.tolist() == [1, -1, 1, 2, -1, -1]
    assert [(start.task, len(start.turns)) for start in found.starts] == [("x", 0), ("x", 1), ("x", 2), ("y", 0)]


def test_perfect_credit_has_fidelity_one_and_shuffled_credit_none():
    problem, generator = PROBLEMS["dense"], np.random.default_rng(0)
    batch, turns = draw_groups(problem, 400, generator)
    exact_R, groups = exact_advantages(problem, batch, turns), batch.group_responses
    truth = estimated_advantages(problem, batch, turns, 8, generator)
    shuffled_R = exact_R.copy()
    for first, last in zip(groups.offsets[:-1], groups.offsets[1:], strict=True):
        shuffled_R[first:last] = generator.permutation(exact_R[first:last])
    centred_R = shuffled_R - groups.broadcast(groups.mean(exact_R))
    found = measure_fidelity({"perfect": exact_R, "shuffled": shuffled_R, "centred": centred_R}, truth, groups)
    perfect, shuffled, centred = (found.by_method[name] for name in ("perfect", "shuffled", "centred"))
    assert perfect.value == pytest.approx(1.0, abs=0.02)
    assert perfect.low < 1.0 < perfect.high
    assert centred.low < 0.0 < centred.high
    assert abs(centred.value) < 0.1
    assert abs(shuffled.value) < 0.2, "a group's mean advantage is not exactly zero, and shuffling keeps it"
    assert found.above_first["shuffled"].high < -0.7
    doubled = measure_fidelity({"doubled": 2 * exact_R}, truth, groups).by_method["doubled"]
    assert doubled.value == pytest.approx(perfect.value), "the size of credit does not count"


def test_noise_of_the_estimates_is_taken_out():
    """With two continuations the plain cosine is far too low; the corrected one is right."""
    problem, generator = PROBLEMS["sparse"], np.random.default_rng(1)
    batch, turns = draw_groups(problem, 4000, generator)
    exact_R, truth = exact_advantages(problem, batch, turns), estimated_advantages(problem, batch, turns, 2, generator)
    plain = Truth(truth.advantage_R, np.zeros_like(truth.variance_R))
    corrected, naive = (cosine(group_sums(exact_R, one, batch.group_responses).sum(0)) for one in (truth, plain))
    assert corrected == pytest.approx(1.0, abs=0.03)
    assert naive < 0.9


@pytest.mark.usefixtures("array_types_unchecked")
@pytest.mark.parametrize("name", ["sparse", "successes", "recurring"])
def test_intervals_cover_the_exact_fidelity(name):
    """200 draws of 24 groups and 12 continuations each: 95 % intervals cover in 89 % of them or more."""
    problem, generator = PROBLEMS[name], np.random.default_rng(0)
    batch, turns = draw_groups(problem, 8000, generator)
    exact_R = exact_advantages(problem, batch, turns)
    wanted = {}
    for method, credit in METHODS.items():
        advantage_R = credit(batch)
        wanted[method] = advantage_R @ exact_R / np.sqrt((advantage_R @ advantage_R) * (exact_R @ exact_R))
    covered = dict.fromkeys([*METHODS, "gigpo - grpo", "grpo+aem - grpo"], 0)
    values = []
    for _ in range(200):
        batch, turns = draw_groups(problem, 24, generator)
        truth = estimated_advantages(problem, batch, turns, 12, generator)
        found = measure_fidelity({m: credit(batch) for m, credit in METHODS.items()}, truth, batch.group_responses)
        for method, one in found.by_method.items():
            covered[method] += one.low <= wanted[method] <= one.high
        for method, one in found.above_first.items():
            covered[f"{method} - grpo"] += one.low <= wanted[method] - wanted["grpo"] <= one.high
        values.append(found.by_method["grpo"].value)
    assert min(covered.values()) >= 178, covered  # 0.95 * 200 less four standard errors
    assert np.mean(values) == pytest.approx(wanted["grpo"], abs=0.015)


def test_importance_is_the_mean_square_of_what_is_decided():
    truth = Truth(np.array([3.0, 1.0, 0.0, 2.0, 1.0, 1.0]), np.array([1.0, 0.0, 0.0, 0.0, 0.0, 0.0]))
    groups = Segments.from_lengths([2, 2, 2])
    found = importance("x", np.array([1, 1, 0, 1, 0, 0], dtype=bool), truth, np.arange(6.0), groups, {})
    assert found.square.value == pytest.approx((8 + 1 + 4) / 3)
    assert (found.share, found.alpha) == (0.5, pytest.approx(4 / 3))
    assert found.fidelities is None


def test_fidelity_of_one_kind_of_response_counts_these_alone():
    groups, alpha_R = Segments.from_lengths([2, 2, 2]), np.ones(6)
    truth = Truth(np.array([3.0, -1.0, 2.0, 4.0, -1.0, 1.0]), np.zeros(6))
    early_R = np.array([1, 0, 1, 0, 1, 0], dtype=bool)
    credit = {"all": truth.advantage_R, "early": np.where(early_R, truth.advantage_R, -truth.advantage_R)}
    early, late = (importance("", of_R, truth, alpha_R, groups, credit).fidelities for of_R in (early_R, ~early_R))
    assert early is not None
    assert late is not None
    assert [one.value for one in early.by_method.values()] == pytest.approx([1.0, 1.0])
    assert [one.value for one in late.by_method.values()] == pytest.approx([1.0, -1.0])
    assert (early.above_first["early"].value, late.above_first["early"].value) == pytest.approx((0.0, -2.0))
    noisy = Truth(truth.advantage_R, np.where(early_R, 0.0, 20.0))
    assert importance("", ~early_R, noisy, alpha_R, groups, credit).fidelities is None, "it may all be noise"


def test_what_cannot_be_measured_is_said():
    truth, groups = Truth(np.zeros(3), np.ones(3)), Segments.from_lengths([1, 1, 1])
    with pytest.raises(RunError, match="are no larger than their noise"):
        measure_fidelity({"a": np.ones(3)}, truth, groups)
    with pytest.raises(RunError, match="2 groups, expected 3"):
        measure_fidelity({"a": np.ones(3)}, truth, Segments.from_lengths([1, 2]))


def test_continuations_go_on_after_an_interruption():
    calls = []

    def play(starts, *, seed):
        calls.append((len(starts), seed))
        return [trajectory(0, ([1], [5])) for _ in starts]

    starts = Histories.of([trajectory(0, *[([1], [5])] * 5)], ["x"]).starts
    kept = []
    whole = continue_histories(
        starts, 2, play, at_once=4, seed=10, on_part=lambda returns, done: kept.append((returns.copy(), done))
    )
    assert calls == [(4, 10), (4, 12), (2, 14)]
    assert [done for _, done in kept] == [2, 4, 5]
    calls.clear()
    again = continue_histories(starts, 2, play, at_once=4, seed=10, known=kept[0][0])
    assert calls == [(4, 12), (2, 14)]
    assert (again == whole).all()

    def failing(starts, *, seed):
        return [trajectory(0, ([1], [5]), failure="environment: gone") for _ in starts]

    with pytest.raises(RunError, match="all 10 continuations failed; the last one: environment: gone"):
        continue_histories(starts, 2, failing, at_once=4, seed=0)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> RunFolder:
    environment = {"options": {"turns": 3}}
    return train(small_config(tmp_path_factory.mktemp("run"), run={"steps": 1}, environment=environment))


def test_fidelity_of_a_run_agrees_with_what_is_known_of_its_environment(run):
    """In `Colors` every turn pays by itself, so A* = reward - its mean: GRPO, which smears it, is below 1."""
    folder, _ = RunFolder.open(run.path)
    found = measure_run(folder, ["grpo", "rloo"], step=0, groups=12, continuations=4)
    assert 0.3 < found.fidelities.by_method["grpo"].value < 0.85
    assert found.histories > 12
    kinds = {one.kind: one for one in found.importance}
    assert kinds["turn 1"].share == pytest.approx(1 / 3)
    assert not [kind for kind in kinds if kind.startswith("turns")]


def test_a_second_call_continues_nothing_anew(run, monkeypatch):
    folder, _ = RunFolder.open(run.path)
    first = measure_run(folder, ["grpo"], groups=6, continuations=6, seed=5)
    monkeypatch.setattr(fidelity_run.Stage, "play", lambda *_, **__: pytest.fail("continued again"))
    assert measure_run(folder, ["grpo"], groups=6, continuations=6, seed=5) == first


def test_all_means_every_method_whose_columns_can_be_measured(run):
    folder, _ = RunFolder.open(run.path)
    found = measure_run(folder, (), groups=6, continuations=6)
    assert next(iter(found.fidelities.by_method)) == "grpo"
    assert {"gigpo", "grpo+aem", "grpo+empg"} <= set(found.fidelities.by_method)
    assert {"gae", "gae+peers", "gae+visits", "turn_ppo", "ppo"} <= set(found.fidelities.by_method), (
        "with a critic in closed form"
    )
    assert not {"aem", "empg"} & set(found.fidelities.by_method), "a name says what it modifies"
    assert "igpo" in found.left_out
    rows = [names for names, *_ in fidelity_table(found)[1:]]
    assert sorted(name for names in rows for name in names.split(" = ")) == sorted(found.fidelities.by_method)
    assert any(" = " in names for names in rows)
    assert not set(found.left_out) & set(found.fidelities.by_method)


def test_a_critic_learns_from_other_groups_what_histories_are_worth(tmp_path, monkeypatch):
    """In `Colors` a history is worth what its remaining turns pay on average, which states of random weights tell."""
    environment = {"options": {"turns": 8}}
    folder = train(small_config(tmp_path, run={"steps": 1}, environment=environment, model={"max_context": 128}))
    asked = []
    play = Stage.play_groups
    monkeypatch.setattr(
        Stage,
        "play_groups",
        lambda stage, groups, seed, **further: asked.append((groups, further)) or play(stage, groups, seed, **further),
    )
    passes = []
    score = Scorer.__call__
    monkeypatch.setattr(Scorer, "__call__", lambda scorer, model: passes.append(scorer) or score(scorer, model))
    methods = ["grpo", "gae", "gae+peers", "gae+visits", "gae(decay=0.0)+visits"]
    found = measure_run(folder, methods, step=0, groups=8, continuations=24)
    assert asked == [(8, {}), (32, {"after": 8})], "all critics learn from the same groups, others than the measured"
    assert len(passes) == 2, "the measured tokens are scored once, and those that critics learn from"
    assert set(found.explained) == {"state", "state and peers", "state, peers and visits"}
    assert found.explained["state, peers and visits"] > found.explained["state"] + 0.1, (
        "here the turn says what is still to be won"
    )
    assert 0.1 < found.explained["state and peers"] < found.explained["state"] < 0.6, "tasks are alike: peers are noise"
    above = found.fidelities.above_first
    assert above["gae"].low > 0, "a baseline per turn is closer to the truth than one of the group"
    assert found.fidelities.by_method["gae"] != found.fidelities.by_method["gae+peers"]
    by_method = {name: interval.value for name, interval in found.fidelities.by_method.items()}
    assert by_method["gae(decay=0.0)+visits"] > by_method["gae+visits"] + 0.05, "with good values, the rest is noise"
    fewer = measure_run(folder, ["grpo", "gae"], step=0, groups=8, continuations=24, critic_groups=1)
    assert asked[2:] == [(8, {}), (1, {"after": 8})]
    assert fewer.explained["state"] < found.explained["state"] - 0.05, "a critic of one group knows less"


def test_a_critic_needs_other_tasks_and_a_method_that_reads_it(run, monkeypatch):
    folder, _ = RunFolder.open(run.path)
    with pytest.raises(ConfigError, match=r"'grpo\+peers': 'grpo' has no critic that could see more"):
        measure_run(folder, ["grpo+peers"])
    few = Stage.open(folder, None).suite
    tasks = type(few).tasks
    monkeypatch.setattr(type(few), "tasks", lambda suite, split: tasks(suite, split)[:3])
    assert measure_run(folder, ["grpo"], groups=3, continuations=2).explained == {}
    with pytest.raises(ConfigError, match="groups=3 take all training tasks, and a critic has to learn from others"):
        measure_run(folder, ["grpo", "gae"], groups=3, continuations=2)
    found = measure_run(folder, groups=3, continuations=2)
    assert "take all training tasks" in found.left_out["gae"], "all methods are those that can be measured"
    assert "gigpo" in found.fidelities.by_method


@pytest.mark.parametrize("share", [1.0, 0.5, 0.0])
def test_explained_variance_is_that_of_true_values_without_the_noise_of_their_estimates(share):
    generator = np.random.default_rng(0)
    true_H = generator.normal(size=20_000)
    return_HK = true_H[:, None] + 2 * generator.normal(size=(20_000, 4))
    value_H = share * true_H
    value_H[:3], return_HK[:3] = 99.0, np.nan  # continuations that failed
    before_R = np.arange(20_000)
    assert explained(value_H, before_R, return_HK) == pytest.approx(1 - (1 - share) ** 2, abs=0.05)
    assert np.isnan(explained(value_H, before_R, np.ones_like(return_HK)))


class Restless(Colors):
    repeats = False


def test_an_environment_that_never_repeats_is_refused(tmp_path):
    config = small_config(tmp_path, run={"steps": 1}, environment={"name": "tests.diagnostics.test_fidelity:Restless"})
    folder = train(config)
    with pytest.raises(ConfigError, match=r"cannot be forked.*repeats = False"):
        measure_run(folder, ["grpo"], groups=3, continuations=2)


def test_the_command_prints_and_writes(run, tmp_path, capsys):
    command = ["analyse", "fidelity", str(run.path), "--groups", "6", "--continuations", "6", "--out", str(tmp_path)]
    assert main(command) == 0
    out, _ = capsys.readouterr()
    assert "grpo+aem" in out
    assert "entropy, most uncertain fifth" in out
    written = json.loads((tmp_path / "fidelity.json").read_text())
    assert set(written["fidelity"]) == {"grpo", "grpo+aem", "gigpo"}
    assert written["fidelity"]["grpo"]["low"] <= written["fidelity"]["grpo"]["value"]
    drift = written["drift"]
    assert set(drift["drift"]) == {"grpo", "grpo+aem", "gigpo"}
    assert set(drift["minus_first"]) == {"grpo+aem", "gigpo"}
    one = drift["drift"]["grpo"]
    assert f"{one['value']:+.3f} [{one['low']:+.3f}, {one['high']:+.3f}]" in out
    assert {name: len(times) for name, times in written["milliseconds"].items()} == dict.fromkeys(drift["drift"], 5)
    assert (tmp_path / "fidelity.png").stat().st_size > 5000
    assert main([*command[:3], "--continuations", "1"]) == 2
    assert "continuations=1: expected 2 or more" in capsys.readouterr().err
    assert main([*command[:3], "--groups", "2"]) == 2
    assert "groups=2: expected 3 or more, since intervals are over groups" in capsys.readouterr().err


def test_the_jackknife_of_differences_is_that_of_both_without_the_same_group():
    draw = np.random.default_rng(0)
    sums = {name: np.abs(draw.normal(size=(6, 3))) + 1 for name in "ab"}
    sums["b"][:, 2] = sums["a"][:, 2]
    one, other = (np.array([cosine(np.delete(table, k, axis=0).sum(0)) for k in range(6)]) for table in sums.values())
    value = float(cosine(sums["b"].sum(0)) - cosine(sums["a"].sum(0)))
    found, wanted = compare(sums).above_first["b"], jackknife_interval(value, other - one, 6)
    assert (found.value, found.low, found.high) == pytest.approx((wanted.value, wanted.low, wanted.high))


def test_the_interval_of_importance_leaves_out_one_group_in_turn_and_is_not_below_zero():
    truth, groups = Truth(np.array([3.0, 1.0, 0.0, 2.0, 1.0, 2.0, 1.0]), np.zeros(7)), Segments.from_lengths([3, 2, 2])
    found = importance("x", np.ones(7, dtype=bool), truth, np.ones(7), groups, {}).square
    wanted = jackknife_interval(20 / 7, np.array([10 / 4, 15 / 5, 15 / 5]), 3)
    assert found.high == pytest.approx(wanted.high)
    wide = importance(
        "x",
        np.ones(3, dtype=bool),
        Truth(np.array([9.0, 0, 0]), np.zeros(3)),
        np.ones(3),
        Segments.from_lengths([1, 1, 1]),
        {},
    ).square
    assert wide.low == 0.0
