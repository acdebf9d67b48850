"""Gradients under credit: exact on problems that can be enumerated, and equal to autograd's on a policy."""

import itertools

import numpy as np
import pytest
from tests.diagnostics.autograd import group_gradients
from tests.diagnostics.drawn_decisions import draw_groups, exact_advantages, returns_from
from tests.toys import small_config

import turnwise as tw
from turnwise.credit.analysis.decisions import PROBLEMS
from turnwise.lab.diagnostics.fidelity import cosine
from turnwise.lab.diagnostics.fidelity_gradient import PERFECT, Errors, compare_gradients, response_gradients
from turnwise.lab.diagnostics.fidelity_run import MEASURED, measure_run
from turnwise.lab.diagnostics.stage import Stage
from turnwise.lab.diagnostics.values import Truth, true_advantages
from turnwise.models.policy import trainable
from turnwise.train.folder import RunFolder
from turnwise.train.loop import train


def drawn(name: str, num_groups: int, continuations: int, seed: int):
    """Groups of a problem with exact gradients; true advantages exact and estimated."""
    problem, generator = PROBLEMS[name], np.random.default_rng(seed)
    batch, turns = draw_groups(problem, num_groups, generator)
    exact_R = exact_advantages(problem, batch, turns)
    group_R = batch.groups.ids[batch.trajectories.ids]
    numbers: dict[tuple, int] = {}
    for (prompt, turn), group in zip(turns, group_R.tolist(), strict=True):
        numbers.setdefault((group, prompt, turn.turn, turn.place), len(numbers))
    return_HK = np.empty((len(numbers), continuations))
    for (_, prompt, turn, place), number in numbers.items():
        values, weights = returns_from(name, prompt, turn, place)
        return_HK[number] = generator.choice(values, continuations, p=weights / weights.sum())
    before = np.array([numbers[g, p, t.turn, t.place] for (p, t), g in zip(turns, group_R.tolist(), strict=True)])
    after = np.array([*before[1:], -1])
    after[batch.trajectories.offsets[1:] - 1] = -1
    truth = true_advantages(batch.reward_R, before, after, return_HK)
    errors = Errors(before, after, return_HK.var(1, ddof=1) / continuations)
    score_R = np.stack([turn.score for _, turn in turns])
    offsets = batch.group_responses.offsets
    gradients = [score_R[first:last] for first, last in itertools.pairwise(offsets)]
    return batch, exact_R, truth, errors, gradients, generator


def exactly(exact_R: np.ndarray, errors: Errors) -> tuple[Truth, Errors]:
    return Truth(exact_R, np.zeros_like(exact_R)), Errors(
        errors.before_R, errors.after_R, np.zeros_like(errors.variance_H)
    )


def test_perfect_credit_gives_the_true_gradient_and_shuffled_credit_does_not():
    batch, exact_R, truth, errors, gradients, generator = drawn("dense", 600, 4, 0)
    shuffled_R = exact_R * generator.choice([-1.0, 1.0], len(exact_R))
    credit = {"perfect": exact_R, "none": shuffled_R, "doubled": 2 * exact_R}
    found = compare_gradients(gradients, credit, truth, errors, batch)
    of = found.fidelities.by_method
    assert of["perfect"].value == pytest.approx(1.0, abs=0.02)
    assert of["perfect"].low < 1.0 < of["perfect"].high
    assert of["none"].low < 0.0 < of["none"].high
    assert of["doubled"].value == pytest.approx(of["perfect"].value)
    share = {name: one.signal / one.noise for name, one in found.noise.items()}
    assert share["perfect"] == pytest.approx(share["doubled"])
    assert share["perfect"] > 10 * abs(share["none"])
    assert share["perfect"] > share[PERFECT], "the estimates' noise is noise"


@pytest.mark.parametrize("name", ["sparse", "recurring", "successes"])
def test_noise_of_the_estimates_is_taken_out(name):
    """Two continuations: without the correction the true gradient seems far too long."""
    batch, exact_R, truth, errors, gradients, _ = drawn(name, 2000, 2, 1)
    credit = {"perfect": exact_R, "grpo": tw.grpo()(batch), "gigpo": tw.gigpo()(batch)}
    wanted = compare_gradients(gradients, credit, *exactly(exact_R, errors), batch).fidelities.by_method
    found = compare_gradients(gradients, credit, truth, errors, batch).fidelities.by_method
    naive = compare_gradients(gradients, credit, truth, exactly(exact_R, errors)[1], batch).fidelities.by_method
    for method, one in found.items():
        assert one.value == pytest.approx(wanted[method].value, abs=0.05), method
    assert wanted["perfect"].value == pytest.approx(1.0)
    assert naive["perfect"].value < found["perfect"].value - 0.04
    assert wanted["grpo"].value < 0.95


@pytest.mark.usefixtures("array_types_unchecked")
@pytest.mark.slow
def test_intervals_cover_the_exact_cosine():
    batch, exact_R, _, errors, gradients, _ = drawn("recurring", 8000, 2, 2)
    methods = {"grpo": tw.grpo(), "gigpo": tw.gigpo()}
    credit = {name: method(batch) for name, method in methods.items()}
    wanted = compare_gradients(gradients, credit, *exactly(exact_R, errors), batch).fidelities
    covered = dict.fromkeys([*methods, "gigpo - grpo"], 0)
    for draw in range(100):
        batch, _, truth, errors, gradients, _ = drawn("recurring", 24, 12, 1000 + draw)
        found = compare_gradients(gradients, {n: m(batch) for n, m in methods.items()}, truth, errors, batch).fidelities
        for name, one in found.by_method.items():
            covered[name] += one.low <= wanted.by_method[name].value <= one.high
        above = found.above_first["gigpo"]
        covered["gigpo - grpo"] += above.low <= wanted.above_first["gigpo"].value <= above.high
    assert min(covered.values()) >= 87, covered


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> RunFolder:
    sections = {"environment": {"options": {"turns": 3}}, "rollout": {"temperature": 0.7}}
    return train(small_config(tmp_path_factory.mktemp("run"), run={"steps": 1}, **sections))


def test_gradients_of_responses_are_those_of_autograd(run):
    """With room for all weights nothing is projected: inner products are exact. A small projection comes close."""
    stage = Stage.open(run, None)
    trajectories, _ = stage.play_groups(3, 0)
    stage.close()
    batch, sequences, _ = stage.measure(stage.plan({"this test": MEASURED}), trajectories)
    weights = trainable(stage.policy.model)
    num_weights = sum(weight.numel() for weight in weights)
    advantage_R = np.random.default_rng(0).normal(size=batch.num_responses)
    wanted = group_gradients(stage, batch, sequences, advantage_R, temperature=0.7)
    offsets = batch.group_responses.offsets

    def products(size: int) -> np.ndarray:
        made = response_gradients(stage, sequences, batch, size=size)
        rows = np.stack([advantage_R[a:b] @ one for (a, b), one in zip(itertools.pairwise(offsets), made, strict=True)])
        return rows @ rows.T

    assert products(num_weights) == pytest.approx(wanted @ wanted.T, rel=1e-3)
    scale = np.abs(wanted @ wanted.T).max()
    assert np.abs(products(2**12) - wanted @ wanted.T).max() < 0.1 * scale
    assert np.abs(products(2**4) - wanted @ wanted.T).max() > 1e-3 * scale


def test_a_runs_analysis_has_gradients_when_asked(run):
    folder, _ = RunFolder.open(run.path)
    assert measure_run(folder, ["grpo", "rloo"], groups=8, continuations=4).gradient is None
    told = []
    found = measure_run(
        folder,
        ["grpo", "rloo"],
        groups=8,
        continuations=4,
        gradient=True,
        on_gradient=lambda done, total: told.append((done, total)),
    )
    one = found.gradient.fidelities.by_method["grpo"]
    assert one.low < one.value < one.high
    assert 0 < one.value <= 1.2
    assert set(found.gradient.noise) == {"grpo", "rloo", PERFECT}
    assert told[-1] == (8, 8)


def test_the_correction_by_hand():
    """One group, one trajectory of two responses: d of the first history is -g_1, of the second g_1 - g_2."""
    gradient_R = np.array([[1.0, 0.0], [0.0, 2.0]])
    errors = Errors(np.array([0, 1]), np.array([1, -1]), np.array([0.5, 0.25]))
    known_R = np.ones(2, dtype=bool)
    assert errors.square(gradient_R, np.arange(2), known_R) == pytest.approx(0.5 * 1 + 0.25 * (1 + 4))
    assert errors.square(gradient_R, np.arange(2), np.array([True, False])) == pytest.approx(0.5 * 1 + 0.25 * 1)
    assert cosine(np.array([1.0, 1.0, 4.0])) == 0.5
