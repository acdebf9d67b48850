"""CANON, NGRPO, V_0.5, RAE, AdvEvo-MARL and HAPO: other baselines and scales for the outcomes of a group."""

import math
from fractions import Fraction as F

from tests.golden.exact import (
    SUCCESS,
    TOKENS,
    case,
    each,
    mean,
    single_turn,
    standardised,
    table,
    turns_of,
    with_columns,
)

ENTROPY = [
    [[F(1, 2)], [F(9, 10), F(3, 10)], [F(1, 5), F(4, 5), F(2, 5)]],
    [[F(7, 10), F(1, 10)], [F(3, 5)], [F(3, 10)], [F(1, 5), F(1)]],
]
TASK = [[["q"], ["q"] * 2, ["q"] * 3], [["r"] * 2, ["r"], ["r"], ["r"] * 2]]


def halves(returns, metric, *, mu=F(1), efficiency=F(1), drop=None):
    """CANON, member by member: how much of it lies in the lower half, means of the halves, then both comparisons."""
    num = len(returns)
    if num == 1:
        return [F(0)]
    lower = []
    for m in metric:
        below, equal = sum(o < m for o in metric), sum(o == m for o in metric)
        lower.append(min(F(1), max(F(0), F(num // 2 - below, equal))))
    low = sum(share * r for share, r in zip(lower, returns, strict=True)) / (num // 2)
    high = sum((1 - share) * r for share, r in zip(lower, returns, strict=True)) / (num - num // 2)
    result = []
    for share, r in zip(lower, returns, strict=True):
        as_low = mu * (r - high) + (1 - mu) * (r - low)
        as_high = mu * (r - low) + (1 - mu) * (r - high)
        if drop == "high":  # the card's two lines for mu = 1; the own half stays as it is
            as_low = mu * (r - efficiency * high) + (1 - mu) * (r - low)
            as_high = mu * (efficiency * r - low) + (1 - mu) * (r - high)
        if drop == "low":
            as_low = mu * (efficiency * r - high) + (1 - mu) * (r - low)
            as_high = mu * (r - efficiency * low) + (1 - mu) * (r - high)
        result.append(share * as_low + (1 - share) * as_high)
    return result


def canon_cases():
    """Other half, own half, both; efficiency; equal metrics."""
    source = "arXiv 2509.23962; biuboomc/CANON core_algos.py"
    equation = "A = R - (mu mean(other half) + (1 - mu) mean(own half)), lower half n // 2"
    card, metric = [F(1), F(0), F(0), F(0)], [1, 2, 3, 4]
    by_card = {F(1): [1, 0, F(-1, 2), F(-1, 2)], F(0): [F(1, 2), F(-1, 2), 0, 0], F(1, 2): [F(3, 4)] + [F(-1, 4)] * 3}
    cases = []
    for mu, expected in by_card.items():
        assert halves(card, metric, mu=mu) == expected
        cases.append(case(f"card, mu = {float(mu)}", source, equation, 1e-14, "canon",
                          with_columns(card, length=metric), turns_of(expected), metric="length",
                          mu=float(mu)))  # fmt: skip
    lengths = [[sum(trajectory) for trajectory in group] for group in TOKENS]
    entropies = [
        [F(sum(h * k for h, k in zip(hs, ks, strict=True))) / sum(ks) for hs, ks in zip(h_group, k_group, strict=True)]
        for h_group, k_group in zip(ENTROPY, TOKENS, strict=True)
    ]
    for name, metrics in (("length", lengths), ("entropy", entropies)):
        expected = [
            halves([F(s) for s in group], metric, mu=F(3, 4)) for group, metric in zip(SUCCESS, metrics, strict=True)
        ]
        cases.append(case(f"ragged, by {name}", source, equation, 1e-13, "canon", table(length=TOKENS, entropy=ENTROPY),
                          each(expected), metric=name, mu=0.75))  # fmt: skip
    a, wins = F(88, 100), [F(1), F(1), F(1), F(0)]
    cases += [
        case("efficiency by length", source, "long half: a R - mean(short); short half: R - a mean(long)", 1e-14,
             "canon", with_columns(wins, length=metric), turns_of(halves(wins, metric, efficiency=a, drop="high")),
             metric="length", efficiency=0.88),
        case("efficiency by entropy, mirrored", source, "high half: R - a mean(low); low half: a R - mean(high)", 1e-14,
             "canon", with_columns(wins, length=[1] * 4, entropy=[0.1, 0.2, 0.3, 0.4]),
             turns_of(halves(wins, metric, efficiency=a, drop="low")), efficiency=0.88),
        case("efficiency in the comparison with the other half only", source,
             "long half: mu (a R - mean(short)) + (1 - mu) (R - mean(long))", 1e-14, "canon",
             with_columns(wins, length=metric), turns_of(halves(wins, metric, mu=F(1, 4), efficiency=a, drop="high")),
             metric="length", mu=0.25, efficiency=0.88),
        case("a lone trajectory is in the longer half", source, "mu a R + (1 - mu) R", 1e-14, "canon",
             with_columns([F(10)], length=[1]), turns_of([F(10) * (F(1, 4) * a + F(3, 4))]), metric="length", mu=0.25,
             efficiency=0.88, convention="release"),
        case("equal metrics on both sides of the cut", "turnwise convention: the paper goes by order",
             "each belongs to both halves by its share", 1e-13, "canon",
             with_columns([F(4), F(2), F(0), F(1), F(7)], length=[1, 2, 2, 2, 3]),
             turns_of(halves([F(4), F(2), F(0), F(1), F(7)], [1, 2, 2, 2, 3])), metric="length"),
        case("equal metrics by order", source, "stable sort", 1e-14, "canon",
             with_columns([F(4), F(2), F(0), F(1)], length=[5] * 4),
             turns_of([4 - F(1, 2), 2 - F(1, 2), F(-3), F(-2)]), metric="length", convention="release"),
        case("divided by the maximal length", source, "A / 8192", 1e-14, "canon", with_columns(card, length=metric),
             turns_of([F(1, 8192), 0, F(-1, 16384), F(-1, 16384)]), metric="length", divisor=8192.0),
    ]  # fmt: skip
    return cases


def virtual(returns, *, best=1, num_virtual=1, ddof=1):
    """NGRPO: standardise the real ones among all."""
    everyone = [F(r) for r in returns] + [F(best)] * num_virtual
    middle = mean(everyone)
    square = sum((r - middle) ** 2 for r in everyone) / (len(everyone) - ddof)
    return [float(r - middle) / (math.sqrt(square) + 1e-6) for r in everyone[: len(returns)]]


def ngrpo_cases():
    """A virtual success."""
    source = "arXiv 2509.18851; nangongrui-ngr/NGRPO core_algos.py"
    equation = "A = (R - mean') / (std' + 1e-6) over the group and one success, sample std"
    one, none = [1] + [0] * 7, [0] * 8
    assert [round(v, 3) for v in virtual(one)[:2]] == [1.764, -0.504]  # the card's checks
    assert abs(virtual(none)[0] + 1 / 3) < 2e-6
    assert abs(virtual(none, ddof=0)[0] + 0.3536) < 5e-5
    ragged = each([virtual(group) for group in SUCCESS])
    return [
        case("one success of eight", source, equation, 1e-13, "ngrpo", with_columns(one, success=one),
             turns_of(virtual(one))),
        case("no success", source, equation, 1e-13, "ngrpo", with_columns(none, success=none), turns_of(virtual(none))),
        case("successes only", source, equation, 1e-13, "ngrpo", with_columns([1] * 8, success=[1] * 8),
             turns_of([0] * 8)),
        case("no success, population std", "arXiv 2509.18851, the printed equation", "divisor G + 1", 1e-13, "ngrpo",
             with_columns(none, success=none), turns_of(virtual(none, ddof=0)), convention="printed"),
        case("ragged", source, equation, 1e-13, "ngrpo", table(), ragged),
        case("rewards of 10, two virtual", source, "r_max = 10, n_v = 2", 1e-13, "ngrpo", single_turn([10, 0, 4]),
             turns_of(virtual([10, 0, 4], best=10, num_virtual=2)), max_reward=10.0, num_virtual=2),
        case("lone keeps its return", source, "mean 0, std 1 for G = 1", 1e-14, "ngrpo", with_columns([0], success=[1]),
             turns_of([1]), convention="release"),
    ]  # fmt: skip


def shrunk(success, prior):
    """V_0.5 for one group."""
    returns = [F(2 * s - 1) for s in success]
    num, v = len(returns), mean(returns)
    if prior is None:
        return [r - v for r in returns]
    excess = max(F(0), (v - prior) ** 2 - F(1, num))
    weight = excess / (excess + F(1, num))
    return [r - (weight * v + (1 - weight) * prior) for r in returns]


def v05_cases():
    """Between the group's mean and a prior."""
    source, equation = "arXiv 2603.10848", "D = max(0, (v - V)^2 - 1/k), w = D / (D + 1/k), A = r - (w v + (1 - w) V)"
    checks = [([1, 1, 1, 0], F(-1, 2), F(1, 4)), ([1, 1, 0, 0], F(1, 10), F(1, 10)), ([0] * 4, F(8, 10), None)]
    cases = []
    for success, prior, baseline in checks:
        expected = shrunk(success, prior)
        if baseline is None:
            assert round(float(-1 - expected[0]), 3) == -0.861
        else:
            assert expected[0] == 1 - baseline
        cases.append(case(f"card check, V = {float(prior)}", source, equation, 1e-13, "v05",
                          with_columns(success, success=success, task=["q"] * 4), turns_of(expected),
                          unseen=float(prior)))  # fmt: skip
    for prior in (None, F(-1, 4)):
        name = "ragged, no prior" if prior is None else "ragged, V = -0.25"
        cases.append(case(name, source, equation if prior is not None else "w = 1", 1e-13, "v05", table(task=TASK),
                          each([shrunk(group, prior) for group in SUCCESS]),
                          unseen=None if prior is None else float(prior)))  # fmt: skip
    return cases


def running(returns, players, decay):
    """RAE, one trajectory after the other: less the player's average so far, which its return then enters."""
    average, result = {}, []
    for r, player in zip(returns, players, strict=True):
        before = average.get(player, F(0))
        result.append(r - before)
        average[player] = decay * before + (1 - decay) * r
    return result


def rae_cases():
    """Against the running mean of the same player."""
    source, equation = "arXiv 2506.24119; spiral-rl train_spiral.py", "A = R - b, then b <- .95 b + .05 R, from b = 0"
    decay, card = F(95, 100), [F(1), F(1), F(-1)]
    assert running(card, "xxx", decay) == [1, F(95, 100), F(-10975, 10000)]  # the card's test
    players = [
        [["k first"], ["k second"] * 2, ["k first"] * 3],
        [["l first"] * 2, ["k second"], ["k first"], ["k first"] * 2],
    ]
    paid = [SUCCESS[g][n] for g in range(2) for n in range(len(SUCCESS[g]))]
    who = [turns[0] for group in players for turns in group]

    def nest(values):
        return [values[: len(SUCCESS[0])], values[len(SUCCESS[0]) :]]

    return [
        case("card check", source, equation, 1e-14, "rae", with_columns(card, player="xxx"),
             turns_of(running(card, "xxx", decay))),
        case("three players, several turns", source, equation, 1e-13, "rae", table(player=players),
             each(nest(running([F(r) for r in paid], who, decay)))),
        case("half of the past", source, "b <- b / 2 + R / 2", 1e-14, "rae", table(player=players),
             each(nest(running([F(r) for r in paid], who, F(1, 2)))), decay=0.5),
    ]  # fmt: skip


def shared(groups, players, *, over_batch=False):
    """AdvEvo-MARL, agent by agent: less the mean over all agents of the same role, of the task or of the batch."""
    agents = [(g, who, F(r)) for g, group in enumerate(groups) for who, r in zip(players[g], group, strict=True)]
    flat = [r - mean([s for h, other, s in agents if other == who and (over_batch or h == g)]) for g, who, r in agents]
    return [[flat.pop(0) for _ in group] for group in groups]


def by_role(deviations, players, lengths):
    """Standardised over the tokens of each role, every agent's deviation written once a token."""
    result = []
    for deviation, who in zip(deviations, players, strict=True):
        tokens = [d for d, other, k in zip(deviations, players, lengths, strict=True) if other == who for _ in range(k)]
        middle = mean(tokens)
        std = math.sqrt(sum((v - middle) ** 2 for v in tokens) / (len(tokens) - 1))
        result.append(float(deviation - middle) / (std + 1e-6))
    return result


def advevo_cases():
    """Against the mean of the role, once an agent."""
    source, equation = "arXiv 2510.01586, abstract", "A = R - mean of R over the agents of the same functional group"
    guess = "reconstructed: REINFORCE++ after the baseline, over the tokens of a role"
    options = {"scope": "group", "whiten": False}
    # two matches of an attacker and two defenders: attackers 1 and 0, defenders 1/4, 1/4, 1 and 1/4, mean 7/16
    paid, who = [F(1), F(1, 4), F(1, 4), F(0), F(1), F(1, 4)], [["a", "d", "d"] * 2]
    hand = [F(1, 2), F(-3, 16), F(-3, 16), F(-1, 2), F(9, 16), F(-3, 16)]
    assert shared([paid], who) == [hand]
    players = [
        [["k first"], ["k second"] * 2, ["k first"] * 3],
        [["k second"] * 2, ["k second"], ["k first"], ["k second"] * 2],
    ]
    names = [[turns[0] for turns in group] for group in players]
    lengths = [2, 1, 3, 1, 4, 1]
    matches = with_columns(paid, player=who[0], length=lengths)
    return [
        case("two matches of three", source, equation, 1e-14, "advevo", with_columns(paid, player=who[0]),
             turns_of(hand), **options),
        case("several turns are one agent", source, equation, 1e-13, "advevo", table(player=players),
             each(shared(SUCCESS, names)), **options),
        case("over the batch", source, equation, 1e-13, "advevo", table(player=players),
             each(shared(SUCCESS, names, over_batch=True)), scope="batch", whiten=False),
        case("whitened", guess, "A <- (A - mean) / (std + 1e-6) over the tokens of the role", 1e-13, "advevo", matches,
             turns_of(by_role(hand, who[0], lengths)), scope="group", whiten=True),
    ]  # fmt: skip


def by_tokens(returns, num_tokens):
    """HAPO: every token one value, population std."""
    tokens = [F(r) for r, k in zip(returns, num_tokens, strict=True) for _ in range(k)]
    middle = mean(tokens)
    std = math.sqrt(sum((v - middle) ** 2 for v in tokens) / len(tokens))
    return [float(r - middle) / (std + 1e-6) for r in returns]


def hapo_cases():
    """Over all tokens of the group."""
    source, equation = (
        "arXiv 2509.16591; starriver030515/HAPO core_algos.py",
        "standardise R over the group's tokens, population std",
    )
    expected = [by_tokens(s, [sum(k) for k in group]) for s, group in zip(SUCCESS, TOKENS, strict=True)]
    far = with_columns([1, 0], length=[1, 26])
    assert abs(by_tokens([1, 0], [1, 26])[0] - math.sqrt(26)) < 1e-4
    return [
        case("ragged", source, equation, 1e-13, "hapo", table(length=TOKENS), each(expected)),
        case("one token each", source, equation, 1e-13, "hapo", with_columns([1, 0, 0, 0], length=[1] * 4),
             turns_of(standardised([1, 0, 0, 0], ddof=0))),
        case("an advantage above 5", source, equation, 1e-13, "hapo", far, turns_of(by_tokens([1, 0], [1, 26]))),
        case("an advantage above 5, release", f"{source}, the release's rule", "GRPO if any |A| >= 5", 1e-13, "hapo",
             far, turns_of(standardised([1, 0])), convention="release"),
    ]  # fmt: skip


TABLES = {"canon": canon_cases, "ngrpo": ngrpo_cases, "v05": v05_cases, "rae": rae_cases, "advevo": advevo_cases,
          "hapo": hapo_cases}  # fmt: skip
