"""Misreadings of credit for trajectories that fork, which the suites must reject."""

from collections.abc import Callable

import numpy as np
from tests.known_wrong.variants import Variant
from tests.known_wrong.variants_outcomes import Check, Credit, Groups, equals, real, standardised

import turnwise as tw

# -- ARPO --------------------------------------------------------------------------------------------------------------

# A = 1, 0, -1; the first two share their first turn, which the first takes twice; another prompt has the same name
FORKS = [
    [
        [{"reward": 0, "prefix": "p"}, {"reward": 2, "prefix": "p"}],
        [{"reward": 0, "prefix": "p"}, {"reward": 1, "prefix": "x"}],
        [{"reward": 0, "prefix": "y"}],
    ],
    [[{"reward": 5, "prefix": "p"}], [{"reward": 4, "prefix": "z"}]],
]


def forks(groups: Groups, *, within: bool = True, once: bool = True) -> np.ndarray:
    rows = [(g, n, turn["prefix"]) for g, group in enumerate(groups) for n, path in enumerate(group) for turn in path]
    outcome = {
        (g, n): sum(turn["reward"] for turn in path) for g, group in enumerate(groups) for n, path in enumerate(group)
    }
    credit = {}
    for g, group in enumerate(groups):
        for n, value in enumerate(standardised(np.array([outcome[g, m] for m in range(len(group))], dtype=float))):
            credit[g, n] = value
    result = []
    for g, _, name in rows:
        sharing = [(h, m) for h, m, other in rows if other == name and (h == g or not within)]
        result.append(np.mean([credit[key] for key in (dict.fromkeys(sharing) if once else sharing)]))
    return np.array(result)


# -- Tree-GRPO ---------------------------------------------------------------------------------------------------------

# returns 1, 0 and 1, 1 in two trees of one prompt: z within the first tree is +-1/sqrt(2), and 0 within the second
TREES = [
    [
        [{"reward": 1, "tree": "x"}, {"reward": 0, "tree": "x"}],
        [{"reward": 0, "tree": "x"}],
        [{"reward": 1, "tree": "y"}],
        [{"reward": 1, "tree": "y"}],
    ]
]


def trees(groups: Groups, *, inner: bool = True, rows: bool = False) -> np.ndarray:
    result = []
    for group in groups:
        outcome = np.array([sum(turn["reward"] for turn in path) for path in group], dtype=float)
        names = np.array([path[0]["tree"] for path in group])
        weights = [len(path) if rows else 1 for path in group]
        advantage = standardised(outcome)
        if inner:
            for name in dict.fromkeys(names):
                own = names == name
                counted = np.repeat(outcome[own], np.array(weights)[own])
                advantage[own] += (outcome[own] - counted.mean()) / (counted.std(ddof=1) + 1e-6)
        result.append(np.repeat(advantage, [len(path) for path in group]))
    return np.concatenate(result)


CHANGES = "a_response_changes_the_plain_mean_of_what_was_tried"
S = 1 / np.sqrt(2)  # of two: +-1/2 by a std of 1/sqrt(2)

# -- AT2PO -------------------------------------------------------------------------------------------------------------

# returns standardised to +1, -1, +1, -1; x is three times as surprising as y; another prompt has the same name
NODES = [
    [
        [{"reward": 0, "prefix": "p", "logprob": -1.0}, {"reward": 1, "prefix": "x", "logprob": -np.log(3)}],
        [{"reward": 0, "prefix": "p", "logprob": -1.0}, {"reward": 0, "prefix": "y", "logprob": 0.0}],
        [{"reward": 1, "prefix": "q", "logprob": -1.0}],
        [{"reward": 0, "prefix": "r", "logprob": -1.0}],
    ],
    [[{"reward": 5, "prefix": "p", "logprob": -1.0}], [{"reward": 4, "prefix": "z", "logprob": -1.0}]],
]


def of_nodes(
    groups: Groups, *, weight: Callable[[float], float] = lambda p: np.exp(-p), ddof: int = 0, within: bool = True
) -> np.ndarray:
    paths = [
        (g if within else 0, [turn["prefix"] for turn in path]) for g, group in enumerate(groups) for path in group
    ]
    logprob = {
        (g if within else 0, *(turn["prefix"] for turn in path[: end + 1])): path[end]["logprob"]
        for g, group in enumerate(groups)
        for path in group
        for end in range(len(path))
    }
    outcome = []
    for group in groups:
        returns = np.array([sum(turn["reward"] for turn in path) for path in group], dtype=float)
        outcome += list((returns - returns.mean()) / (returns.std(ddof=ddof) + 1e-6))

    def value(node: tuple) -> float:
        ends = [a for (g, path), a in zip(paths, outcome, strict=True) if (g, *path) == node]
        below = [child for child in logprob if child[:-1] == node]
        weights = np.array([weight(logprob[child]) for child in below] + [1.0] * len(ends))
        return float(weights @ [*map(value, below), *ends] / weights.sum())

    return np.array([value((g, *path[: end + 1])) for g, path in paths for end in range(len(path))])


# -- CARL --------------------------------------------------------------------------------------------------------------

# the prompt has x, paid 1, and y, after which 0, 0 and 1 were found: V(y) = 1/3, V(prompt) = 2/3; z was tried alone
TRIED = [
    [
        [{"reward": 1, "prefix": "x"}],
        [{"reward": 0, "prefix": "y"}, {"reward": 0, "prefix": "a"}, {"reward": 0, "prefix": "z"}],
        [{"reward": 0, "prefix": "y"}, {"reward": 0, "prefix": "b"}],
        [{"reward": 0, "prefix": "y"}, {"reward": 1, "prefix": "c"}],
    ]
]
TRIED_CREDIT = (1 / 3, -1 / 3, -1 / 3, 0, -1 / 3, -1 / 3, -1 / 3, 2 / 3)


def of_edges(groups: Groups, *, leaves: bool = False, mean: bool = False, std: bool = False) -> np.ndarray:
    """V(s') - V(s); by leaves, against the group's mean, or divided by the siblings' deviation."""
    result = []
    for group in groups:
        paths = [[turn["prefix"] for turn in path] for path in group]
        outcome = [sum(turn["reward"] for turn in path) for path in group]

        def value(node: list, paths: list = paths, outcome: list = outcome) -> float:
            found = [a for path, a in zip(paths, outcome, strict=True) if path[: len(node)] == node]
            below = {path[len(node)] for path in paths if path[: len(node)] == node and len(path) > len(node)}
            return float(np.mean(found if leaves or not below else [value([*node, child]) for child in below]))

        for path in paths:
            for end in range(len(path)):
                own, parent = value(path[: end + 1]), float(np.mean(outcome)) if mean else value(path[:end])
                siblings = {p[end] for p in paths if p[:end] == path[:end] and len(p) > end}
                spread = np.std([value([*path[:end], child]) for child in siblings]) if std else 0.0
                result.append((own - parent) / (spread + 1e-6) if std else own - parent)
    return np.array(result)


SUITES: dict[str, list[Check]] = {
    "carl": [equals("a_response_changes_the_plain_mean_of_what_was_tried", TRIED, *TRIED_CREDIT)],
    "arpo": [equals("a_shared_turn_gets_the_mean_of_its_trajectories", FORKS, 0.5, 0.5, 0.5, 0, -1, S, -S)],
    "tree_grpo": [equals("a_tree_compares_its_trajectories", TREES, S + 0.5, S + 0.5, -S - 1.5, 0.5, 0.5)],
    "at2po": [equals("surprising_children_count_for_more", NODES, 0.5, 1, 0.5, -1, 1, -1, 1, -1, atol=1e-5)],
}

REAL: dict[str, Credit] = {
    "arpo": real(tw.arpo(mode="hard")),
    "tree_grpo": real(tw.tree_grpo()),
    "at2po": real(tw.at2po()),
    "carl": real(tw.carl()),
}

# fmt: off
VARIANTS: dict[str, Variant] = {
    "CARL by leaves": Variant(
        "carl", lambda groups: of_edges(groups, leaves=True),
        "the mean over trajectories weighs a child by its forks", (CHANGES,)),
    "CARL against the group's mean": Variant(
        "carl", lambda groups: of_edges(groups, mean=True),
        "GRPO's baseline on a tree: lone responses would get credit", (CHANGES,)),
    "CARL by the siblings' deviation": Variant(
        "carl", lambda groups: of_edges(groups, std=True),
        "CARL, eq. 15: no standard deviation", (CHANGES,)),
    "ARPO's prefixes across prompts": Variant(
        "arpo", lambda groups: forks(groups, within=False),
        "a prefix name without its prompt", ("a_shared_turn_gets_the_mean_of_its_trajectories",)),
    "ARPO's mean over responses": Variant(
        "arpo", lambda groups: forks(groups, once=False),
        "ARPO card, formula 4: the mean of those d trajectories", ("a_shared_turn_gets_the_mean_of_its_trajectories",)),
    "Tree-GRPO without its trees": Variant(
        "tree_grpo", lambda groups: trees(groups, inner=False),
        "Tree-GRPO card, formula 4: z over those of the same tree", ("a_tree_compares_its_trajectories",)),
    "Tree-GRPO over rows of turns": Variant(
        "tree_grpo", lambda groups: trees(groups, rows=True),
        "a group statistic over turn rows", ("a_tree_compares_its_trajectories",)),
    "AT2PO with children that count alike": Variant(
        "at2po", lambda groups: of_nodes(groups, weight=lambda p: 1.0),
        "AT2PO card, step 4: softmax over the children's entropies", ("surprising_children_count_for_more",)),
    "AT2PO that trusts the sure child": Variant(
        "at2po", lambda groups: of_nodes(groups, weight=np.exp),
        "AT2PO card: weighting favours uncertain children", ("surprising_children_count_for_more",)),
    "AT2PO weighed by entropies without a softmax": Variant(
        "at2po", lambda groups: of_nodes(groups, weight=lambda p: -p),
        "AT2PO card, step 4: softmax", ("surprising_children_count_for_more",)),
    "AT2PO with the sample std": Variant(
        "at2po", lambda groups: of_nodes(groups, ddof=1),
        "AT2PO card, step 3: population std", ("surprising_children_count_for_more",)),
    "AT2PO's nodes across prompts": Variant(
        "at2po", lambda groups: of_nodes(groups, within=False),
        "a prefix name without its prompt", ("surprising_children_count_for_more",)),
}
