"""MARS: turn returns compared within a role."""

import math
from fractions import Fraction as F

from tests.golden.exact import LENGTHS, ROLES, TWO, case, flat, mean, nested, places, returns, shaped


def mars_cases():
    """Turn returns against the mean over turns of a role, and the release's order."""
    source, equation = "arXiv 2510.15414", "A = G - mean over all turns of the group in the same role"

    def pools(rewards, roles, *, by_role=True, scope="group"):
        return {
            (g, n, t): (g if scope == "group" else 0, roles[g][n][t] if by_role else "") for g, n, t in places(rewards)
        }

    def centred(values, pool, *, distinct=False):
        members = {key: [values[p] for p in values if pool[p] == key] for key in set(pool.values())}
        baseline = {key: mean(sorted(set(inside)) if distinct else inside) for key, inside in members.items()}
        return {p: value - baseline[pool[p]] for p, value in values.items()}

    def paper(rewards, roles, **options):
        return shaped(centred(returns(rewards), pools(rewards, roles, **options)), rewards)

    def release(rewards, roles, **options):
        pool = pools(rewards, roles, **options)
        reward = {(g, n, t): rewards[g][n][t] for g, n, t in places(rewards)}
        reward = centred(reward, pool)
        summed = {(g, n, t): sum(reward[g, n, u] for u in range(t, len(rewards[g][n]))) for g, n, t in places(rewards)}
        return shaped(centred(summed, pool, distinct=True), rewards)

    def whitened(rewards, roles, lengths, *, rewards_too=False, **options):
        """The release's configuration token by token: rewards on last tokens, whitened, summed, compared, whitened."""
        pool = pools(rewards, roles, **options)
        centre = centred({(g, n, t): rewards[g][n][t] for g, n, t in places(rewards)}, pool)
        last = {(g, n, t): lengths[g][n][t] - 1 for g, n, t in places(rewards)}
        tokens = {(*p, k): centre[p] if k == last[p] else F(0) for p in centre for k in range(last[p] + 1)}
        tokens = white(tokens) if rewards_too else tokens
        summed = {
            (g, n, t): sum(tokens[g, n, u, last[g, n, u]] for u in range(t, len(rewards[g][n])))
            for g, n, t in places(rewards)
        }
        compared = centred({p: round(v, 12) if rewards_too else v for p, v in summed.items()}, pool, distinct=True)
        final = white({(*p, k): compared[p] for p in compared for k in range(last[p] + 1)})
        return shaped({p: final[*p, 0] for p in compared}, rewards)

    def white(values):
        """masked_whiten: (value - mean) / sqrt(sample variance + 1e-8) over all tokens."""
        middle = sum(values.values()) / len(values)
        variance = sum((value - middle) ** 2 for value in values.values()) / (len(values) - 1)
        return {place: float(value - middle) / math.sqrt(variance + 1e-8) for place, value in values.items()}

    card, one_role = [[[F(0), F(1)], [F(0), F(-1)]]], [[["x", "x"], ["x", "x"]]]
    assert paper(card, one_role) == [[[1, 1], [-1, -1]]]  # the card's test
    # three turns of return 1 and one of 0 in one role: the release centres by 1/2, the paper by 3/4
    ties = [[[F(1)], [F(1)], [F(1)], [F(0)]]]
    tied_role = [[["x"], ["x"], ["x"], ["x"]]]
    assert release(ties, tied_role) == [[[F(1, 2)], [F(1, 2)], [F(1, 2)], [F(-1, 2)]]]
    assert paper(ties, tied_role)[0][3] == [F(-3, 4)]
    # three tokens of 1 and one of -1: mean 1/2, sample variance (3 / 4 + 9 / 4) / 3 = 1
    pair, pair_roles, pair_lengths = [[[F(1)], [F(-1)]]], [[["x"], ["x"]]], [[[3], [1]]]
    by_hand = [[[0.5 / math.sqrt(1 + 1e-8)], [-1.5 / math.sqrt(1 + 1e-8)]]]
    # that the release whitens the rewards as well changes nothing: their mean is 0, and the rest has no other scale
    for options in ({}, {"scope": "batch"}):
        once, twice = (flat(whitened(TWO, ROLES, LENGTHS, rewards_too=too, **options)) for too in (False, True))
        assert all(abs(a - b) < 1e-7 for a, b in zip(once, twice, strict=True))
    order = "thu-nics/MARS roll/utils/functionals.py"
    steps = "centre turn rewards, sum to go, subtract the mean of the different sums"
    both = f"{steps}, whiten over tokens: (A - mean) / sqrt(var + 1e-8)"
    groups, release_of = nested(reward=TWO, role=ROLES), {"convention": "release", "whiten": True}
    long = nested(reward=TWO, role=ROLES, length=LENGTHS)
    return [
        case("card check", source, equation, 1e-14, "mars", nested(reward=card, role=one_role), [[[1, 1], [-1, -1]]]),
        case("two roles", source, equation, 1e-13, "mars", groups, paper(TWO, ROLES)),
        case(
            "roles ignored",
            source,
            "A = G - mean over all turns of the group",
            1e-13,
            "mars",
            groups,
            paper(TWO, ROLES, by_role=False),
            by_role=False,
        ),
        case(
            "over the batch",
            source,
            "A = G - mean over all turns of the batch in the same role",
            1e-13,
            "mars",
            groups,
            paper(TWO, ROLES, scope="batch"),
            scope="batch",
        ),
        case("the release's order", order, steps, 1e-13, "mars", groups, release(TWO, ROLES), convention="release"),
        case(
            "the release's order over the batch",
            order,
            steps,
            1e-13,
            "mars",
            groups,
            release(TWO, ROLES, scope="batch"),
            scope="batch",
            convention="release",
        ),
        case(
            "the release counts equal returns once",
            order,
            steps,
            1e-14,
            "mars",
            nested(reward=ties, role=tied_role),
            release(ties, tied_role),
            convention="release",
        ),
        case(
            "the release whitens, by hand",
            order,
            both,
            1e-12,
            "mars",
            nested(reward=pair, role=pair_roles, length=pair_lengths),
            by_hand,
            **release_of,
        ),
        case("the release whitens", order, both, 1e-12, "mars", long, whitened(TWO, ROLES, LENGTHS), **release_of),
        case(
            "the release whitens over the batch",
            order,
            both,
            1e-12,
            "mars",
            long,
            whitened(TWO, ROLES, LENGTHS, scope="batch"),
            scope="batch",
            **release_of,
        ),
    ]


TABLES = {"mars": mars_cases}
