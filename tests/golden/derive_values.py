"""GAE, EGAE, SPO, VinePPO, ArCHer and TP-GRPO: credit from values."""

import itertools
import math
from fractions import Fraction as F

from tests.golden.exact import RAGGED, advantages, case, mean, nested, z_by_turn

# values of the states of the ragged example, whose returns are 1, 1/2 and 3/2
VALUE = [[[F(1, 2)], [F(3, 4), F(1, 4)], [F(1, 4), F(1, 2), F(1)]]]


# -- values ------------------------------------------------------------------------------------------------------------


def gae_cases():
    """Sums of surprises, and what an unfinished trajectory still expects."""
    source, equation = "arXiv 1506.02438, eq. 16", "A_t = sum_k (discount decay)^k delta_{t+k}"
    groups = nested(reward=RAGGED, value=VALUE)

    def expected(discount, decay, ends=(F(0),) * 3):
        return [[advantages(r, v, discount, decay, end) for r, v, end in zip(RAGGED[0], VALUE[0], ends, strict=True)]]

    by_hand = [[[F(1, 2)], [F(0) + F(1, 2) * F(-1, 4), F(-1, 4)], [F(1, 4) + F(1, 2) * 1 + 0, F(1), F(0)]]]
    assert expected(F(1), F(1, 2)) == by_hand
    to_go = [
        [[F(1) - F(1, 2)], [F(1, 2) - F(3, 4), F(0) - F(1, 4)], [F(3, 2) - F(1, 4), F(3, 2) - F(1, 2), F(1) - F(1)]]
    ]
    assert expected(F(1), F(1)) == to_go
    finished = [[[F(1)], [F(0), F(0)], [F(0), F(0), F(0)]]]
    after = [[[F(7)], [F(7), F(5, 8)], [F(7), F(7), F(3, 8)]]]  # only the last of a trajectory that was cut off is read
    cut = nested(reward=RAGGED, value=VALUE, finished=finished, value_next=after)
    discount, decay = F(9, 10), F(95, 100)
    return [
        case("decay 1/2, by hand", source, equation, 1e-14, "gae", groups, by_hand, decay=0.5),
        case("decay 1: return minus value", source, "A_t = R_t - V_t", 1e-14, "gae", groups, to_go, decay=1.0),
        case(
            "discount 0.9, decay 0.95", source, equation, 1e-13, "gae", groups, expected(discount, decay), discount=0.9
        ),
        case(
            "cut off, value after it known",
            source,
            "V after the last turn = value_next where finished = 0",
            1e-13,
            "gae",
            cut,
            expected(discount, decay, (F(0), F(5, 8), F(3, 8))),
            discount=0.9,
            unfinished="next",
        ),
        case(
            "cut off, taken to have ended", source, "V after the last turn = 0", 1e-14, "gae", cut, by_hand, decay=0.5
        ),
    ]


def egae_cases():
    """The last value repeated."""
    source = "arXiv 2506.15050, card T-PPO"
    equation = "unfinished at l: V(s_l) := V(s_{l-1}); A_t = sum_k (discount decay)^k delta_{t+k}"
    finished = [[[F(1)], [F(0), F(0)], [F(1), F(1), F(1)]]]
    groups = nested(reward=RAGGED, value=VALUE, finished=finished)
    third = [F(1, 4) + F(1, 2) * 1 + 0, F(1), F(0)]
    # the second: nothing paid at its last turn, so delta = 0 + 1/4 - 1/4 = 0; delta_0 = 1/2 + 1/4 - 3/4 = 0
    by_hand = [[[F(1, 2)], [F(0), F(0)], third]]
    discount, decay = F(9, 10), F(4, 5)
    ends = [F(0), VALUE[0][1][-1], F(0)]
    discounted = [[advantages(r, v, discount, decay, e) for r, v, e in zip(RAGGED[0], VALUE[0], ends, strict=True)]]
    return [
        case("one unfinished, by hand", source, equation, 1e-14, "egae", groups, by_hand, decay=0.5),
        case(
            "discount 0.9: delta = r + 0.9 V - V",
            source,
            equation,
            1e-13,
            "egae",
            groups,
            discounted,
            discount=0.9,
            decay=0.8,
        ),
        case(
            "all finished is GAE",
            source,
            "A of arXiv 1506.02438",
            1e-14,
            "egae",
            nested(reward=RAGGED, value=VALUE, finished=[[[F(1)] * len(t) for t in RAGGED[0]]]),
            [[advantages(r, v, F(1), F(1, 2)) for r, v in zip(RAGGED[0], VALUE[0], strict=True)]],
            decay=0.5,
        ),
    ]


def outcomes_expected(rewards, values):
    """V before any response, after each one, and at last the outcome R: what is paid so far plus the value."""
    return [sum(rewards[:t], start=F(0)) + v for t, v in enumerate(values)] + [sum(rewards, start=F(0))]


def spo_cases():
    """Differences of expected outcomes."""
    source, equation = "arXiv 2505.23564, chain", "A_j = V_{j+1} - V_j, V after the last segment = the outcome"

    def credit(rewards, values):
        expected = outcomes_expected(rewards, values)
        return [b - a for a, b in itertools.pairwise(expected)]

    # a success from 1/3, 2/3, 1/3 of nine continuations, then a failure from 1/3
    reward, value = [[[F(0), F(0), F(1)], [F(0)]]], [[[F(1, 3), F(2, 3), F(1, 3)], [F(1, 3)]]]
    sparse = [[[F(1, 3), F(-1, 3), F(2, 3)], [F(-1, 3)]]]
    assert [credit(r, v) for r, v in zip(reward[0], value[0], strict=True)] == sparse[0]
    ragged = [[credit(r, v) for r, v in zip(RAGGED[0], VALUE[0], strict=True)]]
    return [
        case("outcome at the end, by hand", source, equation, 1e-14, "spo", nested(reward=reward, value=value), sparse),
        case("rewards on the way", source, equation, 1e-14, "spo", nested(reward=RAGGED, value=VALUE), ragged),
    ]


def vine_ppo_cases():
    """Differences of continuations' means, and their whitening over tokens."""
    source = "arXiv 2410.01679, eq. 5; released code McGill-NLP/VinePPO"
    equation = "A_t = r_t + V(s_{t+1}) - V(s_t), V = 0 after the end"

    def columns(rewards, values):
        after = [[[*v[1:], F(0)] for v in group] for group in values]
        return {"reward": rewards, "value": values, "value_after": after}

    # a failure: V = 1/2, 4/5, 1/5; the sum is R - V_0
    fails = columns([[[F(0)] * 3]], [[[F(1, 2), F(4, 5), F(1, 5)]]])
    by_hand = [[[F(3, 10), F(-3, 5), F(-1, 5)]]]
    raw = [
        [[r + b - a for r, a, b in zip(rs, vs, [*vs[1:], F(0)], strict=True)] for rs, vs in zip(*each, strict=True)]
        for each in zip(RAGGED, VALUE, strict=True)
    ]
    assert raw == [[[F(1, 2)], [F(0), F(-1, 4)], [F(1, 4), F(1), F(0)]]]
    lengths = [[[F(1)], [F(3), F(2)], [F(1), F(4), F(1)]]]
    flat = [d for turns in raw[0] for d in turns]
    tokens = [d for d, n in zip(flat, [1, 3, 2, 1, 4, 1], strict=True) for _ in range(n)]
    centre = mean(tokens)
    deviation = math.sqrt(sum((d - centre) ** 2 for d in tokens) / (len(tokens) - 1) + F(1, 10**8))
    white = [[[float(d - centre) / deviation for d in turns] for turns in raw[0]]]
    ragged = columns(RAGGED, VALUE)
    return [
        case("a failure, by hand", source, equation, 1e-14, "vine_ppo", nested(**fails), by_hand, standardize=False),
        case("rewards on the way", source, equation, 1e-14, "vine_ppo", nested(**ragged), raw, standardize=False),
        case(
            "whitened over tokens",
            source,
            "(A - mean) / sqrt(var + 1e-8), unbiased variance over all tokens",
            1e-12,
            "vine_ppo",
            nested(**ragged, length=lengths),
            white,
        ),
    ]


def archer_cases():
    """Values of responses minus those of states, and the mean returns that they stand for."""
    source, equation = "arXiv 2402.19446, section 3", "A = Q(s, a) - V(s)"
    action = [[[F(1)], [F(1, 2), F(0)], [F(-1, 4), F(3, 4), F(1)]]]
    by_hand = [[[F(1, 2)], [F(-1, 4), F(-1, 4)], [F(-1, 2), F(1, 4), F(0)]]]
    # two turns, "a" with chances 1/4 and 2/3: aa pays 1 and then 2, ab 1 and then 0, ba 0 and then 3, bb 0 and then -1
    paid = {"aa": (F(1), F(2)), "ab": (F(1), F(0)), "ba": (F(0), F(3)), "bb": (F(0), F(-1))}
    chance = {"a": (F(1, 4), F(2, 3)), "b": (F(3, 4), F(1, 3))}

    def expected(begin, since):
        """Mean return since a turn of all paths with this beginning."""
        weight = {
            p: math.prod(chance[c][t] for t, c in enumerate(p) if t >= len(begin))
            for p in paid
            if p[: len(begin)] == begin
        }
        return sum((w * sum(paid[p][since:], start=F(0)) for p, w in weight.items()), start=F(0))

    credit = [[[expected(p[: t + 1], t) - expected(p[:t], t) for t in range(2)] for p in paid]]
    for begin, turn in (("", 0), ("a", 1), ("b", 1)):  # credit averages to 0 in every state
        of = {p[turn]: credit[0][k][turn] for k, p in enumerate(paid) if p[:turn] == begin}
        assert sum(chance[c][turn] * a for c, a in of.items()) == 0
    second = {"a": F(2, 3) * 2, "b": F(2, 3) * 3 - F(1, 3)}  # by backward induction
    first = {"a": 1 + second["a"], "b": second["b"]}
    start = F(1, 4) * first["a"] + F(3, 4) * first["b"]
    columns = {
        "reward": [[list(paid[p]) for p in paid]],
        "value_action": [[[first[p[0]], paid[p][1]] for p in paid]],
        "value": [[[start, second[p[0]]] for p in paid]],
    }
    assert credit[0][0] == [first["a"] - start, 2 - second["a"]]
    values = nested(reward=RAGGED, value_action=action, value=VALUE)
    return [
        case("ragged, by hand", source, equation, 1e-14, "archer", values, by_hand),
        case("exact values of two turns", source, "mean return after a response - before it", 1e-14, "archer",
             nested(**columns), credit),
    ]  # fmt: skip


def step_rewards(rewards, values):
    """TP-GRPO's, by the card: V_0 before any step, V_k after step k."""
    v = outcomes_expected(rewards, values)
    outcome, last = v[-1], len(values)
    sign = lambda x: (x > 0) - (x < 0)  # noqa: E731
    d = {k: v[k] - v[k - 1] for k in range(1, last + 1)}
    s = {k: sign(d[k]) * sign(outcome - v[0]) for k in d}
    paid = []
    for k in d:
        turns = k == 1 or s[k - 1] < 0 < s[k]
        paid.append(outcome - v[k - 1] if turns and sign(d[k]) * sign(outcome - v[k]) > 0 else d[k])
    return paid


def tp_grpo_cases():
    """Turning points, and z per step."""
    source = "arXiv 2602.06422, card TP-GRPO"
    equation = "r_k = d_k, at turning points R - V_{k-1}; z over the group for each k"
    # V: 1/2, 1/4, 1/2, 3/4 -> 1: d = -1/4, 1/4, 1/4, 1/4. Step 2 turns (down, then up, and on to 1): R - V_1 = 3/4.
    # V: 1/2, 3/4, 1/4, 0 -> 0: d = 1/4, -1/2, -1/4, 0. Step 2 turns (up, then down, and on to 0): R - V_1 = -3/4.
    # V: 1/4, 1/2 -> 1: step 1 goes on up, so it gets all of it: R - V_0 = 3/4; the second d = 1/2.
    values = [[[F(1, 2), F(1, 4), F(1, 2), F(3, 4)], [F(1, 2), F(3, 4), F(1, 4), F(0)], [F(1, 4), F(1, 2)]]]
    rewards = [[[F(0), F(0), F(0), F(1)], [F(0)] * 4, [F(0), F(1)]]]
    by_hand = [
        [F(-1, 4), F(3, 4), F(1, 4), F(1, 4)],
        [F(1, 4), F(-3, 4), F(-1, 4), F(0)],
        [F(3, 4), F(1, 2)],
    ]
    paid = [step_rewards(r, v) for r, v in zip(rewards[0], values[0], strict=True)]
    assert paid == by_hand
    ragged = [step_rewards(r, v) for r, v in zip(RAGGED[0], VALUE[0], strict=True)]
    # V: 1/2, 3/10, 1/10 + 2/10 -> 1: the second step changes nothing, which 0.1 + 0.2 - 0.3 in floats does not say
    decimals = [[[F(0), F(1, 10), F(9, 10)], [F(0), F(0), F(1)]]]
    decimal_values = [[[F(1, 2), F(3, 10), F(2, 10)], [F(1, 2), F(1, 4), F(1, 2)]]]
    still = [step_rewards(r, v) for r, v in zip(decimals[0], decimal_values[0], strict=True)]
    assert still[0] == [F(-1, 5), 0, F(7, 10)]
    return [
        case("a step that changes nothing, in decimals", source, equation, 1e-13, "tp_grpo",
             nested(reward=decimals, value=decimal_values), [z_by_turn(still)]),
        case("two turning points, by hand", source, equation, 1e-13, "tp_grpo", nested(reward=rewards, value=values),
             [z_by_turn(by_hand)]),
        case("rewards on the way, a lone third turn", source, equation, 1e-13, "tp_grpo",
             nested(reward=RAGGED, value=VALUE), [z_by_turn(ragged)]),
    ]  # fmt: skip


TABLES = {
    "gae": gae_cases,
    "egae": egae_cases,
    "archer": archer_cases,
    "vine_ppo": vine_ppo_cases,
    "spo": spo_cases,
    "tp_grpo": tp_grpo_cases,
}
