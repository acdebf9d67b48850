"""Bugs in comparisons by turn, role, state, history and chance, with the checks that reject them."""

import math
from collections.abc import Callable

import numpy as np
from tests.known_wrong.checks import Check, Credit, prompts_do_not_see_each_other
from tests.known_wrong.known import Known, column, known, worked
from tests.known_wrong.variants import Variant, centre, centred_outcome, discounted, grouped, outcomes, standardise
from tests.properties.strategies import Rows

import turnwise as tw


def everyone(rows: Rows) -> np.ndarray:
    """Every row counts."""
    return np.ones(len(rows), dtype=bool)


def to_go(rows: Rows) -> np.ndarray:
    return discounted(rows, 1.0, lambda t, k: 0)


def turns(rows: Rows) -> list[int]:
    names = rows.names()
    return [names[:row].count(name) for row, name in enumerate(names)]


def labels(rows: Rows, name: str) -> list:
    assert isinstance(rows, Known)
    return [row[name] for row in rows.more]


def keyed(rows: Rows, *columns) -> list[tuple]:
    """The prompt and further columns."""
    return list(zip(rows.group, *columns, strict=True))


# -- HGPO without discount and deviation -------------------------------------------------------------------------------

FORK = known([[[0, 0, 1], [0, 0, 0], [0, 0, 0], [0, 0, 0]]], state_key=list("abcabcdbcefc"))
SINGLE = known([[[0], [1], [0], [0], [0], [0]]], state_key=list("pcpcqc"))
HGPO = [
    prompts_do_not_see_each_other,
    # c: 3/4, 2/3 and 1/2 above the means of 4, 3 and 2; b: 2/3 and 1/2; the levels weigh 1, 2, 3
    worked("longer_histories_weigh_one_two_three", FORK, [
        1 / 2, 5 / 9, 43 / 72, -1 / 2, -4 / 9, -29 / 72, 0, -1 / 3, -11 / 36, 0, 0, -1 / 4,
    ]),
    worked("a_history_ends_where_its_trajectory_begins", SINGLE, [0, 2 / 3, 0, -1 / 3, 0, -1 / 3]),
]  # fmt: skip


def hgpo(
    rows: Rows,
    *,
    past: Callable[[Rows, int, int], tuple | None] | None = None,
    within: bool = True,
    lonely: bool = False,
    first: int = 1,
) -> np.ndarray:
    """By loops; `past` gives the k states before a row, or None where there are not as many."""
    state = labels(rows, "state_key") if isinstance(rows, Known) else list(rows.state_key)
    names, turn, returns = rows.names(), turns(rows), to_go(rows)

    def own_past(rows: Rows, row: int, k: int) -> tuple | None:
        inside = [other for other in range(row) if names[other] == names[row]]
        return tuple(state[other] for other in inside[turn[row] - k :]) if turn[row] >= k else None

    total, weights = np.zeros(len(rows)), np.zeros(len(rows))
    for k in range(3):
        pasts = [(past or own_past)(rows, row, k) for row in range(len(rows))]
        for row in range(len(rows)):
            alike = [
                other
                for other in range(len(rows))
                if pasts[other] == pasts[row] and state[other] == state[row]
                if rows.group[other] == rows.group[row] or not within
            ]
            if pasts[row] is not None and (len(alike) > 1 or lonely):
                total[row] += (k + first) * (returns[row] - returns[alike].mean())
                weights[row] += k + first
    return total / np.where(weights > 0, weights, 1)


def rows_before(rows: Rows, row: int, k: int) -> tuple | None:
    """A history that runs on into the trajectory before."""
    return tuple(labels(rows, "state_key")[row - k : row]) if row >= k else None


# -- TRLOO -------------------------------------------------------------------------------------------------------------

GROWING = known([[[1], [2, 3], [4, 5, 6]]], role=["x"] * 6)
TRLOO = [
    worked("one_turn_equals_the_card", known([[[1], [0.5], [0.3]]], role=["x"] * 3), [0.6, -0.15, -0.45]),
    # to go: 1; 5, 3; 15, 11, 6
    worked("those_who_got_as_far_are_compared", GROWING, [1 - 10, 5 - 8, 3 - 11, 15 - 3, 11 - 3, 0]),
]


def leave_one_out(rows: Rows, returns: np.ndarray, keys: list) -> np.ndarray:
    size = grouped(rows, returns, len, keys=keys, counted=everyone(rows))
    return centre(rows, returns, keys=keys, counted=everyone(rows)) * size / np.maximum(size - 1, 1)


def the_dead_earn_nothing(rows: Rows) -> np.ndarray:
    """Padded to the longest trajectory: what is over counts as a return of 0."""
    returns, keys = to_go(rows), keyed(rows, turns(rows))
    num = grouped(rows, returns, len)
    total = grouped(rows, returns, np.sum, keys=keys, counted=everyone(rows))
    return returns - (total - returns) / np.maximum(num - 1, 1)


# -- MARS --------------------------------------------------------------------------------------------------------------

MARS = [
    # to go 2 (white), 0 (black), 4, 4: white 3, black 2 on average
    worked("each_role_has_its_own_mean", known([[[2, 0], [0, 4]]], role=list("wbwb")), [-1, -2, 1, 2]),
    # to go 2, 4, 4: mean 10/3
    worked("turn_returns_are_summed_then_centred", known([[[2], [0, 4]]], role=list("www")), [-4 / 3, 2 / 3, 2 / 3]),
]
# one turn each, of three tokens and one: +1 and -1 have the mean 1/2 over tokens and the deviation 1
WHITE = [worked("tokens_are_whitened", known([[[1], [-1]]], role=list("ww"), length=[3, 1]), [0.5, -1.5])]


def mars(rows: Rows, returns: np.ndarray, *, by_role: bool = True, **options) -> np.ndarray:
    keys = keyed(rows, labels(rows, "role")) if by_role else rows.group
    return centre(rows, returns, keys=keys, **{"counted": everyone(rows), **options})


# -- MICA without discount ---------------------------------------------------------------------------------------------

CARD, LONGER = known([[[1, 0], [0, 1]]], role=["x"] * 4), known([[[0], [0, 3]]], role=["x"] * 3)
SECOND = 1 / math.sqrt(2)  # rewards 0, 0, 3 among all turns: -1, -1, 2 over sqrt(2)
MICA = [
    worked("two_turns_equal_the_card", CARD, [0.5, -1, -0.5, 1]),
    worked("a_turn_has_those_peers_that_reached_it", LONGER, [(-1 - SECOND) / 2, (1 - SECOND) / 2, SECOND]),
]


def mica(rows: Rows, *, group_part: np.ndarray | None = None, std=np.std, padded: bool = False) -> np.ndarray:
    def z(values: np.ndarray, keys) -> np.ndarray:
        return standardise(rows, values, keys=keys, counted=everyone(rows), std=std)

    returns = to_go(rows)
    by_turn = z(returns, keyed(rows, turns(rows)))
    if padded:  # the shorter trajectory of LONGER earns 0 at the second turn
        by_turn = np.where(np.array(turns(rows)) == 1, 1.0, by_turn)
    return 0.5 * by_turn + 0.5 * z(rows.reward if group_part is None else group_part, rows.group)


# -- SRGPO -------------------------------------------------------------------------------------------------------------

STEP = 0.5 * 0.5 / math.sqrt(1 / 3)  # two steps of reward 1 and two of 0, times omega
SRGPO = [
    worked("steps_of_all_tasks_are_compared", known([[[0], [0]], [[0], [0]]], step_reward=[1, 1, 0, 0]),
           [STEP, STEP, -STEP, -STEP]),
    worked("a_step_reward_is_its_own_steps", known([[[0, 0], [0, 0]]], step_reward=[0, 1, 0, 1]),
           [-STEP, STEP, -STEP, STEP]),
    worked("a_lone_step_gets_nothing", known([[[0]]], step_reward=[1]), [0]),
]  # fmt: skip


def srgpo(rows: Rows, *, values: np.ndarray | None = None, keys=None, lone: float = 0.0) -> np.ndarray:
    keys = [0] * len(rows) if keys is None else keys
    values = column(rows, "step_reward") if values is None else values
    z = standardise(rows, values, keys=keys, counted=everyone(rows))
    size = grouped(rows, values, len, keys=keys, counted=everyone(rows))
    return standardise(rows, outcomes(rows)) + 0.5 * np.where(size == 1, lone * values, z)


# -- REINFORCE++ with a baseline ---------------------------------------------------------------------------------------

ROOT = math.sqrt(1 / 3)  # sample deviation of 1/2, 1/2, -1/2
PP = [
    worked("tokens_are_counted", known([[[1], [0]]], length=[2, 1]), [1 / 3 / ROOT, -2 / 3 / ROOT]),
    # deviations +-1/2 and +-2: one scale for both prompts, sqrt(17/6)
    worked(
        "prompts_share_one_scale",
        known([[[1], [0]], [[14], [10]]], length=[1, 1, 1, 1]),
        np.array([1 / 2, -1 / 2, 2, -2]) / math.sqrt(17 / 6),
    ),
]


PLAIN = [
    # tokens 1 and three of 0: mean 1/4, std 1/2
    worked("easy_prompts_are_praised", known([[[1]], [[0]]], length=[1, 3]), [3 / 2, -1 / 2]),
    # to go 3, 2 and 1: mean 2, std 1
    worked("the_past_is_not_paid", known([[[1, 1, 1]]], length=[1, 1, 1]), [1, 0, -1]),
]


def whitened(rows: Rows, values: np.ndarray, *, over_tokens: bool = True) -> np.ndarray:
    length = column(rows, "length").astype(int) if over_tokens else np.ones(len(rows), dtype=int)
    counted = np.repeat(values, length)
    return (values - counted.mean()) / max(counted.std(ddof=1), 1e-12)


SUITES: dict[str, list[Check]] = {
    "hgpo without std": HGPO,
    "trloo": TRLOO,
    "mars": MARS,
    "mars whitened": WHITE,
    "mica": MICA,
    "srgpo": SRGPO,
    "reinforce++ baseline": PP,
    "reinforce++": PLAIN,
}

REAL: dict[str, Credit] = {
    "hgpo without std": lambda rows: rows.credit(tw.hgpo(discount=1.0, scale=False)),
    "trloo": lambda rows: rows.credit(tw.trloo()),
    "mars": lambda rows: rows.credit(tw.mars()),
    "mars whitened": lambda rows: rows.credit(tw.mars(convention="release", whiten=True)),
    "mica": lambda rows: rows.credit(tw.mica(discount=1.0)),
    "srgpo": lambda rows: rows.credit(tw.srgpo()),
    "reinforce++ baseline": lambda rows: rows.credit(tw.reinforce_pp_baseline()),
    "reinforce++": lambda rows: rows.credit(tw.reinforce_pp()),
}

WEIGHTS = "longer_histories_weigh_one_two_three"
TURN_PEERS = "those_who_got_as_far_are_compared"

VARIANTS: dict[str, Variant] = {
    "histories across prompts": Variant(
        "hgpo without std",
        lambda rows: hgpo(rows, within=False),
        "HGPO card: same prompt; GiGPO's fault one level up",
        ("prompts_do_not_see_each_other",),
    ),
    "histories run on into the trajectory before": Variant(
        "hgpo without std",
        lambda rows: hgpo(rows, past=rows_before) if isinstance(rows, Known) else hgpo(rows),
        "states shifted along the rows of a batch",
        ("a_history_ends_where_its_trajectory_begins",),
    ),
    "first turns share an empty past": Variant(
        "hgpo without std",
        lambda rows: hgpo(rows, past=lambda r, row, k: ("",) * k) if isinstance(rows, Known) else hgpo(rows),
        "histories padded at the front: every level is that of the state alone",
        (WEIGHTS,),
    ),
    "a level without company counts as a zero": Variant(
        "hgpo without std", lambda rows: hgpo(rows, lonely=True), "HGPO card, formula 5: USED levels", (WEIGHTS,)
    ),
    "weights 2:3:4 under the paper's name": Variant(
        "hgpo without std",
        lambda rows: hgpo(rows, first=2),
        "verl-agent recipe/hgpo: right there, not the paper's formula",
        (WEIGHTS,),
    ),
    "a turn baseline that includes the response": Variant(
        "trloo",
        lambda rows: centre(rows, to_go(rows), keys=keyed(rows, turns(rows)), counted=everyone(rows)),
        "verl #7244; Dr. Kernel's motivation: shrinks by 1 - 1/N, differently at every turn",
        ("one_turn_equals_the_card", TURN_PEERS),
    ),
    "trajectories that ended count as zeros": Variant(
        "trloo", the_dead_earn_nothing, "turns padded to the longest trajectory", (TURN_PEERS,)
    ),
    "one baseline for all turns": Variant(
        "trloo",
        lambda rows: leave_one_out(rows, to_go(rows), list(rows.group)),
        "RLOO over turn rows; SkyRL #1492",
        (TURN_PEERS,),
    ),
    "a lone turn keeps its return": Variant(
        "trloo",
        lambda rows: np.where(
            grouped(rows, rows.reward, len, keys=keyed(rows, turns(rows)), counted=everyone(rows)) == 1,
            to_go(rows),
            leave_one_out(rows, to_go(rows), keyed(rows, turns(rows))),
        ),
        "KernelGYM: right there and unbiased, not our default",
        (TURN_PEERS,),
    ),
    "roles in one pot": Variant(
        "mars",
        lambda rows: mars(rows, to_go(rows), by_role=False),
        "MARS without its second part",
        ("each_role_has_its_own_mean",),
    ),
    "centred, then summed": Variant(
        "mars",
        lambda rows: to_go(rows.replace(reward=mars(rows, rows.reward))),
        "DeepSeekMath's process supervision; half of the MARS release's order",
        ("turn_returns_are_summed_then_centred",),
    ),
    "one vote a trajectory": Variant(
        "mars",
        lambda rows: to_go(rows) - grouped(rows, outcomes(rows), np.mean),
        "MARS card: the baseline counts turns",
        ("turn_returns_are_summed_then_centred",),
    ),
    "whitened over turns": Variant(
        "mars whitened",
        lambda rows: mars(rows, rows.reward) / rows.reward.std(ddof=1),
        "MARS release: masked_whiten with the mask of response tokens",
        ("tokens_are_whitened",),
    ),
    "rewards alone are whitened": Variant(
        "mars whitened",
        lambda rows: rows.reward / math.sqrt(2 / 3),
        "MARS release: whiten_rewards and whiten_advantages are both true",
        ("tokens_are_whitened",),
    ),
    "both parts on returns": Variant(
        "mica",
        lambda rows: mica(rows, group_part=to_go(rows)),
        "MAPO card, formula 4: the immediate reward",
        ("two_turns_equal_the_card",),
    ),
    "the missing count as zeros": Variant(
        "mica",
        lambda rows: mica(rows, padded=len(rows) == 3),
        "MAPO card: peers only those alive at t",
        ("a_turn_has_those_peers_that_reached_it",),
    ),
    "the sample's deviation": Variant(
        "mica",
        lambda rows: mica(rows, std=lambda v: float(v.std(ddof=1)) if len(v) > 1 else 0.0),
        "MAPO card: population std",
        ("two_turns_equal_the_card",),
    ),
    "random groups within the task": Variant(
        "srgpo",
        lambda rows: srgpo(rows, keys=rows.group),
        "what the release's dead option would do (core_srgpo.py: an `if` for an `elif`)",
        ("steps_of_all_tasks_are_compared",),
    ),
    "step rewards summed to go": Variant(
        "srgpo",
        lambda rows: srgpo(rows, values=to_go(rows.replace(reward=column(rows, "step_reward")))),
        "SRGPO card: undiscounted, the step's own; GiGPO's habit",
        ("a_step_reward_is_its_own_steps",),
    ),
    "a lone step keeps its reward": Variant(
        "srgpo",
        lambda rows: srgpo(rows, lone=1.0),
        "mean 0 and std 1 for one member, as verl-agent's episode part has it",
        ("a_lone_step_gets_nothing",),
    ),
    "whitened over responses": Variant(
        "reinforce++ baseline",
        lambda rows: whitened(rows, centred_outcome(rows), over_tokens=False),
        "masked whitening counts tokens (verl masked_whiten)",
        ("tokens_are_counted",),
    ),
    "whitened within the prompt": Variant(
        "reinforce++ baseline",
        lambda rows: standardise(rows, outcomes(rows)),
        "GRPO under another name",
        ("prompts_share_one_scale",),
    ),
    "no group baseline": Variant(
        "reinforce++ baseline",
        lambda rows: whitened(rows, outcomes(rows)),
        "REINFORCE++ without its baseline variant",
        ("prompts_share_one_scale",),
    ),
    "plain, whitened over responses": Variant(
        "reinforce++",
        lambda rows: whitened(rows, to_go(rows), over_tokens=False),
        "masked whitening counts tokens (verl masked_whiten)",
        ("easy_prompts_are_praised",),
    ),
    "plain, with a group baseline": Variant(
        "reinforce++",
        lambda rows: whitened(rows, centred_outcome(rows)),
        "the variant of the same paper; a lone trajectory would get nothing",
        ("easy_prompts_are_praised", "the_past_is_not_paid"),
    ),
    "plain, with the whole return for every turn": Variant(
        "reinforce++",
        lambda rows: whitened(rows, outcomes(rows)),
        "a reward before a response is no consequence of it",
        ("the_past_is_not_paid",),
    ),
}
