"""The check suites: what must hold for a way of giving credit, whoever implements it.

A credit is a function `Rows -> advantage of every row`. The same checks run on the real methods, which must pass all of
them, and on the known-wrong variants, each of which must fail at least one. To add a check, write a function and name
it in `SUITES`.
"""

from collections.abc import Callable

import numpy as np
from tests.properties.strategies import Rows

Credit = Callable[[Rows], np.ndarray]
Check = Callable[[Credit], None]
CLOSE = {
    "rtol": 1e-5,
    "atol": 1e-5,
}  # a variant may use another eps below the rewards' scale: only real differences count


def table(rewards, *, entropy=None, penalty=None, states=None) -> Rows:
    """Rows from `rewards[g][n][t]` and flat columns; groups "0", "1", ..., trajectories "0", "1", ... within each."""
    flat = [(g, n, r) for g, group in enumerate(rewards) for n, turns in enumerate(group) for r in turns]
    num_rows = len(flat)
    return Rows.of(
        group=tuple(str(g) for g, _, _ in flat),
        trajectory=tuple(str(n) for _, n, _ in flat),
        reward=np.array([r for _, _, r in flat], dtype=np.float64),
        entropy=np.array(entropy if entropy is not None else np.linspace(0.2, 1.4, num_rows)),
        penalty=np.array(penalty if penalty is not None else np.zeros(num_rows)),
        state_key=tuple(states if states is not None else range(num_rows)),
    )


# two prompts, unequal numbers of turns, outcomes at the end
TWO_PROMPTS = table(
    [[[0, 0, 0, 1], [0], [0, 0]], [[1], [0, 3], [0, 0, 1]]],
    entropy=[0.3, 0.9, 0.5, 1.1, 0.2, 0.7, 0.4, 1.9, 0.8, 1.3, 2.2, 0.6, 1.0],
    penalty=[0, -0.1, 0, 0, 0, 0, 0, 0, -0.1, 0, 0, 0, 0],
    states=["hall", "cave", "hall", "end", "hall", "hall", "cave", "hall", "hall", "cave", "hall", "end", "cave"],
)


# -- for every credit --------------------------------------------------------------------------------------------------


def rows_may_come_in_any_order(credit: Credit) -> None:
    """A trainer balances and shuffles its rows; the credit goes with the row."""
    order = np.array([10, 5, 0, 8, 4, 1, 7, 11, 2, 6, 9, 3, 12])  # interleaved, each trajectory's turns in their order
    moved = TWO_PROMPTS.take(order)
    np.testing.assert_allclose(credit(moved), credit(TWO_PROMPTS)[order], **CLOSE)


def labels_are_names_not_numbers(credit: Credit) -> None:
    """ "1" and "01" are two prompts, as "0" and "1" are."""
    renamed = TWO_PROMPTS.replace(group=tuple({"0": "1", "1": "01"}[label] for label in TWO_PROMPTS.group))
    np.testing.assert_allclose(credit(renamed), credit(TWO_PROMPTS), **CLOSE)


def prompts_do_not_see_each_other(credit: Credit) -> None:
    """A prompt's credit is the same alone and in company."""
    whole = credit(TWO_PROMPTS)
    for rows in (np.arange(7), np.arange(7, 13)):
        np.testing.assert_allclose(credit(TWO_PROMPTS.take(rows)), whole[rows], **CLOSE)


EVERY = [rows_may_come_in_any_order, labels_are_names_not_numbers, prompts_do_not_see_each_other]

# -- for credit that compares trajectories -----------------------------------------------------------------------------


def a_lone_trajectory_gets_nothing(credit: Credit) -> None:
    """Nothing to compare with, nothing to learn."""
    lone = table([[[0, 5]], [[0], [1]]])
    np.testing.assert_allclose(credit(lone)[:2], 0.0, **CLOSE)


def turns_do_not_vote(credit: Credit) -> None:
    """Splitting a trajectory into more turns with the same return does not change the others' credit."""
    short, long = table([[[1], [0], [0]]]), table([[[0, 0, 0, 1], [0], [0]]])
    np.testing.assert_allclose(credit(long)[4:], credit(short)[1:], **CLOSE)


def credit_sums_to_zero_over_trajectories(credit: Credit) -> None:
    """What one trajectory of a prompt gains, the others lose."""
    first_rows = np.array([0, 4, 5, 7, 8, 10])
    values = credit(TWO_PROMPTS.replace(penalty=np.zeros(13)))[first_rows]
    np.testing.assert_allclose([values[:3].sum(), values[3:].sum()], 0.0, **CLOSE)


def an_equal_outcome_teaches_nothing(credit: Credit) -> None:
    """All succeed or all fail: no signal about the outcome, so no turn gets any."""
    np.testing.assert_allclose(credit(table([[[0, 1], [1], [0, 0, 1]], [[0], [0, 0], [0]]])), 0.0, **CLOSE)


COMPARING = [
    *EVERY,
    a_lone_trajectory_gets_nothing,
    turns_do_not_vote,
    credit_sums_to_zero_over_trajectories,
    an_equal_outcome_teaches_nothing,
]


def one_success_of_four(*expected: float) -> Check:
    """The worked example [1, 0, 0, 0]."""

    def one_success_of_four_equals_the_card(credit: Credit) -> None:
        np.testing.assert_allclose(credit(table([[[1], [0], [0], [0]]])), expected, **CLOSE)

    return one_success_of_four_equals_the_card


# -- for credit with penalties -----------------------------------------------------------------------------------------


def a_penalty_falls_on_its_own_turn_at_its_own_size(credit: Credit) -> None:
    """-0.1 for one invalid action moves that response by -0.1, whatever the outcomes of the group are."""
    clean, fined = np.zeros(5), np.array([0.0, -0.1, 0.0, 0.0, 0.0])
    for rewards in ([[[0, 0], [0], [0, 0]]], [[[0, 1], [0], [0, 0]]]):
        difference = credit(table(rewards, penalty=fined)) - credit(table(rewards, penalty=clean))
        np.testing.assert_allclose(difference, fined, **CLOSE)


# -- for returns -------------------------------------------------------------------------------------------------------


def later_rewards_count_less_by_their_distance(credit: Credit) -> None:
    """Rewards 1, 2, 4 at discount 1/2: to go 1 + 1 + 1, 2 + 2, 4."""
    np.testing.assert_allclose(credit(table([[[1, 2, 4]]])), [3.0, 4.0, 4.0], **CLOSE)


# -- for anchor states -------------------------------------------------------------------------------------------------


def one_state_two_prompts_are_two_anchor_groups(credit: Credit) -> None:
    """The same kitchen, another task: not compared."""
    shared = table([[[1], [1]], [[5], [5]]], states=["kitchen"] * 4)
    np.testing.assert_allclose(credit(shared), 0.0, **CLOSE)


def the_sooner_success_is_the_better_one(credit: Credit) -> None:
    """Two trajectories leave the hall; one gets there in two turns, the other in three. Discount 1/2, no deviation.

    In the hall: to go 1/2 and 1/4, mean 3/8, so +-1/8. Both succeed, so the episode part is 0.
    """
    race = table([[[0, 1], [0, 0, 1]]], states=["hall", "a", "hall", "b", "c"])
    np.testing.assert_allclose(credit(race), [0.125, 0.0, -0.125, 0.0, 0.0], **CLOSE)


# -- for AEM (on Dr. GRPO) ---------------------------------------------------------------------------------------------

CONTRAST = table(
    [[[0, 0, 1], [0, 0, 0]], [[0, 1], [0, 0]]], entropy=[0.0, 0.5, 1.0, 0.25, 0.75, 1.0, 3.0, 5.0, 4.0, 3.5]
)


def the_surer_response_counts_more(credit: Credit) -> None:
    """Within a trajectory, whose base advantage is one number, size falls with entropy, whichever the sign."""
    size, entropy = np.abs(credit(CONTRAST)), CONTRAST.entropy
    names = CONTRAST.names()
    for name in dict.fromkeys(names):
        inside = np.array([row for row, other in enumerate(names) if other == name])
        assert (np.diff(size[inside[np.argsort(entropy[inside])]]) < 0).all(), f"{name}: {size[inside]}"


def the_mean_coefficient_of_a_prompt_is_one(credit: Credit) -> None:
    """Base advantages are +-1/2, so the coefficient is twice the size."""
    coefficient = 2 * np.abs(credit(CONTRAST))
    np.testing.assert_allclose([coefficient[:6].mean(), coefficient[6:].mean()], 1.0, **CLOSE)


def the_surest_counts_e_times_the_most_hesitant(credit: Credit) -> None:
    """exp(-0) / exp(-1) within each prompt."""
    size = np.abs(credit(CONTRAST))
    np.testing.assert_allclose([size[0] / size[2], size[6] / size[7]], np.e, **CLOSE)


def modulation_keeps_the_sign(credit: Credit) -> None:
    """A success is never punished."""
    np.testing.assert_array_equal(np.sign(credit(CONTRAST)), [1, 1, 1, -1, -1, -1, 1, 1, -1, -1])


def hardly_different_entropies_change_nothing(credit: Credit) -> None:
    """A spread of less than 0.1 nats is noise."""
    flat = CONTRAST.replace(entropy=1.0 + CONTRAST.entropy / 100)
    np.testing.assert_allclose(np.abs(credit(flat)), 0.5, **CLOSE)


OF_GRPO = [*COMPARING, one_success_of_four(1.5, -0.5, -0.5, -0.5)]

SUITES: dict[str, list[Check]] = {
    "grpo": OF_GRPO,
    "rloo": [*COMPARING, one_success_of_four(1, -1 / 3, -1 / 3, -1 / 3)],
    "dr_grpo": [*COMPARING, one_success_of_four(0.75, -0.25, -0.25, -0.25)],
    "grpo with penalty": [*OF_GRPO, a_penalty_falls_on_its_own_turn_at_its_own_size],
    "discounted returns": [*EVERY, later_rewards_count_less_by_their_distance],
    "gigpo without std": [
        *EVERY, one_state_two_prompts_are_two_anchor_groups, the_sooner_success_is_the_better_one,
        a_lone_trajectory_gets_nothing,
    ],
    "aem on dr_grpo": [
        *EVERY, a_lone_trajectory_gets_nothing, an_equal_outcome_teaches_nothing, the_surer_response_counts_more,
        the_mean_coefficient_of_a_prompt_is_one, the_surest_counts_e_times_the_most_hesitant, modulation_keeps_the_sign,
        hardly_different_entropies_change_nothing,
    ],
}  # fmt: skip
