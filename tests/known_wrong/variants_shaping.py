"""Bugs in shaped rewards, tool-call matching and tournaments, with the checks that reject them."""

from collections.abc import Callable
from typing import Any

import numpy as np
from tests.known_wrong.checks import Check
from tests.known_wrong.known import column, following, known, worked
from tests.known_wrong.variants import Variant, centre, discounted, grouped, outcomes, sample_std, standardise
from tests.properties.strategies import Rows

import turnwise as tw
from turnwise.credit.shaping.tool_calls import ToolCall, match_calls, similarity
from turnwise.credit.shaping.tournament import Arena, single_elimination


def everyone(rows: Rows) -> np.ndarray:
    return np.ones(len(rows), dtype=bool)


# -- IGPO --------------------------------------------------------------------------------------------------------------

# gains 0.2, 0.1 and 0, -0.1: the card's TEST, with its zero
CARD = known([[[0, 0, 1], [0, 0, 0]]], gold_logprob=[-1.0, -0.8, -0.7, -1.0, -1.0, -1.1])
# the same twice as large in another prompt, whose outcomes are the other way round
TWO = known(
    [[[0, 0, 1], [0, 0, 0]], [[0, 0, 0], [0, 0, 1]]],
    gold_logprob=[-1.0, -0.8, -0.7, -1.0, -1.0, -1.1, -1.0, -0.6, -0.4, -1.0, -1.0, -1.2],
)
Z = np.array([1.5, 0.5, -0.5, -1.5]) / np.sqrt(1.25)  # of gains 0.2, 0.1, 0, -0.1
HIGH, LOW = [Z[0] + Z[1], Z[1], 0], [Z[2] + Z[3], Z[3], 0]
UNEVEN = known([[[0, 0, 1], [0]]], gold_logprob=[-1.0] * 4)  # no gains: outcomes 1 and 0 alone
IGPO: list[Check] = [
    worked("the_card_of_igpo", CARD, [2.7888, 1.4472, 1, -2.7888, -2.3416, -1], atol=1e-4),
    worked(
        "gains_are_compared_within_their_prompt",
        TWO,
        [*np.add(HIGH, 1), *np.subtract(LOW, 1), *np.subtract(HIGH, 1), *np.add(LOW, 1)],
        atol=1e-4,
    ),
    worked("an_outcome_counts_once_however_many_turns", UNEVEN, [1, 1, 1, -1]),
]


def igpo(
    rows: Rows, *, zero_is_none=False, apart=True, by_prompt=True, std=np.std, shift=False, spread_outcome=False
) -> np.ndarray:
    gold = column(rows, "gold_logprob")
    is_last = following(rows, np.ones(len(rows))) == 0
    gain = np.where(is_last, 0.0, following(rows, gold) - gold)
    if shift:  # the gain goes to the turn after the one that earned it
        before = [row - 1 if row and rows.names()[row - 1] == rows.names()[row] else None for row in range(len(rows))]
        gain = np.array([0.0 if k is None else gain[k] for k in before])
    kept = is_last | (gain != 0) | (not zero_is_none)
    prompt = rows.group if by_prompt else ("all",) * len(rows)
    outcome, paid = outcomes(rows), np.where(is_last, outcomes(rows), gain)
    keys = list(zip(prompt, kept.tolist(), is_last & apart, strict=True))
    z = standardise(rows, paid, keys=keys, counted=everyone(rows), std=std)
    if spread_outcome:
        z = np.where(is_last, standardise(rows, outcome, counted=everyone(rows), std=std), z)
    return discounted(rows.replace(reward=np.where(kept, z, 0.0)), 1.0, lambda t, k: 0)


# -- InfoPO ------------------------------------------------------------------------------------------------------------

ALIKE = known(
    [[[1], [0, 1], [0, 0, 1]]], info_gain=[0, 0.5, 0, -0.25, 1, 0], length=[2, 1, 3, 1, 2, 4]
)  # tokens 1/2, -1/4, 1, 1: mean 9/16, variance 67/192
INFO = np.array([0, -1 / 16, 0, -13 / 16, 7 / 16, 0]) / np.sqrt(67 / 192)
DIFFERENT = known([[[0, 0.1], [0, 0]]], info_gain=[1, 0, 3, 0], length=[1, 1, 1, 1])  # deviation 0.0707
CLOSED = 1 / (1 + np.exp(np.sqrt(2)))
INFOPO: list[Check] = [
    worked("information_counts_half_where_outcomes_agree_and_zeros_not_at_all", ALIKE, INFO / 2),
    worked(
        "the_gate_is_a_sigmoid_of_the_deviation_of_returns",
        DIFFERENT,
        np.array([1, 1, -1, -1]) * np.sqrt(0.5) + np.array([-1, 0, 1, 0]) * np.sqrt(0.5) * CLOSED,
        atol=1e-4,
    ),
]


def infopo(rows: Rows, *, zeros=False, tokens=True, gate="sigmoid", of="returns", per_token=False) -> np.ndarray:
    """One prompt, beta 1, T 0.05."""
    outer, gain, length = standardise(rows, outcomes(rows)), column(rows, "info_gain"), column(rows, "length")
    gain = gain / length if per_token else gain
    counted = np.repeat(gain, length.astype(int) if tokens else 1)
    counted = counted if zeros else counted[counted != 0]
    info = np.where((gain != 0) | zeros, (gain - counted.mean()) / (counted.std(ddof=1) + 1e-6), 0.0)
    spread = grouped(rows, outcomes(rows) if of == "returns" else outer, sample_std) / 0.05
    return outer + info * (np.exp(-spread) if gate == "exp" else 1 / (1 + np.exp(spread)))


# -- MatchTIR, with discount 1/2 ---------------------------------------------------------------------------------------

REACHED = known(
    [[[1], [0.5, 0], [0, 0.5, 1]]], step_reward=[1, 0.5, 0, 0, 0.5, 1]
)  # returns 1, 1/2, 3/2; to go 1 | 1/2, 0 | 1/2, 1, 1
R2, R3 = np.sqrt(0.5), 1 / np.sqrt(3)  # z of 0, 1 and of 1, 1/2, 1/2
MATCHTIR: list[Check] = [
    worked(
        "a_turn_is_compared_with_the_same_turn",
        REACHED,
        np.array([0 + 2 * R3, -1 - R3, -1 - R2, 1 - R3, 1 + R2, 1 + 0]) / 2,
    ),
    worked("tool_calls_are_what_is_paid", known([[[1], [0]]], step_reward=[0, 1]), [-R2, R2]),
]


def matchtir(rows: Rows, *, leak=False, discount=0.5, by_turn=True, weight=0.5, paid="step_reward") -> np.ndarray:
    rows = rows if not paid else rows.replace(reward=column(rows, paid))
    names = rows.names()
    turn = [names[:row].count(name) for row, name in enumerate(names)]
    keys = list(zip(rows.group, turn, strict=True)) if by_turn else rows.group
    to_go = discounted(rows, discount, lambda t, k: k - t)
    z = standardise(rows, to_go, keys=keys, counted=everyone(rows))
    lone = grouped(rows, to_go, len, keys=keys, counted=everyone(rows)) == 1
    return weight * (standardise(rows, outcomes(rows)) + np.where(lone & leak, to_go, z))


# -- unlikeliness ------------------------------------------------------------------------------------------------------

# mean log-probabilities -1 and -1/2; sums -2 and -3: the second is the likelier one, per token
PROVED = known([[[0], [0], [0]]], success=[1, 1, 0], logprob=[-1, -0.5, -2], length=[2, 6, 1])
SOLVED = known([[[0], [0]]], success=[1, 1], logprob=[-1, -2], length=[1, 1])


def z3(*values: float) -> np.ndarray:
    return (np.array(values) - np.mean(values)) / (np.std(values, ddof=1) + 1e-6)


UNLIKELY: list[Check] = [
    worked("the_unlikelier_success_is_worth_more", PROVED, z3(1 - 0.25 * 2 / 3, 0.75, 0)),
    worked("a_prompt_that_is_solved_teaches_nothing", SOLVED, [0, 0]),
]


def unlikeliness(rows: Rows, *, sums=False, likely=False, skip=True, bonus=False) -> np.ndarray:
    """One prompt of one-turn trajectories."""
    success, score = column(rows, "success"), column(rows, "logprob") * (column(rows, "length") if sums else 1)
    place = np.argsort(np.argsort(-score if likely else score)) + 1
    factor = 1 - 0.25 * place / len(rows)
    paid = success + (factor - 1) if bonus else success * factor
    return np.zeros(len(rows)) if skip and np.ptp(success) == 0 else standardise(rows, paid)


# -- DAPO's overlong fine, limit 10 and buffer 4, then Dr. GRPO --------------------------------------------------------

LONG = known([[[0, 1], [1], [0]]], length=[5, 4, 7, 2])  # fines -3/4, -1/4 and 0; returns 1/4, 3/4, 0
OVERLONG: list[Check] = [worked("a_trajectory_is_fined_once_by_its_length", LONG, np.array([-1, -1, 5, -4]) / 12)]


def overlong(rows: Rows, *, each_turn=False, start=6.0, sign=-1.0) -> np.ndarray:
    length = outcomes(rows, column(rows, "length"))
    fine = sign * np.maximum(length - start, 0) / 4
    is_last = following(rows, np.ones(len(rows))) == 0
    return centre(rows, outcomes(rows, rows.reward + fine * (is_last | each_turn)))


# -- matching of tool calls: credit is a function of predicted and reference calls -------------------------------------

Match = Callable[[list[ToolCall], list[ToolCall]], Any]


def call(**arguments: int) -> ToolCall:
    return ToolCall("f", arguments)


def the_sum_of_similarities_is_the_greatest(match: Match) -> None:
    """Similarities [[5/6, 5/6], [2/3, 1/3]]: greedily, the first call takes the only good one of the second."""
    pairs = match([call(a=1, b=2), call(a=9)], [call(a=1), call(b=2)])
    np.testing.assert_allclose(pairs, [5 / 6, 2 / 3])


def one_call_a_reference(match: Match) -> None:
    """The same call twice earns once."""
    np.testing.assert_allclose(sorted(match([call(a=1), call(a=1)], [call(a=1)])), [0, 1])


def a_wrong_value_costs_its_share(match: Match) -> None:
    """The card: f(a=1, b=2) against f(a=1, b=3) is (1 + 1 + 1) / 4."""
    np.testing.assert_allclose(match([call(a=1, b=2)], [call(a=1, b=3)]), [0.75])


def a_call_of_another_tool_earns_nothing(match: Match) -> None:
    """Names count, in any case of letters."""
    np.testing.assert_allclose(match([ToolCall("g", {"a": 1}), ToolCall("F", {"a": 1})], [call(a=1)]), [0, 1])


MATCHING = [
    the_sum_of_similarities_is_the_greatest,
    one_call_a_reference,
    a_wrong_value_costs_its_share,
    a_call_of_another_tool_earns_nothing,
]


def matched(score: Callable[[ToolCall, ToolCall], float]) -> Match:
    """The best pairs of at most two calls, by some similarity."""

    def match(predicted: list[ToolCall], reference: list[ToolCall]) -> np.ndarray:
        table = np.array([[score(p, r) for r in reference] + [0.0] for p in predicted])  # or none
        if len(predicted) == 1:
            return table.max(axis=1)
        ways = [(a, b) for a in range(table.shape[1]) for b in range(table.shape[1]) if a != b]
        a, b = max(ways, key=lambda way: table[0, way[0]] + table[1, way[1]])
        return np.array([table[0, a], table[1, b]])

    return match


def names_only(predicted: ToolCall, reference: ToolCall) -> float:
    given, wanted = predicted.arguments.keys(), reference.arguments.keys()
    same = predicted.name.lower() == reference.name.lower()
    return same * (1 + len(given & wanted) / len(given | wanted) + len(given & wanted)) / (2 + len(wanted))


# -- tournaments: credit is a function of a judge and a size -----------------------------------------------------------

Rank = Callable[[Callable, int], np.ndarray]


def by_quality(quality, *, bias: float = 0.0):
    return lambda pairs: [(quality[a] + bias, quality[b]) for a, b in pairs]


def a_liking_for_the_first_shown_has_no_effect(rank: Rank) -> None:
    """Both orders are judged and summed."""
    quality = [1.0, 4.0, 2.0, 3.0]
    np.testing.assert_array_equal(rank(by_quality(quality, bias=2.5), 4), [3, 0, 2, 1])


def the_best_seed_gets_the_bye(rank: Rank) -> None:
    """1 beats 0, 0 beats 2, 2 beats 1; against the anchor 0 they scored 9 and 1, so 1 waits and wins the final."""
    scores = {
        (0, 1): (2.0, 5),
        (1, 0): (4.0, 3),
        (0, 2): (5.0, 1),
        (2, 0): (0.0, 4),
        (1, 2): (0.0, 9),
        (2, 1): (0.0, 1),
    }
    np.testing.assert_array_equal(rank(lambda pairs: [scores[pair] for pair in pairs], 3), [1, 0, 2])


def who_loses_later_ranks_better(rank: Rank) -> None:
    """2 reaches the final with low scores, 3 is out at once with high ones."""
    scores = np.zeros((4, 4))
    scores[1:, 0], scores[0, 1:] = [9, 6, 7], 5  # seeds 1, 3, 2, 0: the semifinals are 1-0 and 3-2
    scores[3, 2], scores[2, 3], scores[1, 2], scores[2, 1] = 6, 6.5, 9, 0
    ranks = rank(lambda pairs: [(scores[a, b] / 2, scores[b, a] / 2) for a, b in pairs], 4)
    np.testing.assert_array_equal(ranks[[1, 2]], [0, 1])


TOURNAMENT = [a_liking_for_the_first_shown_has_no_effect, the_best_seed_gets_the_bye, who_loses_later_ranks_better]


def one_order(judge: Callable, num: int) -> np.ndarray:
    """Every match is judged once, the challenger shown first."""
    once = {pair: judge([pair])[0] for pair in [(a, b) for a in range(num) for b in range(num) if a > b]}
    scores = np.array(
        [[0.0 if a == b else once[a, b][0] if a > b else once[b, a][1] for b in range(num)] for a in range(num)]
    )
    return single_elimination(scores)


def by_mean_score(judge: Callable, num: int) -> np.ndarray:
    """The bracket is played, and only the scores are kept."""
    arena = Arena(judge, num)
    single_elimination(arena)
    means = [np.mean([score for (a, _), score in arena._scores.items() if a == n]) for n in range(num)]
    return np.argsort(np.argsort(-np.array(means))).astype(float)


SUITES: dict[str, list] = {
    "igpo": IGPO,
    "infopo": INFOPO,
    "matchtir": MATCHTIR,
    "unlikeliness": UNLIKELY,
    "overlong fine": OVERLONG,
    "tool calls": MATCHING,
    "tournament": TOURNAMENT,
}

REAL: dict[str, Any] = {
    "igpo": lambda rows: rows.credit(tw.igpo()),
    "infopo": lambda rows: rows.credit(tw.infopo(beta=1.0)),
    "matchtir": lambda rows: rows.credit(tw.matchtir(discount=0.5)),
    "unlikeliness": lambda rows: rows.credit(tw.unlikeliness()),
    "overlong fine": lambda rows: rows.credit(tw.chain(tw.penalize_overlong(limit=10, buffer=4), tw.dr_grpo())),
    "tool calls": match_calls,
    "tournament": lambda judge, num: single_elimination(Arena(judge, num)),
}


def variant(suite: str, credit: Callable[..., Any], source: str, *rejected_by: str) -> Variant:
    return Variant(suite, credit, source, rejected_by)


IGPO_CARD, OF_PROMPT, ONCE = (check.__name__ for check in IGPO)
HALF, GATE = (check.__name__ for check in INFOPO)
SAME_TURN, FINED_ONCE = MATCHTIR[0].__name__, OVERLONG[0].__name__
WORTH_MORE, SOLVED_TEACHES = (check.__name__ for check in UNLIKELY)
GREATEST, ONE_CALL, SHARE, OTHER_TOOL = (check.__name__ for check in MATCHING)
BOTH_ORDERS, BYE, LATER = (check.__name__ for check in TOURNAMENT)

VARIANTS: dict[str, Variant] = {
    "a gain of zero read as no turn": variant(
        "igpo", lambda rows: igpo(rows, zero_is_none=True), "official code without a mask of turns; card IGPO",
        IGPO_CARD, OF_PROMPT),
    "gains and outcomes in one pool": variant(
        "igpo", lambda rows: igpo(rows, apart=False), "official code's default under the paper's name; card IGPO",
        IGPO_CARD),
    "gains pooled over prompts": variant(
        "igpo", lambda rows: igpo(rows, by_prompt=False), "a pool keyed by kind alone", OF_PROMPT),
    "gains divided by the sample's deviation": variant(
        "igpo", lambda rows: igpo(rows, std=sample_std), "GRPO's habit; card IGPO: population", IGPO_CARD),
    "a gain paid to the turn after": variant(
        "igpo", lambda rows: igpo(rows, shift=True), "b_t - b_{t-1} where b is measured before the turn", IGPO_CARD),
    "an outcome counted once a turn": variant(
        "igpo", lambda rows: igpo(rows, spread_outcome=True), "statistics over turn rows; verl-agent #138", ONCE),
    "information standardised with its zeros": variant(
        "infopo", lambda rows: infopo(rows, zeros=True), "card InfoPO: non-zero values, zeros stay 0", HALF),
    "information standardised over turns": variant(
        "infopo", lambda rows: infopo(rows, tokens=False), "card InfoPO: statistics are weighted by tokens", HALF),
    "information divided by the length again": variant(
        "infopo", lambda rows: infopo(rows, per_token=True), "official code under the paper's name; card InfoPO", HALF),
    "another gate": variant(
        "infopo", lambda rows: infopo(rows, gate="exp"), "ulab-uiuc/CoPE, exp(-std / T); card InfoPO", HALF, GATE),
    "a gate that reads the advantages": variant(
        "infopo", lambda rows: infopo(rows, of="advantages"), "what was divided by its deviation has 1", GATE),
    "a lone turn leaks its return": variant(
        "matchtir", lambda rows: matchtir(rows, leak=True), "official code; card MatchTIR", SAME_TURN),
    "turns compared with all turns": variant(
        "matchtir", lambda rows: matchtir(rows, by_turn=False), "a group of turn rows without the turn", SAME_TURN),
    "both levels summed": variant(
        "matchtir", lambda rows: matchtir(rows, weight=1.0), "card MatchTIR, formula 4: their mean", SAME_TURN),
    "turn returns without discount": variant(
        "matchtir", lambda rows: matchtir(rows, discount=1.0), "card MatchTIR: 0.9 a turn", SAME_TURN),
    "outcomes in place of tool calls": variant(
        "matchtir", lambda rows: matchtir(rows, paid=""), "turnwise train before: no environment scores tool calls",
        "tool_calls_are_what_is_paid"),
    "likelihood summed over tokens": variant(
        "unlikeliness", lambda rows: unlikeliness(rows, sums=True), "prefers long answers; card: length-normalised",
        WORTH_MORE),
    "the likelier success is worth more": variant(
        "unlikeliness", lambda rows: unlikeliness(rows, likely=True), "rank 0 is the most likely in the text",
        WORTH_MORE),
    "failures are ranked too": variant(
        "unlikeliness", lambda rows: unlikeliness(rows, bonus=True), "r - beta * rank, not r * (1 - beta * rank)",
        WORTH_MORE),
    "uniform groups told by the shaped reward": variant(
        "unlikeliness", lambda rows: unlikeliness(rows, skip=False), "card: decided before the ranks", SOLVED_TEACHES),
    "the fine paid at every turn": variant(
        "overlong fine", lambda rows: overlong(rows, each_turn=True), "one fine on many rows", FINED_ONCE),
    "the fine from the limit on": variant(
        "overlong fine", lambda rows: overlong(rows, start=10.0), "DAPO card: from limit - buffer on", FINED_ONCE),
    "the fine as a bonus": variant(
        "overlong fine", lambda rows: overlong(rows, sign=1.0), "a lost sign", FINED_ONCE),
    "greedy called Hungarian": variant(
        "tool calls", lambda p, r: match_calls(p, r, rule="greedy"), "official code; card MatchTIR",
        GREATEST),
    "every call takes its best reference": variant(
        "tool calls", lambda p, r: np.array([max(similarity(a, b) for b in r) for a in p]), "repeating pays",
        ONE_CALL),
    "values do not count": variant(
        "tool calls", matched(names_only), "V read as the number of names", SHARE),
    "names do not count": variant(
        "tool calls", matched(lambda p, r: similarity(ToolCall("f", p.arguments), r)), "arguments alone", OTHER_TOOL),
    "a match judged in one order": variant(
        "tournament", one_order, "judges prefer a position; ArenaRL card, formula 1", BOTH_ORDERS),
    "the bye for the worst seed": variant(
        "tournament", lambda judge, num: single_elimination(Arena(judge, num), byes="release"),
        "official code closes the gaps of the bracket before pairing (get_seeded_bracket)", BYE),
    "ranked by scores alone": variant(
        "tournament", by_mean_score, "ArenaRL card, formula 4: by round, then by mean score", LATER),
}  # fmt: skip
