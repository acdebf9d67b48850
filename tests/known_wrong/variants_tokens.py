"""Bugs in credit per token and per turn from a critic, with the checks that reject them. Factors are all 1/2."""

import numpy as np
from tests.known_wrong.checks import Check, Credit
from tests.known_wrong.known import Known, column, known, worked
from tests.known_wrong.variants import Variant
from tests.properties.strategies import Rows

import turnwise as tw

VALUES = [[2, 4], [1, 3]]
TWO_TURNS = known([[[1, 4]]], value_T=VALUES)
FIRST_UNPAID = known([[[0, 4]]], value_T=VALUES)
TWO_TRAJECTORIES = known([[[1], [4]]], value_T=VALUES)

TOKENS = [
    # tokens are paid 0, 1, 0, 4: deltas 0, 1 + 1/2 - 4, 3/2 - 1, 4 - 3; a quarter a token away
    worked("turns_follow_each_other", TWO_TURNS, [(-2.3125 / 4 - 2.3125) / 2, (0.75 + 1) / 2]),
    # the first trajectory's last delta: 1 - 4
    worked("nothing_follows_a_trajectory", TWO_TRAJECTORIES, [(-0.75 - 3) / 2, (0.75 + 1) / 2]),
]
# the same turns in one trajectory that was cut off, and in one that ended
CUT = known([[[1, 4]]], value_T=VALUES, finished=[0, 0])
ENDED = known([[[1, 4]]], value_T=VALUES, finished=[1, 1])
CUTS = [
    # the last delta is 4 + 3/2 - 3, those before it 3/2 - 1, 1 + 1/2 - 4 and 4/2 - 2; a quarter a token away
    worked("a_cut_trajectory_is_worth_its_last_value", CUT, [(-2.21875 / 4 - 2.21875) / 2, (1.125 + 2.5) / 2]),
    worked("what_ended_is_worth_nothing_more", ENDED, [(-2.3125 / 4 - 2.3125) / 2, (0.75 + 1) / 2]),
]
LEVELS = [
    # turns: 4 - 3 and 1 + 3/2 - 4 + 1/4, so that the last tokens are paid 4 and 2.75
    worked("a_turn_is_paid_its_return", TWO_TURNS, [(-1.25 / 4 - 1.25) / 2, (0.75 + 1) / 2]),
    # without a reward the first turn is still one: 3/2 - 4 + 1/4, and its last token is paid 1.75
    worked("a_turn_without_reward_is_a_turn", FIRST_UNPAID, [(-2.25 / 4 - 2.25) / 2, (0.75 + 1) / 2]),
]
# trajectories of two turns and one: deltas 1/2 + 1 - 2 and 0 - 2, and 4 - 1
THREE = known([[[0.5, 0], [4]]], value=[2, 2, 1])
TURNS_RAW = np.array([0.5 + 1 - 2 + (0 - 2) / 4, -2.0, 3.0])
TURNS: list[Check] = [
    worked("turns_are_standardised_over_responses", THREE, (TURNS_RAW - TURNS_RAW.mean()) / TURNS_RAW.std(ddof=1))
]
# a trajectory of two turns that keeps its subgoal, paid 0 and 4: what is left to get is 4 at both
PLANNED = known(
    [[[0, 4]]],
    value_low=[1, 1],
    value_high=[2, 9],
    value_switch=[0, 0],
    switch=[1, 0],
    part_T=[[0, 1, 2], [0, 1, 2, 2]],
)
# the same without actions between tags; that the first response keeps changes nothing in the streams
UNACTED = known(
    [[[0, 4]]],
    value_low=[1, 1],
    value_high=[2, 9],
    value_switch=[0, 0],
    switch=[0, 0],
    part_T=[[3, 4, 2], [3, 4, 2]],
)
PARTS = [
    worked("each_part_has_its_own_advantage", PLANNED, [(4 + 2 + 3) / 3, (4 + 0 + 3 + 3) / 4]),
    worked("without_an_action_all_tokens_are_action", UNACTED, [(7 + 5 + 3) / 3, (7 + 3 + 3) / 3]),
]
KEEPS = [worked("a_first_response_that_keeps_is_fined", known([[[0, 4]]], switch=[0, 0]), [-0.15, 4 - 0.15])]


def summed(rewards, values, after=0.0) -> list[float]:
    """GAE with both factors 1/2."""
    result, carry = [], 0.0
    for reward, value in zip(rewards[::-1], values[::-1], strict=True):
        carry = reward + after / 2 - value + carry / 4
        after = value
        result.append(carry)
    return result[::-1]


def rows_of(rows: Rows) -> list[tuple[float, list[float]]]:
    assert isinstance(rows, Known)
    return [(reward, row["value_T"]) for reward, row in zip(rows.reward, rows.more, strict=True)]


def on_last(reward: float, length: int) -> list[float]:
    return [0.0] * (length - 1) + [reward]


def each_response_alone(rows: Rows) -> np.ndarray:
    return np.array([np.mean(summed(on_last(reward, len(values)), values)) for reward, values in rows_of(rows)])


def one_flat_batch(rows: Rows, place=on_last, after: float = 0.0) -> np.ndarray:
    rewards = [r for reward, values in rows_of(rows) for r in place(reward, len(values))]
    flat = summed(rewards, [v for _, values in rows_of(rows) for v in values], after)
    return np.array([np.mean([flat.pop(0) for _ in values]) for _, values in rows_of(rows)])


def cut_at(place: int | None, *, only_unfinished: bool = True) -> Credit:
    """One trajectory that is worth the value of a token of its last response after it; `place` None: nothing."""

    def credit(rows: Rows) -> np.ndarray:
        last = rows_of(rows)[-1][1]
        runs = not only_unfinished or column(rows, "finished")[-1] == 0
        return one_flat_batch(rows, after=last[place] if runs and place is not None else 0.0)

    return credit


def each_cut(rows: Rows) -> np.ndarray:
    """Every response of an unfinished trajectory is worth its own last value after it."""
    ends = [values[-1] * (runs == 0) for (_, values), runs in zip(rows_of(rows), column(rows, "finished"), strict=True)]
    return np.array(
        [
            np.mean(summed(on_last(reward, len(values)), values, end))
            for (reward, values), end in zip(rows_of(rows), ends, strict=True)
        ]
    )


def on_first(reward: float, length: int) -> list[float]:
    return [reward] + [0.0] * (length - 1)


def two_levels(rows: Rows, *, at: int = -1, ends_by_reward: bool = False, carry: bool = False) -> np.ndarray:
    """Bi-level GAE of one trajectory, with bugs to choose from."""
    turns = [(reward, list(values)) for reward, values in rows_of(rows)]
    owner = [n for n, (_, values) in enumerate(turns) for _ in values]
    if ends_by_reward:  # a turn without reward melts into the next
        joined: list[tuple[float, list[float]]] = [(0.0, [])]
        for reward, values in turns:
            joined[-1] = (reward, joined[-1][1] + values)
            if reward != 0:
                joined.append((0.0, []))
        turns = joined[:-1]
    known_at = [values[at] for _, values in turns]
    paid = [a + v for a, v in zip(summed([r for r, _ in turns], known_at), known_at, strict=True)]
    if carry:
        flat = summed(
            [r for p, (_, values) in zip(paid, turns, strict=True) for r in on_last(p, len(values))],
            [v for _, values in turns for v in values],
        )
    else:
        flat = [a for p, (_, values) in zip(paid, turns, strict=True) for a in summed(on_last(p, len(values)), values)]
    return np.array([np.mean([a for a, n in zip(flat, owner, strict=True) if n == row]) for row in range(len(rows))])


def standardised_trajectories(rows: Rows) -> np.ndarray:
    """Mean and deviation over trajectories' means."""
    per = np.array([TURNS_RAW[:2].mean(), TURNS_RAW[2]])
    return (TURNS_RAW - per.mean()) / per.std(ddof=1)


def by_part(kept_subgoal: float = 0.0, *, first: tuple[float, ...] = (4, 2, 3)) -> Credit:
    """The worked example with bugs to choose from."""
    return lambda rows: np.array([sum(first) / 3, (first[0] + kept_subgoal + 2 * first[2]) / 4])


def one_part_per_token(rows: Rows) -> np.ndarray:
    """The worked examples without a sum."""
    assert isinstance(rows, Known)
    streams = ((4, 2, 3), (4, 0, 3))
    turns = zip(streams, rows.more, strict=True)
    return np.array([np.mean([stream[int(part) % 3] for part in row["part_T"]]) for stream, row in turns])


def first_spared(rows: Rows) -> np.ndarray:
    """A penalty for the keeps after the first turn."""
    names = rows.names()
    late = np.array([name in names[:row] for row, name in enumerate(names)])
    return rows.reward - 0.3 * late * (column(rows, "switch") == 0) / np.array([names.count(name) for name in names])


HALF = {"discount": 0.5, "decay": 0.5, "standardize": False}
SUITES: dict[str, list[Check]] = {
    "gae over tokens": TOKENS,
    "egae over tokens": CUTS,
    "two levels": LEVELS,
    "turn_ppo": TURNS,
    "parts": PARTS,
    "keeping at first": KEEPS,
}
REAL: dict[str, Credit] = {
    "gae over tokens": lambda rows: rows.credit(tw.ppo(**HALF)),
    "egae over tokens": lambda rows: rows.credit(tw.egae(discount=0.5, decay=0.5, level="tokens")),
    "two levels": lambda rows: rows.credit(tw.bilevel_gae(turn_discount=0.5, **HALF)),
    "turn_ppo": lambda rows: rows.credit(tw.turn_ppo(discount=0.5, decay=0.5)),
    "parts": lambda rows: rows.credit(tw.credit_parts(standardize=False)),
    "keeping at first": lambda rows: rows.credit(tw.penalize_keeping()),
}
VARIANTS: dict[str, Variant] = {
    "every response is an episode": Variant(
        "gae over tokens",
        each_response_alone,
        "single-turn PPO on a conversation cut into rows: the value after each response is 0",
        ("turns_follow_each_other",),
    ),
    "a trajectory goes on in the next": Variant(
        "gae over tokens", one_flat_batch, "GAE over a flat axis of tokens", ("nothing_follows_a_trajectory",)
    ),
    "a response is paid at its first token": Variant(
        "gae over tokens",
        lambda rows: one_flat_batch(rows, place=on_first),
        "the turn's reward put where the turn begins",
        ("turns_follow_each_other",),
    ),
    "tokens that were cut off have ended": Variant(
        "egae over tokens",
        cut_at(None),
        "card T-PPO: plain GAE on truncated rollouts",
        ("a_cut_trajectory_is_worth_its_last_value",),
    ),
    "tokens that ended are worth their last value": Variant(
        "egae over tokens",
        cut_at(-1, only_unfinished=False),
        "card T-PPO: the bootstrap is for unfinished responses; those that ended have V = 0",
        ("what_ended_is_worth_nothing_more",),
    ),
    "the value where the cut response began": Variant(
        "egae over tokens",
        cut_at(0),
        "a value per response in place of one per token",
        ("a_cut_trajectory_is_worth_its_last_value",),
    ),
    "every response of a cut trajectory is cut": Variant(
        "egae over tokens",
        each_cut,
        "the paper's single responses read as rows of a conversation",
        ("a_cut_trajectory_is_worth_its_last_value",),
    ),
    "a turn ends where a reward is": Variant(
        "two levels",
        lambda rows: two_levels(rows, ends_by_reward=True),
        "RAGEN's port of bi-level GAE, card VAGEN: turn ends found by reward != 0",
        ("a_turn_without_reward_is_a_turn",),
    ),
    "no fresh start for a turn's tokens": Variant(
        "two levels",
        lambda rows: two_levels(rows, carry=True),
        "card VAGEN: at e_k next value 0 and carry 0",
        ("a_turn_is_paid_its_return",),
    ),
    "the value of a turn at its first token": Variant(
        "two levels",
        lambda rows: two_levels(rows, at=0),
        "card VAGEN, the variant seen elsewhere",
        ("a_turn_is_paid_its_return",),
    ),
    "one advantage for the whole plan": Variant(
        "parts",
        by_part(3, first=(3, 3, 3)),
        "turnwise before responses had parts: the action's advantage on every token",
        ("each_part_has_its_own_advantage",),
    ),
    "a kept subgoal is credited": Variant(
        "parts",
        by_part(2),
        "card HiPER: subgoal tokens of boundary turns only",
        ("each_part_has_its_own_advantage",),
    ),
    "a response without an action has parts alone": Variant(
        "parts",
        one_part_per_token,
        "turnwise before it had the code's fallback_action_to_full_response, whose streams add",
        ("without_an_action_all_tokens_are_action",),
    ),
    "a first response that keeps is not fined": Variant(
        "keeping at first",
        first_spared,
        "turnwise, whose measure told it as a switch; HiPER-agent's keep_penalty_skip_first=True",
        ("a_first_response_that_keeps_is_fined",),
    ),
    "standardised over trajectories": Variant(
        "turn_ppo",
        standardised_trajectories,
        "card Turn-PPO: normalised over the turns of the batch",
        ("turns_are_standardised_over_responses",),
    ),
}
