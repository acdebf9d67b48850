"""What the derivations of golden numbers share: cases, exact statistics, two ragged examples. Standard library only."""

import json
import math
from fractions import Fraction as F

DATE = "2026-11-21"


def mean(values):
    """Mean, exact for fractions."""
    return sum(values, start=F(0)) / len(values)


def sample_std(values):
    """Root of the sample variance; 0 for one value."""
    if len(values) < 2:
        return 0.0
    return math.sqrt(sum(((v - mean(values)) ** 2 for v in values), start=F(0)) / (len(values) - 1))


def case(name, source, equation, rtol, method, groups, expected, **options):
    """One golden case; `groups[g][n][t]` holds the values of a response, `expected` the same nesting."""
    by = "tests/golden/derive_*.py, fractions.Fraction and math"
    return {
        "name": name, "source": source, "equation": equation, "computed_by": by, "date": DATE, "rtol": rtol,
        "method": method, "options": options, "groups": json.loads(json.dumps(groups, default=float)),
        "expected": [float(value) for group in expected for trajectory in group for value in trajectory],
    }  # fmt: skip


def single_turn(rewards):
    """One group of one-turn trajectories."""
    return [[[{"reward": reward}] for reward in rewards]]


# one prompt, trajectories of 1, 2 and 3 turns with rewards on the way; returns 1, 1/2, 3/2
RAGGED = [[[F(1)], [F(1, 2), F(0)], [F(0), F(1, 2), F(1)]]]
STATES = [[["a"], ["a", "b"], ["b", "a", "a"]]]
# mean token entropies in nats: h = 0, 1/4, 1/2, 3/4, 1 and 1/2
ENTROPY = [[[F(2, 10)], [F(4, 10), F(6, 10)], [F(8, 10), F(1), F(6, 10)]]]


def ragged_groups(*, entropy=False, states=False):
    """The ragged example as nested responses."""
    return [
        [
            [
                {"reward": reward}
                | ({"entropy": ENTROPY[g][n][t]} if entropy else {})
                | ({"state_key": STATES[g][n][t]} if states else {})
                for t, reward in enumerate(trajectory)
            ]
            for n, trajectory in enumerate(group)
        ]
        for g, group in enumerate(RAGGED)
    ]


def spread(per_trajectory):
    """One value a trajectory to one a response, in the shape of the ragged example."""
    return [[[value] * len(trajectory) for value, trajectory in zip(per_trajectory, RAGGED[0], strict=True)]]


RETURNS = [sum(trajectory, start=F(0)) for trajectory in RAGGED[0]]


def standardised(values, *, eps=1e-6, ddof=1):
    """(R - mean) / (std + eps)."""
    std = sample_std(values) * math.sqrt((len(values) - 1) / (len(values) - ddof)) if len(values) > 1 else 0.0
    return [float(v - mean(values)) / (std + eps) for v in values]


def to_go(rewards, discount):
    """sum_{k >= t} discount^(k - t) r_k, term by term."""
    return [
        sum((discount ** (k - t) * r for k, r in enumerate(rewards) if k >= t), start=F(0)) for t in range(len(rewards))
    ]


def nested(**columns):
    """Nested responses from columns of the same nesting."""
    first = next(iter(columns.values()))
    return [
        [
            [{name: column[g][n][t] for name, column in columns.items()} for t in range(len(turns))]
            for n, turns in enumerate(group)
        ]
        for g, group in enumerate(first)
    ]


def flat(column):
    """All values, trajectory after trajectory."""
    return [value for group in column for turns in group for value in turns]


def like(values, column):
    """Flat values in the nesting of a column."""
    iterator = iter(values)
    return [[[next(iterator) for _ in turns] for turns in group] for group in column]


def z_by_turn(paid):
    """z over the group for each step index; 0 for a lone step."""
    result = [[0.0] * len(turns) for turns in paid]
    for t in range(max(map(len, paid))):
        rows = [n for n, turns in enumerate(paid) if len(turns) > t]
        if len(rows) > 1:
            for n, z in zip(rows, standardised([paid[n][t] for n in rows]), strict=True):
                result[n][t] = z
    return result


# two prompts: three trajectories of 1, 2 and 3 turns, then four of 2, 1, 1 and 2; a success is paid 1 at the end
TURNS = [[1, 2, 3], [2, 1, 1, 2]]
SUCCESS = [[1, 0, 1], [0, 1, 0, 0]]
TOKENS = [[[4], [1, 2], [3, 1, 2]], [[5, 2], [6], [3], [2, 2]]]


def by_place(value):
    """`value(g, n, t)` of every response."""
    return [[[value(g, n, t) for t in range(turns)] for n, turns in enumerate(group)] for g, group in enumerate(TURNS)]


def each(values):
    """One value a trajectory, to its responses."""
    return by_place(lambda g, n, t: values[g][n])


def table(**columns):
    """The two prompts with success and some columns."""
    return by_place(
        lambda g, n, t: (
            {"reward": SUCCESS[g][n] if t == TURNS[g][n] - 1 else 0, "success": SUCCESS[g][n]}
            | {name: column[g][n][t] for name, column in columns.items()}
        )
    )


def with_columns(rewards, **columns):
    """One prompt, one turn a trajectory."""
    return [[[{"reward": r} | {name: c[n] for name, c in columns.items()}] for n, r in enumerate(rewards)]]


def turns_of(values):
    """One group of one-turn trajectories as expected credit."""
    return [[[v] for v in values]]


# two prompts: the ragged one, and one of two trajectories of two turns and one turn
TWO = [*RAGGED, [[F(1, 4), F(3, 4)], [F(-1)]]]
LENGTHS = [[[3], [1, 2], [2, 5, 1]], [[4, 1], [2]]]
ROLES = [[["white"], ["black", "black"], ["white", "black", "white"]], [["black", "white"], ["white"]]]


def places(rewards):
    """(group, trajectory, turn) of every response."""
    return [(g, n, t) for g, group in enumerate(rewards) for n, turns in enumerate(group) for t in range(len(turns))]


def shaped(values, rewards):
    """A dictionary by place as nested lists."""
    return [
        [[values[g, n, t] for t in range(len(turns))] for n, turns in enumerate(group)]
        for g, group in enumerate(rewards)
    ]


def returns(rewards, discount=F(1)):
    """What came from a response on, by place."""
    return {(g, n, t): to_go(rewards[g][n], discount)[t] for g, n, t in places(rewards)}


STEP_REWARDS = [[[1], [0, 1], [1, 1, 0]], [[0, 0], [1]]]


def outcomes(rewards):
    """The whole return of the trajectory, by place."""
    return {(g, n, t): sum(rewards[g][n], start=F(0)) for g, n, t in places(rewards)}


def population_std(values):
    """Root of the mean square deviation."""
    return math.sqrt(mean([(v - mean(values)) ** 2 for v in values]))


def population_z(values, eps):
    """(x - mean) / (population standard deviation + eps)."""
    centred = [float(v - mean(values)) for v in values]
    return [c / (math.sqrt(float(sum((v - mean(values)) ** 2 for v in values) / len(values))) + eps) for c in centred]


def surprises(rewards, values, end, discount):
    """delta_t = r_t + discount V_{t+1} - V_t."""
    after = [*values[1:], end]
    return [r + discount * a - v for r, v, a in zip(rewards, values, after, strict=True)]


def advantages(rewards, values, discount, decay, end=F(0)):
    """A_t = sum_k (discount decay)^k delta_{t+k}, term by term."""
    delta = surprises(rewards, values, end, discount)
    return [
        sum(((discount * decay) ** k * d for k, d in enumerate(delta[t:])), start=F(0)) for t in range(len(rewards))
    ]
