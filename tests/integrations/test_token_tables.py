"""Columns of responses from tables of tokens, advantages of tokens, and what a critic should learn."""

import numpy as np
import pytest

import turnwise as tw
from turnwise.base.errors import IntegrationError
from turnwise.integrations.padded import padded_advantages, padded_batch
from turnwise.integrations.token_tables import SOURCES

MASK = np.array([[1, 1, 1, 1, 1, 0, 1], [0, 1, 0, 0, 1, 1, 0], [0, 0, 0, 0, 0, 0, 0], [1, 0, 1, 1, 0, 0, 0]])
GENERATOR = np.random.default_rng(0)
NAMES = ("entropy_T", "logprob_T", "behavior_logprob_T", "ref_logprob_T", "value_T")
TABLES = {name: GENERATOR.normal(-1, 0.4, MASK.shape) for name in NAMES}
REWARDS = np.array([1.0, 0.0, 0.0, 0.5])
GIVEN = {"row": "trajectory", "rewards": REWARDS, "response_mask": MASK, "group": ["a", "a", None, "b"]}
RUNS = [(0, slice(0, 5)), (0, slice(6, 7)), (1, slice(1, 2)), (1, slice(4, 6)), (3, slice(0, 1)), (3, slice(2, 4))]


def of_run(name, row, place):
    return TABLES[name][row, place]


def lowest_fifth(values):
    return np.sort(values)[: max(1, len(values) // 5)].mean()


BY_HAND = {
    "entropy": lambda *at: of_run("entropy_T", *at).mean(),
    "peak_entropy": lambda *at: -lowest_fifth(-of_run("entropy_T", *at)),
    "logprob": lambda *at: of_run("logprob_T", *at).mean(),
    "rare_logprob": lambda *at: lowest_fifth(of_run("logprob_T", *at)),
    "ref_logprob": lambda *at: of_run("ref_logprob_T", *at).mean(),
    "mismatch": lambda *at: (of_run("logprob_T", *at) - of_run("behavior_logprob_T", *at)).mean(),
    "mismatch_min": lambda *at: (of_run("logprob_T", *at) - of_run("behavior_logprob_T", *at)).min(),
    "value": lambda *at: of_run("value_T", *at)[0],
}


@pytest.mark.parametrize("name", SOURCES)
def test_columns_of_responses_by_hand(name):
    padded = padded_batch(**GIVEN, token_tables=TABLES, needs=(name,))
    np.testing.assert_allclose(padded.batch.columns[name], [BY_HAND[name](*at) for at in RUNS])


def test_columns_are_made_only_where_a_method_needs_them():
    assert not padded_batch(**GIVEN, token_tables=TABLES).batch.columns
    needed = padded_batch(**GIVEN, token_tables=TABLES, needs=("value_T", "state_key")).batch.columns
    assert list(needed) == ["value_T"]


def test_advantages_of_tokens_go_back_to_their_places_and_to_copies():
    method = tw.METHODS["ppo"](standardize=False, discount=1.0, decay=0.5)
    order = [3, 1, 0, 2, 0]  # row 0 twice
    given = GIVEN | {
        "rewards": REWARDS[order],
        "response_mask": MASK[order],
        "group": [GIVEN["group"][n] for n in order],
    }
    padded = padded_batch(
        **given,
        trajectory=["t3", "t1", "t0", None, "t0"],
        token_tables={"value_T": TABLES["value_T"][order]},
        needs=method.needs,
    )
    advantages, returns = padded.credit(method)
    for place, row in enumerate(order):
        places = np.flatnonzero(MASK[row])
        values = TABLES["value_T"][row, places]
        wanted, after, ahead = np.zeros(len(places)), 0.0, 0.0
        for t in reversed(range(len(places))):  # GAE over the generated tokens of the row
            reward = REWARDS[row] if t == len(places) - 1 else 0.0
            after = reward + ahead - values[t] + 0.5 * after
            ahead, wanted[t] = values[t], after
        np.testing.assert_allclose(advantages.tokens[place, places], wanted)
        np.testing.assert_allclose(returns[place, places], wanted + values)
        assert not advantages.tokens[place, MASK[row] == 0].any()


def test_a_critic_of_responses_sets_one_target_for_all_their_tokens():
    method = tw.gae(discount=1.0, decay=1.0)
    advantages, returns = padded_batch(**GIVEN, token_tables=TABLES, needs=method.needs).credit(method)
    for row, place in RUNS:
        np.testing.assert_allclose(returns[row, place], REWARDS[row])
        np.testing.assert_allclose(advantages.tokens[row, place], REWARDS[row] - TABLES["value_T"][row, place][0])


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        (tw.METHODS["ppo"](), {}, r"needs column 'value_T', which was not given; pass token_tables=\{\"value_T\""),
        (
            tw.METHODS["ppo"](),
            {"token_tables": {"value_T": MASK[:2]}},
            r"value_T has shape \(2, 7\), expected \(4, 7\)",
        ),
        (
            tw.METHODS["ppo"](),
            {"token_tables": {"value_T": np.where(MASK == 1, np.nan, 0.0)}},
            r"value_T\[0, 0\] is nan",
        ),
        (tw.METHODS["a_grae"](), {}, r"needs column 'success'"),
        (
            tw.METHODS["a_grae"](),
            {"return_is_success": True, "rewards": 2 * REWARDS},
            r"rewards sum to 2, expected 0 to 1",
        ),
    ],
)
def test_what_is_missing_or_wrong_is_one_line(method, options, message):
    with pytest.raises(IntegrationError, match=message) as caught:
        padded_advantages(method, **GIVEN | options)
    assert "\n" not in str(caught.value)


def test_values_outside_responses_are_not_read():
    table = np.where(MASK == 1, TABLES["value_T"], np.nan)
    method = tw.METHODS["ppo"]()
    clean = padded_advantages(method, **GIVEN, token_tables={"value_T": TABLES["value_T"]})
    np.testing.assert_array_equal(
        padded_advantages(method, **GIVEN, token_tables={"value_T": table}).tokens, clean.tokens
    )
