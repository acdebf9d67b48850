"""Credit of trees of tokens and of cuts inside responses, token by token, from prefixes and plain loops."""

import math
from fractions import Fraction as F

from tests.golden.exact import case, mean, nested

# equal numbers are one token; forks after the second token of the first response, after its first, and between turns
TOKENS = [
    [[[1, 2, 3]], [[1, 2, 4, 5]], [[1, 6], [7, 8]], [[1, 6], [9]], [[10, 11]]],
    [[[1, 2]], [[1, 3, 4]]],
]
REWARD = [
    [[F(1)], [F(0)], [F(0), F(1, 2)], [F(1), F(1)], [F(0)]],
    [[F(1)], [F(3)]],
]
RETURNS = [[sum(turns, start=F(0)) for turns in group] for group in REWARD]


def paths_of(group):
    """The tokens of each trajectory in a row."""
    return [[token for turn in turns for token in turn] for turns in group]


def through(paths, prefix):
    """Trajectories that begin with a prefix."""
    return [n for n, path in enumerate(paths) if path[: len(prefix)] == prefix]


def by_leaves(paths, returns, prefix):
    """Mean return of the trajectories through a prefix."""
    return mean([returns[n] for n in through(paths, prefix)])


def by_children(paths, returns, prefix):
    """Mean over what may follow the prefix: an end, or a next token."""
    values = [returns[n] for n, path in enumerate(paths) if path == prefix]
    following = dict.fromkeys(path[len(prefix)] for n, path in enumerate(paths) if n in through(paths, prefix)
                              and len(path) > len(prefix))  # fmt: skip
    return mean(values + [by_children(paths, returns, [*prefix, token]) for token in following])


def before_stretch(paths, path, place):
    """The prefix before the run of tokens, with this one, that the same trajectories share."""
    own = through(paths, path[: place + 1])
    while place > 0 and through(paths, path[:place]) == own:
        place -= 1
    return path[:place]


def like_responses(flat, turns):
    """Values of a trajectory's tokens, a list per response."""
    flat = list(flat)
    return [[flat.pop(0) for _ in turn] for turn in turns]


def gains(value, *, once=False, group):
    """V(stretch) - V(before it) of every token of a group."""
    paths, returns = paths_of(TOKENS[group]), RETURNS[group]
    result = []
    for turns, path in zip(TOKENS[group], paths, strict=True):
        credit = []
        for place in range(len(path)):
            end = place
            while end + 1 < len(path) and through(paths, path[: end + 2]) == through(paths, path[: place + 1]):
                end += 1
            gain = value(paths, returns, path[: end + 1]) - value(paths, returns, before_stretch(paths, path, place))
            credit.append(gain / len(through(paths, path[: place + 1])) if once else gain)
        result.append(like_responses(credit, turns))
    return result


def tokens_case(name, source, equation, rtol, method, groups, per_token, **options):
    """A case with the credit of every token; that of a response is the mean over its tokens."""
    expected = [[[sum(map(float, own)) / len(own) for own in turns] for turns in group] for group in per_token]
    made = case(name, source, equation, rtol, method, groups, expected, **options)
    return made | {"expected_T": [float(a) for group in per_token for turns in group for own in turns for a in own]}


def tree():
    """The example as nested responses."""
    return nested(reward=REWARD, token_T=TOKENS)


def spo_tree_cases():
    """Edges between the means of children."""
    source, equation = "SPO-tree (arXiv 2505.23564)", "A(edge) = V(child) - V(parent), V(node) = mean of its children"
    paths = [gains(by_children, group=g) for g in range(2)]
    edges = [gains(by_children, group=g, once=True) for g in range(2)]
    # after 1 2: 1 and 0; after 1 6: 1/2 and 2; so 1 is worth (1/2 + 5/4) / 2, and the prompt (7/8 + 0) / 2
    assert paths[0][0] == [[F(7, 8) - F(7, 16), F(1, 2) - F(7, 8), F(1) - F(1, 2)]]
    assert edges[0][2] == [[F(7, 16) / 4, F(3, 8) / 2], [F(1, 2) - F(5, 4)] * 2]
    return [
        tokens_case("each edge once", source, equation, 1e-13, "spo_tree", tree(), edges),
        tokens_case("each path", source, equation, 1e-13, "spo_tree", tree(), paths, count="path"),
    ]


def rose_cases():
    """Means over leaves, and the penalty for longer successes."""
    source, equation = "ROSE (arXiv 2601.05053)", "A = V(b_j) - V(b_{j-1}), V = mean return of those that pass"
    plain = [gains(by_leaves, group=g) for g in range(2)]
    # through 1: 1, 0, 1/2 and 2; through 1 2: 1 and 0; all five: 7/10
    assert plain[0][0] == [[F(7, 8) - F(7, 10), F(1, 2) - F(7, 8), F(1) - F(1, 2)]]

    def penalised(group, alpha):
        paths, returns = paths_of(TOKENS[group]), RETURNS[group]
        good = [path for path, reward in zip(paths, returns, strict=True) if reward > 0]
        short = min(map(len, good))
        result = []
        for turns, path, credit, reward in zip(TOKENS[group], paths, plain[group], returns, strict=True):
            flat = [a for own in credit for a in own]
            b = max(sum(path[: k + 1] == s[: k + 1] for k in range(len(path))) for s in good if len(s) == short)
            if reward > 0 and len(path) > b:
                factor = 1 - (F(short - b) / F(len(path) - b)) ** alpha
                flat = [a - abs(a) * factor if place >= b else a for place, a in enumerate(flat)]
            result.append(like_responses(flat, turns))
        return result

    # n 0 and n 3 are the shortest successes; n 2 shares the first two tokens with n 3 and has two more: 1 - 1/2
    assert penalised(0, 1)[2] == [plain[0][2][0], [F(-3, 4) - F(3, 4) * F(1, 2)] * 2]
    return [
        tokens_case("as it is", source, equation, 1e-13, "rose", tree(), plain),
        tokens_case("alpha 1", source, equation, 1e-13, "rose", tree(), [penalised(g, 1) for g in range(2)], alpha=1.0),
        tokens_case("alpha 2", source, equation, 1e-13, "rose", tree(), [penalised(g, 2) for g in range(2)], alpha=2.0),
    ]


def treerl_cases():
    """Global plus local advantage, damped by the root of the number of leaves."""
    source, equation = "TreeRL (arXiv 2506.11902), release", "A = V + V - V(parent), V = (mean r - m) / sqrt(n)"

    def expected(group, root):
        paths, returns = paths_of(TOKENS[group]), RETURNS[group]
        others = [mean([r for k, r in enumerate(returns) if k != n]) for n in range(len(returns))]
        r = [float(a - b) for a, b in zip(returns, others, strict=True)]

        def through_mean(prefix):
            share = through(paths, prefix)
            return sum(r[n] for n in share) / len(share)

        every = [through_mean(path[: k + 1]) for path in paths for k in range(len(path))]
        centre = sum(every) / len(every)
        value = lambda prefix: (through_mean(prefix) - centre) / math.sqrt(len(through(paths, prefix)))  # noqa: E731
        result = []
        for turns, path in zip(TOKENS[group], paths, strict=True):
            flat = []
            for place in range(len(path)):
                parent = before_stretch(paths, path, place)
                above = 0.0 if root == "zero" and not parent else value(parent)
                flat.append(2 * value(path[: place + 1]) - above)
            result.append(like_responses(flat, turns))
        return result

    return [
        tokens_case(
            f"the prompt is {root}", source, equation, 1e-12, "treerl", tree(), [expected(g, root) for g in range(2)],
            root=root,
        )
        for root in ("zero", "value")
    ]  # fmt: skip


CUT = [
    [[[0, 1, 0]], [[0, 0], [1, 0, 1]], [[0], [0, 0]]],
    [[[1, 1]]],
]
VALUE = [
    [
        [[F(1, 2), F(1, 4), F(1, 4)]],
        [[F(1, 2), F(1, 2)], [F(1, 3), F(1, 3), F(3, 4)]],
        [[F(1, 2)], [F(1, 2), F(1, 2)]],
    ],
    [[[F(1), F(2)]]],
]
PAID = [[[F(1)], [F(1, 5), F(1)], [F(0), F(2)]], [[F(3)]]]


def segments(cuts, values, rewards, *, first):
    """One trajectory: walk over its tokens, and close a segment at each cut."""
    credit, start, worth, earned, is_cut = [], 0, values[0][0], F(0), bool(cuts[0][0])
    place = 0
    for own_cuts, own_values, reward in zip(cuts, values, rewards, strict=True):
        for cut, value in zip(own_cuts, own_values, strict=True):
            if cut and place:
                credit += [earned + value - worth if is_cut or first else F(0)] * (place - start)
                start, worth, is_cut = place, earned + value, True
            place += 1
        earned += reward
    credit += [earned - worth if is_cut or first else F(0)] * (place - start)
    return like_responses(credit, cuts)


def spo_chain_cases():
    """Segments between cuts."""
    source, equation = "SPO-chain (arXiv 2505.23564)", "A_j = V(c_{j+1}) - V(c_j); the last ends with the outcome"
    groups = nested(reward=PAID, cut_T=CUT, cut_value_T=VALUE)

    def expected(first):
        return [
            [segments(*each, first=first) for each in zip(CUT[g], VALUE[g], PAID[g], strict=True)] for g in range(2)
        ]

    # the outcome is 1; then 1/5 was earned before the cut at the second turn, 6/5 in all
    assert expected(False)[0][0] == [[F(0), F(3, 4), F(3, 4)]]
    assert expected(False)[0][1] == [[F(0)] * 2, [F(3, 4) - F(1, 3)] * 2 + [F(6, 5) - F(1, 5) - F(3, 4)]]
    assert expected(False)[0][2] == [[F(0)], [F(0), F(0)]], "no cut, no credit"
    assert expected(True)[0][1][0] == [F(1, 5) + F(1, 3) - F(1, 2)] * 2
    return [
        tokens_case("nothing before the first cut", source, equation, 1e-13, "spo_chain", groups, expected(False)),
        tokens_case("from the prompt", source, equation, 1e-13, "spo_chain", groups, expected(True), first="value"),
    ]


TABLES = {"spo_tree": spo_tree_cases, "spo_chain": spo_chain_cases, "rose": rose_cases, "treerl": treerl_cases}
