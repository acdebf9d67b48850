"""Graphs of states, actions in them, rewards and checks of turns, gains of the gold answer, forks, token entropies."""

import math
from fractions import Fraction as F

from tests.golden.exact import (
    RAGGED,
    RETURNS,
    STATES,
    STEP_REWARDS,
    mean,
    nested,
    population_std,
    ragged_groups,
    standardised,
    to_go,
    z_by_turn,
)
from tests.golden.exact import case as exact_case

ONE = RAGGED[0]
DATE = "2026-11-27"


def case(*told, **options):
    """One golden case of this date."""
    return exact_case(*told, **options) | {"date": DATE}


PLACES = [(n, t) for n, turns in enumerate(ONE) for t in range(len(turns))]
ACTIONS = [[["x"], ["x", "y"], ["x", "y", "x"]]]


def shaped(values, rewards=ONE):
    """Values by place as nested lists."""
    return [[[values[n, t] for t in range(len(turns))] for n, turns in enumerate(rewards)]]


def places_of(rewards):
    return [(n, t) for n, turns in enumerate(rewards) for t in range(len(turns))]


def z_within(values, key):
    """Standardise values by place among those with the same key."""
    result = {}
    for place in values:
        others = [other for other in values if key(other) == key(place)]
        z = standardised([values[other] for other in others])
        result[place] = z[others.index(place)]
    return result


def centred_within(values, key):
    """Subtract the mean of those with the same key, by place."""
    return {place: float(values[place] - mean([values[p] for p in values if key(p) == key(place)])) for place in values}


def next_values(rewards, states, return_discount, lag=0):
    """The mean return of each state, and that of the next one; after the last response its reward."""
    go = {(n, t): to_go(rewards[n], return_discount)[t] * return_discount**lag for n, t in places_of(rewards)}
    value = {place: mean([go[p] for p in go if states[p[0]][p[1]] == states[place[0]][place[1]]]) for place in go}
    after = {(n, t): value.get((n, t + 1), rewards[n][t]) for n, t in go}
    return go, value, after


# S leads to X, where one succeeds and one fails, and to Y: the cards of PGPO and G2PO
TOY = [[F(0), F(1)], [F(0), F(0)], [F(0), F(0)]]
TOY_STATES = [["S", "X"], ["S", "X"], ["S", "Y"]]


def pgpo_cases():
    source, equation = "arXiv 2609.02236", "A = z_s(G) + beta (1 - p)^alpha z_s(gamma Phi(next) - Phi)"

    def credit(rewards, states, discount, potential, alpha, beta):
        go, value, after = next_values(rewards, states, discount)
        change = {place: potential * after[place] - value[place] for place in go}
        key = lambda place: states[place[0]][place[1]]  # noqa: E731
        p = F(sum(turns[-1] > 0 for turns in rewards), len(rewards))
        direct, shaping = z_within(go, key), z_within(change, key)
        weight = float(beta * (1 - p) ** alpha)
        return shaped({place: direct[place] + weight * shaping[place] for place in go}, rewards)

    hand = credit(TOY, TOY_STATES, F(1), F(1), 2, F(1))[0]
    card = [1.4113, -0.3208, -1.0906]
    assert all(abs(turns[0] - wanted) < 2e-4 for turns, wanted in zip(hand, card, strict=True))
    toy = nested(reward=[TOY], state_key=[TOY_STATES])
    ragged = ragged_groups(states=True)
    return [
        case("the card's fork", source, equation, 1e-12, "pgpo", toy, [hand], discount=1.0),
        case("ragged", source, equation, 1e-12, "pgpo", ragged, credit(ONE, STATES[0], F(95, 100), F(1), 2, F(1))),
        case("a discounted potential", source, equation, 1e-12, "pgpo", toy,
             credit(TOY, TOY_STATES, F(1, 2), F(1, 4), 1, F(3)), discount=0.5, potential_discount=0.25, alpha=1.0,
             beta=3.0),
    ]  # fmt: skip


def g2po_cases():
    source, equation = "arXiv 2606.22995", "A = z(R) + w (z_s(V(next)) + z(V(next) - V)), V = mean of gamma^(T-t+1) R"
    code = "Nala-YN/G2PO g2po/core_g2po.py"

    def credit(rewards, states, discount, weight, within=z_within, over_rows=False):
        late = [[*[F(0)] * (len(turns) - 1), sum(turns, start=F(0))] for turns in rewards]
        _, value, after = next_values(late, states, discount, lag=1)
        node = within(after, lambda place: states[place[0]][place[1]])
        edge = within({place: after[place] - value[place] for place in after}, lambda place: 0)
        outcome = {place: sum(rewards[place[0]], start=F(0)) for place in after if over_rows or place[1] == 0}
        episode = within(outcome, lambda place: 0)
        first = {place: place if over_rows else (place[0], 0) for place in after}
        return shaped({p: episode[first[p]] + weight * (node[p] + edge[p]) for p in after}, rewards)

    _, value, after = next_values(TOY, TOY_STATES, F(1), lag=1)
    assert [after[p] - value[p] for p in after] == [F(1, 6), F(1, 2), F(1, 6), F(-1, 2), F(-1, 3), 0]  # the card
    toy, ragged = nested(reward=[TOY], state_key=[TOY_STATES]), ragged_groups(states=True)
    return [
        case("the card's fork", source, equation, 1e-12, "g2po", toy, credit(TOY, TOY_STATES, F(1), 1), discount=1.0),
        case("ragged", source, equation, 1e-12, "g2po", ragged, credit(ONE, STATES[0], F(95, 100), 1)),
        case("half the graph", source, equation, 1e-12, "g2po", ragged, credit(ONE, STATES[0], F(1, 2), 0.5),
             discount=0.5, weight=0.5),
        case("the release on ALFWorld", code, equation, 1e-12, "g2po", ragged,
             credit(ONE, STATES[0], F(95, 100), 1, over_rows=True), convention="verl-agent"),
        case("the release on WebShop", code, equation, 1e-12, "g2po", ragged,
             credit(ONE, STATES[0], F(95, 100), 1, centred_within, over_rows=True),
             convention="verl-agent", scale=False),
    ]  # fmt: skip


def ecpo_cases():
    source = "arXiv 2606.05885"
    equation = "A = z(R) + omega tanh(n / tau) B / (B + W + 1e-6) z_s((n_u mean_u + kappa mean_s) / (n_u + kappa))"

    def evidence(rewards, states, actions, discount, count):
        go = {(n, t): to_go(rewards[n], discount)[t] for n, t in places_of(rewards)}
        shrunk, gate = {}, {}
        for place in go:
            at = lambda p, of: of[p[0]][p[1]]  # noqa: E731
            here = [p for p in go if at(p, states) == at(place, states)]
            same = {p: [q for q in here if at(q, actions) == at(p, actions)] for p in here}
            centre, means = mean([go[p] for p in here]), {p: mean([go[q] for q in same[p]]) for p in here}
            own = len(same[place])
            shrunk[place] = (own * means[place] + count * centre) / (own + count)
            between = mean([(means[p] - centre) ** 2 for p in here])
            inside = mean([(go[p] - means[p]) ** 2 for p in here])
            gate[place] = len(here), between, inside
        return shrunk, gate

    def credit(rewards, states, actions, discount, count, tau, weight):
        shrunk, gate = evidence(rewards, states, actions, discount, count)
        z = z_within(shrunk, lambda place: states[place[0]][place[1]])
        episode = standardised([sum(turns, start=F(0)) for turns in rewards])
        rho = {p: math.tanh(n / tau) * float(b) / (float(b + w) + 1e-6) for p, (n, b, w) in gate.items()}
        return shaped({p: episode[p[0]] + weight * rho[p] * z[p] for p in z}, rewards)

    # the card: u once with 1, v with 1, 0, 0; means 2/3 and 2/5 at kappa 2; B = 1/12, W = 1/6
    four, state, tried = [[F(1)], [F(1)], [F(0)], [F(0)]], [["s"]] * 4, [["u"], ["v"], ["v"], ["v"]]
    shrunk, gate = evidence(four, state, tried, F(1), F(2))
    assert [shrunk[n, 0] for n in range(4)] == [F(2, 3), F(2, 5), F(2, 5), F(2, 5)]
    assert gate[0, 0] == (4, F(1, 12), F(1, 6))
    card = nested(reward=[four], state_key=[state], action_key=[tried])
    ragged = nested(reward=RAGGED, state_key=STATES, action_key=ACTIONS)
    return [
        case("the card's anchor", source, equation, 1e-12, "ecpo", card,
             credit(four, state, tried, F(1), F(2), 4.0, 1.0), tau=4.0, weight=1.0, discount=1.0),
        case("ragged", source, equation, 1e-12, "ecpo", ragged,
             credit(ONE, STATES[0], ACTIONS[0], F(95, 100), F(2), 4.0, 0.5), tau=4.0, weight=0.5),
        case("without shrinking", source, equation, 1e-12, "ecpo", ragged,
             credit(ONE, STATES[0], ACTIONS[0], F(1, 2), F(0), 1.0, 2.0), tau=1.0, weight=2.0, count=0.0,
             discount=0.5),
    ]  # fmt: skip


def procredit_cases():
    source, equation = "arXiv 2609.27532", "A = z(R + c Phi_T) + lambda (G - mean G), G = R + c (Phi_T - Phi_before)"

    def credit(rewards, checks, progress, weight):
        go = {
            (n, t): sum(rewards[n], start=F(0)) + progress * (checks[n][-1] - (checks[n][t - 1] if t else 0))
            for n, t in places_of(rewards)
        }
        scores = [go[n, 0] for n in range(len(rewards))]
        spread = population_std(scores) + 1e-6
        centre, middle = mean(scores), mean([*go.values()])
        of = [float(score - centre) / spread for score in scores]
        return go, shaped({p: of[p[0]] + weight * float(go[p] - middle) for p in go}, rewards)

    rewards, checks = [[F(0), F(0), F(1)], [F(0), F(0)]], [[F(1, 2), F(1, 2), F(1)], [F(0), F(1, 2)]]
    go, hand = credit(rewards, checks, F(1, 2), 1.0)
    assert [*go.values()] == [F(3, 2), F(5, 4), F(5, 4), F(1, 4), F(1, 4)]  # the card
    told = [[[F(1)], [F(1, 4), F(1, 2)], [F(0), F(1), F(3, 4)]]]  # it may fall
    return [
        case("the card's two", source, equation, 1e-12, "procredit", nested(reward=[rewards], checks=[checks]), hand),
        case("ragged", source, equation, 1e-12, "procredit", nested(reward=RAGGED, checks=told),
             credit(ONE, told[0], F(1, 4), 2.0)[1], progress=0.25, weight=2.0),
    ]  # fmt: skip


def mt_grpo_cases():
    source = "arXiv 2505.11821; SiliangZeng/Multi-Turn-RL-Agent"
    equation = "aae: z(R) + c z(S) first, z(R) later; cae: z(S + d R) first, z(R) later"

    def credit(rewards, paid, weight, discount, estimator):
        outcome = [sum(turns, start=F(0)) for turns in rewards]
        own = [sum(turns, start=F(0)) for turns in paid]
        z = lambda values: standardised(values, eps=1e-4)  # noqa: E731
        late, alone = z(outcome), z([s + r for s, r in zip(own, outcome, strict=True)])
        joint = z([s + discount * r for s, r in zip(own, outcome, strict=True)])
        first = [a + weight * b for a, b in zip(late, z(own), strict=True)] if estimator == "aae" else joint
        if estimator == "aae":
            first = [alone[n] if len(turns) == 1 else first[n] for n, turns in enumerate(rewards)]
        return shaped({(n, t): late[n] if t else first[n] for n, t in places_of(rewards)}, rewards)

    # the card: the first calls well and fails, the second the reverse: nothing before, -+0.7071 after
    two, calls = [[F(0), F(0)], [F(0), F(1)]], [[F(1), F(0)], [F(0), F(0)]]
    hand = credit(two, calls, 1, F(1), "aae")
    assert [round(v, 3) for turns in hand[0] for v in turns] == [0, -0.707, 0, 0.707]
    card = nested(reward=[two], step_reward=[calls])
    ragged = nested(reward=RAGGED, step_reward=STEP_REWARDS[:1])
    paid = [[F(x) for x in turns] for turns in STEP_REWARDS[0]]
    return [
        case("the card's two", source, equation, 1e-12, "mt_grpo", card, hand),
        case("ragged", source, equation, 1e-12, "mt_grpo", ragged, credit(ONE, paid, 0.5, F(1), "aae"), weight=0.5),
        case("the advantage of the sum", source, equation, 1e-12, "mt_grpo", ragged,
             credit(ONE, paid, 1, F(1, 2), "cae"), discount=0.5, estimator="cae"),
    ]  # fmt: skip


def gtpo_cases():
    source, equation = "arXiv 2511.14846", "A = z(sum_k discount^(k - t) r_k) over the same turn, or the group"
    go = [to_go(turns, F(9, 10)) for turns in ONE]
    assert to_go([F(-1, 10), F(0), F(1)], F(9, 10)) == [F(71, 100), F(9, 10), F(1)]  # the card
    flat = standardised([v for turns in go for v in turns])
    group = shaped(dict(zip(PLACES, flat, strict=True)))
    groups = ragged_groups()
    return [
        case("by turn", source, equation, 1e-12, "gtpo", groups, [z_by_turn(go)], compared="turn"),
        case("by group", source, equation, 1e-12, "gtpo", groups, group, compared="group"),
    ]


def trace_cases():
    source = "arXiv 2607.13988"
    equation = "A = Z + w (weighted mean of d over a window + eta discount^(T - t) Z near the end)"

    def credit(rewards, before, weight, window, discount, eps, fill):
        outcome = [sum(turns, start=F(0)) for turns in rewards]
        spread = population_std(outcome) + 1e-6
        z = [float(r - mean(outcome)) / spread for r in outcome]
        result = {}
        for n, turns in enumerate(rewards):
            last = len(turns) - 1
            gain = [math.log((eps - before[n][t]) / (eps - before[n][t + 1])) for t in range(last)]
            for t in range(last + 1):
                own = gain[t : t + window]
                weights = [discount**j for j in range(len(own))]
                dense = sum(w * d for w, d in zip(weights, own, strict=True)) / sum(weights) if own else 0.0
                near = t < last and (t + window >= last if window else t == last - 1)
                filled = fill * discount ** (last - t) * z[n] if near else 0.0
                result[n, t] = z[n] + weight * (dense + filled)
        return shaped(result, rewards)

    # the card: Z = 1, log-probabilities -1.9, -0.9, -0.4: 1.3946 and 1.4586
    card, known = [[F(0), F(0), F(1)], [F(0)]], [[-1.9, -0.9, -0.4], [-1.0]]
    hand = credit(card, known, 0.2, 3, 0.8, 0.1, 2.0)
    assert [round(v, 3) for v in hand[0][0]] == [1.395, 1.459, 1.0]
    groups = nested(reward=[card], gold_logprob=[known])
    told = [[[-0.5], [-2.0, -1.0], [-3.0, -0.25, -1.5]]]
    ragged = nested(reward=RAGGED, gold_logprob=told)
    return [
        case("the card's turns", source, equation, 1e-12, "trace_gold", groups, hand),
        case("one turn at a time", source, equation, 1e-12, "trace_gold", groups,
             credit(card, known, 0.2, 1, 0.8, 0.1, 2.0), window=1),
        case("the fill alone", source, equation, 1e-12, "trace_gold", groups,
             credit(card, known, 0.2, 0, 0.8, 0.1, 2.0), window=0),
        case("ragged", source, equation, 1e-12, "trace_gold", ragged,
             credit(ONE, told[0], 0.5, 2, 0.5, 0.25, 1.0), weight=0.5, window=2, discount=0.5, eps=0.25, fill=1.0),
    ]  # fmt: skip


def lotapo_cases():
    source, equation = "arXiv 2607.13501", "A = z(R) + w z(g) where z(g) has the sign of g"

    def credit(drops, weight, compared):
        episode = standardised(RETURNS)
        drop = {(n, t): drops[n][t] for n, t in PLACES}
        left_out = {p: g for p, g in drop.items() if g}
        z = z_within(left_out, lambda place: place[0] if compared == "trajectory" else 0)
        kept = {p: z[p] if p in z and z[p] * float(drop[p]) > 0 else 0.0 for p in drop}
        return shaped({p: episode[p[0]] + weight * kept[p] for p in drop})

    # the card: 1/2, 1/10 and 3/10 have z 1, -1 and 0, and the second is dropped
    alone = standardised([F(5, 10), F(1, 10), F(3, 10)])
    assert [round(v, 4) for v in alone] == [1.0, -1.0, 0.0]
    drops = [[[F(1, 4)], [F(-1, 2), F(1, 8)], [F(1, 2), F(1, 8), F(-1, 4)]]]
    groups = nested(reward=RAGGED, turn_drop=drops)
    ends = [[[F(0)], [F(-1, 2), F(0)], [F(1, 2), F(1, 8), F(0)]]]  # as it is measured: none for the answers
    measured = nested(reward=RAGGED, turn_drop=ends)
    return [
        case("within trajectories", source, equation, 1e-12, "lotapo", groups, credit(drops[0], 0.5, "trajectory"),
             weight=0.5, compared="trajectory"),
        case("within the group", source, equation, 1e-12, "lotapo", groups, credit(drops[0], 1.0, "group"),
             weight=1.0, compared="group"),
        case("the answer is not compared", source, equation, 1e-12, "lotapo", measured, credit(ends[0], 1.0, "group"),
             weight=1.0, compared="group"),
    ]  # fmt: skip


def aepo_cases():
    source, equation = "arXiv 2510.14545; dongguanting/ARPO", "A'_t = A (1 + 0.2 z(H_t)) over all tokens"
    entropy = [[[[F(1), F(2)]], [[F(1, 2)], [F(3), F(0)]], [[F(1), F(1), F(2)], [F(1, 4)], [F(2), F(1, 2)]]]]
    every = [h for turns in entropy[0] for own in turns for h in own]
    spread = math.sqrt(float(sum((h - mean(every)) ** 2 for h in every) / (len(every) - 1)))

    def credit(base, weight):
        z = lambda h: float(h - mean(every)) / spread  # noqa: E731
        return [[[base[n] * (1 + weight * z(h)) for h in own] for own in turns] for n, turns in enumerate(entropy[0])]

    def made(name, base, **options):
        groups = nested(reward=RAGGED, entropy_T=entropy)
        fine = credit(base, options.get("weight", 0.2))
        expected = [[[sum(own) / len(own) for own in turns] for turns in fine]]
        flat = [a for turns in fine for own in turns for a in own]
        return case(name, source, equation, 1e-12, "aepo", groups, expected, **options) | {"expected_T": flat}

    # the card: entropies 1, 2, 3 have z -1, 0, 1
    return [
        made("ragged", standardised(RETURNS)),
        made("signs change", standardised(RETURNS), weight=2.0),
    ]


def bpo_cases():
    source = "arXiv 2607.14171"
    equation = "A = R - mean of the others + w (V - mean of V over the siblings)"

    def credit(rewards, names, weight):
        returns = [sum(turns, start=F(0)) for turns in rewards]
        paths = {(n, t): tuple(names[n][: t + 1]) for n, t in places_of(rewards)}
        value = {
            path: mean([returns[n] for n in range(len(rewards)) if tuple(names[n][: len(path)]) == path])
            for path in paths.values()
        }
        result = {}
        for (n, t), path in paths.items():
            others = [value[p] for p in value if p[:-1] == path[:-1] and len(p) == len(path) and p != path]
            rest = [r for k, r in enumerate(returns) if k != n]
            fork = value[path] - mean(others) if others else F(0)
            result[n, t] = returns[n] - mean(rest) + weight * fork
        return shaped(result, rewards)

    # the card: 1, 0, 0 at one fork are 1, -1/2, -1/2, and RLOO says the same
    three, apart = [[F(1)], [F(0)], [F(0)]], [["a"], ["b"], ["c"]]
    assert credit(three, apart, F(1)) == [[[F(2)], [F(-1)], [F(-1)]]]
    # one root; two fork after the first response, one of them again
    tree = [["r", "a", "c"], ["r", "a", "d"], ["r", "b"], ["s"]]
    paid = [[F(0), F(0), F(1)], [F(0), F(0), F(0)], [F(0), F(1, 2)], [F(1, 4)]]
    return [
        case("the card's fork", source, equation, 1e-13, "bpo", nested(reward=[three], prefix=[apart]),
             credit(three, apart, F(1))),
        case("a tree", source, equation, 1e-13, "bpo", nested(reward=[paid], prefix=[tree]),
             credit(paid, tree, F(1, 2)), weight=0.5),
    ]  # fmt: skip


def tigpo_cases():
    """The first step of a run, whose graph is that of its own trajectories."""
    source, equation = "arXiv 2609.03383", "A = z_s(omega^d(next)) + z(R), d by the edges of all steps"

    def distances(edges):
        """Edges of the shortest way to a success, for each state that has one."""
        known = {after: 0 for _, after in edges if after == "SUCCESS"}
        for number, _ in enumerate(edges, 1):
            known |= {state: number for state, after in edges if known.get(after) == number - 1 and state not in known}
        return known

    def credit(rewards, states, won, omega):
        ends = ["SUCCESS" if each else f"end of {n}" for n, each in enumerate(won)]
        after = {(n, t): (states[n][t + 1] if t + 1 < len(states[n]) else ends[n]) for n, t in places_of(rewards)}
        edges = [(states[n][t], target) for (n, t), target in after.items()]
        known = distances(edges)
        far = max(known.values(), default=0) + 1
        near = {p: omega ** known.get(s, far) if known else F(0) for p, s in after.items()}
        z = z_within(near, lambda place: states[place[0]][place[1]])
        z = {p: value if near[p] != mean([near[q] for q in near if states[q[0]][q[1]] == states[p[0]][p[1]]]) else 0.0
             for p, value in z.items()}  # fmt: skip
        episode = standardised([sum(turns, start=F(0)) for turns in rewards])
        return shaped({p: z[p] + episode[p[0]] for p in near}, rewards)

    walks = [["a", "b", "c"], ["a", "c", "a", "b", "d"], ["b", "a", "a", "c"], ["d", "d"]]
    paid = [[F(0), F(0), F(1)], [F(0)] * 5, [F(0)] * 3 + [F(1)], [F(0), F(-1, 10)]]

    def made(name, rewards, states, won):
        columns = {key: [[[each] * len(turns) for each, turns in zip(of, rewards, strict=True)]]
                   for key, of in (("success", [F(x) for x in won]), ("task", ["t"] * len(won)))}  # fmt: skip
        groups = nested(reward=[rewards], state_text=[states], **columns)
        return case(name, source, equation, 1e-12, "tigpo", groups, credit(rewards, states, won, F(1, 5)), omega=0.2)

    return [
        made("a fork", [[F(0), F(1)], [F(0), F(0)]], [["A", "B"], ["A", "C"]], [1, 0]),
        made("circles and a dead end", paid, walks, [1, 0, 1, 0]),
        made("no success", paid, walks, [0, 0, 0, 0]),
    ]


def opd_cases():
    source = "arXiv 2607.05804"
    equation = "A_t = ((1 - a) + a n / (T n_k)) (log p_teacher - log p)"
    gap = [[[[F(1, 2)]], [[F(-1), F(1, 4), F(1)], [F(2)]], [[F(1, 2), F(0)], [F(-1, 2)], [F(1), F(3, 4), F(1, 4)]]]]

    def share(lengths, k, a):
        """What turn k counts relative to a token mean."""
        plain, even = F(lengths[k], sum(lengths)), F(1, len(lengths))
        return ((1 - a) * plain + a * even) / plain

    # the card: 60, 30 and 10 tokens at a = 1/2
    assert [share([60, 30, 10], k, F(1, 2)) * F(n, 100) for k, n in enumerate([60, 30, 10])] == [
        F(7, 15), F(19, 60), F(13, 60)
    ]  # fmt: skip

    def made(name, a, **options):
        fine = [[[share([len(x) for x in turns], k, a) * g for g in own] for k, own in enumerate(turns)]
                for turns in gap[0]]  # fmt: skip
        expected = [[[mean(own) for own in turns] for turns in fine]]
        flat = [float(g) for turns in fine for own in turns for g in own]
        groups = nested(reward=RAGGED, teacher_gap_T=gap)
        return case(name, source, equation, 1e-13, "opd", groups, expected, **options) | {"expected_T": flat}

    return [
        made("tokens alike", F(0)),
        made("half and half", F(1, 2), balance=0.5),
        made("turns alike", F(1), balance=1.0),
    ]


TABLES = {
    "opd": opd_cases,
    "tigpo": tigpo_cases,
    "pgpo": pgpo_cases,
    "g2po": g2po_cases,
    "ecpo": ecpo_cases,
    "procredit": procredit_cases,
    "mt_grpo": mt_grpo_cases,
    "gtpo": gtpo_cases,
    "trace_gold": trace_cases,
    "lotapo": lotapo_cases,
    "aepo": aepo_cases,
    "bpo": bpo_cases,
}
