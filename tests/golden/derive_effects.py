"""Effects of actions predicted from outcomes: the posterior mean, by ridge regression on the actions themselves.

The library solves in the space of trajectories; here every action is an unknown:
(X'X / s + diag(1 / v)) d = X' r / s, with s the variance that actions do not explain, solved exactly.
"""

import math
from fractions import Fraction as F

from tests.golden.exact import case, flat, like, mean, nested

NOISE, LEAST, COUNT = F(1, 20), F(2, 100), F(1, 2)


def solve(matrix, right):
    """Solve linear equations by elimination, exactly."""
    rows = [[*line, value] for line, value in zip(matrix, right, strict=True)]
    for k in range(len(rows)):
        pivot = next(i for i in range(k, len(rows)) if rows[i][k] != 0)
        rows[k], rows[pivot] = rows[pivot], rows[k]
        rows[k] = [value / rows[k][k] for value in rows[k]]
        for i in range(len(rows)):
            if i != k:
                rows[i] = [a - rows[i][k] * b for a, b in zip(rows[i], rows[k], strict=True)]
    return [row[-1] for row in rows]


def of_group(rewards, states, actions, chance, noise, least):
    """Effects of one group, by place; `chance` holds the probability of each response."""
    taken = [list(zip(s, a, strict=True)) for s, a in zip(states, actions, strict=True)]
    names = sorted({pair for own in taken for pair in own})
    totals = [sum(own, start=F(0)) for own in rewards]

    def spread(values):
        return mean([(v - mean(values)) ** 2 for v in values])

    def undecided(t):
        running = [total for total, own in zip(totals, rewards, strict=True) if len(own) > t]
        share = spread(running) / spread(totals) if spread(totals) else F(1)
        return (len(running) * share + COUNT) / (len(running) + COUNT)

    tries = {name: [] for name in names}
    for own, of in zip(taken, chance, strict=True):
        for t, (pair, p) in enumerate(zip(own, of, strict=True)):
            tries[pair].append(undecided(t) * ((1 - p) ** 2 + least))
    prior = {name: mean(values) for name, values in tries.items()}
    count = [[F(own.count(name)) for name in names] for own in taken]
    explained = [sum(prior[name] * x * x for name, x in zip(names, row, strict=True)) for row in count]
    rest = noise * mean(explained)
    above = [total - mean(totals) for total in totals]
    matrix = [
        [
            sum(row[i] * row[j] for row in count) / rest + (1 / prior[names[i]] if i == j else 0)
            for j in range(len(names))
        ]
        for i in range(len(names))
    ]
    right = [sum(row[i] * value for row, value in zip(count, above, strict=True)) / rest for i in range(len(names))]
    effect = dict(zip(names, solve(matrix, right), strict=True))
    return [[effect[pair] for pair in own] for own in taken]


def blup_cases():
    """By hand where nothing is shared, then shared actions, repeats and two prompts."""
    source = "ours; Henderson's mixed model equations, Biometrics 31 (1975)"
    equation = "d = (X'X / s + diag(1 / v))^-1 X' (R - mean R) / s,  v = mean u ((1 - p)^2 + least)"

    def case_of(name, rewards, states, actions, chance, lengths, *, noise=NOISE, least=LEAST, **options):
        expected = [of_group(*group, noise, least) for group in zip(rewards, states, actions, chance, strict=True)]
        logprob = [math.log(p) / n for p, n in zip(flat(chance), flat(lengths), strict=True)]
        columns = nested(
            reward=rewards, state_key=states, action_key=actions, length=lengths, logprob=like(logprob, rewards)
        )
        return expected, case(name, source, equation, 1e-12, "blup", columns, expected, **options)

    # nothing shared, one turn each: v = 1/4 + 1/50 for all, so half of (R - 1/2) / (1 + noise)
    lone = [[[F(1)], [F(0)]]], [[["s"], ["t"]]], [[["a"], ["a"]]], [[[F(1, 2)], [F(1, 2)]]], [[[1], [2]]]
    expected, first = case_of("nothing shared, by hand", *lone)
    assert expected == [[[F(1, 2) / F(21, 20)], [F(-1, 2) / F(21, 20)]]]
    rewards = [[[F(0), F(1)], [F(0), F(0)], [F(0), F(0), F(2)]], [[F(1)], [F(0), F(0)]]]
    states = [[["s", "t"], ["s", "t"], ["s", "u", "u"]], [["s"], ["s", "t"]]]
    actions = [[["a", "x"], ["a", "y"], ["b", "x", "x"]], [["a"], ["b", "x"]]]
    chance = [
        [[F(1), F(1, 2)], [F(3, 4), F(1, 4)], [F(1, 8), F(1, 2), F(1, 2)]],
        [[F(1, 2)], [F(1, 2), F(9, 10)]],
    ]
    lengths = [[[1, 2], [2, 3], [1, 1, 4]], [[2], [1, 3]]]
    shared = rewards, states, actions, chance, lengths
    expected, second = case_of("shared, repeated, two prompts", *shared)
    assert expected[0][0][0] == expected[0][1][0]  # one action, one effect
    options = {"noise": F(1), "least": F(1, 2)}
    _, third = case_of("other variances", *shared, **options, least_variance=0.5)
    third["options"]["noise"] = 1.0
    return [first, second, third]


TABLES = {"blup": blup_cases}
