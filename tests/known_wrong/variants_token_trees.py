"""Misreadings of credit for trees of tokens and for cuts inside responses, which the suites must reject."""

import numpy as np
from tests.known_wrong.variants import Variant
from tests.known_wrong.variants_outcomes import Check, Credit, Groups, equals, real

import turnwise as tw

# returns 3, 0 and 0: one token is shared by all, the next by the last two; three tokens, and two responses of the last
TREE = [
    [
        [{"reward": 3, "token_T": [1, 2]}],
        [{"reward": 0, "token_T": [1, 3, 4]}],
        [{"reward": 0, "token_T": [1, 3]}, {"reward": 0, "token_T": [5]}],
    ]
]


def stretches(groups: Groups):
    """Yield each token with the trajectories through it, those through the one before its stretch, and all."""
    for group in groups:
        paths = [[token for turn in path for token in turn["token_T"]] for path in group]
        returns = np.array([sum(turn["reward"] for turn in path) for path in group], dtype=float)

        def shares(prefix: list, paths: list = paths) -> list[int]:
            return [n for n, p in enumerate(paths) if p[: len(prefix)] == prefix]

        for path, tokens in zip(group, paths, strict=True):
            found = []
            for place in range(len(tokens)):
                own, before = shares(tokens[: place + 1]), place
                while before and shares(tokens[:before]) == own:
                    before -= 1
                found.append((own, shares(tokens[:before]), returns))
            for turn in path:
                yield [found.pop(0) for _ in turn["token_T"]]


def of_leaves(groups: Groups, *, once: bool = False, mean: bool = False, token: bool = False) -> np.ndarray:
    """V by leaves: once an edge, against the group's mean, or one value per trajectory."""
    result = []
    for response in stretches(groups):
        own = [
            (np.mean(returns[share]) - np.mean(returns if mean else returns[before])) / (len(share) if once else 1)
            for share, before, returns in response
        ]
        result.append(own[-1] if token else np.mean(own))
    return np.array(result)


# V by children: 1 3 is worth 0, 1 is worth 3/2, and so is the prompt
EDGES = (np.mean([0, 3 / 2]), np.mean([0, -3 / 4, 0]), np.mean([0, -3 / 4]), 0.0)

# one trajectory of two responses; cuts before its second and fourth token; it is paid 1 and 2
CUTS = [
    [
        [
            {"reward": 1, "cut_T": [0, 1, 0], "cut_value_T": [0.5, 2.0, 2.0]},
            {"reward": 2, "cut_T": [1, 0], "cut_value_T": [1.5, 1.5]},
        ]
    ]
]


def of_cuts(groups: Groups, *, root: bool = False, earned: bool = True, turns: bool = False) -> np.ndarray:
    """Segments of one trajectory, with bugs to choose from."""
    (((one, two),),) = groups
    paid = one["reward"] if earned else 0.0
    first = one["cut_value_T"][1] - one["cut_value_T"][0] if root else 0.0
    second = paid + two["cut_value_T"][0] - one["cut_value_T"][1]
    last = paid + two["reward"] - (paid + two["cut_value_T"][0])
    if turns:
        return np.array([second, last])
    return np.array([(first + 2 * second) / 3, last])


# returns 1, 1 and 0; the first success has two tokens, the second three, of which the failure shares two
LONG = [
    [
        [{"reward": 1, "token_T": [1, 2]}],
        [{"reward": 1, "token_T": [1, 3, 4]}],
        [{"reward": 0, "token_T": [1, 3, 5]}],
    ]
]


def damped(groups: Groups, *, root: bool = True, prompt: bool = True, local: bool = True) -> np.ndarray:
    """TreeRL on TREE, with bugs to choose from; r = 3, -3/2, -3/2, and the mean over all tokens is -3/8."""
    assert groups is TREE
    leaves = np.array([3, 1, 2, 1, 1]) if root else np.ones(5)  # of tokens 1 to 5
    value = (np.array([0, 3, -1.5, -1.5, -1.5]) + 3 / 8) / np.sqrt(leaves)
    above = value[[0, 0, 0, 2, 2]]  # the prompt is worth what token 1 is, which all share
    above[0] *= prompt
    one, two, three, four, five = 2 * value - above if local else value
    return np.array([(one + two) / 2, (one + three + four) / 3, (one + three) / 2, five])


TREES, SEGMENTS = "an_edge_counts_once", "a_segment_ends_at_the_next_cut"
CHANGE, SHORTER = "a_stretch_gets_the_change_of_the_mean", "a_longer_success_gets_less"
DAMPED = "a_stretch_is_damped_by_the_root_of_its_leaves"
SUITES: dict[str, list[Check]] = {
    # 1 is worth 1, as the prompt, and 3 nothing
    "rose": [
        equals(CHANGE, TREE, (0 + 2) / 2, (0 - 1 + 0) / 3, (0 - 1) / 2, 0.0),
        # 1 is worth 2/3, as the prompt, and 3 a half; behind 1, the second success has twice the tokens of the first
        equals(SHORTER, LONG, 1 / 3 / 2, (0 - 1 / 6 * 3 / 2 + 1 / 2 * 1 / 2) / 3, (0 - 1 / 6 - 1 / 2) / 3),
    ],
    "treerl": [equals(DAMPED, TREE, 3.375, -1.015165, -0.795495, -1.454505)],
    "spo_tree": [equals(TREES, TREE, *EDGES)],
    "spo_chain": [equals(SEGMENTS, CUTS, (0.0 + 0.5 + 0.5) / 3, 0.5)],
}
REAL: dict[str, Credit] = {
    "rose": real(tw.rose(alpha=1.0)),
    "treerl": real(tw.treerl(root="value")),
    "spo_tree": real(tw.spo_tree()),
    "spo_chain": real(tw.spo_chain()),
}

# fmt: off
VARIANTS: dict[str, Variant] = {
    "ROSE against the group's mean": Variant(
        "rose", lambda groups: of_leaves(groups, mean=True),
        "ROSE, step 4: the difference to the branch point before", (CHANGE,)),
    "ROSE by the last token": Variant(
        "rose", lambda groups: of_leaves(groups, token=True),
        "ROSE, step 4: each token has the credit of its own stretch", (CHANGE,)),
    "ROSE without its length calibration": Variant(
        "rose", real(tw.rose()),
        "ROSE, step 5", (SHORTER,)),
    "TreeRL without the root": Variant(
        "treerl", lambda groups: damped(groups, root=False),
        "TreeRL, step 7: acc / sqrt(leaves)", (DAMPED,)),
    "TreeRL without the local advantage": Variant(
        "treerl", lambda groups: damped(groups, local=False),
        "TreeRL, step 8: local + global", (DAMPED,)),
    "TreeRL with a prompt that is worth nothing": Variant(
        "treerl", lambda groups: damped(groups, prompt=False),
        "TreeRL with root = \"value\": the prompt is a node like the others", (DAMPED,)),
    "SPO-tree by leaves": Variant(
        "spo_tree", lambda groups: of_leaves(groups, once=True),
        "SPO, tree: V(node) is the mean of its children", (TREES,)),
    "SPO-tree that counts paths": Variant(
        "spo_tree", real(tw.spo_tree(count="path")),
        "SPO, tree: each edge is one training sample", (TREES,)),
    "SPO-chain that values the prompt": Variant(
        "spo_chain", lambda groups: of_cuts(groups, root=True),
        "SPO, chain: the first segment gets 0 unless the root is valued", (SEGMENTS,)),
    "SPO-chain that forgets what was earned": Variant(
        "spo_chain", lambda groups: of_cuts(groups, earned=False),
        "a value at a cut counts later rewards only; V is the expected outcome", (SEGMENTS,)),
    "SPO-chain by turns": Variant(
        "spo_chain", lambda groups: of_cuts(groups, turns=True),
        "SPO, chain: segments lie between cuts, not responses", (SEGMENTS,)),
}
