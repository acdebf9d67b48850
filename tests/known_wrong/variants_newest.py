"""Bugs in the methods of 2026, with the checks that reject them: the cards' examples, and what they leave open."""

import math

import numpy as np
from tests.known_wrong.checks import Check, Credit
from tests.known_wrong.known import column, following, known, worked
from tests.known_wrong.variants import Variant, centre, grouped, outcomes, standardise
from tests.known_wrong.variants_states import within
from tests.known_wrong.variants_turns import everyone, keyed, labels, to_go, turns
from tests.properties.strategies import Rows

import turnwise as tw

# -- graphs of states: S leads to X, where one succeeds and one fails, and to Y ----------------------------------------

TOY = known([[[0, 1], [0, 0], [0, 0]]], state_key=list("SXSXSY"))
Z = 1 / math.sqrt(2)
T = 1 / math.sqrt(3)
PGPO = [worked("the_card_of_pgpo", TOY, [1.4113, 1.0214, -0.3208, -1.0214, -1.0906, 0], atol=3e-4)]
EDGES = np.array([1 / 6, 1 / 2, 1 / 6, -1 / 2, -1 / 3, 0]) / math.sqrt(2 / 15)
G2PO = [
    worked(
        "the_card_of_g2po",
        TOY,
        np.array([2 * T, 2 * T, -T, -T, -T, -T]) + np.array([T, Z, T, -Z, -2 * T, 0]) + EDGES,
        atol=1e-4,
    )
]


def states(rows: Rows) -> list:
    return keyed(rows, labels(rows, "state_key"))


def last(rows: Rows) -> np.ndarray:
    return following(rows, np.ones(len(rows))) == 0


def gains(rows: Rows, *, end: bool = True, subtract: bool = True) -> np.ndarray:
    value = grouped(rows, to_go(rows), np.mean, keys=states(rows), counted=everyone(rows))
    after = np.where(last(rows), rows.reward if end else 0.0, following(rows, value))
    return after - value if subtract else after


def pgpo(rows: Rows, *, shaped: bool = True, end: bool = True, weigh: bool = True, episode: bool = False) -> np.ndarray:
    p = grouped(rows, outcomes(rows) > 0, np.mean)
    shaping = within(rows, gains(rows, end=end), states(rows)) * ((1 - p) ** 2 if weigh else 1.0)
    direct = within(rows, to_go(rows), states(rows))
    return direct + shaped * shaping + episode * standardise(rows, outcomes(rows))


def g2po(rows: Rows, *, node: bool = True, own: bool = False, end: bool = True) -> np.ndarray:
    edge = within(rows, gains(rows, end=end), states(rows) if own else list(rows.group))
    return (
        standardise(rows, outcomes(rows))
        + edge
        + node * within(rows, gains(rows, subtract=False, end=end), states(rows))
    )


# two leave A, one by C to success, one by D to the end; the second prompt has the same names, and another end
ROADS = known(
    [[[0, 1], [0, 0]], [[0, 0], [0, 1]]],
    state_text=list("ACADACAD"),
    success=[1, 1, 0, 0, 0, 0, 1, 1],
    task=["x"] * 4 + ["y"] * 4,
)
TIGPO = [worked("a_tasks_graph_is_its_own", ROADS, [2 * Z, Z, -2 * Z, -Z, -2 * Z, -Z, 2 * Z, Z], atol=1e-4)]


def tigpo(rows: Rows, *, own: bool = True, near: bool = True) -> np.ndarray:
    """The rows of `ROADS`, where a state leads to success by one way or by none."""
    won, names = column(rows, "success") > 0, labels(rows, "state_text")
    ways = {(rows.group[k] if own else "", names[k]) for k in range(len(rows)) if won[k]}
    good = np.array([(rows.group[k] if own else "", names[k]) in ways for k in range(len(rows))])
    nearness = np.where(last(rows), won, np.roll(good, -1)) * 1.0
    graph = within(rows, nearness, keyed(rows, names)) if near else 0.0
    return graph + standardise(rows, outcomes(rows))


# -- actions in a state: u, v and w with 1; 1, 1, 0; 0, 0 --------------------------------------------------------------

THREE = known([[[1], [1], [1], [0], [0], [0]]], state_key=["s"] * 6, action_key=list("uvvvww"))
SHRUNK = np.array([2 / 3, 3 / 5, 3 / 5, 3 / 5, 1 / 4, 1 / 4])
GATE = math.tanh(6 / 4) * ((1 / 4 + 3 / 36 + 2 / 4) / 6) / (1 / 4)
OUTCOME = np.array([1, 1, 1, -1, -1, -1]) / 2 / math.sqrt(0.3)
ECPO = [
    worked("rare_actions_are_shrunk", THREE, OUTCOME + GATE * (SHRUNK - SHRUNK.mean()) / SHRUNK.std(ddof=1), atol=1e-4)
]


def ecpo(rows: Rows, *, count: float = 2.0, gated: bool = True, evidence: bool = True) -> np.ndarray:
    both = keyed(rows, labels(rows, "state_key"), labels(rows, "action_key"))
    of = {"counted": everyone(rows)}
    tried = grouped(rows, to_go(rows), np.mean, keys=both, **of)
    num = grouped(rows, to_go(rows), len, keys=both, **of)
    mean = grouped(rows, to_go(rows), np.mean, keys=states(rows), **of)
    z = within(rows, (num * tried + count * mean) / (num + count), states(rows))
    share = grouped(rows, tried, np.var, keys=states(rows), **of) / grouped(
        rows, to_go(rows), np.var, keys=states(rows), **of
    )
    seen = np.tanh(grouped(rows, to_go(rows), len, keys=states(rows), **of) / 4) if evidence else 1.0
    return standardise(rows, outcomes(rows)) + (seen * share if gated else 1.0) * z


# -- rewards of turns --------------------------------------------------------------------------------------------------

CHECKED = known([[[0, 0, 1], [0, 0]]], checks=[0.5, 0.5, 1.0, 0.0, 0.5])
FALLING = known([[[0, 0], [0, 0]]], checks=[1.0, 0.0, 0.0, 0.0])
EARLY = known([[[1, 0], [0, 0]]], checks=[0.0, 0.0, 0.0, 0.0])
PROCREDIT = [
    worked("the_card_of_procredit", CHECKED, [1.6, 1.35, 1.35, -1.65, -1.65], atol=1e-4),
    # nothing is left of the first one's progress: G = 0, -1/2, 0, 0 and scores 0
    worked("progress_may_be_lost", FALLING, [1 / 8, -3 / 8, 1 / 8, 1 / 8], atol=1e-4),
    # no check changes, so turns are alike, whenever the reward came
    worked("only_progress_distinguishes_turns", EARLY, [1.5, 1.5, -1.5, -1.5], atol=1e-4),
]


def procredit(
    rows: Rows, *, most: bool = False, begun: bool = True, scaled: bool = False, end: bool = True
) -> np.ndarray:
    checks, names = column(rows, "checks"), rows.names()
    if most:
        checks = np.array([max(c for c, n in zip(checks[: k + 1], names, strict=False) if n == names[k])
                           for k in range(len(rows))])  # fmt: skip
    before = np.array([checks[k - 1] if turns(rows)[k] else (0.0 if begun else checks[k]) for k in range(len(rows))])
    paid = np.where(last(rows), outcomes(rows), 0.0) if end else rows.reward
    go = to_go(rows.replace(reward=paid + (checks - before) / 2))
    first = np.array([go[names.index(name)] for name in names])
    late = centre(rows, go, keys=list(rows.group), counted=everyone(rows))
    return standardise(rows, first, std=np.std) + (within(rows, go, list(rows.group)) if scaled else late)


CALLS = known([[[0, 0], [0, 1]]], step_reward=[1, 0, 0, 0])
LONE_CALL = known([[[0], [0, 1], [0, 1]]], step_reward=[2, 0, 0, 0, 0])
MT_GRPO = [
    worked("both_rewards_cancel_before_the_call", CALLS, [0, -Z, 0, Z], atol=1e-3),
    # sums 2, 1, 1; the outcomes 0, 1, 1 and the calls 2, 0, 0 are opposite
    worked("without_a_tool_result_the_sum_counts", LONE_CALL, [2 * T, 0, T, 0, T], atol=1e-3),
]


def mt_grpo(rows: Rows, *, later: bool = False, alone: bool = True, turn: bool = True) -> np.ndarray:
    own = outcomes(rows, column(rows, "step_reward"))
    outcome, z = standardise(rows, outcomes(rows)), standardise(rows, own)
    first = (np.array(turns(rows)) == 0) | later
    result = outcome + np.where(first & turn, z, 0.0)
    lone = last(rows) & (np.array(turns(rows)) == 0) & alone
    return np.where(lone, standardise(rows, own + outcomes(rows)), result)


PAID = known([[[1, 1], [0, 2]]], turn=[0, 1, 0, 1])
GTPO = [worked("sooner_is_better_turn_by_turn", PAID, [Z, -Z, -Z, Z], atol=1e-4)]


def gtpo(rows: Rows, discount: float) -> np.ndarray:
    names, turn = rows.names(), turns(rows)
    go = [
        sum(discount ** (turn[k] - turn[r]) * rows.reward[k] for k in range(r, len(rows)) if names[k] == names[r])
        for r in range(len(rows))
    ]
    return within(rows, np.array(go), keyed(rows, turn))


# -- gains of the gold answer ------------------------------------------------------------------------------------------

GOLD = known([[[0, 0, 1], [0]]], gold_logprob=[-1.9, -0.9, -0.4, -1.0])
TRACE = [worked("the_card_of_trace", GOLD, [1.3946, 1.4586, 1, -1], atol=1e-3)]


def trace_gold(rows: Rows, *, logs: bool = True, everywhere: bool = False, fill: float = 2.0) -> np.ndarray:
    z, before, names = standardise(rows, outcomes(rows), std=np.std), column(rows, "gold_logprob"), rows.names()
    surprise = 0.1 - before
    gain = np.log(surprise / following(rows, surprise, end=1.0)) if logs else following(rows, before) - before
    result = []
    for row in range(len(rows)):
        rest = [k for k in range(row, len(rows)) if names[k] == names[row]]
        tool = rest[:-1]
        weights = 0.8 ** np.arange(len(tool))
        dense = float(weights @ gain[tool] / weights.sum()) if tool else 0.0
        filled = fill * 0.8 ** len(tool) * z[row] if tool or everywhere else 0.0
        result.append(z[row] + 0.2 * (dense + filled))
    return np.array(result)


DROPS = known([[[0, 0, 0]], [[0, 0, 0]]], turn_drop=[0.5, 0.1, 0.25, -0.5, -0.1, -0.25])
DROP_Z = (np.array([0.5, 0.1, 0.25]) - 0.85 / 3) / np.std([0.5, 0.1, 0.25], ddof=1)
LOTAPO = [worked("a_sign_that_turns_is_dropped", DROPS, [DROP_Z[0], 0, 0, -DROP_Z[0], 0, 0], atol=1e-4)]


def lotapo(rows: Rows, *, gate=lambda z, g: z * g > 0) -> np.ndarray:
    drop = column(rows, "turn_drop")
    z = within(rows, drop, list(zip(rows.group, rows.trajectory, strict=True)))
    return np.where(gate(z, drop), z, 0.0)


# -- two levels of values: discounts and decays of 1/2 -----------------------------------------------------------------

VALUED = known([[[0, 1]]], value=[0.4, 0.6], value_T=[[0.5, 0.25], [0.5]])
VETTA = [worked("the_mean_over_tokens_is_the_turns", VALUED, [0.531, 0.4])]  # the card
# deltas of turns 1/4 * ... : V 1/4 and 1; the next turn has three tokens, so that its clock is 1/8
LONG = known([[[0, 1]]], value_T=[[4.0, 0.25], [0.0, 2.0, 1.0]])
TURN = np.array([1 / 8 * 1 - 1 / 4 + 1 / 16 * 0, 0.0])
TOKEN = [(0.25 / 2 - 4, 0 - 0.25), (2 / 2 - 0, 1 / 2 - 2, 1 - 1)]
HYGAE = [worked("a_turn_is_as_long_as_its_tokens", LONG, (TURN + [np.mean(own) for own in TOKEN]) / 2)]


def tokens_of(rows: Rows) -> list[list[float]]:
    return [row["value_T"] for row in rows.more]  # pyright: ignore[reportAttributeAccessIssue]


def hygae(rows: Rows, *, clock=lambda own, following: following, read: int = -1, share: float = 0.5) -> np.ndarray:
    """One trajectory of two turns."""
    one, two = tokens_of(rows)
    late = rows.reward[1] - two[read]
    step = 0.5 ** clock(len(one), len(two))
    early = rows.reward[0] + step * two[read] - one[read] + step * 0.5 * late
    token = [np.mean([b / 2 - a for a, b in zip(own, [*own[1:], end], strict=True)] + np.eye(len(own))[-1] * paid)
             for own, end, paid in ((one, two[0], rows.reward[0]), (two, 0.0, rows.reward[1]))]  # fmt: skip
    return share * np.array([early, late]) + (1 - share) * np.array(token)


# -- entropies of tokens -----------------------------------------------------------------------------------------------

UNSURE = known([[[1], [0]]], entropy_T=[[1.0, 2.0], [3.0, 2.0]])
SPREAD = 0.5 * 0.2 / math.sqrt(2 / 3)
AEPO = [worked("uncertain_tokens_count_more", UNSURE, [0.5 - SPREAD / 2, -0.5 - SPREAD / 2])]


def aepo(rows: Rows, *, sign: float = 1.0, over: bool = True) -> np.ndarray:
    entropy = [np.array(row["entropy_T"]) for row in rows.more]  # pyright: ignore[reportAttributeAccessIssue]
    every = np.concatenate(entropy)
    z = [((own - every.mean()) / every.std(ddof=1) if over else (own - own.mean()) / own.std(ddof=1)).mean()
         for own in entropy]  # fmt: skip
    return centre(rows, outcomes(rows)) * (1 + sign * 0.2 * np.array(z))


# -- forks: three responses of one root, the first of which forks again ------------------------------------------------

FORKED = known([[[0, 1], [0, 0], [0], [1]]], prefix=["a", "a1", "a", "a2", "b", "c"])
BPO = [
    # RLOO 2/3, -2/3, -2/3, 2/3; V(a) = 1/2, V(b) = 0, V(c) = 1; a1 and a2 are 1 and -1 apart
    worked(
        "siblings_are_those_of_the_same_fork",
        FORKED,
        [2 / 3, 2 / 3 + 1, -2 / 3, -2 / 3 - 1, -2 / 3 - 3 / 4, 2 / 3 + 3 / 4],
    )
]


def bpo(rows: Rows, *, others: bool = True, forked: bool = True, whole: bool = True) -> np.ndarray:
    """The rows of `FORKED`."""
    total, names = outcomes(rows), rows.names()
    returns = {name: total[names.index(name)] for name in names}
    rest = np.array([np.mean([r for n, r in returns.items() if n != name]) for name in names])
    value = grouped(rows, total, np.mean, keys=labels(rows, "prefix"), counted=everyone(rows))
    result = (total - rest) * whole
    prefixes = labels(rows, "prefix")
    for row, prefix in enumerate(prefixes):
        same = {p: value[k] for k, p in enumerate(prefixes) if not forked or (p[:-1] == prefix[:-1])}
        against = [v for p, v in same.items() if p != prefix or not others]
        result[row] += value[row] - np.mean(against)
    return result


# -- a teacher: turns of one and three tokens; with turns alike, each token counts 2 and 2/3 ---------------------------

TAUGHT = known([[[5, 7]]], teacher_gap_T=[[1.0], [0.0, 3.0, -6.0]])
OPD = [worked("turns_count_alike_whatever_their_length", TAUGHT, [2.0, -2 / 3])]


def opd(rows: Rows, *, even: bool = True, forward: bool = False, paid: bool = False) -> np.ndarray:
    """The rows of one trajectory."""
    gaps = [np.array(row["teacher_gap_T"]) for row in rows.more]  # pyright: ignore[reportAttributeAccessIssue]
    count = sum(map(len, gaps)) / len(gaps)
    told = [(np.exp(gap) * gap if forward else gap).mean() * (count / len(gap) if even else 1.0) for gap in gaps]
    return np.array(told) + paid * rows.reward


SUITES: dict[str, list[Check]] = {
    "pgpo": PGPO, "g2po": G2PO, "tigpo": TIGPO, "ecpo": ECPO, "procredit": PROCREDIT, "mt grpo": MT_GRPO, "gtpo": GTPO,
    "trace": TRACE, "lotapo": LOTAPO, "vetta": VETTA, "hygae": HYGAE, "aepo": AEPO, "bpo": BPO, "opd": OPD,
}  # fmt: skip

REAL: dict[str, Credit] = {
    "pgpo": lambda rows: rows.credit(tw.pgpo(discount=1.0)),
    "g2po": lambda rows: rows.credit(tw.g2po(discount=1.0)),
    "tigpo": lambda rows: rows.credit(tw.tigpo(omega=0.2)),
    "ecpo": lambda rows: rows.credit(tw.ecpo(tau=4.0, weight=1.0, discount=1.0)),
    "procredit": lambda rows: rows.credit(tw.procredit()),
    "mt grpo": lambda rows: rows.credit(tw.mt_grpo()),
    "gtpo": lambda rows: rows.credit(tw.gtpo(compared="turn", discount=0.5)),
    "trace": lambda rows: rows.credit(tw.trace_gold()),
    "lotapo": lambda rows: rows.credit(tw.lotapo(weight=1.0, compared="trajectory")),
    "vetta": lambda rows: rows.credit(tw.vetta()),
    "hygae": lambda rows: rows.credit(tw.hygae(discount=0.5, decay=0.5, token_decay=0.0, standardize=False)),
    "aepo": lambda rows: rows.credit(tw.aepo(tw.dr_grpo())),
    "bpo": lambda rows: rows.credit(tw.bpo()),
    "opd": lambda rows: rows.credit(tw.opd(balance=1.0)),
}


def bug(suite: str, credit: Credit, source: str) -> Variant:
    """A bug that the first check of a suite must reject."""
    return Variant(suite, credit, source, (SUITES[suite][0].__name__,))


VARIANTS: dict[str, Variant] = {
    "no potential": bug("pgpo", lambda rows: pgpo(rows, shaped=False), "GiGPO's step advantage: an ablation"),
    "a potential that is not weighed": bug("pgpo", lambda rows: pgpo(rows, weigh=False), "PGPO card: an ablation"),
    "an episode advantage": bug("pgpo", lambda rows: pgpo(rows, episode=True), "PGPO card: it hurts"),
    "a potential that ends in nothing": bug("pgpo", lambda rows: pgpo(rows, end=False), "potential-based shaping"),
    "edges within their state": bug("g2po", lambda rows: g2po(rows, own=True), "PGPO's standardisation"),
    "no nodes": bug("g2po", lambda rows: g2po(rows, node=False), "one of G2PO's two terms"),
    "edges that end in nothing": bug("g2po", lambda rows: g2po(rows, end=False), "G2PO card: not described"),
    "one graph for all tasks": bug("tigpo", lambda rows: tigpo(rows, own=False), "graphs joined by names of states"),
    "no graph": bug("tigpo", lambda rows: tigpo(rows, near=False), "GRPO"),
    "no shrinking": bug("ecpo", lambda rows: ecpo(rows, count=0.0), "a mean of one counts as a mean of many"),
    "no gate": bug("ecpo", lambda rows: ecpo(rows, gated=False), "ECPO card: an ablation"),
    "a gate that does not count": bug("ecpo", lambda rows: ecpo(rows, evidence=False), "rho without tanh(n / tau)"),
    "the most progress so far": Variant(
        "procredit", lambda rows: procredit(rows, most=True), "ProCredit card: no running maximum",
        ("progress_may_be_lost",),
    ),
    "progress of the first turn is lost": bug(
        "procredit", lambda rows: procredit(rows, begun=False), "differences from the first turn on"
    ),
    "turns divided by their deviation": bug(
        "procredit", lambda rows: procredit(rows, scaled=True), "ProCredit card: centred, not divided"
    ),
    "earlier rewards are past": Variant(
        "procredit",
        lambda rows: procredit(rows, end=False),
        "ProCredit card: the outcome, paid at the end",
        ("only_progress_distinguishes_turns",),
    ),
    "both rewards everywhere": bug("mt grpo", lambda rows: mt_grpo(rows, later=True), "the mask of the first turn"),
    "the outcome alone": bug("mt grpo", lambda rows: mt_grpo(rows, turn=False), "GRPO"),
    "a lone response like others": Variant(
        "mt grpo", lambda rows: mt_grpo(rows, alone=False), "MT-GRPO card: it has a number of its own",
        ("without_a_tool_result_the_sum_counts",),
    ),
    "turn returns without discount": bug("gtpo", lambda rows: gtpo(rows, 1.0), "the reward to go"),
    "turn rewards alone": bug("gtpo", lambda rows: gtpo(rows, 0.0) * 2, "the reward of the turn"),
    "differences of log-probabilities": bug("trace", lambda rows: trace_gold(rows, logs=False), "IGPO's gain"),
    "the answer is filled too": bug("trace", lambda rows: trace_gold(rows, everywhere=True), "T counts tool turns"),
    "no fill": bug("trace", lambda rows: trace_gold(rows, fill=0.0), "TRACE card: eta 2"),
    "no gate of signs": bug("lotapo", lambda rows: lotapo(rows, gate=lambda z, g: g != 0), "plain z-scores"),
    "helpful turns only": bug("lotapo", lambda rows: lotapo(rows, gate=lambda z, g: (z > 0) & (g > 0)), "a half gate"),
    "the sum of both levels": bug(
        "vetta",
        lambda rows: rows.credit(tw.vetta())
        + rows.credit(tw.ppo(discount=1.0, decay=1.0, standardize=False)),
        "VETTA card: the plain sum, an ablation",
    ),
    "turns count once": bug("hygae", lambda rows: hygae(rows, clock=lambda own, after: 1), "bi-level GAE's clock"),
    "the length of the own turn": bug("hygae", lambda rows: hygae(rows, clock=lambda own, after: own), "off by a turn"),
    "the value before the turn": bug("hygae", lambda rows: hygae(rows, read=0), "HyGAE's port tests this"),
    "sure tokens count more": bug("aepo", lambda rows: aepo(rows, sign=-1.0), "AEM's direction"),
    "entropy within the response": bug("aepo", lambda rows: aepo(rows, over=False), "a mean that is 0"),
    "long turns count more": bug("opd", lambda rows: opd(rows, even=False), "TurnOPD card: the plain token mean"),
    "the forward divergence": bug("opd", lambda rows: opd(rows, forward=True), "KL of the teacher from the policy"),
    "rewards beside the teacher": bug("opd", lambda rows: opd(rows, paid=True), "a mixed objective"),
    "the mean with itself": bug("bpo", lambda rows: bpo(rows, others=False), "BPO card: leave-one-out"),
    "all forks are one": bug("bpo", lambda rows: bpo(rows, forked=False), "siblings of other histories"),
    "forks alone": bug("bpo", lambda rows: bpo(rows, whole=False), "BPO card: they say nothing upstream"),
}  # fmt: skip
