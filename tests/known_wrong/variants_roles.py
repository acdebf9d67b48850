"""Misreadings of AdvEvo-MARL's baseline: who shares it, and how often an agent counts."""

from collections.abc import Callable
from typing import Any

import numpy as np
from tests.known_wrong.variants import Variant
from tests.known_wrong.variants_outcomes import Check, Credit, Groups, equals, prompt, real

import turnwise as tw

ATTACKED = prompt(reward=[1, 0.25, 0.25, 0, 1, 0.25], player=["a", "d", "d"] * 2)
UNTOUCHED = prompt(reward=[0, 1, 1], player=["a", "d", "d"])
LONG = [[{"reward": 0.0, "player": "d"}] * 3 + [{"reward": 1.0, "player": "d"}], [{"reward": 0.0, "player": "d"}]]
SHARED = [1 / 2, -3 / 16, -3 / 16, -1 / 2, 9 / 16, -3 / 16]


def public(groups: Groups, who: Callable[..., Any], *, vote: bool = False, pooled: bool = False) -> np.ndarray:
    """Less the mean of the agents that `who(g, n, player)` calls alike; once a turn if `vote`, over all if `pooled`."""
    agents = [
        ((0 if pooled else g, who(g, n, turns[0]["player"])), sum(turn["reward"] for turn in turns), len(turns))
        for g, group in enumerate(groups)
        for n, turns in enumerate(group)
    ]
    credit = []
    for key, paid, num in agents:
        alike = [(other, turns if vote else 1) for label, other, turns in agents if label == key]
        credit += [paid - np.average([other for other, _ in alike], weights=[weight for _, weight in alike])] * num
    return np.array(credit)


SUITES: dict[str, list[Check]] = {
    "advevo": [
        equals("a_role_has_one_baseline", [ATTACKED], *SHARED),
        equals("a_task_has_its_own", [ATTACKED, UNTOUCHED], *SHARED, 0, 0, 0),
        equals("an_agent_has_one_vote", [LONG], *[0.5] * 4, -0.5),
    ],
}

REAL: dict[str, Credit] = {"advevo": real(tw.advevo(scope="group", whiten=False))}

VARIANTS: dict[str, Variant] = {
    "AdvEvo-MARL with attackers and defenders in one pot": Variant(
        "advevo", lambda groups: public(groups, lambda g, n, player: ""),
        "the abstract: agents of the same functional group", ("a_role_has_one_baseline",)),
    "AdvEvo-MARL with a baseline for each defender": Variant(
        "advevo", lambda groups: public(groups, lambda g, n, player: n % 3),
        "the abstract: a group-level mean, not an agent's own", ("a_role_has_one_baseline",)),
    "AdvEvo-MARL with a baseline for each match": Variant(
        "advevo", lambda groups: public(groups, lambda g, n, player: (n // 3, player)),
        "agents of one match alone: a lone attacker would learn nothing", ("a_role_has_one_baseline",)),
    "AdvEvo-MARL over the batch under the group's name": Variant(
        "advevo", lambda groups: public(groups, lambda g, n, player: player, pooled=True),
        "right with scope='batch'", ("a_task_has_its_own",)),
    "AdvEvo-MARL with one vote per turn": Variant(
        "advevo", lambda groups: public(groups, lambda g, n, player: player, vote=True),
        "MARS's mean over turns; the abstract's is over agents", ("an_agent_has_one_vote",)),
}  # fmt: skip
