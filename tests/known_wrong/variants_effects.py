"""Bugs in effects of actions that are predicted from outcomes, with the checks that reject them."""

import math

import numpy as np
from tests.known_wrong.checks import Check, Credit
from tests.known_wrong.known import column, known, worked
from tests.known_wrong.variants import Variant
from tests.known_wrong.variants_turns import keyed, labels
from tests.properties.strategies import Rows

import turnwise as tw

HALF = math.log(0.5)
NOISE, LEAST, COUNT = 0.05, 0.02, 0.5
V = 0.25 + LEAST
"""Prior variance of an action of probability 1/2."""


def rows_of(rewards, state_key, action_key, logprob=None, length=None) -> Rows:
    """Rows with responses of probability 1/2 and one token if not said otherwise."""
    size = len(state_key)
    return known(
        rewards,
        state_key=state_key,
        action_key=action_key,
        logprob=[HALF] * size if logprob is None else logprob,
        length=[1.0] * size if length is None else length,
    )


# one turn each, nothing shared: half of (R - mean R) / (1 + noise)
LONE = rows_of([[[1], [0]]], ["s", "t"], ["a", "a"])
# both begin alike, then one wins: what they share explains nothing, the rest is v (1/2) / (v + 0.05 * 2 v)
FORK = rows_of([[[0, 1], [0, 0]]], ["s", "t", "s", "t"], ["a", "x", "a", "y"])
# as FORK, with two prompts: where all succeed there is nothing to divide, even if the names are the same
PROMPTS = rows_of(
    [[[0, 1], [0, 0]], [[0, 1], [0, 1]]], ["s", "t", "s", "t"] * 2, ["a", "x", "a", "y", "a", "x", "a", "x"]
)
# nobody shares anything; the first response of each is certain, so the second did nearly all of it
SURE = rows_of([[[0, 1], [0, 0]]], ["s", "t", "u", "w"], ["a"] * 4, logprob=[0.0, HALF, 0.0, HALF])
# a response of two tokens of probability 1/2 each has probability 1/4
LONG = rows_of([[[0, 1], [0, 0]]], ["s", "t", "u", "w"], ["a"] * 4, length=[2.0, 1.0, 2.0, 1.0])
# the first takes its action twice. It runs alone at the second turn: u = COUNT / (1 + COUNT) = 1/3 there, so that the
# action's v is 2/3 of the other one's, and K = 8/3 v and v
TWICE = rows_of([[[0, 1], [0]]], ["s", "s", "t"], ["a", "a", "a"])
SHARE = 0.5 / (LEAST + V + NOISE * (LEAST + V))
OTHER = 0.5 / (2 * V + NOISE * (2 * V) - V)  # K = [[2v, v], [v, 2v]] on (1/2, -1/2) acts as 2v - v
LEFT = NOISE * 11 / 6 * V
QUARTER = 0.75**2 + LEAST
BOTH = 0.5 / ((QUARTER + V) * (1 + NOISE))

# one wins at once, two lose later: their second turns have u = COUNT / (2 + COUNT) = 1/5, and K = v, 6/5 v and 6/5 v
LATE = rows_of([[[1], [0, 0], [0, 0]]], ["s", "t", "u", "w", "x"], ["a"] * 5)
TAKEN = NOISE * 3.4 / 3 * V
WON, LOST = 4 / 3 / (V + TAKEN), 2 / 3 / (6 / 5 * V + TAKEN)  # twice 2/3 and 1/3

CHECKS: list[Check] = [
    worked("what_nobody_shares_is_shrunk", LONE, [0.5 / (1 + NOISE), -0.5 / (1 + NOISE)]),
    worked("what_winners_and_losers_share_gets_nothing", FORK, [0.0, V * OTHER, 0.0, -V * OTHER]),
    worked("prompts_share_no_actions", PROMPTS, [0.0, V * OTHER, 0.0, -V * OTHER, 0, 0, 0, 0]),
    worked("who_had_no_choice_gets_little", SURE, [LEAST * SHARE, V * SHARE, -LEAST * SHARE, -V * SHARE]),
    worked("a_response_is_as_likely_as_all_its_tokens", LONG, [QUARTER * BOTH, V * BOTH, -QUARTER * BOTH, -V * BOTH]),
    worked(
        "an_action_taken_twice_counts_twice",
        TWICE,
        [2 / 3 * V * 2 * 0.5 / (8 / 3 * V + LEFT)] * 2 + [-V * 0.5 / (V + LEFT)],
    ),
    worked(
        "where_only_losers_are_left_little_is_lost",
        LATE,
        [V * WON / 2] + [-V * LOST / 2, -(V / 5) * LOST / 2] * 2,
    ),
]


def predicted(
    rows: Rows,
    *,
    own: bool = True,
    act: bool = True,
    all_tokens: bool = True,
    equal: bool = False,
    reverse: bool = False,
    noise: float = NOISE,
    once: bool = False,
    always: bool = False,
    centred: bool = True,
) -> np.ndarray:
    """The predictor with plain loops over groups, with faults to choose from."""
    states, actions = labels(rows, "state_key"), labels(rows, "action_key")
    place = keyed(rows, states) if own else [("", key) for key in states]
    taken = list(zip(place, actions, strict=True)) if act else list(place)
    chance = np.exp(column(rows, "logprob") * (column(rows, "length") if all_tokens else 1.0))
    square = np.ones(len(rows)) if equal else chance**2 if reverse else (1 - chance) ** 2
    names, result = rows.names(), np.zeros(len(rows))
    for group in sorted(set(rows.group)):
        here = [row for row in range(len(rows)) if rows.group[row] == group]
        # actions with the names of another prompt's count as evidence if names are not kept apart
        among = here if own else range(len(rows))
        own_names = list(dict.fromkeys(names[row] for row in among))
        kinds = list(dict.fromkeys(taken[row] for row in among))
        turns = [[row for row in among if names[row] == name] for name in own_names]
        total = np.array([rows.reward[own].sum() for own in turns])
        spread = np.ones(len(rows))
        for t in range(0 if always else max(map(len, turns))):
            running = [n for n, own in enumerate(turns) if len(own) > t]
            share = np.var(total[running]) / np.var(total) if np.var(total) > 0 else 1.0
            for n in running:
                spread[turns[n][t]] = (len(running) * share + COUNT) / (len(running) + COUNT)
        variance = spread * (square + LEAST)
        prior = np.array([np.mean([variance[r] for r in among if taken[r] == kind]) for kind in kinds])
        count = np.zeros((len(own_names), len(kinds)))
        for row in among:
            where = own_names.index(names[row]), kinds.index(taken[row])
            count[where] = 1 if once else count[where] + 1
        kernel = count * prior @ count.T
        kernel = kernel + noise * np.trace(kernel) / len(kernel) * np.eye(len(kernel))
        above = total - total.mean() if centred else total
        effect = prior * (count.T @ np.linalg.solve(kernel, above))
        for row in here:
            result[row] = effect[kinds.index(taken[row])]
    return result


SUITES: dict[str, list[Check]] = {"effects of actions": CHECKS}

REAL: dict[str, Credit] = {"effects of actions": lambda rows: rows.credit(tw.blup())}

VARIANTS: dict[str, Variant] = {
    "states alone, not actions": Variant(
        "effects of actions",
        lambda rows: predicted(rows, act=False),
        "the effect of being in a state: nothing sets two actions in it apart",
        ("what_winners_and_losers_share_gets_nothing",),
    ),
    "actions of other prompts": Variant(
        "effects of actions",
        lambda rows: predicted(rows, own=False),
        "states of another task are not the same states",
        ("prompts_share_no_actions",),
    ),
    "equal priors": Variant(
        "effects of actions",
        lambda rows: predicted(rows, equal=True),
        "ridge regression without the policy's probabilities",
        ("who_had_no_choice_gets_little",),
    ),
    "certain responses first": Variant(
        "effects of actions",
        lambda rows: predicted(rows, reverse=True),
        "p^2 for (1 - p)^2",
        ("who_had_no_choice_gets_little",),
    ),
    "the mean token's probability": Variant(
        "effects of actions",
        lambda rows: predicted(rows, all_tokens=False),
        "a mean log-probability is that of one token",
        ("a_response_is_as_likely_as_all_its_tokens",),
    ),
    "nothing left unexplained": Variant(
        "effects of actions",
        lambda rows: predicted(rows, noise=1e-9),
        "least squares: all of the outcome is divided",
        ("what_nobody_shares_is_shrunk",),
    ),
    "repeats do not count": Variant(
        "effects of actions",
        lambda rows: predicted(rows, once=True),
        "whether an action was taken, not how often",
        ("an_action_taken_twice_counts_twice",),
    ),
    "the same prior at all turns": Variant(
        "effects of actions",
        lambda rows: predicted(rows, always=True),
        "losers who go on and on would share the blame equally",
        ("where_only_losers_are_left_little_is_lost",),
    ),
    "raw returns": Variant(
        "effects of actions",
        lambda rows: predicted(rows, centred=False),
        "V_0 left out",
        ("what_nobody_shares_is_shrunk",),
    ),
}
