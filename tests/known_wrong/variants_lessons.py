"""Bugs around rows that are beside a policy's own: replays in R3, and demonstrations in HPT."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from tests.known_wrong.checks import Check
from tests.known_wrong.known import column, known, worked
from tests.known_wrong.variants import Variant, sample_std
from tests.properties.strategies import Rows

import turnwise as tw
from turnwise.credit.trace import Trace
from turnwise.extensions.demonstrations.taught import Lesson
from turnwise.extensions.demonstrations.term import ImitationTerm, prepare_lesson
from turnwise.objective.objective import Objective
from turnwise.objective.terms import Pass, Stateless, StepView, TermLoss, as_tensor
from turnwise.objective.tokens import Sequences
from turnwise.rollout.trajectory import Trajectory, Turn

# -- R3 with R_max 1/2, alpha 1, lambda 1e-6, and no bonus for length --------------------------------------------------


def around_a_replay(won: list[int]) -> Rows:
    """Two own trajectories, the first of which dominates the second, and a replayed one that would dominate both."""
    return known(
        [[[0], [0], [0]]],
        success=won,
        replayed=[0, 0, 1],
        length=[32768] * 3,
        peak_entropy=[3, 2, 4],
        entropy=[1, 2, 0.5],
    )


def compared(reward: list[float]) -> np.ndarray:
    values = np.array(reward)
    return (values - values.mean()) / (sample_std(values) + 1e-6)


REPLAYS: list[Check] = [
    worked("a_replayed_success_leaves_own_failures_ranked", around_a_replay([0, 0, 1]), compared([0.5, 0, 1])),
    worked("a_replayed_failure_is_not_ranked", around_a_replay([0, 0, 0]), compared([0.5, 0, 0])),
]


def r3(rows: Rows, *, hides: bool = False, ranks: bool = False) -> np.ndarray:
    """One prompt, one turn per trajectory."""
    success, replayed = column(rows, "success") > 0, column(rows, "replayed") > 0
    peak, overall = column(rows, "peak_entropy"), column(rows, "entropy")
    failed = ~success & (ranks | ~replayed)
    if (success & (hides | ~replayed)).any():
        failed[:] = False
    who, reward = np.flatnonzero(failed), success.astype(float)
    dominated = np.array([sum(peak[i] > peak[j] and overall[i] < overall[j] for j in who) for i in who])
    for i, own in zip(who, dominated, strict=True):
        reward[i] += 0.5 * (1 - ((dominated > own).sum() + ((dominated == own).sum() - 1) / 2) / (len(who) - 1))
    return compared(reward.tolist())


# -- a step of HPT: an own trajectory of 2 tokens, one of a taught group of 1, and a demonstration of 3 ----------------

LOGPROB = torch.tensor([-1.0, -2.0, -4.0, -0.5, -1.5, -2.5], dtype=torch.float64)
Loss = Callable[..., torch.Tensor]
"""`loss(advantage of the own rows, kept beside, weight, log-probabilities)`: policy term plus imitation term."""


def slopes(loss: Loss, *, beside: bool, weight: float = 1.0) -> list[float]:
    logprob = LOGPROB.clone().requires_grad_()
    loss([6.0, -3.0], beside, weight, logprob).backward()
    assert logprob.grad is not None
    return logprob.grad.tolist()


def left_out_rows_have_no_part(loss: Loss) -> None:
    """Own: advantage 6 over 2 tokens. Imitation: -1/3 per token."""
    np.testing.assert_allclose(slopes(loss, beside=False), [-3, -3, 0, *[-1 / 3] * 3], rtol=1e-6)


def rows_kept_beside_share_the_own_denominator(loss: Loss) -> None:
    """Own: advantages 6, 6 and -3 over 3 tokens, whatever is demonstrated."""
    np.testing.assert_allclose(slopes(loss, beside=True), [-2, -2, 1, *[-1 / 3] * 3], rtol=1e-6)


def the_weight_is_of_demonstrations_alone(loss: Loss) -> None:
    np.testing.assert_allclose(slopes(loss, beside=True, weight=3.0), [-2, -2, 1, -1, -1, -1], rtol=1e-6)


class Plain(Stateless):
    """The policy term at ratio 1."""

    name, unit, needs = "plain", "sequence", ()

    def prepare(self, step: StepView) -> TermLoss:
        weight_T = as_tensor(step.weights("token-mean") * step.advantage_T).double()
        matters_N = np.ones(step.batch.num_trajectories, dtype=bool)
        return TermLoss(lambda given: (-(given.here(weight_T) * given.logprob).sum(), {}), matters_N)


class Joined(Plain):
    """Has the tokens of all rows in its denominator, and gives those of the demonstration an advantage."""

    of_policy = False

    def __init__(self, demonstrated: float):
        self.demonstrated = demonstrated

    def prepare(self, step: StepView) -> TermLoss:
        weight_T = as_tensor(np.append(step.advantage_T, [self.demonstrated] * 3) / 6).double()
        return TermLoss(lambda given: (-(given.here(weight_T) * given.logprob).sum(), {}), np.ones(2, dtype=bool))


def lesson(
    advantage: list[float], beside: bool, weight: float, logprob: torch.Tensor, *, policy: Any = None
) -> torch.Tensor:
    """Add the policy term at ratio 1 to the imitation term, on the rows of a step and its lesson."""
    step, _ = tw.Batch.from_arrays(
        group=["p", "q"], trajectory=["own", "taught"], reward=[0.0, 0.0], columns={"lp_T": [[0.0, 0.0], [0.0]]}
    )
    shown = Trajectory(0, "q", [Turn("", "", [1], [2, 3, 4], [0.0] * 3, "", False)])
    own = [Trajectory(0, "p", [Turn("", "", [1], ids, [0.0] * len(ids), "", False)]) for ids in ([2, 3], [4])]
    objective = Objective([policy or Plain(), ImitationTerm(weight)])
    view, sequences = StepView(step, Trace(np.array(advantage))), Sequences.from_trajectories(own)
    prepared, _ = prepare_lesson(objective, view, sequences, Lesson(np.array([False, not beside]), [shown]))
    loss, _ = prepared.loss(Pass(logprob, logprob * 0, torch.arange(len(logprob))))
    return loss


def with_options(**options: Any) -> Loss:
    return lambda *given: lesson(*given, **options)


SUITES: dict[str, list] = {
    "r3 beside replays": REPLAYS,
    "hpt beside demonstrations": [
        left_out_rows_have_no_part,
        rows_kept_beside_share_the_own_denominator,
        the_weight_is_of_demonstrations_alone,
    ],
}

REAL: dict[str, Any] = {
    "r3 beside replays": lambda rows: rows.credit(tw.r3(max_reward=0.5, std_weight=1.0, eps=1e-6, beside="replayed")),
    "hpt beside demonstrations": lesson,
}

KEPT_RANKED, NOT_RANKED = (check.__name__ for check in REPLAYS)
LEFT, SHARED, WEIGHT = (check.__name__ for check in SUITES["hpt beside demonstrations"])

VARIANTS: dict[str, Variant] = {
    "a replayed success hides that the policy failed": Variant(
        "r3 beside replays", lambda rows: r3(rows, hides=True),
        "a success of the group read as one of the policy's own",
        (KEPT_RANKED,)),
    "a replayed failure is ranked with the policy's": Variant(
        "r3 beside replays", lambda rows: r3(rows, ranks=True),
        "entropies of an older policy compared with those of this one", (NOT_RANKED,)),
    "demonstrations in the policy term's denominator": Variant(
        "hpt beside demonstrations", with_options(policy=Joined(0.0)), "one mean over all rows of a joined batch",
        (LEFT, SHARED, WEIGHT)),
    "demonstrations with an advantage": Variant(
        "hpt beside demonstrations", with_options(policy=Joined(1.0)),
        "a demonstration as one more row of its group", (LEFT, SHARED, WEIGHT)),
    "a taught group is always kept": Variant(
        "hpt beside demonstrations", lambda a, beside, *more: lesson(a, True, *more),
        "`beside` switched on for all", (LEFT,)),
    "a taught group is always left out": Variant(
        "hpt beside demonstrations", lambda a, beside, *more: lesson(a, False, *more),
        "`beside` without effect", (SHARED,)),
    "the weight of demonstrations is ignored": Variant(
        "hpt beside demonstrations", lambda a, beside, weight, logprob: lesson(a, beside, 1.0, logprob),
        "a coefficient that reaches no loss", (WEIGHT,)),
}  # fmt: skip
