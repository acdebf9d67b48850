"""Statistics by turn, role and history: REINFORCE++ and HGPO."""

import math
from fractions import Fraction as F

from tests.golden.exact import (
    LENGTHS,
    RAGGED,
    STATES,
    TWO,
    case,
    mean,
    nested,
    outcomes,
    places,
    population_std,
    returns,
    sample_std,
    shaped,
)


def reinforce_pp_cases():
    """Every reward to go written once a token, then standardised over the list."""
    source, equation = "arXiv 2501.03262", "A = (G - mean(G)) / (std(G) + 1e-6) over all tokens, G the reward to go"
    release = "verl compute_reinforce_plus_plus_outcome_advantage at gamma 1"

    def credit(rewards, lengths, *, discount=F(1), root=False):
        value = returns(rewards, discount)
        tokens = [value[g, n, t] for g, n, t in places(rewards) for _ in range(lengths[g][n][t])]
        std = sample_std(tokens)
        divisor = math.sqrt(std**2 + 1e-8) if root else std + 1e-6
        return shaped({place: float(v - mean(tokens)) / divisor for place, v in value.items()}, rewards)

    # one token of 1, three of 0: mean 1/4, squares 9/16 and three of 1/16 make 3/4, over 3 it is 1/4, std 1/2
    hand = credit([[[F(1)]], [[F(0)]]], [[[1]], [[3]]])
    assert math.isclose(hand[0][0][0], (3 / 4) / (1 / 2 + 1e-6), rel_tol=1e-14)
    apart = nested(reward=[[[F(1)]], [[F(0)]]], length=[[[1]], [[3]]])
    ragged, half = nested(reward=TWO, length=LENGTHS), F(1, 2)
    name = "reinforce_pp"
    return [
        case("two prompts of one", source, equation, 1e-13, name, apart, hand),
        case("two ragged prompts", source, equation, 1e-13, name, ragged, credit(TWO, LENGTHS)),
        case(
            "discounted a turn", source, equation, 1e-13, name, ragged, credit(TWO, LENGTHS, discount=half),
            discount=0.5,
        ),
        case(
            "epsilon under the root", release, equation, 1e-13, name, ragged, credit(TWO, LENGTHS, root=True),
            convention="verl",
        ),
    ]  # fmt: skip


def reinforce_pp_baseline_cases():
    """Every response's deviation written once a token, then standardised over the list."""
    source, equation = "arXiv 2501.03262", "A = (D - mean(D)) / (std(D) + 1e-6) over all tokens, D = R - mean_group(R)"

    def credit(rewards, lengths, *, keep=False, root=False):
        deviation = {}
        for g, n, t in places(rewards):
            group = [sum(turns, start=F(0)) for turns in rewards[g]]
            deviation[g, n, t] = group[n] - (0 if keep and len(group) == 1 else mean(group))
        tokens = [deviation[g, n, t] for g, n, t in places(rewards) for _ in range(lengths[g][n][t])]
        std = sample_std(tokens)
        divisor = math.sqrt(std**2 + 1e-8) if root else std + 1e-6
        return shaped({place: float(d - mean(tokens)) / divisor for place, d in deviation.items()}, rewards)

    # one prompt, two tokens of return 1 and one of return 0: D = +-1/2, mean 1/6, squares 1/9, 1/9, 4/9, std 1/sqrt(3)
    hand = credit([[[F(1)], [F(0)]]], [[[2], [1]]])
    assert math.isclose(hand[0][0][0], (1 / 3) / (1 / math.sqrt(3) + 1e-6), rel_tol=1e-14)
    lone, lone_lengths = [*TWO, [[F(1, 2)]]], [*LENGTHS, [[3]]]
    tiny = [[[F(1, 10**5)], [F(0)]], [[F(0)], [F(0)]]]
    name = "reinforce_pp_baseline"
    return [
        case(
            "two tokens against one",
            source,
            equation,
            1e-13,
            name,
            nested(reward=[[[F(1)], [F(0)]]], length=[[[2], [1]]]),
            hand,
        ),
        case(
            "two ragged prompts",
            source,
            equation,
            1e-13,
            name,
            nested(reward=TWO, length=LENGTHS),
            credit(TWO, LENGTHS),
        ),
        case(
            "a lone trajectory gets the batch's mean only",
            source,
            equation,
            1e-13,
            name,
            nested(reward=lone, length=lone_lengths),
            credit(lone, lone_lengths),
        ),
        case(
            "a lone trajectory keeps its return",
            "verl compute_reinforce_plus_plus_baseline_outcome_advantage",
            "mean 0 for a lone row, (D - mean) / sqrt(var + 1e-8) over tokens",
            1e-13,
            name,
            nested(reward=lone, length=lone_lengths),
            credit(lone, lone_lengths, keep=True, root=True),
            convention="verl",
        ),
        case(
            "tiny rewards",
            "verl masked_whiten",
            "rsqrt(var + 1e-8), divisor n - 1",
            1e-12,
            name,
            nested(reward=tiny, length=[[[2], [3]], [[1], [1]]]),
            credit(tiny, [[[2], [3]], [[1], [1]]], root=True),
            convention="verl",
        ),
        case(
            "everything alike",
            source,
            equation,
            1e-14,
            name,
            nested(reward=[[[F(7, 10)], [F(7, 10)]]], length=[[[2], [9]]]),
            [[[0], [0]]],
        ),
    ]


def hgpo_credit(
    rewards, states, *, depth=2, alpha=1, discount=F(95, 100), scale=True, base_group=False, verl_agent=False
):
    """The equations, response by response; whose history is the same is decided by comparing lists of states."""
    go, whole = returns(rewards, discount), outcomes(rewards)
    result = {}
    for g, n, t in places(rewards):
        items = []
        if base_group:
            counted = [whole[p] for p in places(rewards) if p[0] == g and (verl_agent or p[2] == 0)]
            base = float(whole[g, n, t] - (0 if verl_agent and len(counted) == 1 else mean(counted)))
            if verl_agent or len(counted) > 1:  # one trajectory is no group to be compared in
                items.append((1, base / ((sample_std(counted) + 1e-6) if scale and len(counted) > 1 else 1)))
        for k in range(min(depth, t) + 1):
            history = states[g][n][t - k : t + 1]
            alike = [
                go[g, m, u]
                for h, m, u in places(rewards)
                if h == g and u >= k and states[g][m][u - k : u + 1] == history
            ]
            if len(alike) > 1:
                centred = go[g, n, t] - mean(alike)
                divisor = population_std(alike) + 1e-6 if scale else 1
                items.append(((k + (2 if verl_agent or base_group else 1)) ** alpha, float(centred) / divisor))
        if verl_agent:
            items = [(weight, value) for weight, value in items if value != 0]
        total = sum(weight for weight, _ in items)
        result[g, n, t] = math.fsum(weight * value for weight, value in items) / total if items else 0.0
    return shaped(result, rewards)


def hgpo_cases():
    """The card's weights, the ragged example, each convention."""
    source = "arXiv 2602.22817"
    equation = "A = sum_k w_k A_k / sum_k w_k, A_k = (G - mean_k) / (pstd_k + 1e-6), w_k = k + 1"
    # four trajectories end in state c; three of them by way of b, two by way of a and b
    fork = [[[F(0), F(0), r] for r in (F(1), F(0), F(0), F(0))]]
    fork_states = [[list("abc"), list("abc"), list("dbc"), list("efc")]]
    # at c the first is 3/4, 2/3 and 1/2 above the mean of level 0, 1 and 2; weights 1/6, 1/3, 1/2 (the card's test)
    by_hand = F(1, 6) * F(3, 4) + F(1, 3) * F(2, 3) + F(1, 2) * F(1, 2)
    plain = hgpo_credit(fork, fork_states, discount=F(1), scale=False)
    assert math.isclose(plain[0][0][2], by_hand, rel_tol=1e-15)
    released = hgpo_credit(fork, fork_states, discount=F(1), scale=False, verl_agent=True)
    assert math.isclose(released[0][0][2], F(2, 9) * F(3, 4) + F(3, 9) * F(2, 3) + F(4, 9) * F(1, 2), rel_tol=1e-15)
    # exactly average on level 0, above the mean on level 1: the release leaves level 0 out of the weights
    average = [[[F(0), F(1)], [F(0), F(0)], [F(0), F(2)]]]
    average_states = [[["a", "c"], ["a", "c"], ["b", "c"]]]
    skipped = hgpo_credit(average, average_states, discount=F(1), scale=False, verl_agent=True)
    kept = hgpo_credit(average, average_states, discount=F(1), scale=False)
    assert math.isclose(skipped[0][0][1], 0.5)
    assert math.isclose(kept[0][0][1], (1 * 0 + 2 * 0.5) / 3)
    # two long trajectories that come back, and a prompt of one
    long = [*RAGGED, [[F(0), F(7, 10), F(0), F(7, 10)], [F(1, 4), F(0), F(0), F(0), F(1)]], [[F(0), F(1), F(0)]]]
    long_states = [*STATES, [list("xyxy"), list("xyxyx")], [list("xxx")]]
    release = "verl-agent recipe/hgpo/core_hgpo.py"
    weights = "weights 2:3:4, levels of advantage 0 left out"
    exact = {"discount": 1.0, "scale": False}
    groups, long_groups = nested(reward=fork, state_key=fork_states), nested(reward=long, state_key=long_states)
    average_groups = nested(reward=average, state_key=average_states)
    return [
        case("card: weights 1/6, 1/3, 1/2", source, equation, 1e-13, "hgpo", groups, plain, **exact),
        case(
            "the release's weights 2/9, 3/9, 4/9",
            release,
            weights,
            1e-13,
            "hgpo",
            groups,
            released,
            convention="verl-agent",
            **exact,
        ),
        case("exactly average on one level", source, equation, 1e-13, "hgpo", average_groups, kept, **exact),
        case(
            "exactly average on one level, left out",
            release,
            weights,
            1e-13,
            "hgpo",
            average_groups,
            skipped,
            convention="verl-agent",
            **exact,
        ),
        case("ragged", source, equation, 1e-12, "hgpo", long_groups, hgpo_credit(long, long_states)),
        case(
            "ragged, depth 1, alpha 2",
            source,
            "w_k = (k + 1)^2",
            1e-12,
            "hgpo",
            long_groups,
            hgpo_credit(long, long_states, depth=1, alpha=2),
            depth=1,
            alpha=2.0,
        ),
        case(
            "ragged, with the group",
            "card: base_group",
            "weights 1, 2, 3, 4 from the episode up",
            1e-12,
            "hgpo",
            long_groups,
            hgpo_credit(long, long_states, base_group=True),
            base_group=True,
        ),
        case(
            "ragged, with the group, as released",
            release,
            "the episode counts responses",
            1e-12,
            "hgpo",
            long_groups,
            hgpo_credit(long, long_states, base_group=True, verl_agent=True),
            base_group=True,
            convention="verl-agent",
        ),
        case(
            "a lone response with the group, as released",
            release,
            "mean 0 and std 1 for a lone response",
            1e-14,
            "hgpo",
            nested(reward=[[[F(3)]]], state_key=[[["a"]]]),
            [[[3]]],
            base_group=True,
            convention="verl-agent",
        ),
    ]


TABLES = {
    "reinforce_pp": reinforce_pp_cases,
    "reinforce_pp_baseline": reinforce_pp_baseline_cases,
    "hgpo": hgpo_cases,
}
