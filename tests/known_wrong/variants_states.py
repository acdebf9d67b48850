"""Bugs in credit from states that trajectories share, with the checks that reject them."""

import math

import numpy as np
from tests.known_wrong.checks import Check, Credit
from tests.known_wrong.known import column, following, known, worked
from tests.known_wrong.variants import Variant, centre, grouped, outcomes
from tests.known_wrong.variants_turns import everyone, keyed, labels, to_go
from tests.properties.strategies import Rows

import turnwise as tw

# -- GAGPO with discount 1 and decay 1/2, not scaled -------------------------------------------------------------------

# two paths meet in m after the first turn; V(s) = 1/2, V(m) = 1/2, and V = G where nobody else is
MEET = known([[[0, 0, 1], [0, 0, 0]]], state_key=["s", "m", "w", "s", "m", "l"])
# two prompts that share the names of states
PAIR = known([[[0, 1], [0, 0]], [[0, 1], [0, 1]]], state_key=["s", "w", "s", "l"] * 2)
GAGPO = [
    # surprises 0, 1/2, 0 and 0, -1/2, 0; half of it a turn earlier
    worked("what_happens_after_a_meeting_is_paid_there", MEET, [1 / 4, 1 / 2, 0, -1 / 4, -1 / 2, 0]),
    worked("values_stay_within_the_prompt", PAIR, [1 / 2, 0, -1 / 2, 0, 0, 0, 0, 0]),
    # to go 3, 2 and 2: V(a) = 5/2; surprises 1, -1/2 and 0
    worked(
        "a_state_met_twice_in_a_trajectory_counts_twice",
        known([[[1, 0, 2]]], state_key=["a", "a", "b"]),
        np.array([3 / 4, -1 / 2, 0]) - 1 / 12,
    ),
]


def gagpo(rows: Rows, *, value: np.ndarray | None = None, decay: float = 0.5, centred: bool = True) -> np.ndarray:
    if value is None:
        value = grouped(rows, to_go(rows), np.mean, keys=keyed(rows, labels(rows, "state_key")), counted=everyone(rows))
    surprise, result = rows.reward + following(rows, value) - value, np.zeros(len(rows))
    for _ in range(len(rows)):
        result = surprise + decay * following(rows, result)
    return centre(rows, result, keys=list(rows.group), counted=everyone(rows)) if centred else result


def state_values(rows: Rows, keys: list) -> np.ndarray:
    return grouped(rows, to_go(rows), np.mean, keys=keys, counted=everyone(rows))


# -- GraphGPO's part of the graph --------------------------------------------------------------------------------------

Z = 1 / math.sqrt(2)
CARD = known([[[0, 1], [0, 0]]], state_key=["A", "B", "A", "C"], success=[1, 1, 0, 0])
# the second goes a longer way and fails next to success: its step to b is worth as much as the first one's
LATE = known([[[0, 1], [0, 0, 0]]], state_key=["a", "b", "c", "a", "b"], success=[1, 1, 0, 0, 0])
# success by a long way and by a short one, which part in a: the next states are 2 and 1 away
SHORT = known([[[0, 0, 1], [0, 1]]], state_key=["a", "b", "c", "a", "c"], success=[1] * 5)
NONE = known([[[0, 0], [0, 1]]], state_key=["a", "b", "a", "c"], success=[0] * 4)
PROMPTS = known(
    [[[0, 1], [0, 0]], [[0, 1], [0, 0]]],
    state_key=["A", "B", "A", "C", "A", "C", "A", "B"],
    success=[1, 1, 0, 0, 1, 1, 0, 0],
)
# the second stops at the step limit, next to success, in a state that the first one left for it
CUT = known([[[0, 1], [0]]], state_key=["A", "B", "A"], success=[1, 1, 0], end_key=["over", "over", "B"])
GRAPH = [
    worked("the_card", CARD, [Z, 0, -Z, 0]),
    worked("a_failure_is_praised_for_coming_near", LATE, [0, Z, 0, 0, -Z]),
    worked("the_shorter_way_is_praised", SHORT, [-Z, 0, 0, Z, 0], atol=1e-4),
    worked("without_success_there_is_no_graph", NONE, [0, 0, 0, 0]),
    worked("prompts_have_graphs_of_their_own", PROMPTS, [Z, 0, -Z, 0] * 2),
    worked("a_failure_leads_to_its_last_state", CUT, [0, 0, 0]),
]


def graph(rows: Rows, *, wall: bool = True, own: bool = True, along: bool = False, undirected: bool = False):
    """Distances by trying again and again, with faults to choose from."""
    names = keyed(rows, labels(rows, "state_key")) if own else [("", key) for key in labels(rows, "state_key")]
    won = column(rows, "success")
    last = following(rows, np.ones(len(rows))) == 0
    after = following(rows, np.arange(len(rows), dtype=float), end=-1.0).astype(int)
    distance = dict.fromkeys(names, math.inf)

    def beyond(row: int) -> float:
        return (0.0 if won[row] else math.inf) if last[row] else distance[names[after[row]]]

    for _ in rows.reward:
        for row, name in enumerate(names):
            distance[name] = min(distance[name], beyond(row) + 1)
            if undirected and not last[row]:
                distance[names[after[row]]] = min(distance[names[after[row]]], distance[name] + 1)
    d = np.array([beyond(row) for row in range(len(rows))])
    if along:  # the way that the trajectory itself took
        d = np.array([to_go_steps(rows, row) - 1 if won[row] else math.inf for row in range(len(rows))])
    found = np.array([distance[name] for name in names])
    groups = list(rows.group)
    largest = grouped(rows, np.where(np.isfinite(found), found, 0.0), np.max, keys=groups, counted=everyone(rows))
    d = np.where(np.isfinite(d), d, largest + 1 if wall else 0.0)
    raw = np.where(grouped(rows, won, np.max, keys=groups, counted=everyone(rows)) > 0, 10 * 0.1**d, 0.0)
    return within(rows, raw, keyed(rows, labels(rows, "state_key")))


def to_go_steps(rows: Rows, row: int) -> int:
    names = rows.names()
    return sum(names[k] == names[row] for k in range(row, len(rows)))


def within(rows: Rows, raw: np.ndarray, keys: list, ddof: int = 1) -> np.ndarray:
    centred = centre(rows, raw, keys=keys, counted=everyone(rows))
    std = grouped(rows, raw, lambda x: np.std(x, ddof=ddof) if len(x) > 1 else 1.0, keys=keys, counted=everyone(rows))
    return centred / (std + 1e-6)


# -- RTMC with discount 1 ----------------------------------------------------------------------------------------------

# two meet in s and act differently, two are alone; the second prompt has the same names
TRIED = known(
    [[[1], [0], [0], [1]], [[1], [1]]],
    state_key=["s", "s", "t", "u", "s", "s"],
    action_key=["a", "b", "a", "a", "a", "b"],
)
# a trajectory does the same twice and is paid in between: Q = (3 + 0) / 2, and V = (3 + 2 + 0 + 2 V0) / 5 with V0 = 3/2
TWICE = known([[[1, 2], [0]]], state_key=["s", "s", "s"], action_key=["a", "a", "a"])
RTMC = [
    worked("an_action_is_compared_in_its_state", TRIED, [1 / 2, -1 / 2, -1 / 3, 1 / 3, 0, 0]),
    worked("an_action_counts_once_per_trajectory", TWICE, [-0.1] * 3),
]


def rtmc(rows: Rows, *, own: bool = True, act: bool = True, first: bool = True, shrunk: float = 2.0) -> np.ndarray:
    names, to_come = rows.names(), to_go(rows)
    states, actions = labels(rows, "state_key"), labels(rows, "action_key")
    place = keyed(rows, states) if own else states
    tried = list(zip(place, actions, strict=True)) if act else [*zip(list(rows.group), actions, strict=True)]
    total = np.array([rows.reward[[other == name for other in names]].sum() for name in names])
    result = []
    for row in range(len(rows)):
        met = [k for k in range(len(rows)) if place[k] == place[row]]
        same = [k for k in range(len(rows)) if tried[k] == tried[row]]
        if first:
            same = [k for k in same if not any(j < k and names[j] == names[k] for j in same)]
        group = {names[k]: total[k] for k in range(len(rows)) if rows.group[k] == rows.group[row]}
        prior = np.mean([*group.values()])
        value = (to_come[met].sum() + shrunk * prior) / (len(met) + shrunk)
        result.append(to_come[same].mean() - value)
    return np.array(result)


SUITES: dict[str, list[Check]] = {
    "gagpo without std": GAGPO,
    "graph gpo's graph": GRAPH,
    "actions in states": RTMC,
}

REAL: dict[str, Credit] = {
    "gagpo without std": lambda rows: rows.credit(tw.gagpo(discount=1.0, decay=0.5, scale=False)),
    "graph gpo's graph": lambda rows: rows.credit(tw.graph_gpo()) - rows.credit(tw.grpo()),
    "actions in states": lambda rows: rows.credit(tw.rtmc(discount=1.0)),
}

VARIANTS: dict[str, Variant] = {
    "values of the group, not of the state": Variant(
        "gagpo without std",
        lambda rows: gagpo(rows, value=state_values(rows, list(rows.group))),
        "GAE on GRPO's baseline",
        ("what_happens_after_a_meeting_is_paid_there",),
    ),
    "values by turn": Variant(
        "gagpo without std",
        lambda rows: gagpo(
            rows, value=state_values(rows, keyed(rows, [rows.names()[:r].count(n) for r, n in enumerate(rows.names())]))
        ),
        "GAGPO card: a third-party port groups by turn position",
        ("a_state_met_twice_in_a_trajectory_counts_twice",),
    ),
    "values across prompts": Variant(
        "gagpo without std",
        lambda rows: gagpo(rows, value=state_values(rows, labels(rows, "state_key"))),
        "states of another task are not the same states",
        ("values_stay_within_the_prompt",),
    ),
    "the return minus the value": Variant(
        "gagpo without std",
        lambda rows: gagpo(rows, decay=1.0),
        "GAGPO card: the Monte Carlo advantage, an ablation",
        ("what_happens_after_a_meeting_is_paid_there",),
    ),
    "not normalised in the group": Variant(
        "gagpo without std",
        lambda rows: gagpo(rows, centred=False),
        "GAGPO card: no norm, an ablation",
        ("a_state_met_twice_in_a_trajectory_counts_twice",),
    ),
    "every visit of an action": Variant(
        "actions in states",
        lambda rows: rtmc(rows, first=False),
        "RTMC counts first visits for Q, and all visits for V",
        ("an_action_counts_once_per_trajectory",),
    ),
    "an action wherever it is taken": Variant(
        "actions in states",
        lambda rows: rtmc(rows, act=False),
        "the signature of the action without that of the state",
        ("an_action_is_compared_in_its_state",),
    ),
    "no prior": Variant(
        "actions in states",
        lambda rows: rtmc(rows, shrunk=0.0),
        "a state that is visited once would get no credit",
        ("an_action_is_compared_in_its_state",),
    ),
    "states across prompts": Variant(
        "actions in states",
        lambda rows: rtmc(rows, own=False),
        "states of another task are not the same states",
        ("an_action_is_compared_in_its_state",),
    ),
    "dead ends are as good as success": Variant(
        "graph gpo's graph",
        lambda rows: graph(rows, wall=False),
        "an unreachable node with distance 0",
        ("the_card",),
    ),
    "one graph for all prompts": Variant(
        "graph gpo's graph",
        lambda rows: graph(rows, own=False),
        "states of another task joined by their name",
        ("prompts_have_graphs_of_their_own",),
    ),
    "distance along the own way": Variant(
        "graph gpo's graph",
        lambda rows: graph(rows, along=True),
        "steps to the end of the own trajectory: failures never come near",
        ("a_failure_is_praised_for_coming_near",),
    ),
    "the success of one pays all": Variant(
        "graph gpo's graph",
        lambda rows: within(rows, column(rows, "success"), keyed(rows, labels(rows, "state_key"))),
        "GiGPO's step part: the outcome, not the distance",
        ("the_shorter_way_is_praised", "a_failure_is_praised_for_coming_near"),
    ),
    "a failure leads nowhere at its end": Variant(
        "graph gpo's graph",
        graph,
        "turnwise before it had end_key; the recipe's last edge leads to the last observation",
        ("a_failure_leads_to_its_last_state",),
    ),
    "the episode's part twice": Variant(
        "graph gpo's graph",
        lambda rows: graph(rows) + within(rows, outcomes(rows), list(rows.group)),
        "an episode term counted once more",
        ("without_success_there_is_no_graph",),
    ),
}
