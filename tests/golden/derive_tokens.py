"""PPO over tokens and over turns, bi-level GAE, EGAE over tokens: a critic reads every token, or every turn."""

import math
from fractions import Fraction as F

from tests.golden.exact import RAGGED, case, mean, nested

# generated tokens of each response of the ragged example, and a value before each of them
LENGTHS = [[[2], [1, 2], [3, 1, 2]]]
VALUE_T = [[[[F(1, 2 + k + n) for k in range(t)] for n, t in enumerate(turns)] for turns in LENGTHS[0]]]
VALUE = [[[F(1, 2)], [F(3, 4), F(1, 4)], [F(1, 4), F(1, 2), F(1)]]]


def summed(rewards, values, discount, decay, end=F(0)):
    """A_t = delta_t + discount decay A_{t+1}, backwards, with `end` as the value after the last."""
    result, after, carry = [], end, F(0)
    for reward, value in zip(reversed(rewards), reversed(values), strict=True):
        carry = reward + discount * after - value + discount * decay * carry
        after = value
        result.append(carry)
    return result[::-1]


def on_last(reward, length):
    """The reward of a response on its last token."""
    return [F(0)] * (length - 1) + [reward]


def over_tokens(rewards, values, discount, decay, end=F(0)):
    """One trajectory: GAE over all generated tokens, observations skipped; a list per response."""
    flat_rewards = [r for reward, own in zip(rewards, values, strict=True) for r in on_last(reward, len(own))]
    flat = summed(flat_rewards, [v for own in values for v in own], discount, decay, end)
    return [[flat.pop(0) for _ in own] for own in values]


def two_levels(rewards, values, turn_discount, discount, decay):
    """One trajectory: GAE over turns with the values before their last tokens, then inside each turn."""
    last = [own[-1] for own in values]
    paid = [a + v for a, v in zip(summed(rewards, last, turn_discount, decay), last, strict=True)]
    return [summed(on_last(p, len(own)), own, discount, decay) for p, own in zip(paid, values, strict=True)]


def whitened(per_token):
    """(A - mean) / sqrt(sample variance + 1e-8) over all tokens, `[trajectory][turn][token]`."""
    every = [a for turns in per_token for own in turns for a in own]
    variance = sum((a - mean(every)) ** 2 for a in every) / (len(every) - 1)
    scale = math.sqrt(float(variance) + 1e-8)
    return [[[float(a - mean(every)) / scale for a in own] for own in turns] for turns in per_token]


def tokens_case(name, source, equation, rtol, method, per_token, *, finished=None, **options):
    """A case with the credit of every token; that of a response is the mean over its tokens."""
    columns = {"value_T": VALUE_T} | ({} if finished is None else {"finished": finished})
    groups = nested(reward=RAGGED, **columns)
    expected = [[[sum(map(float, own)) / len(own) for own in turns] for turns in per_token]]
    made = case(name, source, equation, rtol, method, groups, expected, **options)
    return made | {"expected_T": [float(a) for turns in per_token for own in turns for a in own]}


def ppo_cases():
    """GAE over tokens."""
    source, equation = "arXiv 1707.06347, eq. 11-12", "A_t = delta_t + discount decay A_{t+1}, over tokens"

    def expected(discount, decay):
        return [over_tokens(r, v, discount, decay) for r, v in zip(RAGGED[0], VALUE_T[0], strict=True)]

    by_hand = [[F(-1, 6) + F(1, 2) * F(2, 3), F(2, 3)]]  # values 1/2, 1/3; deltas -1/6 and 1 - 1/3
    assert expected(F(1), F(1, 2))[0] == by_hand
    raw = {"standardize": False}
    return [
        tokens_case("decay 1/2", source, equation, 1e-13, "ppo", expected(F(1), F(1, 2)), decay=0.5, **raw),
        tokens_case(
            "discount 0.9, decay 0.95",
            source,
            equation,
            1e-13,
            "ppo",
            expected(F(9, 10), F(95, 100)),
            discount=0.9,
            **raw,
        ),
        tokens_case(
            "standardised over tokens",
            "the usual whitening, as in verl",
            "(A - mean) / sqrt(var + 1e-8)",
            1e-12,
            "ppo",
            whitened(expected(F(1), F(95, 100))),
        ),
    ]


def turn_ppo_cases():
    """GAE over turns, standardised over the responses of the batch."""
    source, groups = "card Turn-PPO (arXiv 2512.17008), formulas 1-2", nested(reward=RAGGED, value=VALUE)
    raw = [summed(r, v, F(99, 100), F(9, 10)) for r, v in zip(RAGGED[0], VALUE[0], strict=True)]
    every = [a for turns in raw for a in turns]
    std = math.sqrt(sum((a - mean(every)) ** 2 for a in every) / (len(every) - 1))
    z = [[float(a - mean(every)) / (std + 1e-8) for a in turns] for turns in raw]
    return [
        case("standardised over turns", source, "(A_k - mean) / std over responses", 1e-12, "turn_ppo", groups, [z]),
        case(
            "as it is",
            source,
            "A_k = delta_k + discount decay A_{k+1}",
            1e-13,
            "turn_ppo",
            groups,
            [raw],
            standardize=False,
        ),
    ]


def bilevel_gae_cases():
    """Turns first, then tokens."""
    source = "card VAGEN_BiLevelGAE (arXiv 2510.16907), formulas 1-3"
    equation = "r'_k = A_k + V(e_k); GAE inside each turn from r'_k"

    def expected(turn_discount, discount, decay):
        return [two_levels(r, v, turn_discount, discount, decay) for r, v in zip(RAGGED[0], VALUE_T[0], strict=True)]

    whole = [
        [[sum(r[k:], start=F(0)) - value for value in own] for k, own in enumerate(v)]
        for r, v in zip(RAGGED[0], VALUE_T[0], strict=True)
    ]
    assert expected(F(1), F(1), F(1)) == whole  # the card's check: future reward minus value
    raw = {"standardize": False}
    return [
        tokens_case(
            "all factors 1", source, "future reward - V", 1e-13, "bilevel_gae", whole, turn_discount=1.0, **raw
        ),
        tokens_case(
            "three factors",
            source,
            equation,
            1e-13,
            "bilevel_gae",
            expected(F(95, 100), F(9, 10), F(1, 2)),
            discount=0.9,
            decay=0.5,
            **raw,
        ),
        tokens_case(
            "standardised over tokens",
            source,
            "then whiten A over model tokens",
            1e-12,
            "bilevel_gae",
            whitened(expected(F(95, 100), F(1), F(1))),
        ),
    ]


def egae_cases():
    """GAE over tokens, where what was not played to its end is worth its last value."""
    source = "arXiv 2506.15050, card T-PPO"
    equation = "unfinished at token l: V(s_l) := V(s_{l-1}); A_t = sum_k (discount decay)^k delta_{t+k}, over tokens"
    finished = [[[F(1)], [F(0), F(0)], [F(0), F(0), F(0)]]]
    ends = [F(0), VALUE_T[0][1][-1][-1], VALUE_T[0][2][-1][-1]]

    def expected(discount, decay, ends=ends):
        return [over_tokens(r, v, discount, decay, end) for r, v, end in zip(RAGGED[0], VALUE_T[0], ends, strict=True)]

    # values 1/2, then 1/3 and 1/4; paid 1/2 after the first token, nothing after: the last delta is 1/4 - 1/4
    inside = F(1, 4) - F(1, 3)
    by_hand = [[F(1, 2) + F(1, 3) - F(1, 2) + F(1, 2) * inside], [inside, F(0)]]
    assert expected(F(1), F(1, 2))[1] == by_hand
    tokens = {"level": "tokens"}
    return [
        tokens_case(
            "two unfinished",
            source,
            equation,
            1e-13,
            "egae",
            expected(F(1), F(1, 2)),
            finished=finished,
            decay=0.5,
            **tokens,
        ),
        tokens_case(
            "discount 0.9: the last delta is r + 0.9 V - V",
            source,
            equation,
            1e-13,
            "egae",
            expected(F(9, 10), F(4, 5)),
            finished=finished,
            discount=0.9,
            decay=0.8,
            **tokens,
        ),
        tokens_case(
            "all finished is GAE over tokens",
            source,
            "A of arXiv 1506.02438, over tokens",
            1e-13,
            "egae",
            expected(F(1), F(1, 2), [F(0)] * 3),
            finished=[[[F(1)] * len(turns) for turns in RAGGED[0]]],
            decay=0.5,
            **tokens,
        ),
    ]


def with_value(made):
    """Add the values before the responses to a case of tokens."""
    for turns, values in zip(made["groups"][0], VALUE[0], strict=True):
        for response, value in zip(turns, values, strict=True):
            response["value"] = float(value)
    return made | {"date": "2026-11-27"}


def vetta_cases():
    source, equation = "arXiv 2610.08402", "A_kj = A_k + alpha (A_token,kj - mean_j A_token,k)"

    def credit(weight, discount, decay, token_discount, token_decay):
        result = []
        for rewards, values, tokens in zip(RAGGED[0], VALUE[0], VALUE_T[0], strict=True):
            turns = summed(rewards, values, discount, decay)
            fine = over_tokens(rewards, tokens, token_discount, token_decay)
            result.append([[a + weight * (x - mean(own)) for x in own] for a, own in zip(turns, fine, strict=True)])
        return result

    # the card: turns .4 and .17 + .9025 * .4
    assert summed([F(0), F(1)], [F(4, 10), F(6, 10)], F(95, 100), F(95, 100)) == [F(531, 1000), F(4, 10)]
    paper = credit(F(1), F(95, 100), F(95, 100), F(1), F(1))
    wide = credit(F(3), F(1, 2), F(1, 2), F(1, 2), F(3, 4))
    options = {"weight": 3.0, "discount": 0.5, "decay": 0.5, "token_discount": 0.5, "token_decay": 0.75}
    return [
        with_value(tokens_case("ragged", source, equation, 1e-12, "vetta", paper)),
        with_value(tokens_case("wide", source, equation, 1e-12, "vetta", wide, **options)),
    ]


def hygae_cases():
    source = "arXiv 2607.23605; wx-zhang/HYGAE"
    equation = "A_t = alpha A_k + (1 - alpha) A_token,t; a turn is discounted by gamma^(tokens of the next turn)"

    def credit(share, discount, decay, token_decay):
        result = []
        for rewards, tokens, lengths in zip(RAGGED[0], VALUE_T[0], LENGTHS[0], strict=True):
            last, turns, carry = [own[-1] for own in tokens], [F(0)] * len(rewards), F(0)
            for k in reversed(range(len(rewards))):
                clock = discount ** lengths[k + 1] if k + 1 < len(rewards) else F(1)
                after = last[k + 1] if k + 1 < len(rewards) else F(0)
                carry = turns[k] = rewards[k] + clock * after - last[k] + clock * decay * carry
            fine = over_tokens(rewards, tokens, discount, token_decay)
            result.append([[share * a + (1 - share) * x for x in own] for a, own in zip(turns, fine, strict=True)])
        return result

    plain = credit(F(1, 4), F(1, 2), F(3, 4), F(1, 2))
    options, date = {"share": 0.25, "discount": 0.5, "decay": 0.75, "token_decay": 0.5}, {"date": "2026-11-27"}
    return [
        tokens_case("as it is", source, equation, 1e-12, "hygae", plain, standardize=False, **options) | date,
        tokens_case("ragged", source, equation, 1e-12, "hygae", whitened(credit(F(1, 2), F(1), F(1), F(1)))) | date,
    ]


TABLES = {
    "vetta": vetta_cases,
    "hygae": hygae_cases,
    "ppo": ppo_cases,
    "turn_ppo": turn_ppo_cases,
    "bilevel_gae": bilevel_gae_cases,
    "egae_tokens": egae_cases,
}
