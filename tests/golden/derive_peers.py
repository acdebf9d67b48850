"""Statistics over the trajectories that reached a turn or a like state: TRLOO, MICA, SRGPO, ProxMO."""

import math
import re
from fractions import Fraction as F

from tests.golden.exact import (
    RAGGED,
    STEP_REWARDS,
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
    single_turn,
    standardised,
)


def trloo_cases():
    """Leave-one-out among the trajectories that reached the turn."""
    source, equation = "arXiv 2602.05885", "A_it = G_it - mean_{j != i}(G_jt), over trajectories that reached turn t"

    def credit(rewards, *, discount=F(1), keep=False):
        go, result = returns(rewards, discount), {}
        for g, n, t in places(rewards):
            others = [go[p] for p in places(rewards) if p[0] == g and p[1] != n and p[2] == t]
            result[g, n, t] = go[g, n, t] - mean(others) if others else (go[g, n, t] if keep else F(0))
        return shaped(result, rewards)

    card = [F(1), F(1, 2), F(3, 10)]
    assert credit([[[r] for r in card]]) == [[[F(6, 10)], [F(-15, 100)], [F(-45, 100)]]]  # the card's test
    ragged = credit(RAGGED)
    assert ragged[0][2][2] == 0, "nobody else had a third turn"
    return [
        case(
            "card check",
            source,
            equation,
            1e-13,
            "trloo",
            single_turn(card),
            [[[F(6, 10)], [F(-15, 100)], [F(-45, 100)]]],
        ),
        case("ragged", source, equation, 1e-13, "trloo", nested(reward=TWO), credit(TWO)),
        case(
            "ragged, discounted",
            source,
            equation,
            1e-13,
            "trloo",
            nested(reward=TWO),
            credit(TWO, discount=F(1, 2)),
            discount=0.5,
        ),
        case(
            "a turn that nobody else reached keeps its return",
            "KernelGYM compute_multi_turn_rloo_outcome_advantage",
            "A = G for one valid sample",
            1e-13,
            "trloo",
            nested(reward=TWO),
            credit(TWO, keep=True),
            convention="release",
        ),
    ]


def mica_cases():
    """Two standardisations with the population's deviation."""
    source = "arXiv 2603.06194, card MAPO"
    equation = "A = alpha z_turn(G) + beta z_group(r), z = (x - mean) / (pstd + 1e-8)"

    def z(value, members):
        return float(value - mean(members)) / (population_std(members) + 1e-8)

    def credit(rewards, discount, alpha=0.5, beta=0.5):
        go, result = returns(rewards, discount), {}
        for g, n, t in places(rewards):
            same_turn = [go[p] for p in places(rewards) if p[0] == g and p[2] == t]
            everyone = [rewards[h][m][u] for h, m, u in places(rewards) if h == g]
            result[g, n, t] = alpha * z(go[g, n, t], same_turn) + beta * z(rewards[g][n][t], everyone)
        return shaped(result, rewards)

    card = [[[F(1), F(0)], [F(0), F(1)]]]
    worked = [[[0.5, -1.0], [-0.5, 1.0]]]  # the card's test
    assert all(
        abs(a - b) < 1e-7
        for x, y in zip(credit(card, F(1))[0], worked[0], strict=True)
        for a, b in zip(x, y, strict=True)
    )
    return [
        case("card check", source, equation, 1e-12, "mica", nested(reward=card), credit(card, F(1)), discount=1.0),
        case("ragged", source, equation, 1e-12, "mica", nested(reward=TWO), credit(TWO, F(1, 2)), discount=0.5),
        case(
            "ragged, other weights",
            source,
            equation,
            1e-12,
            "mica",
            nested(reward=TWO),
            credit(TWO, F(1), 0.75, 0.25),
            discount=1.0,
            turn_weight=0.75,
            group_weight=0.25,
        ),
    ]


def srgpo_cases():
    """One random group that holds the whole batch: whatever the shuffle, the numbers are these."""
    source = "arXiv 2512.02631"
    equation = "A = z_group(R) + omega z_random(step reward), omega 0.5, sample std + 1e-6"

    def credit(rewards, steps, *, omega=0.5, over_responses=False):
        flat = {(g, n, t): F(steps[g][n][t]) for g, n, t in places(rewards)}
        step = dict(zip(flat, standardised(list(flat.values())), strict=True))
        whole, result = outcomes(rewards), {}
        for g, n, t in places(rewards):
            counted = [whole[p] for p in places(rewards) if p[0] == g and (over_responses or p[2] == 0)]
            episode = float(whole[g, n, t] - mean(counted)) / (sample_std(counted) + 1e-6)
            result[g, n, t] = episode + omega * step[g, n, t]
        return shaped(result, rewards)

    # all trajectories alike, so the step part is alone: rewards 1 and 0, std sqrt(1/2)
    pair, pair_steps = [[[F(0)], [F(0)]]], [[[1], [0]]]
    by_hand = 0.5 * 0.5 / (math.sqrt(0.5) + 1e-6)
    assert math.isclose(credit(pair, pair_steps)[0][0][0], by_hand, rel_tol=1e-14)
    groups = nested(reward=TWO, step_reward=STEP_REWARDS)
    return [
        case(
            "two steps, one right",
            source,
            equation,
            1e-13,
            "srgpo",
            nested(reward=pair, step_reward=pair_steps),
            [[[by_hand], [-by_hand]]],
        ),
        case("ragged", source, equation, 1e-13, "srgpo", groups, credit(TWO, STEP_REWARDS)),
        case(
            "ragged, omega 2, another seed",
            source,
            equation,
            1e-13,
            "srgpo",
            groups,
            credit(TWO, STEP_REWARDS, omega=2.0),
            weight=2.0,
            seed=7,
        ),
        case(
            "groups of one",
            source,
            "a lone step gets 0",
            1e-13,
            "srgpo",
            groups,
            credit(TWO, STEP_REWARDS, omega=0.0),
            group_size=1,
        ),
        case(
            "ragged, as released",
            "SeeNav-Agent core_srgpo.py",
            "the episode part counts responses",
            1e-13,
            "srgpo",
            groups,
            credit(TWO, STEP_REWARDS, over_responses=True),
            convention="release",
        ),
    ]


def tf_idf_vectors(texts):
    """One vector a text, as a dictionary: scikit-learn's default weights, over all texts, repeated ones included."""
    words = [re.findall(r"\b\w\w+\b", text.lower()) for text in texts]
    vectors = []
    for inside in words:
        vector = {}
        for word in sorted(set(inside)):
            num_with = sum(word in other for other in words)
            vector[word] = inside.count(word) * (math.log((1 + len(texts)) / (1 + num_with)) + 1)
        norm = math.sqrt(math.fsum(value**2 for value in vector.values()))
        vectors.append({word: value / norm for word, value in vector.items()})
    return vectors


def success_weight(success, rate, alpha=4.0, beta=0.1):
    """ProxMO's w."""

    def sigmoid(x):
        return 1 / (1 + math.exp(-x))

    f = sigmoid((1 - rate) ** alpha) - 0.5 if success else sigmoid(-(rate**alpha)) - 0.5
    return 1 + beta * f


def proxmo_cases():
    """Soft groups by the texts of states, and the success weight."""
    source = "arXiv 2602.19225"
    equation = "A = w (R - mean) / (std + 1e-6) + G - sum_j softmax_j(cos_ij / tau) G_j"
    worked = [(1, 0.125, 1.0142), (0, 0.125, 1.0), (1, 0.875, 1.0), (0, 0.875, 0.9858)]  # the card's check
    assert all(round(success_weight(success, rate), 4) == value for success, rate, value in worked)

    def credit(rewards, texts, success, *, omega=1.0, alpha=4.0, beta=0.1, tau=0.1, release=False):
        where = places(rewards)
        vectors = dict(zip(where, tf_idf_vectors([texts[g][n][t] for g, n, t in where]), strict=True))
        go, whole, result = returns(rewards, F(95, 100)), outcomes(rewards), {}
        for g, n, t in where:
            group = [p for p in where if p[0] == g]
            similar = [math.fsum(v * vectors[p].get(word, 0.0) for word, v in vectors[g, n, t].items()) for p in group]
            weights = [math.exp(s / tau) for s in similar]
            baseline = math.fsum(w * float(go[p]) for w, p in zip(weights, group, strict=True)) / math.fsum(weights)
            counted = [whole[p] for p in group if release or p[2] == 0]
            if release:
                average = F(0) if len(counted) == 1 else mean(counted)
                rate, won = min(max(float(average), 0.0), 1.0), whole[g, n, t] > F(1, 2)
                episode = float(whole[g, n, t] - average)
            else:
                rate, won = float(mean([F(success[g][m][0]) for m in range(len(rewards[g]))])), success[g][n][t] == 1
                episode = float(whole[g, n, t] - mean(counted)) / (sample_std(counted) + 1e-6)
            result[g, n, t] = success_weight(won, rate, alpha, beta) * episode + omega * (float(go[g, n, t]) - baseline)
        return shaped(result, rewards)

    rewards = [[[F(0), F(10)], [F(0)], [F(0), F(0), F(0)]], [[F(10)], [F(0), F(10)]], [[F(10), F(0)]]]
    success = [[[1, 1], [0], [0, 0, 0]], [[1], [1, 1]], [[1, 1]]]
    texts = [
        [
            ["You see a mug.", "You see a mug and a Fork"],
            ["The fridge is closed."],
            ["you see a mug", "", "the fridge is OPEN"],
        ],
        [["On the desk, you see a lamp_2"], ["You see a mug.", "a b c !"]],
        [["The garden of the house", "The garden of the house"]],
    ]
    groups = nested(reward=rewards, state_text=texts, success=success)
    # equal texts only: the softmax is uniform, so the step part is G - mean(G) = +-1/2; the deviation is sqrt(1/2)
    same = nested(reward=[[[F(1)], [F(0)]]], state_text=[[["a mug"], ["A MUG!"]]], success=[[[1], [0]]])
    w_won, w_lost = success_weight(1, 0.5), success_weight(0, 0.5)
    z = 0.5 / (math.sqrt(0.5) + 1e-6)
    release = "ProxMO-RL core_proxmo.py"
    formula = "A = w (R - mean over responses) + step; p = clip(mean reward, 0, 1), success = reward > 1/2"
    return [
        case("equal texts", source, equation, 1e-12, "proxmo", same, [[[w_won * z + 0.5], [-w_lost * z - 0.5]]]),
        case("ragged", source, equation, 1e-12, "proxmo", groups, credit(rewards, texts, success)),
        case(
            "ragged, other constants",
            source,
            equation,
            1e-12,
            "proxmo",
            groups,
            credit(rewards, texts, success, omega=0.25, alpha=2.0, beta=0.5, tau=0.5),
            weight=0.25,
            alpha=2.0,
            beta=0.5,
            tau=0.5,
        ),
        case(
            "ragged, as released",
            release,
            formula,
            1e-12,
            "proxmo",
            nested(reward=rewards, state_text=texts),
            credit(rewards, texts, success, beta=0.216, release=True),
            beta=0.216,
            convention="release",
        ),
        case(
            "a lone response, as released",
            release,
            formula,
            1e-12,
            "proxmo",
            nested(reward=[[[F(1)]]], state_text=[[["a mug"]]]),
            [[[success_weight(1, 0.0)]]],
            convention="release",
        ),
    ]


TABLES = {
    "trloo": trloo_cases,
    "mica": mica_cases,
    "srgpo": srgpo_cases,
    "proxmo": proxmo_cases,
}
