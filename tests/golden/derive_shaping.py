"""IGPO, InfoPO, MatchTIR, unlikeliness, ArenaRL and R3: credit from shaped rewards."""

import math
from fractions import Fraction as F

from tests.golden.exact import (
    RAGGED,
    RETURNS,
    case,
    flat,
    mean,
    nested,
    ragged_groups,
    single_turn,
    spread,
    standardised,
    to_go,
    z_by_turn,
)

LENGTH = [[[F(2)], [F(1), F(3)], [F(1), F(2), F(4)]]]


def one_turn(**columns):
    """One group of one-turn trajectories with further columns."""
    return nested(**{name: [[[value] for value in values]] for name, values in columns.items()})


# -- IGPO --------------------------------------------------------------------------------------------------------------


def igpo_credit(rewards, gold, *, joint=False, probability=False, discount=F(1), release=False):
    """z over pools, then to go; `rewards[n][t]`, `gold[n][t]` before response t."""
    measured = [[math.exp(b) if probability else b for b in turns] for turns in gold]
    gains = [[turns[t + 1] - turns[t] for t in range(len(turns) - 1)] for turns in measured]
    outcomes = [sum(turns, start=F(0)) for turns in rewards]

    def counts(gain):
        return gain != 0 or not release

    def z(value, pool):
        variance = sum(((v - mean(pool)) ** 2 for v in pool), start=F(0)) / len(pool)
        return float(value - mean(pool)) / (math.sqrt(variance + (1e-8 if release else 0)) + 1e-6)

    pool_of_gains = [gain for turns in gains for gain in turns if counts(gain)]
    pool_of_outcomes = outcomes
    if joint:
        pool_of_gains = pool_of_outcomes = pool_of_gains + outcomes
    standard = [
        [z(gain, pool_of_gains) if counts(gain) else 0.0 for gain in turns] + [z(outcome, pool_of_outcomes)]
        for turns, outcome in zip(gains, outcomes, strict=True)
    ]
    return [[to_go(turns, float(discount)) for turns in standard]]


def igpo_cases():
    """Gains and outcomes, apart and together."""
    source = "arXiv 2510.14967, card IGPO"
    equation = "z = (r - mean) / (std + 1e-6), population; A_t = sum_{k >= t} discount^(k - t) z_k"
    rewards = [[F(0), F(0), F(1)], [F(0), F(0), F(0)]]
    gold = [[F(-1), F(-8, 10), F(-7, 10)], [F(-1), F(-1), F(-11, 10)]]  # gains 0.2, 0.1 and 0, -0.1
    worked = igpo_credit(rewards, gold)
    shown = [[[2.7888, 1.4472, 1.0], [-2.7888, -2.3416, -1.0]]]  # the card's TEST
    assert all(abs(a - b) < 6e-5 for a, b in zip(flat(worked), flat(shown), strict=True))
    card = nested(reward=[rewards], gold_logprob=[gold])
    before = [[F(-2)], [F(-1), F(-3, 2)], [F(-1, 2), F(-3), F(-1, 4)]]
    ragged = nested(reward=RAGGED, gold_logprob=[before])
    lone = nested(reward=[[[F(0), F(0), F(5)]]], gold_logprob=[[[F(-3), F(-2), F(-3, 2)]]])
    return [
        case("card test", source, equation, 1e-12, "igpo", card, worked),
        case("card test, together", source, "one pool for gains and outcomes", 1e-12, "igpo", card,
             igpo_credit(rewards, gold, joint=True), normalise="joint"),
        case("a gain of 0 is no turn", "official code without a mask of turns, card IGPO",
             "std = sqrt(var + 1e-8); gains of exactly 0 are not counted", 1e-12, "igpo", card,
             igpo_credit(rewards, gold, release=True), convention="release"),
        case("a gain of 0 is no turn, together", "official code, its default pool", "one pool without the zeros", 1e-12,
             "igpo", card, igpo_credit(rewards, gold, release=True, joint=True),
             convention="release", normalise="joint"),
        case("ragged", source, equation, 1e-12, "igpo", ragged, igpo_credit(RAGGED[0], before)),
        case("ragged, probabilities, discount 1/2", source, "gain = exp(b_t+1) - exp(b_t)", 1e-12, "igpo", ragged,
             igpo_credit(RAGGED[0], before, probability=True, discount=F(1, 2)),
             difference="probability", discount=0.5),
        case("lone trajectory", source, "its own gains 1 and 1/2 are compared, its outcome is not", 1e-12, "igpo", lone,
             [[[0.25 / (0.25 + 1e-6) - 0.25 / (0.25 + 1e-6), -0.25 / (0.25 + 1e-6), 0.0]]]),
    ]  # fmt: skip


# -- InfoPO ------------------------------------------------------------------------------------------------------------


def infopo_credit(rewards, gain, length, *, beta=0.5, temperature=0.05, cope=False, release=False):
    """Token by token, as the released estimator goes, for one group that is the whole batch."""
    returns = [sum(turns, start=F(0)) for turns in rewards]
    outer, deviation = standardised(returns), standard_deviation(returns)
    if len(returns) == 1 and release:
        outer, deviation = [float(returns[0])], 1.0
    tokens = [
        (n, t, gain[n][t] / length[n][t] if release else gain[n][t])
        for n, turns in enumerate(gain)
        for t in range(len(turns))
        for _ in range(int(length[n][t]))
    ]
    counted = [value for _, _, value in tokens if value != 0]
    centre, scale = (mean(counted), standard_deviation(counted)) if counted else (F(0), 0.0)
    info = {(n, t): float(v - centre) / (scale + 1e-6) if v != 0 else 0.0 for n, t, v in tokens}
    if release:  # the cap of the code, which never binds
        spread_of_info = plain_deviation([info[n, t] for n, t, _ in tokens]) + 1e-6
        spread_of_outer = plain_deviation([outer[n] for n, _, _ in tokens]) + 1e-6
        assert min(1.0, max(spread_of_outer, 1.0) / spread_of_info) == 1.0
    x = deviation / temperature
    gate = math.exp(-x) if cope else 1 / (1 + math.exp(x))
    return [[[outer[n] + beta * gate * info[n, t] for t in range(len(turns))] for n, turns in enumerate(gain)]]


def standard_deviation(values):
    """Of the sample; 0 for one value."""
    if len(values) < 2:
        return 0.0
    return math.sqrt(sum(((v - mean(values)) ** 2 for v in values), start=F(0)) / (len(values) - 1))


def plain_deviation(values):
    """Of the sample of floats."""
    centre = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((v - centre) ** 2 for v in values) / (len(values) - 1))


def infopo_cases():
    """Gates, zeros, tokens."""
    source = "arXiv 2603.00656, card InfoPO"
    equation = "A = z(R) + beta sigmoid(-std(R) / T) z_tokens(gain, not 0)"
    gates = [(F(5, 100), 0.269), (F(1, 10), 0.119), (F(1, 4), 0.0067)]  # the card's, at T = 0.05
    assert all(abs(1 / (1 + math.exp(float(std) / 0.05)) - g) < 5e-4 for std, g in gates)
    gain = [[F(0)], [F(1, 2), F(0)], [F(-1, 4), F(1), F(0)]]
    length = LENGTH[0]
    alike = [[F(1)], [F(0), F(1)], [F(0), F(0), F(1)]]  # all returns 1: the gate is 1/2
    even = nested(reward=[alike], info_gain=[gain], length=[length])
    mixed = nested(reward=RAGGED, info_gain=[gain], length=[length])
    none = nested(reward=RAGGED, info_gain=[[[F(0)] * len(turns) for turns in gain]], length=[length])
    one = [[F(0)], [F(0), F(0)], [F(0), F(3), F(0)]]
    single = nested(reward=[alike], info_gain=[one], length=[[[F(1)] * len(turns) for turns in gain]])
    lone_gain = [[F(1), F(2), F(0)]]
    lone = nested(reward=[[[F(0), F(0), F(3)]]], info_gain=[lone_gain], length=[[[F(1), F(1), F(1)]]])
    # by hand, beta/2 = 1/4 of z: tokens 1/2 (once), -1/4 (once), 1 (twice); mean 9/16, squares sum to 67/64
    quarter = 1 / (math.sqrt(67 / 64 / 3) + 1e-6) / 4
    by_hand = [[[0.0], [-1 / 16 * quarter, 0.0], [-13 / 16 * quarter, 7 / 16 * quarter, 0.0]]]
    worked = infopo_credit(alike, gain, length)
    assert all(
        math.isclose(a, b, rel_tol=1e-13, abs_tol=1e-15) for a, b in zip(flat(worked), flat(by_hand), strict=True)
    )
    return [
        case("all outcomes alike", source, equation + ", gate(0) = 1/2", 1e-12, "infopo", even, by_hand),
        case("mixed outcomes, T = 1/2, beta 1/10", source, equation, 1e-12, "infopo", mixed,
             infopo_credit(RAGGED[0], gain, length, temperature=0.5, beta=0.1), temperature=0.5, beta=0.1),
        case("another gate", "ulab-uiuc/CoPE, card InfoPO", "exp(-std / T)", 1e-12, "infopo", mixed,
             infopo_credit(RAGGED[0], gain, length, temperature=0.5, cope=True), temperature=0.5, gate="cope"),
        case("release", "kfq20/InfoPO, compute_info_grpo_advantage", "gain / length; cap of the spread", 1e-12,
             "infopo", mixed, infopo_credit(RAGGED[0], gain, length, temperature=0.5, release=True),
             temperature=0.5, convention="release"),
        case("no information", source, "A = z(R)", 1e-12, "infopo", none, spread(standardised(RETURNS))),
        case("a single token of information", source, "centred, so 0", 1e-12, "infopo", single,
             [[[0.0], [0.0, 0.0], [0.0, 0.0, 0.0]]]),
        case("lone trajectory", source, "its turns are compared, gate 1/2", 1e-12, "infopo", lone,
             infopo_credit([[F(0), F(0), F(3)]], lone_gain, [[F(1), F(1), F(1)]])),
        case("lone trajectory, release", "kfq20/InfoPO", "mean 0, std 1 for a lone trajectory", 1e-12, "infopo", lone,
             infopo_credit([[F(0), F(0), F(3)]], lone_gain, [[F(1), F(1), F(1)]], release=True), convention="release"),
    ]  # fmt: skip


# -- MatchTIR ----------------------------------------------------------------------------------------------------------


def matchtir_cases():
    """Trajectory and turn."""
    source = "arXiv 2601.10712, card MatchTIR"
    equation = "A = (z(R) + z_same_turn(D)) / 2, D_t = r_t + 0.9 D_{t+1}"
    go = [to_go(turns, F(9, 10)) for turns in RAGGED[0]]
    turn = z_by_turn(go)
    whole = standardised(RETURNS)
    both = [[[(whole[n] + z) / 2 for z in turns] for n, turns in enumerate(turn)]]
    leak = [[turns[:] for turns in both[0]]]
    leak[0][2][2] = (whole[2] + float(go[2][2])) / 2  # turn 2 is reached by one trajectory only
    assert turn[2][2] == 0.0
    assert go[2][2] == 1
    calls = [F(3, 4), F(0), F(1, 2)]
    return [
        case("ragged, tool calls scored in a column", source, equation, 1e-12, "matchtir",
             nested(reward=[[[F(5)] * len(turns) for turns in RAGGED[0]]], step_reward=RAGGED), both),
        case("ragged", source, equation, 1e-12, "matchtir", ragged_groups(), both, column=None),
        case("a lone turn leaks", "official code, card MatchTIR: mean 0, std 1", "A = (z(R) + D) / 2 there", 1e-12,
             "matchtir", ragged_groups(), leak, column=None, convention="release"),
        case("one turn", source, "both parts agree: GRPO", 1e-12, "matchtir", single_turn(calls),
             [[[z] for z in standardised(calls)]], column=None),
        case("lone trajectory", "house rule", "nothing to compare with", 1e-12, "matchtir",
             nested(reward=[[[F(1), F(2)]]]), [[[0, 0]]], column=None),
        case("lone trajectory, release", "official code", "A = (R + D) / 2", 1e-12, "matchtir",
             nested(reward=[[[F(1), F(2)]]]), [[[F(29, 10), F(25, 10)]]], column=None, convention="release"),
    ]  # fmt: skip


# -- unlikeliness ------------------------------------------------------------------------------------------------------


def unlikeliness_cases():
    """Ranks of likelihood among successes."""
    source = "arXiv 2506.02355, card UnlikelinessReward"
    success, logprob = [F(1), F(1), F(0), F(0)], [F(-2, 10), F(-1), F(-5, 10), F(-8, 10)]

    def shaped(offset):
        rank = [sorted(logprob).index(value) for value in logprob]
        return [s * (1 - F(1, 4) * (k + offset) / 4) for s, k in zip(success, rank, strict=True)]

    assert shaped(0) == [F(13, 16), 1, 0, 0]  # the card's check, [.8125, 1, 0, 0]
    assert shaped(1) == [F(12, 16), F(15, 16), 0, 0]
    card = one_turn(reward=[F(0)] * 4, success=success, logprob=logprob, length=[F(3)] * 4)
    # two turns of 1 and 3 tokens have a mean of (-4 - 3 * 0) / 4 = -1: like the other success; ranks 1/2, 1/2, 2
    tied = nested(
        reward=[[[F(0), F(0)], [F(0)], [F(0)]]],
        success=[[[F(1), F(1)], [F(1)], [F(0)]]],
        logprob=[[[F(-4), F(0)], [F(-1)], [F(-1, 2)]]],
        length=[[[F(1), F(3)], [F(2)], [F(2)]]],
    )
    equal = 1 - F(1, 4) * F(3, 2) / 3
    tied_credit = standardised([equal, equal, F(0)])
    solved = one_turn(reward=[F(1)] * 3, success=[F(1)] * 3, logprob=[F(-3), F(-1), F(-2)], length=[F(1)] * 3)
    solved_credit = standardised([1 - F(1, 12), 1 - F(3, 12), 1 - F(2, 12)])
    return [
        case("card check", source, "r = success (1 - beta (rank + 1) / n), then z", 1e-12, "unlikeliness", card,
             [[[z] for z in standardised(shaped(1))]]),
        case("card check, release", "rewarding-unlikely-release", "r = success (1 - beta rank / n)",
             1e-12, "unlikeliness", card, [[[z] for z in standardised(shaped(0))]], convention="release"),
        case("equally likely, by tokens", source, "equal ones share their mean rank", 1e-12, "unlikeliness", tied,
             [[[tied_credit[0]] * 2, [tied_credit[1]], [tied_credit[2]]]]),
        case("all succeed: skipped", source, "uniform groups are skipped before the ranks count", 1e-12, "unlikeliness",
             solved, [[[0], [0], [0]]]),
        case("all succeed: not skipped", source, "r = 11/12, 9/12, 10/12", 1e-12, "unlikeliness", solved,
             [[[z] for z in solved_credit]], skip_uniform=False),
    ]  # fmt: skip


# -- ArenaRL -----------------------------------------------------------------------------------------------------------


def arena_rl_cases():
    """Places."""
    source, equation = "arXiv 2601.06487, card ArenaRL", "r = 1 - rank / (N - 1), then z, sample, 1e-6"
    rank = [F(2), F(0), F(3), F(1)]
    places = [1 - k / 3 for k in rank]
    # 1/3, 1, 0, 2/3: deviations -1/6, 1/2, -1/2, 1/6, variance 5/27
    deviation = math.sqrt(F(5, 27)) + 1e-6
    by_hand = [float(d) / deviation for d in (F(-1, 6), F(1, 2), F(-1, 2), F(1, 6))]
    assert standardised(places) == by_hand
    ranked = one_turn(reward=[F(0)] * 4, rank=rank)
    ragged = nested(reward=RAGGED, rank=[[[F(1)], [F(0)] * 2, [F(2)] * 3]])
    shared = one_turn(reward=[F(0)] * 3, rank=[F(0), F(0), F(2)])
    return [
        case("four places", source, equation, 1e-13, "arena_rl", ranked, [[[v] for v in by_hand]]),
        case("ragged", source, equation, 1e-13, "arena_rl", ragged, spread(standardised([F(1, 2), F(1), F(0)]))),
        case("a shared place", source, equation, 1e-13, "arena_rl", shared,
             [[[v] for v in standardised([F(1), F(1), F(0)])]]),
        case("alone", source, "N = 1: 0", 1e-13, "arena_rl", one_turn(reward=[F(4)], rank=[F(0)]), [[[0]]]),
    ]  # fmt: skip


# -- R3 ----------------------------------------------------------------------------------------------------------------


def r3_cases():
    """Failures by dominance, successes by length."""
    source = "arXiv 2601.19620, card R3"
    constants = {"max_reward": 0.5, "std_weight": 0.5, "eps": 0.25}

    def credit(rewards, *, weight=F(1, 2), eps=F(1, 4)):
        return [float(r - mean(rewards)) / (float(weight) * standard_deviation(rewards) + float(eps)) for r in rewards]

    def failing(peak, overall):
        num = len(peak)
        return one_turn(
            reward=[F(0)] * num, success=[F(0)] * num, length=[F(8)] * num, peak_entropy=peak, entropy=overall
        )

    def ranked(peak, overall):
        num = len(peak)
        dominated = [sum(peak[i] > peak[j] and overall[i] < overall[j] for j in range(num)) for i in range(num)]
        place = [sum(s > own for s in dominated) + F(sum(s == own for s in dominated) - 1, 2) for own in dominated]
        return [F(1, 2) * (1 - k / (num - 1)) for k in place]

    chain = ([F(3), F(4), F(1), F(2)], [F(2, 10), F(1, 10), F(4, 10), F(3, 10)])
    assert ranked(*chain) == [F(1, 3), F(1, 2), 0, F(1, 6)]  # the card's .5, .333, .167, 0
    crossed = ([F(3), F(2), F(1)], [F(2, 10), F(1, 10), F(3, 10)])  # the first two dominate the third, not each other
    assert ranked(*crossed) == [F(3, 8), F(3, 8), 0]
    mixed_success = [F(1), F(0), F(1), F(0)]
    mixed = one_turn(
        reward=[F(0)] * 4,
        success=mixed_success,
        length=[F(8192), F(8), F(65536), F(8)],
        peak_entropy=[F(9), F(2), F(9), F(1)],
        entropy=[F(0), F(1), F(0), F(2)],
    )
    by_length = [1 + F(3, 4), F(0), F(1), F(0)]
    last_replayed = {"length": [F(8192)] * 3, "peak_entropy": [F(3), F(2), F(1)], "entropy": [F(1), F(2), F(3)]}
    replay = one_turn(reward=[F(0)] * 3, success=[F(0), F(0), F(1)], replayed=[F(0), F(0), F(1)], **last_replayed)
    fail = one_turn(reward=[F(0)] * 3, success=[F(1), F(1), F(0)], replayed=[F(0), F(0), F(1)], **last_replayed)
    turns = nested(
        reward=[[[F(0), F(0)], [F(0)]]],
        success=[[[F(0), F(0)], [F(0)]]],
        length=[[[F(1), F(3)], [F(2)]]],
        # means over tokens: peaks (4 + 3 * 2) / 4 = 5/2 and 2, overall (1 + 0) / 4 = 1/4 and 1/2: the first dominates
        peak_entropy=[[[F(4), F(2)], [F(2)]]],
        entropy=[[[F(1), F(0)], [F(1, 2)]]],
    )
    two = credit([F(1, 2), F(0)])
    equation = "A = (r - mean) / (alpha std + lambda); r = R_max (1 - k / (N - 1)) for failures"
    return [
        case("four failures in a row", source, equation, 1e-12, "r3", failing(*chain),
             [[[v] for v in credit(ranked(*chain))]], **constants),
        case("failures that do not compare", source, "equal ones share a mean place", 1e-12, "r3", failing(*crossed),
             [[[v] for v in credit(ranked(*crossed))]], **constants),
        case("successes by length", source, "r = 1 + max(0, 1 - length / 32768); failures 0", 1e-12,
             "r3", mixed, [[[v] for v in credit(by_length)]], **constants),
        case("failures ranked beside successes", source, "the sources leave open whether", 1e-12, "r3", mixed,
             [[[v] for v in credit([by_length[0], F(1, 2), by_length[2], F(0)])]], mixed=True, **constants),
        case("entropies over tokens", source, equation, 1e-12, "r3", turns, [[[two[0]] * 2, [two[1]]]], **constants),
        case("a replayed success beside failures", source, "all own are negative: ranked", 1e-12, "r3",
             replay, [[[v] for v in credit([F(1, 2), F(0), F(1) + F(3, 4)])]], beside="replayed", **constants),
        case("a replayed failure beside successes", source, "all own are positive: add negatives, of reward 0", 1e-12,
             "r3", fail, [[[v] for v in credit([F(1) + F(3, 4), F(1) + F(3, 4), F(0)])]], beside="replayed", mixed=True,
             **constants),
        case("alone", source, "N = 1: 0", 1e-12, "r3", failing([F(1)], [F(1)]), [[[0]]], **constants),
    ]  # fmt: skip


TABLES = {
    "igpo": igpo_cases,
    "infopo": infopo_cases,
    "matchtir": matchtir_cases,
    "unlikeliness": unlikeliness_cases,
    "arena_rl": arena_rl_cases,
    "r3": r3_cases,
}
