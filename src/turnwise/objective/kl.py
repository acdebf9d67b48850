"""Estimate the KL divergence from the reference policy, as a term of the loss or of the reward."""

from collections.abc import Sequence
from typing import ClassVar, get_args

import numpy as np
import torch

from turnwise.base.errors import ConfigError, did_you_mean
from turnwise.base.shapes import Float
from turnwise.objective.losses import bounded_log_ratio, finite_exp
from turnwise.objective.settings import UpdateConfig
from turnwise.objective.terms import Pass, Stateless, StepView, TermLoss, Unit, as_tensor
from turnwise.objective.token_rules.base import Estimator, LogRatio

VERL_LARGEST = 10.0
"""verl's bound of k3 (nats)."""


def kl_penalty(
    logprob: Float[torch.Tensor, " T"],
    ref_logprob: Float[torch.Tensor, " T"],
    estimator: Estimator = "k3",
    *,
    bounds: LogRatio = "free",
) -> Float[torch.Tensor, " T"]:
    """Estimate KL(policy || reference) at tokens that the policy sampled, with `d = logprob - ref_logprob`.

        k1   d                     unbiased; its gradient has the mean 0, so that as a loss it is noise
        k2   d^2 / 2               biased; the mean of its gradient is the gradient of KL(policy || reference)
        k3   exp(-d) + d - 1       unbiased, never negative; the mean of its gradient is that of KL(reference || policy)
        abs  |d|                   biased; its gradient has the size 1 at every token

    A "+" gives the value the gradient of k2: k1+, k3+, abs+.

    As a reward the estimate has no gradient. Then k1 gives the gradient of KL(policy || reference), at every token the
    one of k2 in the loss.

    Args:
        logprob: `[tokens]` log-probability under the policy (nats).
        ref_logprob: `[tokens]` log-probability under the reference (nats).
        estimator: One of the above, named as in verl's `kl_penalty`.
        bounds: "verl": d is clamped to [-20, 20] in k3, and k3 to at most 10. A token beyond has no gradient.

    Reference: Schulman, "Approximating KL divergence" (2020); k3 in the loss: GRPO, arXiv 2402.03300; gradients: Tang
    and Munos, arXiv 2506.09477; "+": verl, `core_algos.kl_penalty`.
    """
    if estimator not in get_args(Estimator):
        raise ConfigError(f"kl_estimator={estimator!r} is unknown.{did_you_mean(str(estimator), get_args(Estimator))}")
    d = logprob - ref_logprob
    square = 0.5 * d.square()
    match estimator.rstrip("+"):
        case "k1":
            value = d
        case "k2":
            value = square
        case "abs":
            value = d.abs()
        case _:
            behind = bounded_log_ratio(-d, bounds)
            value = finite_exp(behind) - behind - 1
            value = value if bounds == "free" else value.clamp(max=VERL_LARGEST)
    return square - square.detach() + value.detach() if estimator.endswith("+") else value


class KLTerm(Stateless):
    """KL term of the loss: `kl` times the weighted mean of `kl_penalty`."""

    name: ClassVar[str] = "kl"
    unit: Unit = "sequence"
    needs: Sequence[str] = ("ref_logprob_T",)

    def __init__(self, settings: UpdateConfig):
        self._settings = settings

    def prepare(self, step: StepView) -> TermLoss:
        """Fix the weights of the tokens."""
        settings = self._settings
        reference_T = as_tensor(step.column("ref_logprob_T", self.name))
        weight_T, share_T = as_tensor(step.weights(settings.aggregate)), as_tensor(step.shares(settings.aggregate))

        def loss(given: Pass) -> tuple[torch.Tensor, dict[str, float]]:
            reference = given.here(reference_T)
            kl_T = kl_penalty(given.logprob, reference, settings.estimator, bounds=settings.log_ratio)
            mean = (given.here(share_T) * kl_T.detach()).sum().item()
            return settings.kl * (given.here(weight_T) * kl_T).sum(), {"kl_reference": mean}

        return TermLoss(loss, np.ones(step.batch.num_trajectories, dtype=bool))


def reward_of_kl(
    step: StepView, old_logprob_T: Float[np.ndarray, " T"], settings: UpdateConfig
) -> tuple[Float[np.ndarray, " T"], dict[str, float]]:
    """Return what `update.kl_in = "reward"` adds to the advantage of each token, and its metric.

        -kl * kl_penalty(old_logprob, ref_logprob)        without gradient; not passed on to earlier tokens

    Reference: the Tinker cookbook's `incorporate_kl_penalty`, without its centring.
    """
    old, reference = (torch.tensor(column) for column in (old_logprob_T, step.column("ref_logprob_T", "policy")))
    kl_T = kl_penalty(old, reference, settings.estimator, bounds=settings.log_ratio).numpy()
    mean = float((step.shares(settings.aggregate) * kl_T).sum() / step.mini_batches)
    return -settings.kl * kl_T, {"kl_reference": mean}
