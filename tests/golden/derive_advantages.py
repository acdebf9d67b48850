"""Derive ADORA, A-GRAE, GRPO-N, ARPO, D3S, ACE, ProGRPO and VERL's rank bonus from another method's advantages."""

import itertools
import math
from fractions import Fraction as F

from tests.golden.exact import (
    SUCCESS,
    TOKENS,
    TURNS,
    by_place,
    case,
    each,
    mean,
    single_turn,
    standardised,
    table,
    turns_of,
    with_columns,
)

LOGPROB = [[[-0.5], [-1.0, -0.25], [-2.0, -0.75, -1.5]], [[-0.5, -1.25], [-1.0], [-0.1], [-3.0, -0.2]]]
REFERENCE = [[[-1.0], [-1.0, -1.25], [-1.0, -1.0, -1.0]], [[-2.5, -1.0], [-1.5], [-0.6], [-1.0, -1.2]]]
RARE = [[[-2.0], [-3.0, -1.5], [-4.0, -1.0, -2.5]], [[-1.25, -2.0], [-3.0], [-0.5], [-5.0, -1.0]]]
PROMPT = [[[-1.5], [-1.5, -1.5], [-1.5, -1.5, -1.5]], [[-0.75, -0.75], [-0.75], [-0.75], [-0.75, -0.75]]]
PREFIX = [[["s"], ["s", "b"], ["c", "s", "s"]], [["s", "t"], ["s"], ["u"], ["s", "t"]]]
RANK = [[[2.0], [3.0, 1.5], [4.0, 1.0, 2.5]], [[1.25, 2.0], [3.0], [2.0], [5.0, 1.0]]]
VELOCITY = [[[0.5], [0.25, -0.5], [1.0, 0.75, 0.5]], [[0.5, -0.25], [0.0], [1.0], [0.25, 0.5]]]
ACCELERATION = [[[0.1], [0.2, -0.1], [0.3, 0.0, 0.1]], [[-0.2, 0.4], [0.1], [0.2], [0.0, -0.3]]]
UNCUT = [[[0] * turns for turns in group] for group in TURNS]
GRPO = [standardised(group) for group in SUCCESS]


def adora_cases():
    """A group counts in full where its longest success is longer than its failures on average."""
    source = "arXiv 2602.10019; ShadeCloak/ADORA"
    equation = "w = 1 if max length of correct > mean length of incorrect, else 0.1"
    # prompt 0: 6 > 3; prompt 1: 6 > (7 + 3 + 4) / 3
    assert max(4, 6) > 3
    assert F(7 + 3 + 4, 3) < 6
    # without the failures of 3 and 4 tokens, 6 < 7
    cut = [UNCUT[0], [[0, 0], [0], [1], [1, 0]]]
    weighed = [GRPO[0], [0.1 * v for v in GRPO[1]]]
    cases = [
        case("ragged", source, equation, 1e-13, "adora", table(length=TOKENS, truncated=UNCUT), each(GRPO)),
        case("truncated failures are left out", source, equation, 1e-13, "adora", table(length=TOKENS, truncated=cut),
             each(weighed)),
    ]  # fmt: skip
    sides = {(0, "llm"): F(1, 4), (0, "vl"): 1, (1, "llm"): 1, (1, "vl"): F(1, 4)}
    for (success, convention), weight in sides.items():
        groups = with_columns([F(2), F(-3)], success=[success] * 2, length=[3, 5], truncated=[0, 0])
        name = f"{'no incorrect' if success else 'no correct'}, {convention}"
        cases.append(case(name, f"{source}, {convention} code", "an empty side", 1e-14, "adora", groups,
                          turns_of([2 * weight, -3 * weight]), base="reinforce", weight=0.25,
                          convention=convention))  # fmt: skip
    return cases


def progress(success, credit, *, full_at=1, release=False):
    """A-GRAE for all groups."""
    rates = [mean([F(s) for s in group]) for group in success]
    w = float(mean(rates))
    result = []
    for rate, values in zip(rates, credit, strict=True):
        p = float(rate)
        if p in (0.0, 1.0):
            result.append(list(values))
            continue
        easy = 1 - math.sqrt(p) + 1e-6 if release else math.sqrt(1 - p)
        first = [w / 2 * a / math.sqrt(p) + (1 - w) / 2 * a / easy for a in values]
        result.append([a * min(1, w / full_at) if a > 0 else a for a in first])
    return result


def a_grae_cases():
    """Easy first, hard later; successes held back."""
    source = "arXiv 2602.05548"
    equation = "A1 = (w/2) A / sqrt(p) + ((1 - w)/2) A / sqrt(1 - p); A2 = A1 min(1, w/a) if A1 > 0"
    success = [[1, 0, 0, 0], [1, 1, 1, 0]]
    groups = [[[{"reward": s, "success": s}] for s in group] for group in success]
    base = [standardised(group) for group in success]
    card = progress(success, base)
    assert [round(v, 3) for v in card[0][:2]] == [0.592, -0.394]  # p = 1/4, w = 1/2, a = 1
    released = progress(success, base, release=True)
    assert [round(v, 3) for v in released[0][:2]] == [0.75, -0.5]

    def expected(values):
        return [[[v] for v in group] for group in values]

    uniform = [
        [[{"reward": r, "success": s}] for r, s in group] for group in ([(2, 0), (-3, 0)], [(4, 1), (-1, 0)], [(5, 1)])
    ]
    return [
        case("card check", source, equation, 1e-13, "a_grae", groups, expected(card)),
        case("card check, release", f"{source}; HKU-HealthAI/A-GRAE", "divides by 1 - sqrt(p) + eps", 1e-13, "a_grae",
             groups, expected(released), convention="release"),
        case("ragged, a = 1/2", source, equation, 1e-13, "a_grae", table(), each(progress(SUCCESS, GRPO, full_at=0.5)),
             full_at=0.5),
        case("groups without contrast stay", source, "skip p in {0, 1}", 1e-13, "a_grae", uniform,
             expected(progress([[0, 0], [1, 0], [1]], [[2, -3], [4, -1], [5]])), base="reinforce"),
    ]  # fmt: skip


def grpo_n_cases():
    """One sign."""
    source = "arXiv 2510.04028"
    negative = [[v if v < 0 else 0 for v in group] for group in GRPO]
    positive = [[v if v > 0 else 0 for v in group] for group in GRPO]
    return [
        case("negative", source, "min(A, 0)", 1e-13, "grpo_n", table(), each(negative)),
        case("positive", source, "max(A, 0)", 1e-13, "grpo_n", table(), each(positive), sign="positive"),
    ]


def shared(group, prefixes, credit):
    """ARPO's hard attribution: for each response, look up who contains its stretch."""
    return [
        [mean([F(credit[m]) for m, other in enumerate(prefixes) if name in other]) for name in prefixes[n]]
        for n in range(len(group))
    ]


def arpo_cases():
    """Shared stretches get the mean."""
    source = "arXiv 2507.19849; RUC-NLPIR/ARPO"
    assert float(mean([F(12247, 10000), F(0)])) == 0.61235  # the card's check
    hard = [shared(TURNS[g], PREFIX[g], GRPO[g]) for g in range(2)]
    return [
        case("hard", source, "mean A over the trajectories that contain the stretch", 1e-13, "arpo",
             table(prefix=PREFIX), hard, mode="hard"),
        case("soft", source, "A_i everywhere", 1e-13, "arpo", table(prefix=PREFIX), each(GRPO)),
    ]  # fmt: skip


TREE = [[["x"], ["x", "x"], ["y", "y", "y"]], [["x", "x"], ["y"], ["y"], ["x", "x"]]]


def within_trees(*, lone):
    """Tree-GRPO's inner advantage, tree by tree; `lone` is what the only trajectory of a tree keeps of its return."""
    result = []
    for g, returns in enumerate(SUCCESS):
        names = [own[0] for own in TREE[g]]
        row = []
        for n, value in enumerate(returns):
            members = [returns[m] for m, name in enumerate(names) if name == names[n]]
            place = [m for m, name in enumerate(names) if name == names[n]].index(n)
            row.append(standardised(members)[place] if len(members) > 1 else float(lone * value))
        result.append(row)
    return result


def tree_grpo_cases():
    """Within the tree and within the group; one of them; a lone trajectory keeps its return."""
    source = "arXiv 2509.21240; AMAP-ML/Tree-GRPO"
    # the card's check: trees {1, 0, 0} and {1, 1, 0} have the group mean 1/2, and the first tree the mean 1/3
    assert mean([F(1), F(0), F(0), F(1), F(1), F(0)]) == F(1, 2)
    assert mean([F(1), F(0), F(0)]) == F(1, 3)
    both = [[a + b for a, b in zip(*rows, strict=True)] for rows in zip(within_trees(lone=0), GRPO, strict=True)]
    kept = [[a + b for a, b in zip(*rows, strict=True)] for rows in zip(within_trees(lone=1), GRPO, strict=True)]
    equation = "A = z within the tree + z within the group"
    return [
        case("both", source, equation, 1e-13, "tree_grpo", table(tree=TREE), each(both)),
        case("inner", source, "A = z within the tree", 1e-13, "tree_grpo", table(tree=TREE),
             each(within_trees(lone=0)), inter=False),
        case("release", source, equation, 1e-13, "tree_grpo", table(tree=TREE), each(kept), convention="release"),
    ]  # fmt: skip


def node_values(paths, returns, logprob, children):
    """AT2PO's values by recursion: of the prompt and then of each response, trajectory by trajectory."""

    def value(node):
        ends = [float(r) for path, r in zip(paths, returns, strict=True) if tuple(path) == node]
        below = sorted({tuple(path[: len(node) + 1]) for path in paths if tuple(path[: len(node)]) == node} - {node})
        weight = {
            "softmax": lambda child: math.exp(-logprob[child]),
            "mean": lambda child: 1,
            "leaves": lambda child: sum(tuple(path[: len(child)]) == child for path in paths),
        }[children]
        weights = [weight(child) for child in below] + [1] * len(ends)
        values = [value(child) for child in below] + ends
        return sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)

    return [[value(tuple(path[:end])) for end in range(len(path) + 1)] for path in paths]


NODE_LOGPROB = [
    {("s",): -0.5, ("s", "b"): -1.0, ("c",): -2.0, ("c", "s"): -0.75, ("c", "s", "s"): -1.5},
    {("s",): -0.25, ("s", "t"): -1.25, ("u",): -0.1},
]


def at2po_cases():
    """A node's value by its children; the prompt is the root."""
    source = "arXiv 2601.04767; zzfoutofspace/ATPO"
    # the card's check: siblings of +1 and -1 and equal entropies have a parent of 0
    assert node_values(["x", "y"], [1, -1], {("x",): -1, ("y",): -1}, "softmax") == [[0, 1], [0, -1]]
    columns = table(
        prefix=PREFIX,
        logprob=by_place(lambda g, n, t: NODE_LOGPROB[g][tuple(PREFIX[g][n][: t + 1])]),
    )
    compare = {
        "value": lambda v, t: v[t + 1],
        "parent": lambda v, t: v[t + 1] - v[t],
        "prompt": lambda v, t: v[t + 1] - v[0],
        "both": lambda v, t: 2 * v[t + 1] - v[t] - v[0],
    }
    cases = []
    for children, advantage in (("softmax", "value"), ("mean", "parent"), ("leaves", "prompt"), ("softmax", "both")):
        values = [node_values(PREFIX[g], standardised(SUCCESS[g], ddof=0), NODE_LOGPROB[g], children) for g in range(2)]
        expected = [
            [[compare[advantage](v, t) for t in range(len(path))] for v, path in zip(values[g], PREFIX[g], strict=True)]
            for g in range(2)
        ]
        defaults = (children, advantage) == ("softmax", "value")
        options = {} if defaults else {"children": children, "advantage": advantage}
        cases.append(case(f"{children}, {advantage}", source, "V(node) = sum_c w_c V(c) / sum_c w_c", 1e-12, "at2po",
                          columns, expected, **options))  # fmt: skip
    return cases


def carl_cases():
    """Plain means from the leaves up, and what each response changes."""
    source, equation = "arXiv 2512.04949, eq. 15", "A(s -> s') = V(s') - V(s), V(node) = mean of its children"

    def credit(prefixes, returns):
        values = node_values(prefixes, returns, {}, "mean")
        return [[after - before for before, after in itertools.pairwise(v)] for v in values]

    # the prompt has x, which is paid 1, and y, after which 0 and 1 were found
    prefixes, reward = [["x"], ["y", "a"], ["y", "b"]], [[1], [0, 0], [0, 1]]
    by_hand = [[[F(1, 4)], [F(-1, 4), F(-1, 2)], [F(-1, 4), F(1, 2)]]]
    assert credit(prefixes, [1, 0, 1]) == [[float(a) for a in turns] for turns in by_hand[0]]
    hand = [[[{"reward": r, "prefix": p} for r, p in zip(rs, ps, strict=True)]
             for rs, ps in zip(reward, prefixes, strict=True)]]  # fmt: skip
    two = [credit(PREFIX[g], SUCCESS[g]) for g in range(2)]
    alone = [[[F(0)], [F(0), F(0)]]]
    single = [[[{"reward": 2, "prefix": "p"}], [{"reward": 0, "prefix": "q"}, {"reward": 2, "prefix": "r"}]]]
    return [
        case("by hand", source, equation, 1e-14, "carl", hand, by_hand),
        case("two prompts", source, equation, 1e-12, "carl", table(prefix=PREFIX), two),
        case("equal returns", source, equation, 1e-14, "carl", single, alone),
    ]


def most_varied(values, num_kept):
    """D3S by trying every subset."""

    def variance(subset):
        chosen = [values[i] for i in subset]
        return mean([v * v for v in chosen]) - mean(chosen) ** 2

    subsets = sorted(itertools.combinations(range(len(values)), num_kept), key=variance)
    assert num_kept == len(values) or variance(subsets[-1]) > variance(subsets[-2]), "ties are drawn by lot"
    return [v if i in subsets[-1] else 0 for i, v in enumerate(values)]


def d3s_cases():
    """The subset of largest variance."""
    source, equation = "arXiv 2509.22115", "N_keep rows of the batch that maximise Var(A)"
    card, skewed = [F(3), F(0), F(0), F(-3)], [F(-3), F(-14, 5), F(1, 2), F(3, 5), F(1), F(-29, 10), F(1, 4)]
    assert most_varied(card, 2) == card
    cases = [
        case("card check", source, equation, 1e-14, "d3s", single_turn(card), turns_of(card), base="reinforce",
             kept_frac=0.5),
        case("all are kept", source, "N_keep = N", 1e-14, "d3s", single_turn(skewed), turns_of(skewed),
             base="reinforce", kept_frac=1.0),
    ]  # fmt: skip
    for num in (2, 3, 4, 6):
        cases.append(case(f"{num} of seven", source, equation, 1e-14, "d3s", single_turn(skewed),
                          turns_of(most_varied(skewed, num)), base="reinforce", kept_frac=num / 7))  # fmt: skip
    flat = [F(9), F(-7), F(1), F(4)]
    groups = [[[{"reward": 9}], [{"reward": -7}]], [[{"reward": 1}], [{"reward": 4}]]]
    chosen = most_varied(flat, 2)
    cases.append(case("over the whole batch", source, "across groups", 1e-14, "d3s", groups,
                      [[[chosen[0]], [chosen[1]]], [[chosen[2]], [chosen[3]]]], base="reinforce",
                      kept_frac=0.5))  # fmt: skip
    return cases


def softplus(x):
    """log(1 + exp(x))."""
    return math.log1p(math.exp(x))


def ace_cases():
    """Errors that became likelier count more."""
    source, equation = "arXiv 2602.21420", "A (1 + alpha softplus(lp - lp_ref)) where A < 0"
    assert round(1 + softplus(0), 3) == 1.693  # the card's figures
    assert round(1 + softplus(-2), 3) == 1.127

    def amplified(alpha):
        def value(g, n, t):
            return (
                GRPO[g][n]
                if SUCCESS[g][n]
                else GRPO[g][n] * (1 + alpha * softplus(LOGPROB[g][n][t] - REFERENCE[g][n][t]))
            )

        return by_place(value)

    card = with_columns([-1, -1, 1], logprob=[-1.0, -3.0, -1.0], ref_logprob=[-1.0, -1.0, -5.0])
    return [
        case("card's factors", source, equation, 1e-14, "ace", card, turns_of([-1 - softplus(0), -1 - softplus(-2), 1]),
             base="reinforce", weight=1.0),
        case("ragged", source, equation, 1e-13, "ace", table(logprob=LOGPROB, ref_logprob=REFERENCE), amplified(0.5),
             weight=0.5),
    ]  # fmt: skip


def progrpo_cases():
    """A bonus in mixed groups."""
    source, equation = "arXiv 2602.05281", "A + alpha (exp(mean lp of the prompt) - exp(mean lp of the rarest fifth))"

    def moved(alpha, *, only_correct=False):
        def value(g, n, t):
            gap = math.exp(PROMPT[g][n][t]) - math.exp(RARE[g][n][t])
            return GRPO[g][n] + (0 if only_correct and not SUCCESS[g][n] else alpha * gap)

        return by_place(value)

    columns = {"prompt_logprob": PROMPT, "rare_logprob": RARE}
    uniform = with_columns([2, 3], success=[1, 1], prompt_logprob=[-1.0, -1.0], rare_logprob=[-2.0, -3.0])
    return [
        case("ragged", source, equation, 1e-13, "progrpo", table(**columns), moved(0.25), weight=0.25),
        case("only correct ones", f"{source}, abstract", equation, 1e-13, "progrpo", table(**columns),
             moved(0.25, only_correct=True), weight=0.25, only_correct=True),
        case("a uniform group stays", source, "mixed groups only", 1e-14, "progrpo", uniform, turns_of([2, 3]),
             base="reinforce", weight=0.25),
    ]  # fmt: skip


def verl_er_cases():
    """A bounded bonus for rank above the usual."""
    source = "arXiv 2509.23808; hf618/VERL metrics_utils.py"
    equation = "A + min(max(0, Phi), |A| / kappa), usual = mean of the first batch"

    def deviations(metric):
        flat = [v for group in metric for trajectory in group for v in trajectory]
        usual = math.fsum(flat) / len(flat)
        return by_place(lambda g, n, t: max(-5, min(5, (metric[g][n][t] - usual) / (abs(usual) + 1e-8))))

    rank, velocity, acceleration = map(deviations, (RANK, VELOCITY, ACCELERATION))

    def bonus(g, n, t, *, kappa, gain):
        beta = 1 / (1 + math.exp(-gain * acceleration[g][n][t]))
        phi = beta * math.tanh(rank[g][n][t]) + (1 - beta) * math.tanh(velocity[g][n][t])
        return GRPO[g][n] + min(max(0, phi), abs(GRPO[g][n]) / kappa)

    groups = table(effective_rank=RANK, rank_velocity=VELOCITY, rank_acceleration=ACCELERATION)
    return [
        case("first batch", source, equation, 1e-12, "verl_er", groups,
             by_place(lambda g, n, t: bonus(g, n, t, kappa=2, gain=2))),
        case("another bound and gain", source, equation, 1e-12, "verl_er", groups,
             by_place(lambda g, n, t: bonus(g, n, t, kappa=1.25, gain=-1)), kappa=1.25, gain=-1.0),
    ]  # fmt: skip


TABLES = {
    "adora": adora_cases,
    "a_grae": a_grae_cases,
    "grpo_n": grpo_n_cases,
    "arpo": arpo_cases,
    "tree_grpo": tree_grpo_cases,
    "at2po": at2po_cases,
    "carl": carl_cases,
    "d3s": d3s_cases,
    "ace": ace_cases,
    "progrpo": progrpo_cases,
    "verl_er": verl_er_cases,
}
