"""Bugs in ProxMO's success weights and soft groups and in GiGPO's text clusters, with the checks that reject them."""

import math
from difflib import SequenceMatcher

import numpy as np
from tests.known_wrong.checks import Check, Credit
from tests.known_wrong.known import column, known, worked
from tests.known_wrong.variants import Variant, grouped, outcomes, standardise
from tests.known_wrong.variants_turns import everyone, labels
from tests.properties.strategies import Rows

import turnwise as tw

# -- ProxMO: the success weight alone (alpha 2, beta 1), and the soft groups alone (tau 1/2) ---------------------------


def f(x: float) -> float:
    return 1 / (1 + math.exp(-x)) - 0.5


WON, LOST = 1.5 * (1 + f(0.75**2)), -0.5 * (1 + f(-(0.25**2)))  # one success of four
SUCCESS = [
    worked(
        "the_success_rate_comes_from_successes_not_from_rewards_of_ten",
        known([[[10], [0], [0], [0]]], success=[1, 0, 0, 0], state_text=[""] * 4),
        [WON, LOST, LOST, LOST],
    ),
    worked(
        "a_long_success_is_one_success",
        known([[[0, 0, 1], [0], [0], [0]]], success=[1, 1, 1, 0, 0, 0], state_text=[""] * 6),
        [WON] * 3 + [LOST] * 3,
    ),
]
MUG = math.e**2 / (math.e**2 + 1)  # weight of the like text beside one without a common word
STATES = [
    worked("the_response_itself_is_compared_with", known([[[1], [0]]], state_text=["mug", "key"]), [1 - MUG, MUG - 1]),
    worked(
        "other_prompts_are_not_compared",
        known([[[1], [0]], [[5]]], state_text=["mug", "key", "mug"]),
        [1 - MUG, MUG - 1, 0],
    ),
]


# 0.952 of the second and third texts agree, 0.921 of the first and third: the first stands for the cluster of both
OSLO = ["You search for Oslo. 12 results.", "You search for Oslo. 13 results.", "You search for Oslo, 13 results"]
CLUSTERS = [
    worked("the_first_text_stands_for_its_cluster", known([[[1], [0], [5]]], state_text=OSLO), [0.5, -0.5, 0]),
    worked(
        "a_like_text_of_another_prompt_is_another_state",
        known([[[1], [0]], [[5], [7]]], state_text=[OSLO[0], OSLO[1], OSLO[0], "The end"]),
        [0.5, -0.5, 0, 0],
    ),
]


def clustered(rows: Rows, *, within: bool = True, chained: bool = False) -> np.ndarray:
    """A text joins the first cluster with its first text, or with any, at least 0.95 alike."""
    members: list[list[int]] = []
    texts = labels(rows, "state_text")
    for row, text in enumerate(texts):
        for cluster in members:
            asked = cluster if chained else cluster[:1]
            here = not within or rows.group[row] == rows.group[cluster[0]]
            if here and any(SequenceMatcher(None, text, texts[other]).ratio() >= 0.95 for other in asked):
                cluster.append(row)
                break
        else:
            members.append([row])
    result = np.empty(len(rows))
    for cluster in members:
        result[cluster] = rows.reward[cluster] - rows.reward[cluster].mean()
    return result


def success_weighed(rows: Rows, rate: np.ndarray) -> np.ndarray:
    won = column(rows, "success") > 0
    weight = [1 + (f((1 - p) ** 2) if s else f(-(p**2))) for s, p in zip(won, rate, strict=True)]
    return standardise(rows, outcomes(rows)) * weight


def softly_centred(rows: Rows, *, own: bool = True, within: bool = True) -> np.ndarray:
    texts, returns, result = labels(rows, "state_text"), rows.reward, []
    for i in range(len(rows)):
        weight = np.array(
            [
                math.exp(2.0 * (texts[i] == texts[j]))
                * (own or i != j)
                * (not within or rows.group[i] == rows.group[j])
                for j in range(len(rows))
            ]
        )
        result.append(returns[i] - (weight @ returns / weight.sum() if weight.sum() else returns[i]))
    return np.array(result)


SUITES: dict[str, list[Check]] = {
    "proxmo's success weight": SUCCESS,
    "proxmo's states": STATES,
    "clusters of texts": CLUSTERS,
}

REAL: dict[str, Credit] = {
    "proxmo's success weight": lambda rows: rows.credit(tw.proxmo(weight=0.0, alpha=2.0, beta=1.0)),
    "proxmo's states": lambda rows: rows.credit(tw.center_by_similarity(temperature=0.5)),
    "clusters of texts": lambda rows: rows.credit(tw.center_by_cluster(similarity=0.95)),
}

VARIANTS: dict[str, Variant] = {
    "success rate from clipped rewards": Variant(
        "proxmo's success weight",
        lambda rows: success_weighed(rows, np.clip(grouped(rows, outcomes(rows), np.mean), 0, 1)),
        "ProxMO-RL core_proxmo.py with rewards of 10",
        ("the_success_rate_comes_from_successes_not_from_rewards_of_ten",),
    ),
    "success rate over turn rows": Variant(
        "proxmo's success weight",
        lambda rows: success_weighed(rows, grouped(rows, column(rows, "success"), np.mean, counted=everyone(rows))),
        "ProxMO-RL, compute_mean_std_cross_steps=True",
        ("a_long_success_is_one_success",),
    ),
    "soft groups without the response itself": Variant(
        "proxmo's states",
        lambda rows: softly_centred(rows, own=False),
        "a leave-one-out reading; card: self included",
        ("the_response_itself_is_compared_with",),
    ),
    "clusters that grow from text to text": Variant(
        "clusters of texts",
        lambda rows: clustered(rows, chained=True),
        "single linkage; verl-agent compares with the first text only",
        ("the_first_text_stands_for_its_cluster",),
    ),
    "clusters across prompts": Variant(
        "clusters of texts",
        lambda rows: clustered(rows, within=False),
        "anchor texts clustered over the batch",
        ("a_like_text_of_another_prompt_is_another_state",),
    ),
    "soft groups across prompts": Variant(
        "proxmo's states",
        lambda rows: softly_centred(rows, within=False),
        "the similarity of the whole batch without the mask of groups",
        ("other_prompts_are_not_compared",),
    ),
}
