"""Credit from states that trajectories share: GAGPO, GraphGPO and RTMC."""

from fractions import Fraction as F

from tests.golden.exact import RAGGED, RETURNS, STATES, case, mean, nested, ragged_groups, standardised, to_go

ALL = [(n, t) for n, turns in enumerate(RAGGED[0]) for t in range(len(turns))]


def shaped(values):
    """Values by place as nested lists."""
    return [[[values[n, t] for t in range(len(turns))] for n, turns in enumerate(RAGGED[0])]]


def gagpo_cases():
    """Surprises about the mean return of everybody who was there, summed and standardised over the group."""
    source = "arXiv 2605.13217"
    equation = "D_t = delta_t + discount decay D_{t+1}, standardised over the group's responses"

    def estimates(discount, decay):
        go = {(n, t): to_go(turns, discount)[t] for n, turns in enumerate(RAGGED[0]) for t in range(len(turns))}
        value = {key: mean([go[n, t] for n, t in ALL if STATES[0][n][t] == key]) for key in "ab"}
        result = {}
        for n, t in reversed(ALL):
            last = t == len(RAGGED[0][n]) - 1
            after = F(0) if last else value[STATES[0][n][t + 1]]
            surprise = RAGGED[0][n][t] + discount * after - value[STATES[0][n][t]]
            result[n, t] = surprise + (F(0) if last else discount * decay * result[n, t + 1])
        return result

    def credit(discount, decay, *, scale=True):
        found = estimates(discount, decay)
        values = [found[place] for place in ALL]
        scaled = standardised(values) if scale else [float(v - mean(values)) for v in values]
        return shaped(dict(zip(ALL, scaled, strict=True)))

    # at discount and decay 1 it is the return to go minus the state's value: a 1, 1/2, 3/2, 1 and b 0, 3/2
    hand = estimates(F(1), F(1))
    assert [hand[place] for place in ALL] == [0, F(-1, 2), F(-3, 4), F(3, 4), F(1, 2), 0]
    groups = ragged_groups(states=True)
    # the card: S leads to X (1) and to Y (0); D = 1/2, 0, -1/2, 0
    fork = nested(reward=[[[F(0), F(1)], [F(0), F(0)]]], state_key=[[["S", "X"], ["S", "Y"]]])
    forked = [[[F(1, 2), F(0)], [F(-1, 2), F(0)]]]
    name = "gagpo"
    return [
        case("the card's fork", source, equation, 1e-13, name, fork, forked, discount=1.0, decay=1.0, scale=False),
        case("ragged", source, equation, 1e-12, name, groups, credit(F(95, 100), F(9, 10)), discount=0.95, decay=0.9),
        case("decay 0", source, equation, 1e-12, name, groups, credit(F(1, 2), F(0)), discount=0.5, decay=0.0),
        case("without std", source, equation, 1e-12, name, groups, credit(F(1, 2), F(1, 2), scale=False),
             discount=0.5, decay=0.5, scale=False),
    ]  # fmt: skip


def graph_gpo_cases():
    """Distances found by trying every path, no longer than there are states."""
    source, equation = "arXiv 2605.26684", "A = A_episode + z within the state of 10 omega^d(next state)"

    def distance(state, edges, steps):
        if state == "SUCCESS":
            return 0
        if steps == 0:
            return None
        found = [distance(after, edges, steps - 1) for before, after in edges if before == state]
        reached = [d for d in found if d is not None]
        return 1 + min(reached) if reached else None

    def credit(states, rewards, successes, omega, ends):
        edges = []
        for n, keys in enumerate(states):
            end = "SUCCESS" if successes[n] else ends[n] if ends else f"end of {n}"
            edges += [((n, t), key, after) for t, (key, after) in enumerate(zip(keys, [*keys[1:], end], strict=True))]
        pairs = [(before, after) for _, before, after in edges]
        names = {before for before, _ in pairs}
        known = {name: distance(name, pairs, len(names) + 1) for name in names}
        farthest = max((d for d in known.values() if d is not None), default=0)
        raw = {}
        for place, _, after in edges:
            d = 0 if after == "SUCCESS" else known.get(after)
            raw[place] = 10 * omega ** (farthest + 1 if d is None else d) if any(successes) else F(0)
        graph = {}
        for name in names:
            places = [place for place, before, _ in edges if before == name]
            values = [raw[place] for place in places]
            alike = len(set(values)) == 1
            graph |= dict(zip(places, [0.0] * len(values) if alike else standardised(values), strict=True))
        episode = standardised([sum(turns, start=F(0)) for turns in rewards])
        return [[[episode[n] + graph[n, t] for t in range(len(turns))] for n, turns in enumerate(rewards)]]

    def stated(name, states, rewards, successes, *, ends=(), source=source, **options):
        omega = F(options.get("omega", F(1, 10)))
        columns = [[[F(successes[n])] * len(turns) for n, turns in enumerate(rewards)]]
        more = {"end_key": [[[ends[n]] * len(turns) for n, turns in enumerate(rewards)]]} if ends else {}
        groups = nested(reward=[rewards], state_key=[states], success=columns, **more)
        expected = credit(states, rewards, successes, omega, ends)
        return case(name, source, equation, 1e-12, "graph_gpo", groups, expected, **options), expected

    # the card: A -> B -> SUCCESS and A -> C: 10 omega and 10 omega^3, two values: +-1 / sqrt(2)
    card, numbers = stated("the card's fork", [["A", "B"], ["A", "C"]], [[F(0), F(1)], [F(0), F(0)]], [1, 0])
    assert abs(numbers[0][0][0] - numbers[0][1][0] - 2 * 2**0.5) < 1e-4  # the graph's part and the episode's
    ragged = RAGGED[0]
    assert [sum(turns) for turns in ragged] == RETURNS
    walks = [["a", "b", "c"], ["a", "c", "a", "b", "d"], ["b", "a", "a", "c"], ["d", "d"]]
    paid = [[F(0), F(0), F(1)], [F(0)] * 5, [F(0)] * 3 + [F(1)], [F(0), F(-1, 10)]]
    # A -> B -> SUCCESS and A -> B, cut off there: both edges to B are worth 10 omega, and the graph's part is 0
    recipe = "langfengQ/verl-agent recipe/GraphGPO: the last edge of a failure leads to its last observation"
    near, told = stated("cut off next to success", [["A", "B"], ["A"]], [[F(0), F(1)], [F(0)]], [1, 0],
                        ends=["over", "B"], source=recipe)  # fmt: skip
    assert told[0] == [[z] * num for z, num in zip(standardised([F(1), F(0)]), [2, 1], strict=True)]
    places = ["over", "b", "over", "c"]
    return [
        card,
        near,
        stated("last states", walks, paid, [1, 0, 1, 0], ends=places, source=recipe)[0],
        stated("ragged", STATES[0], ragged, [1, 0, 1])[0],
        stated("circles and a dead end", walks, paid, [1, 0, 1, 0])[0],
        stated("omega one half", walks, paid, [1, 0, 1, 0], omega=0.5)[0],
        stated("no success", walks, paid, [0, 0, 0, 0])[0],
    ]


def rtmc_cases():
    """Mean returns of a state and of an action in it, found by asking every visit."""
    source = "arXiv 2604.11037"
    equation = "A(s, a) = Q(s, a) - (N Vhat(s) + n0 V0) / (N + n0); Q at first visits, Vhat over all"

    def credit(rewards, states, actions, discount, n0):
        visits = [
            (n, states[n][t], actions[n][t], to_go(turns, discount)[t])
            for n, turns in enumerate(rewards)
            for t in range(len(turns))
        ]
        group = mean([sum(turns, start=F(0)) for turns in rewards])

        def quality(state, action):
            first = {}
            for n, s, a, value in visits:
                if (s, a) == (state, action):
                    first.setdefault(n, value)
            return mean([*first.values()])

        def value(state):
            met = [g for _, s, _, g in visits if s == state]
            return (len(met) * mean(met) + n0 * group) / (len(met) + n0)

        return [
            [[quality(s, a) - value(s) for s, a in zip(*own, strict=True)] for own in zip(states, actions, strict=True)]
        ]

    def case_of(name, rewards, states, actions, expected, **options):
        columns = nested(reward=[rewards], state_key=[states], action_key=[actions])
        return case(name, source, equation, 1e-13, "rtmc", columns, expected, **options)

    # two meet in s and do different things; two are alone: 2/3 of what they are above the group's 1/2
    four, own = [[F(1)], [F(0)], [F(0)], [F(1)]], [[["s"], ["s"], ["t"], ["u"]], [["a"], ["b"], ["a"], ["a"]]]
    by_hand = [[[F(1, 2)], [F(-1, 2)], [F(-1, 3)], [F(1, 3)]]]
    assert credit(four, *own, F(1), F(2)) == by_hand
    # one trajectory does the same twice: its first visit is worth 1/2, its second 1; another one does it for nothing
    again = [[F(0), F(1)], [F(0)]], [["s", "s"], ["s"]], [["a", "a"], ["a"]]
    at_half = [[[F(1, 4) - F(1, 2)] * 2, [F(1, 4) - F(1, 2)]]]  # Vhat (1/2 + 1 + 0) / 3, and V0 1/2
    assert credit(*again, F(1, 2), F(2)) == at_half
    actions = [["x"], ["x", "y"], ["x", "y", "x"]]
    ragged = credit(RAGGED[0], STATES[0], actions, F(99, 100), F(2))
    flat = [float(v) for turns in ragged[0] for v in turns]
    centre = sum(flat) / len(flat)
    deviation = (sum((v - centre) ** 2 for v in flat) / (len(flat) - 1)) ** 0.5
    scaled = [[[float(v) / (deviation + 1e-6) for v in turns] for turns in ragged[0]]]
    none = credit(RAGGED[0], STATES[0], actions, F(1), F(0))
    return [
        case_of("two meet, by hand", four, *own, by_hand, discount=1.0),
        case_of("an action tried twice counts once", *again, at_half, discount=0.5),
        case_of("ragged", RAGGED[0], STATES[0], actions, ragged),
        case_of("ragged, scaled", RAGGED[0], STATES[0], actions, scaled, scale=True),
        case_of("without a prior", RAGGED[0], STATES[0], actions, none, discount=1.0, prior_count=0.0),
    ]


TABLES = {"gagpo": gagpo_cases, "graph_gpo": graph_gpo_cases, "rtmc": rtmc_cases}
