"""DPA: the loss of rejection sampling along a direction, and its slope in the log-probability of every token."""

import math
from fractions import Fraction as F

from tests.golden.exact import case

# prompts, trajectories, turns: the rewards of two objectives, and log pi of every generated token
REWARDS = [
    [[(F(1), F(0))], [(F(0), F(1)), (F(1, 2), F(0))], [(F(1, 2), F(0)), (F(0), F(0)), (F(0), F(1, 2))]],
    [[(F(0), F(2)), (F(0), F(-1))], [(F(2), F(-1))]],
]
LOGPROB = [
    [[[F(-1), F(-1, 2)]], [[F(-3)], [F(-1, 4), F(-2)]], [[F(-1)], [F(-1, 8), F(-5)], [F(-2)]]],
    [[[F(-1, 2)], [F(-1), F(-3, 2)]], [[F(-4), F(-1, 4), F(-1), F(-1)]]],
]


def along(direction, rewards):
    """v . r of every response of a prompt."""
    return [[sum(v * r for v, r in zip(direction, both, strict=True)) for both in turns] for turns in rewards]


def best_of(returns):
    """Place of the largest return, the first of equals; whether all are equal."""
    place = 0
    for n, value in enumerate(returns):
        if value > returns[place]:
            place = n
    return place, min(returns) == max(returns)


def imitated(directions, *, equal=False):
    """Places of the trajectories that are learned, one pair (prompt, trajectory) each."""
    winners = []
    for g, direction in enumerate(directions):
        place, same = best_of([sum(turns) for turns in along(direction, REWARDS[g])])
        if equal or not same:
            winners.append((g, place))
    return winners


def supervised(winners, weight):
    """The loss, weight * mean of -log pi over all tokens of the winners, and d loss / d log pi of every token."""
    counted = [lp for g, n in winners for turn in LOGPROB[g][n] for lp in turn]
    loss = -weight * sum(counted, start=F(0)) / max(len(counted), 1)
    slope = [
        [[-weight / F(len(counted)) if (g, n) in winners else F(0) for turn in turns for _ in turn]
         for n, turns in enumerate(group)]
        for g, group in enumerate(LOGPROB)
    ]  # fmt: skip
    return loss, slope


def dpa_case(name, directions, expected_winners, *, weight=F(1), equal=False):
    """A case of the term; the test gives the rewards of the objectives to the environment of a direction."""
    winners = imitated(directions, equal=equal)
    assert winners == expected_winners, "worked by hand"
    loss, slope = supervised(winners, weight)
    paid = [along(direction, group) for direction, group in zip(directions, REWARDS, strict=True)]
    groups = [
        [[{"reward": paid[g][n][t], "logprob_T": LOGPROB[g][n][t]} for t in range(len(turns))]
         for n, turns in enumerate(group)]
        for g, group in enumerate(REWARDS)
    ]  # fmt: skip
    source = "arXiv 2402.18571, section 3: rejection sampling along v . r, then supervised learning"
    equation = "weight * mean over the winners' tokens of -log pi; winner = argmax over K of v . r"
    made = case(name, source, equation, 1e-12, "best_of_group", groups, slope, weight=float(weight), equal=equal)
    made["rewards"] = [[[[float(r) for r in both] for both in turns] for turns in group] for group in REWARDS]
    return made | {"directions": [[float(v) for v in d] for d in directions], "expected_loss": float(loss)}


def best_of_group_cases():
    """Two prompts; a direction each."""
    first, second, between = (F(1), F(0)), (F(0), F(1)), (F(3, 5), F(4, 5))
    # first prompt: returns (1, 0), (1/2, 1), (1/2, 1/2); second: (0, 1), (2, -1)
    assert [sum(turns) for turns in along(between, REWARDS[0])] == [F(3, 5), F(11, 10), F(7, 10)]
    assert [sum(turns) for turns in along(between, REWARDS[1])] == [F(4, 5), F(2, 5)]
    steep = (F(1, 2), F(1, 2))  # in the second prompt both trajectories are worth 1/2
    return [
        dpa_case("the first objective alone", [first, first], [(0, 0), (1, 1)]),
        dpa_case("the second objective alone", [second, second], [(0, 1), (1, 0)]),
        dpa_case("between both", [between, between], [(0, 1), (1, 0)], weight=F(1, 4)),
        dpa_case("a direction per prompt", [second, first], [(0, 1), (1, 1)], weight=F(3)),
        dpa_case("against the second objective", [(F(4, 5), F(-3, 5))] * 2, [(0, 0), (1, 1)]),
        dpa_case("equal returns have no winner", [between, steep], [(0, 1)]),
        dpa_case("the first of equal returns", [between, steep], [(0, 1), (1, 0)], equal=True),
    ]


assert math.isclose(math.hypot(3 / 5, 4 / 5), 1.0), "a direction is a unit vector"
TABLES = {"best_of_group": best_of_group_cases}
