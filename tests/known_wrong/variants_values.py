"""Bugs in credit from values and probes, with the checks that reject them."""

import numpy as np
from tests.known_wrong.checks import Check, Credit
from tests.known_wrong.known import column, following, known, worked
from tests.known_wrong.variants import Variant, discounted, outcomes
from tests.properties.strategies import Rows

import turnwise as tw

# -- GAE with discount 1/2 and decay 1/2 -------------------------------------------------------------------------------

RUNNING = known([[[1, 0, 4], [2]]], value=[2, 4, 1, 3], finished=[0, 0, 0, 1])
ENDED = known([[[1, 0, 4], [2]]], value=[2, 4, 1, 3], finished=[1, 1, 1, 1])
GAE = [
    # surprises 1 + 2 - 2, 0 + 1/2 - 4, 4 - 1 and 2 - 3; a quarter a turn away
    worked("surprises_are_summed_a_quarter_a_turn_away", ENDED, [1 - 3.5 / 4 + 3 / 16, -3.5 + 3 / 4, 3, -1]),
    # the last surprise of the first trajectory: 4 + 1/2 - 1
    worked("what_still_runs_is_worth_its_last_value", RUNNING, [1 - 3.5 / 4 + 3.5 / 16, -3.5 + 3.5 / 4, 3.5, -1]),
]


def gae(rows: Rows, *, after: np.ndarray | None = None, decay: float = 0.5, discount: float = 0.5) -> np.ndarray:
    value = column(rows, "value")
    own = np.where(column(rows, "finished") > 0, 0.0, value)
    after = np.where(following(rows, np.ones(len(rows))) > 0, following(rows, value), own) if after is None else after
    error = rows.replace(reward=rows.reward + discount * after - value)
    return discounted(error, discount * decay, lambda t, k: k - t)


def next_row(rows: Rows) -> np.ndarray:
    return np.append(column(rows, "value")[1:], 0.0)


# -- TP-GRPO: step rewards before they are compared --------------------------------------------------------------------

TURNS = [
    # V: 1/2, 1/4, 1/2, then 1: the second response turns the fall, and 1 - 1/4 came from there on
    worked("the_turn_gets_all_that_followed", known([[[0, 0, 1]]], value=[0.5, 0.25, 0.5]), [-0.25, 0.75, 0.5]),
    # V: 1/2, 1/4, 5/4, then 1: what follows goes down again
    worked("a_turn_that_overshoots_is_none", known([[[0, 0, 1]]], value=[0.5, 0.25, 1.25]), [-0.25, 1.0, -0.25]),
    # V: 1/2, 3/4, 1/2, then 1: the second response goes against the whole
    worked("a_relapse_is_none", known([[[0, 0, 1]]], value=[0.5, 0.75, 0.5]), [0.5, -0.25, 0.5]),
]


def step_rewards(rows: Rows, *, consistent: bool = True, with_the_whole: bool = True, tail=None) -> np.ndarray:
    result = []
    values = column(rows, "value")
    expected, outcome = [*values, rows.reward.sum()], rows.reward.sum()  # of one trajectory that is paid at its end
    change = np.diff(expected)
    agrees = np.sign(change) * (np.sign(outcome - expected[0]) if with_the_whole else 1.0)
    for k, d in enumerate(change):
        came_round = k > 0 and agrees[k - 1] * agrees[k] < 0 and (agrees[k] > 0 or not with_the_whole)
        turned = k == 0 or came_round
        goes_on = np.sign(d) * np.sign(outcome - expected[k + 1]) > 0 or not consistent
        result.append((outcome - expected[k] if tail is None else tail) if turned and goes_on else d)
    return np.array(result)


# -- VinePPO before its whitening --------------------------------------------------------------------------------------

VINE = [
    # V: 1/2, 4/5, 1/5, and 0 at the end of the failure; then a success from 1/4
    worked(
        "each_response_gets_its_own_difference",
        known([[[0, 0, 0], [0, 1]]], value=[0.5, 0.8, 0.2, 0.25, 0.5], value_after=[0.8, 0.2, 0, 0.5, 0]),
        [0.3, -0.6, -0.2, 0.25, 0.5],
    )
]


# -- HiPER, raw streams with discount 1/2 ------------------------------------------------------------------------------

GOALS = known(
    [[[0, 8, 4]]],
    value_low=[1, 2, 3],
    value_high=[5, 99, 2],
    switch=[0, 0, 1],
    value_switch=[0, 0, 0],
    finished=[1] * 3,
)  # segments of two turns and one
ACTIONS = [worked("a_segment_ends_with_the_planners_value", GOALS, [1 - 1 + (8 + 1 - 2) / 2, 8 + 1 - 2, 4 - 3])]
# 8 / 2 + 2 / 4 - 5 = -1/2; 4 - 2 = 2, two turns later, at decay 1/2
SUBGOALS = [
    worked("a_subgoal_is_credited_once_and_later_ones_by_their_distance_in_turns", GOALS, [-0.5 + 2 / 4 / 2, 0, 2])
]


KEEPING = known([[[1], [1, 2]]], switch=[0, 0, 1])
KEEPS = [worked("a_trajectory_of_one_turn_is_not_fined", KEEPING, [1, 1 - 0.15, 2])]


def fined(rows: Rows, *, each: bool = False) -> np.ndarray:
    """All keeps fined, by their share of the turns or in full."""
    num_turns = np.array([1 if each else rows.names().count(name) for name in rows.names()])
    return rows.reward - 0.3 * (column(rows, "switch") == 0) / num_turns


def subgoals(rows: Rows, *, turns: int = 2, on_all: bool = False) -> np.ndarray:
    first = 4 + 2 / 2**turns - 5
    total = first + 2 / 2**turns / 2
    return np.array([total, total if on_all else 0, 2])


# -- SPAE before its last standardisation ------------------------------------------------------------------------------

PROBED = known([[[0, 0, 1], [0]]], accuracy=[1, 1, 1, 0], confidence=[1, 1, 1, 0])
ONCE, TWICE = (1 + np.exp(-1)) / 4, (1 + np.exp(-2)) / 4  # base 1/2, halved at most
DAMPED = [worked("only_earlier_answers_damp", PROBED, [0.5, ONCE, TWICE, -0.5])]


def damped(rows: Rows, count) -> np.ndarray:
    names = rows.names()
    turn = np.array([names[:row].count(name) for row, name in enumerate(names)])
    base = np.array([0.5, 0.5, 0.5, -0.5])
    return base * (0.5 + 0.5 * np.exp(-np.array([0.0 if row == 3 else count(t) for row, t in enumerate(turn)])))


# -- HCAPO's Q, discount 1/2 -------------------------------------------------------------------------------------------

HINDSIGHT = known([[[0, 0, 8], [4]]], hindsight_logprob=[*(5 * np.log([0.8, 0.4, 0.3])), 5 * np.log(0.01)])
QUALITY = [worked("hindsight_is_compared_within_the_trajectory", HINDSIGHT, [1.2 * 2, 0.8 * 4, 0.8 * 8, 4])]


def quality(rows: Rows, *, over_batch: bool = False, from_start: bool = False, temperature: float = 5.0) -> np.ndarray:
    names = rows.names()
    chance = np.exp(column(rows, "hindsight_logprob") / temperature)
    mean = np.array([chance[[over_batch or other == name for other in names]].mean() for name in names])
    turn = np.array([names[:row].count(name) for row, name in enumerate(names)])
    left = np.array([names[row + 1 :].count(name) for row, name in enumerate(names)])
    return np.clip(chance / mean, 0.8, 1.2) * 0.5 ** (turn if from_start else left) * outcomes(rows)


SUITES: dict[str, list[Check]] = {
    "egae": GAE,
    "turning points": TURNS,
    "continuations": VINE,
    "actions": ACTIONS,
    "subgoals": SUBGOALS,
    "keeping": KEEPS,
    "saturation": DAMPED,
    "hindsight": QUALITY,
}

REAL: dict[str, Credit] = {
    "egae": lambda rows: rows.credit(tw.egae(discount=0.5, decay=0.5)),
    "turning points": lambda rows: rows.credit(tw.reward_turning_points()),
    "continuations": lambda rows: rows.credit(tw.vine_ppo(standardize=False)),
    "actions": lambda rows: rows.credit(tw.credit_actions(discount=0.5, standardize=False)),
    "subgoals": lambda rows: rows.credit(tw.credit_subgoals(discount=0.5, decay=0.5, standardize=False)),
    "keeping": lambda rows: rows.credit(tw.penalize_keeping()),
    "saturation": lambda rows: rows.credit(tw.chain(tw.dr_grpo(), tw.damp_after_saturation())),
    "hindsight": lambda rows: rows.credit(tw.chain(tw.outcome_return(), tw.weigh_by_hindsight(discount=0.5))),
}

LAST, STILL = "surprises_are_summed_a_quarter_a_turn_away", "what_still_runs_is_worth_its_last_value"

VARIANTS: dict[str, Variant] = {
    "the next row's value at the end of a trajectory": Variant(
        "egae", lambda rows: gae(rows, after=next_row(rows)), "values shifted over a flat batch of rows", (LAST,)
    ),
    "what ended is worth its last value": Variant(
        "egae",
        lambda rows: gae(rows, after=np.array([*next_row(rows)[:2], 1.0, 3.0])),
        "card T-PPO: the bootstrap is for unfinished responses; those that ended have V = 0",
        (LAST,),
    ),
    "what still runs is worth nothing": Variant(
        "egae",
        lambda rows: gae(rows, after=following(rows, column(rows, "value"))),
        "a cut-off read as an end: plain GAE on truncated rollouts",
        (STILL,),
    ),
    "decay without discount": Variant(
        "egae",
        lambda rows: gae(rows) + 0.25 * following(rows, gae(rows)),
        "(lambda)^k for (discount lambda)^k",
        (LAST,),
    ),
    "turning points whatever follows": Variant(
        "turning points",
        lambda rows: step_rewards(rows, consistent=False),
        "the official code's option select_inter_step_only_from_consistent_trajectory=false",
        ("a_turn_that_overshoots_is_none",),
    ),
    "any change of direction is a turning point": Variant(
        "turning points",
        lambda rows: step_rewards(rows, with_the_whole=False, consistent=False),
        "the official code's option indicator_wo_delta_global_constraint",
        ("a_relapse_is_none",),
    ),
    "the whole trajectory's gain at a turning point": Variant(
        "turning points",
        lambda rows: step_rewards(rows, tail=rows.reward.sum() - column(rows, "value")[0]),
        "the official code without use_sde_minus_rt: R - V_0 in place of R - V_{k-1}",
        ("the_turn_gets_all_that_followed",),
    ),
    "differences summed to the end": Variant(
        "continuations",
        lambda rows: outcomes(rows) - column(rows, "value"),
        "VinePPO: lambda = 1 read as GAE's, which gives the return minus the value; its steps are not summed",
        ("each_response_gets_its_own_difference",),
    ),
    "the value shifted over a flat batch": Variant(
        "continuations",
        lambda rows: rows.reward + next_row(rows) - column(rows, "value"),
        "the value after the end is that of the next trajectory's prompt",
        ("each_response_gets_its_own_difference",),
    ),
    "the outcome on every response": Variant(
        "continuations",
        lambda rows: outcomes(rows) + column(rows, "value_after") - column(rows, "value"),
        "the reward of the last step paid to every step",
        ("each_response_gets_its_own_difference",),
    ),
    "a segment ends with the next action's value": Variant(
        "actions",
        lambda rows: np.array([0 + (8 + 1.5 - 2) / 2, 8 + 1.5 - 2, 1.0]),
        "card HiPER: the next segment's v_high; v_low of the next turn belongs to another subgoal",
        ("a_segment_ends_with_the_planners_value",),
    ),
    "subgoals discounted by their number": Variant(
        "subgoals",
        lambda rows: subgoals(rows, turns=1),
        "card HiPER: discount^{d_k}, not discount, from segment to segment",
        ("a_subgoal_is_credited_once_and_later_ones_by_their_distance_in_turns",),
    ),
    "the subgoal's credit on all of its turns": Variant(
        "subgoals",
        lambda rows: subgoals(rows, on_all=True),
        "card HiPER: subgoal tokens of boundary turns only",
        ("a_subgoal_is_credited_once_and_later_ones_by_their_distance_in_turns",),
    ),
    "a lone turn is fined for keeping": Variant(
        "keeping",
        fined,
        "turnwise before the code was read: HiPER-agent's normalized mode skips such trajectories",
        ("a_trajectory_of_one_turn_is_not_fined",),
    ),
    "every keep is fined in full": Variant(
        "keeping",
        lambda rows: fined(rows, each=True),
        "HiPER-agent's keep_penalty_mode=fixed",
        ("a_trajectory_of_one_turn_is_not_fined",),
    ),
    "an answer damps its own response": Variant(
        "saturation",
        lambda rows: damped(rows, lambda t: t + 1),
        "card SPAE: C_k counts earlier steps",
        ("only_earlier_answers_damp",),
    ),
    "all earlier answers damp once": Variant(
        "saturation",
        lambda rows: damped(rows, lambda t: min(t, 1)),
        "card SPAE: a count, not a flag",
        ("only_earlier_answers_damp",),
    ),
    "hindsight compared over the batch": Variant(
        "hindsight",
        lambda rows: quality(rows, over_batch=True),
        "card HCAPO: mean over the trajectory's turns",
        ("hindsight_is_compared_within_the_trajectory",),
    ),
    "discounted from the start": Variant(
        "hindsight",
        lambda rows: quality(rows, from_start=True),
        "card HCAPO: discount^(T - t)",
        ("hindsight_is_compared_within_the_trajectory",),
    ),
}
