"""The columns that measures fill, by hand, and the refusal of methods that need others."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.toys import small_config, trajectory

import turnwise as tw
from turnwise.base.errors import ConfigError
from turnwise.measures import MEASURES, Played
from turnwise.measures.gold import answers
from turnwise.measures.plan import FROM_THE_BATCH, plan_measures
from turnwise.measures.played import action_of
from turnwise.measures.scored import lowest_mean, peak_tokens
from turnwise.measures.step_rewards import checks
from turnwise.train.loop import train

ELSEWHERE = ("critic", "reference", "probe", "judge", "plan", "reward_model", "teacher", "continuations")
OF_OTHERS = {c for each in MEASURES.values() for c in each.provides if each.model in ELSEWHERE or each.reads}
PROVIDED = {column for each in MEASURES.values() for column in each.provides} | FROM_THE_BATCH


def columns():
    first = trajectory(0, ([1], [5, 6]), ([1], [7, 8, 9]))
    second = trajectory(0, ([1], [5]))
    first.success, first.ended, second.ended = True, "terminated", "truncated"
    first.turns[1].valid, second.turns[0].truncated = False, True
    for turn, told in zip([*first.turns, *second.turns], ([-1.0, -2.0], [-1.0, -2.0, -6.0], [-1.0]), strict=True):
        turn.behavior_logprobs = told
    scores = np.array([-1.0, -3.0, -1.0, -2.0, -6.0, -0.5]), np.array([1.0, 2.0, 0.0, 0.0, 3.0, 0.5])
    played = Played([first, second], 0.25, {"policy": None}, lambda model: scores)
    batch, metrics = plan_measures({"the test": ("logprob_T", "entropy_T")}).take(played)
    assert metrics["scores_tokens"] == 9.0
    assert metrics["entropy_tokens"] == 0.0
    assert all(
        metrics[f"{name}_s"] >= 0 for name in ("scores", "entropy", "mismatch", "played", "rare_tokens", "sampled")
    )
    return batch.columns


def test_the_columns_are_what_the_table_says():
    made = columns()
    assert set(made) == PROVIDED - FROM_THE_BATCH - OF_OTHERS - {"ref_logprob"}
    np.testing.assert_allclose(made["entropy"], [1.5, 1.0, 0.5])
    np.testing.assert_allclose(made["logprob"], [-2.0, -3.0, -0.5])
    np.testing.assert_allclose(made["rare_logprob"], [-3.0, -6.0, -0.5])
    np.testing.assert_allclose(made["peak_entropy"], [2.0, 3.0, 0.5])
    np.testing.assert_allclose(made["mismatch"], [-0.5, 0.0, 0.5])
    np.testing.assert_allclose(made["mismatch_min"], [-1.0, 0.0, 0.5])
    assert made["penalty"].tolist() == [0.0, -0.25, 0.0]
    assert made["success"].tolist() == [1.0, 1.0, 0.0]
    assert made["finished"].tolist() == [1.0, 1.0, 0.0]
    assert made["truncated"].tolist() == [0.0, 0.0, 1.0]
    assert made["task"].tolist() == ["0", "0", "0"]


def test_a_trajectory_ends_in_the_state_after_its_last_response():
    """The first two end where the third begins; an end that is not known is like no other one."""
    told = [trajectory(0, ([1], [5]), last_key=last) for last in ("o", "o", ("o", 1), None, None)]
    batch, _ = plan_measures({"the test": ("state_key",)}).take(Played(told))
    here = batch.columns["state_key"][0]
    assert (batch.columns["end_key"] == here).tolist() == [True, True, False, False, False]
    assert len(set(batch.columns["end_key"].tolist())) == 4


@pytest.mark.parametrize(
    ("response", "action"),
    [
        ("go  to\nfridge 1", "go to fridge 1"),
        ("<think>the mug <action>no</action></think><action> take mug 1\n</action> and", "take mug 1"),
        ("<action>take", "<action>take"),
        ("", ""),
    ],
)
def test_the_action_of_a_response_is_what_it_asks_of_the_environment(response, action):
    one = trajectory(0, ([1], [5]))
    one.turns[0].response = response
    batch, _ = plan_measures({"the test": ("action_key",)}).take(Played([one, trajectory(0, ([1], [5]))]))
    assert action_of(response) == action
    assert len(set(batch.columns["action_key"].tolist())) == 2, "the other trajectory's action is 'r'"


@pytest.mark.parametrize(("num", "kept"), [(1, 1), (4, 1), (5, 1), (9, 1), (10, 2), (15, 3)])
def test_the_rarest_fifth_is_at_least_one_token(num, kept):
    values = np.random.default_rng(0).permutation(num).astype(float)
    tokens = tw.Segments.from_lengths([num])
    np.testing.assert_allclose(lowest_mean(values, tokens, share=0.2), [np.arange(kept).mean()])


def test_the_peak_of_entropy_is_the_mean_of_the_most_uncertain_fifth():
    step: Any = SimpleNamespace(tokens=tw.Segments.from_lengths([10, 1]))
    made = peak_tokens.run(step, {"entropy_T": np.array([*range(10), 3.0])})
    np.testing.assert_allclose(made["peak_entropy"], [8.5, 3.0])


def test_answers_are_sampled_as_the_paper_says(monkeypatch):
    """SPAE, arXiv 2601.03823: 5 answers of at most 10 tokens at temperature 0.6."""
    asked = []

    def sample(contexts, openings, sampling, num):
        asked.append((num, sampling.max_new_tokens, sampling.temperature))
        raise StopIteration

    probe = SimpleNamespace(contexts=lambda tokens: ([0], [0]), format=SimpleNamespace(stop_id=1), sample=sample)
    monkeypatch.setattr("turnwise.measures.gold.right_answers", lambda step: [([5], 0, 1)])
    with pytest.raises(StopIteration):
        answers.run(SimpleNamespace(probe=probe, tokens=None), {})  # pyright: ignore[reportArgumentType]
    assert asked == [(5, 10, 0.6)]


def test_a_method_that_needs_what_no_rollout_knows_is_refused_before_anything_is_played(tmp_path):
    config = small_config(tmp_path, method="gae")
    with pytest.raises(
        ConfigError, match=r"method 'gae' needs the column 'value' \(estimated return.*no measure of this run provides"
    ):
        train(config)
    assert not (tmp_path / "run").exists()
    with pytest.raises(
        ConfigError,
        match=r"method 'hiper' needs the column 'switch' .*Add prompt\.plan=true to the recipe",
    ):
        train(small_config(tmp_path, method="hiper"))
    with pytest.raises(ConfigError, match=r"'step_rewards' \(step_reward\) reads info\['step_rewards'\], which"):
        train(small_config(tmp_path, method="matchtir"))


def test_checks_are_told_at_the_end_one_share_per_response():
    told = [trajectory(0, ([1], [5]), ([1], [6])), trajectory(0, ([1], [5]))]
    told[0].info["checks"], told[1].info["checks"] = [0.5, 0.25], [1.0]
    assert checks.run(Played(told), {})["checks"] == [0.5, 0.25, 1.0]
    told[1].info["checks"] = [0.5, 1.0]
    with pytest.raises(ConfigError, match=r"expected 1 finite numbers, one per response"):
        checks.run(Played(told), {})
