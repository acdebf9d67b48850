"""Rows of verl as trajectories and turns; verl itself is not needed."""

import numpy as np
import pytest
import torch

import turnwise as tw
from turnwise.base.errors import IntegrationError
from turnwise.integrations.verl_rows import verl_batch

TURNS = tw.reinforce(discount=0.5)
"""Sees who earned what, and in which order."""
MASK = torch.tensor([[1, 1, 0, 1, 0], [1, 0, 0, 0, 0], [1, 1, 1, 0, 1]])
UID = ["p", "p", "q"]
SINGLE = ["p_0_0", "p_1_0", "q_0_0"]


def at_the_end(scores, lengths=(5, 1, 5)) -> torch.Tensor:
    """As verl scores: on the last token of a row, whoever wrote it."""
    table = torch.zeros(3, 5)
    table[range(3), [n - 1 for n in lengths]] = torch.tensor(scores)
    return table


def credit(method=TURNS, **given) -> np.ndarray:
    batch = verl_batch(**{"response_mask": MASK, "uid": UID, "rewards": at_the_end([2.0, 4.0, 8.0])} | given)
    return batch.spread(method(batch.batch)).tokens.numpy()


@pytest.mark.parametrize("keys", [None, SINGLE])
def test_a_session_of_one_row_has_a_response_a_run(keys):
    np.testing.assert_array_equal(credit(keys=keys), [[1, 1, 0, 2, 0], [4, 0, 0, 0, 0], [4, 4, 4, 0, 8]])


def test_a_score_behind_the_last_response_is_its():
    """A trajectory that ends with an observation: verl puts the score there, outside of the mask."""
    assert credit(keys=SINGLE)[0, 3] == 2.0


def test_a_score_of_a_row_without_tokens_is_dropped():
    mask = MASK * torch.tensor([[1], [0], [1]])
    np.testing.assert_array_equal(credit(response_mask=mask, keys=SINGLE), [[1, 1, 0, 2, 0], [0] * 5, [4, 4, 4, 0, 8]])


def test_rewards_on_tokens_stay_where_they_are():
    rewards = torch.zeros(3, 5)
    rewards[0, 1] = 6.0
    np.testing.assert_array_equal(credit(rewards=rewards, keys=SINGLE)[0], [6, 6, 0, 0, 0])


TURN_MASK = torch.tensor([[1, 1, 0], [1, 0, 0], [1, 1, 1], [1, 0, 0], [0, 0, 0]])
SHUFFLED = {
    "response_mask": TURN_MASK,
    "uid": ["p", "p", "p", "q", "padx"],
    "keys": ["p_0_2", "p_0_0", "p_0_1", "q_3_0", "padx_0_0"],
    "rewards": torch.tensor([[0, 8.0, 0], [8, 0, 0], [0, 0, 8], [2, 0, 0], [0, 0, 0]]),  # verl copies the last row's
}


def test_a_session_of_several_rows_is_one_trajectory_in_the_order_of_its_keys():
    np.testing.assert_array_equal(credit(**SHUFFLED), [[8, 8, 0], [2, 0, 0], [4, 4, 4], [2, 0, 0], [0, 0, 0]])


def test_padding_of_verl_changes_nothing():
    kept = slice(0, 4)
    without = {k: v[kept] for k, v in SHUFFLED.items()}
    np.testing.assert_array_equal(credit(tw.dr_grpo(), **SHUFFLED)[kept], credit(tw.dr_grpo(), **without))


def test_groups_are_compared_by_trajectory_not_by_row():
    """Three turns that won beside one that lost: the mean is 0.5, not 0.75."""
    given = {
        "response_mask": torch.ones(4, 1, dtype=torch.int64),
        "uid": ["p"] * 4,
        "keys": ["p_0_0", "p_0_1", "p_0_2", "p_1_0"],
        "rewards": torch.tensor([[1.0], [1.0], [1.0], [0.0]]),
    }
    np.testing.assert_array_equal(credit(tw.dr_grpo(), **given)[:, 0], [0.5, 0.5, 0.5, -0.5])
    wrong = given | {"keys": None}  # what an estimator of verl sees without the keys
    np.testing.assert_array_equal(credit(tw.dr_grpo(), **wrong)[:, 0], [0.25, 0.25, 0.25, -0.75])


def test_a_last_row_without_tokens_leaves_its_score_to_the_one_before():
    given = SHUFFLED | {"response_mask": TURN_MASK * torch.tensor([[0], [1], [1], [1], [1]])}
    np.testing.assert_array_equal(credit(**given)[:3], [[0, 0, 0], [4, 0, 0], [8, 8, 8]])


def test_a_penalty_stays_on_its_row_while_the_copied_score_counts_once():
    penalty = torch.zeros(5, 3)
    penalty[1, 0] = -1.0
    given = SHUFFLED | {"rewards": SHUFFLED["rewards"] + penalty, "scores": SHUFFLED["rewards"]}
    np.testing.assert_array_equal(credit(**given)[:3, 0], [8, 1, 4])


RECORDS = [
    {"reward": [1.0, 0.5], "state_key": ["a", "b"]},
    {"reward": [4.0], "state_key": ["a"]},
    {"reward": [3.0, 5.0], "state_key": ["c", "c"]},
]


def test_recorded_rewards_go_to_their_responses_and_the_rest_to_the_last():
    """The first trajectory's score is 2, of which its loop recorded 1.5."""
    np.testing.assert_array_equal(
        credit(keys=SINGLE, records=RECORDS), [[1.5, 1.5, 0, 1, 0], [4, 0, 0, 0, 0], [5.5, 5.5, 5.5, 0, 5]]
    )


def test_recorded_columns_reach_the_method():
    batch = verl_batch(
        rewards=at_the_end([1.5, 4.0, 8.0]), response_mask=MASK, uid=UID, keys=SINGLE, records=RECORDS
    ).batch
    direct = tw.Batch.from_trajectories(
        [
            [
                [{"reward": 1.0, "state_key": "a"}, {"reward": 0.5, "state_key": "b"}],
                [{"reward": 4.0, "state_key": "a"}],
            ],
            [[{"reward": 3.0, "state_key": "c"}, {"reward": 5.0, "state_key": "c"}]],
        ]
    )
    np.testing.assert_allclose(tw.gigpo()(batch), tw.gigpo()(direct))


def test_records_of_rows_of_turns():
    records = [
        {"reward": [8.0], "penalty": [0.0]},
        {"reward": [0.0], "penalty": [-0.5]},
        {"reward": [0.0], "penalty": [0.0]},
        {"reward": [2.0], "penalty": [0.0]},
        None,
    ]
    method = tw.chain(TURNS, tw.add_penalty())
    np.testing.assert_array_equal(credit(method, **SHUFFLED, records=records)[:4, 0], [8, 1.5, 4, 2])


def test_entropies_are_averaged_over_each_response():
    entropies = torch.arange(15.0).reshape(3, 5)
    batch = verl_batch(
        rewards=at_the_end([1.0, 1, 1]), response_mask=MASK, uid=UID, keys=SINGLE, entropies=entropies
    ).batch
    np.testing.assert_allclose(batch.columns["entropy"], [0.5, 3, 5, 11, 14])


REFUSALS = {
    "several runs beside several rows": (
        {"keys": ["p_0_0", "p_0_1", "q_0_0"]},
        "row 'p_0_0' has several runs of generated tokens",
    ),
    "names of another kind": ({"keys": ["p", "p", "q"]}, "row 'p' is not named uid_session_index"),
    "a row twice": (
        {"keys": ["p_0_0", "p_0_0", "q_0_0"], "response_mask": torch.ones(3, 5)},
        "rows 0 and 1 name the same response but differ in rewards",
    ),
    "too few names": ({"keys": ["p_0_0"]}, "keys has 1 entries"),
    "too few records of a row": (
        {"records": [{"reward": [1.0]}, *RECORDS[1:]]},
        "row 0 has 2 responses in its mask, but its agent loop recorded 1",
    ),
    "a record missing": ({"records": [None, *RECORDS[1:]]}, "row 0 has no record"),
    "records that differ": ({"records": [RECORDS[0], {"reward": [1.0]}, RECORDS[2]]}, "record the same columns"),
    "a session in two groups": (
        {"keys": ["p_0_0", "p_0_1", "p_0_2"], "response_mask": torch.ones(3, 5)},
        "have the same trajectory but different groups",
    ),
    "rewards of another shape": ({"rewards": torch.zeros(3, 4)}, "rewards has shape"),
}


@pytest.mark.parametrize(("changes", "message"), REFUSALS.values(), ids=REFUSALS)
def test_what_cannot_be_known_is_refused_in_one_line(changes, message):
    with pytest.raises(IntegrationError, match=message) as caught:
        credit(**{"keys": SINGLE} | changes)
    assert "\n" not in str(caught.value)
