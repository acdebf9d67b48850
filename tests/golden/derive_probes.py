"""SPAE, HCAPO and EMPG: credit from probes, hindsight and entropies."""

import itertools
import math
from fractions import Fraction as F

from tests.golden.exact import ENTROPY, RAGGED, RETURNS, case, flat, like, mean, nested, spread, standardised, z_by_turn

CONFIDENCE = [[[F(1)], [F(1), F(1, 2)], [F(1), F(1), F(1)]]]
ACCURACY = [[[F(1)], [F(0), F(1, 2)], [F(1), F(1), F(1, 2)]]]
LENGTH = [[[F(2)], [F(1), F(3)], [F(1), F(2), F(4)]]]


def potential(accuracy, confidence):
    """The card's Phi."""
    return F(3, 2) * accuracy * confidence + F(1, 2) * accuracy - confidence


def spae_cases():
    """Saturation, gain, z over tokens."""
    source = "arXiv 2601.03823, card SPAE"
    equation = "z_tokens(A f + xi g), f = 1 - alpha (1 - exp(-C)), g = exp(dPhi~) - mean(exp(dPhi~))"
    corners = [potential(a, c) for a, c in ((F(1), F(1)), (F(0), F(1)), (F(1), F(0)), (F(0), F(0)))]
    assert corners == [1, -1, F(1, 2), 0]  # the card's table

    def credit(base, strength, weight):
        phi = [
            [potential(a, c) for a, c in zip(*pair, strict=True)]
            for pair in zip(ACCURACY[0], CONFIDENCE[0], strict=True)
        ]
        gain = flat([[[F(0), *(b - a for a, b in itertools.pairwise(turns))] for turns in phi]])
        low, high = min(gain), max(gain)
        size = [math.exp(float((g - low) / (high - low))) if high > low else 1.0 for g in gain]
        found = flat([[[sum(p > F(9, 10) for p in turns[:t]) for t in range(len(turns))] for turns in phi]])
        damping = [1 - strength * (1 - math.exp(-count)) for count in found]
        raw = [
            float(a) * f + weight * (s - math.fsum(size) / len(size))
            for a, f, s in zip(flat(spread(base)), damping, size, strict=True)
        ]
        tokens = [value for value, length in zip(raw, flat(LENGTH), strict=True) for _ in range(int(length))]
        centre = math.fsum(tokens) / len(tokens)
        deviation = math.sqrt(math.fsum((v - centre) ** 2 for v in tokens) / (len(tokens) - 1))
        return found, like([(v - centre) / (deviation + 1e-6) for v in raw], RAGGED)

    groups = nested(reward=RAGGED, confidence=CONFIDENCE, accuracy=ACCURACY, length=LENGTH)
    centred = [r - mean(RETURNS) for r in RETURNS]
    found, default = credit(centred, 0.5, 0.5)
    assert found == [0, 0, 0, 0, 1, 2]
    return [
        case("ragged", source, equation, 1e-12, "spae", groups, default),
        case("no damping, double gain", source, equation, 1e-12, "spae", groups, credit(centred, 0.0, 1.0)[1],
             strength=0.0, weight=1.0),
        case("damping alone", source, equation, 1e-12, "spae", groups, credit(centred, 0.5, 0.0)[1], weight=0.0),
    ]  # fmt: skip


def hcapo_cases():
    """Hindsight weights, both scopes, smoothing, do no harm."""
    source = "arXiv 2603.08754, card HCAPO"
    equation = "Q = clip(p / mean p, 0.8, 1.2) 0.95^(T - t) R; A = A_GRPO + z(Q), negative z of successes 0"
    chance = [[[F(1, 2)], [F(1, 4), F(1, 2)], [F(8, 10), F(4, 10), F(3, 10)]]]
    reward = [[[F(10)], [F(0), F(0)], [F(0), F(0), F(10)]]]
    success = [[[F(1)], [F(0), F(0)], [F(1), F(1), F(1)]]]

    def weights(p):
        return [min(max(x / mean(p), F(8, 10)), F(12, 10)) for x in p]

    assert weights([F(8, 10), F(4, 10), F(3, 10)]) == [F(12, 10), F(8, 10), F(8, 10)]  # the card's check

    def quality(smoothing=F(0)):
        result = []
        for p, r in zip(chance[0], reward[0], strict=True):
            last = len(p) - 1
            q = [w * F(95, 100) ** (last - t) * sum(r) for t, w in enumerate(weights(p))]
            result.append([(1 - smoothing) * q[t] + smoothing * q[min(t + 1, last)] for t in range(len(q))])
        return result

    def credit(z, *, spare):
        harmless = [max(v, 0.0) if s and spare else v for v, s in zip(z, flat(success), strict=True)]
        base = standardised([sum(turns) for turns in reward[0]])
        return like([a + m for a, m in zip(flat(spread(base)), harmless, strict=True)], reward)

    hindsight = like([5 * math.log(p) for p in flat(chance)], chance)
    groups = nested(reward=reward, success=success, hindsight_logprob=hindsight)
    in_group = standardised(flat([quality()]))
    smoothed = standardised(flat([quality(F(1, 2))]))
    per_turn = flat([z_by_turn(quality())])
    failed = nested(
        reward=[[[F(0), F(0)], [F(0)]]], success=[[[F(0), F(0)], [F(0)]]], hindsight_logprob=[[[-1, -2], [-1]]]
    )
    return [
        case(
            "the card's weights, over the group", source, equation, 1e-12, "hcapo", groups, credit(in_group, spare=True)
        ),
        case(
            "over the same turn, with harm",
            source,
            "statistics at time step t",
            1e-12,
            "hcapo",
            groups,
            credit(per_turn, spare=False),
            compared="turn",
            spare=False,
        ),
        case(
            "smoothed",
            source,
            "Q_t <- Q_t / 2 + Q_{t+1} / 2",
            1e-12,
            "hcapo",
            groups,
            credit(smoothed, spare=True),
            smoothing=0.5,
        ),
        case("all failed", source, "R = 0: Q = 0, std 0", 1e-14, "hcapo", failed, [[[0, 0], [0]]]),
    ]


# -- entropies ---------------------------------------------------------------------------------------------------------


def empg_cases():
    """Weight, bonus, centring."""
    source, equation = (
        "arXiv 2509.09265, card EMPG",
        "A = A_base g + zeta f_{t+1}, minus its mean over the batch's steps",
    )
    two = [*ENTROPY, [[F(3, 10), F(12, 10)], [F(5, 10)]]]
    reward = [*RAGGED, [[F(0), F(1)], [F(0)]]]
    base = [*flat(spread([r - mean(RETURNS) for r in RETURNS])), F(1, 2), F(1, 2), F(-1, 2)]

    def credit(base, entropies, *, bonus, center=True, temperature=1.0, bonus_temperature=1.0):
        values = flat(entropies)
        low, high = min(values), max(values)
        hesitant = [float((h - low) / (high - low)) for h in values]
        clarity = like([math.exp(-bonus_temperature * h) for h in hesitant], entropies)
        sure = [math.exp(-temperature * h) for h in hesitant]
        weight = [s / (math.fsum(sure) / len(sure)) for s in sure]
        ahead = flat([[[*turns[1:], 0.0] for turns in group] for group in clarity])
        weighed = [float(a) * g + bonus * f for a, g, f in zip(base, weight, ahead, strict=True)]
        centre = math.fsum(weighed) / len(weighed) if center else 0.0
        return like([v - centre for v in weighed], entropies)

    card = [[[F(2, 10), F(5, 10), F(1)]]]
    plain = credit([1, 1, 1], card, bonus=0.1, center=False)
    centred = credit([1, 1, 1], card, bonus=0.1)
    assert [round(v, 3) for v in flat(plain)] == [1.528, 1.040, 0.537]  # the card's check
    assert [round(v, 3) for v in flat(centred)] == [0.493, 0.005, -0.498]
    of_card = nested(reward=[[[0, 0, 1]]], entropy=card)
    groups = nested(reward=reward, entropy=two)
    first = credit(base[:6], two[:1], bonus=0.2, temperature=0.5, bonus_temperature=2.0)
    second = credit(base[6:], two[1:], bonus=0.2, temperature=0.5, bonus_temperature=2.0)
    return [
        case("the card's check", source, equation, 1e-13, "empg", of_card, centred, base="reinforce"),
        case(
            "the card's check, not centred",
            source,
            "A = A_base g + zeta f_{t+1}",
            1e-13,
            "empg",
            of_card,
            plain,
            base="reinforce",
            center=False,
        ),
        case(
            "two prompts, one batch",
            source,
            equation,
            1e-12,
            "empg",
            groups,
            credit(base, two, bonus=0.1),
            base="dr_grpo",
        ),
        case(
            "two prompts, each for itself",
            source,
            "scope group",
            1e-12,
            "empg",
            groups,
            first + second,
            base="dr_grpo",
            scope="group",
            bonus=0.2,
            temperature=0.5,
            bonus_temperature=2.0,
        ),
    ]


TABLES = {"spae": spae_cases, "hcapo": hcapo_cases, "empg": empg_cases}
