"""Compute the policy objective from independent choices, rather than one function per paper.

    importance   level of the ratio: token, response or trajectory (`policy_loss`, argument `span`)
    clip         "ppo", "keep", "cispo" or "none", with one width for all tokens or one per token
    log_ratio    "free", or bounded as verl bounds it
    tokens       how much a token counts, from `turnwise.objective.token_rules`
    aggregate    how the loss is averaged (`token_weights`)
    entropy      a bonus, or a corridor (`entropy_loss`)

`turnwise.objective.settings` lists published objectives in these words.

Denominators are global: a token's weight is fixed for the whole step before the step is split into micro-batches. So
micro-batch size, accumulation and packing cannot change the gradient. Other weights, such as the truncated importance
weight (`correct_mismatch`), multiply this weight.
"""

import dataclasses
from typing import get_args

import numpy as np
import torch

from turnwise.base.errors import ConfigError, did_you_mean
from turnwise.base.shapes import Bool, Float, Int
from turnwise.credit.segments import Segments
from turnwise.objective.token_rules.base import Aggregate, Clip, LogRatio

VERL_BOUND = 20.0
"""verl's bound of a token's log-ratio (nats)."""
ROUNDING = 1e-5
"""Log-ratios up to this size are rounding: two ways to compute the same probability in float32 (nats)."""


def token_weights(
    responses: Segments,
    trajectories: Segments,
    *,
    aggregate: Aggregate = "token-mean",
    constant: float = 1.0,
    kept: Bool[np.ndarray, " T"] | None = None,
) -> Float[np.ndarray, " T"]:
    """Compute the weight of every generated token in the loss of a step.

    Args:
        responses: Segments of tokens, one per response.
        trajectories: Segments of responses, one per trajectory.
        aggregate: "token-mean": every token has the weight 1 / T. "response-mean": mean over responses of the mean over
            their tokens. "trajectory-mean": mean over trajectories of the mean over their tokens. "nested-mean": mean
            over trajectories of the mean over their responses of the mean over their tokens. "constant":
            1 / (trajectories * constant), as in Dr. GRPO.
        constant: Number of tokens for "constant", such as the generation limit.
        kept: `[tokens]` whether a token counts; default all. Other tokens have weight 0, and the means run over kept
            tokens and over responses and trajectories with a kept token. "constant" keeps its denominator.

    Returns:
        `[tokens]` weights. They sum to 1, except for "constant" or if no token is kept.
    """
    if aggregate not in get_args(Aggregate):
        raise ConfigError(f"aggregate={aggregate!r} is unknown.{did_you_mean(str(aggregate), get_args(Aggregate))}")
    kept_T = np.ones(responses.num_elements) if kept is None else kept.astype(np.float64)
    kept_R = responses.max(kept_T)
    kept_N = trajectories.max(kept_R)
    tokens = trajectories.of(responses)
    match aggregate:  # inverse weight of each token
        case "token-mean":
            shares_T = kept_T.sum()
        case "response-mean":
            shares_T = kept_R.sum() * responses.broadcast(responses.sum(kept_T))
        case "trajectory-mean":
            shares_T = kept_N.sum() * tokens.broadcast(tokens.sum(kept_T))
        case "nested-mean":
            shares_T = tokens.broadcast(trajectories.sum(kept_R)) * responses.broadcast(responses.sum(kept_T))
            shares_T = kept_N.sum() * shares_T
        case "constant":
            shares_T = len(trajectories) * constant
    return np.divide(kept_T, shares_T, out=np.zeros_like(kept_T), where=kept_T > 0)


@dataclasses.dataclass(frozen=True)
class PolicyLoss:
    """Sums over some tokens, which add up over micro-batches.

    Attributes:
        loss: Scalar to minimise, with gradient.
        clipped: Weighted fraction of tokens at which the clip binds.
        kl: Weighted mean of log pi_old - log pi.
        missing: Scalar whose gradient is the one that the clip leaves out, for ST-PPO's correction.
    """

    loss: torch.Tensor
    clipped: float
    kl: float
    missing: torch.Tensor


def policy_loss(
    logprob: Float[torch.Tensor, " T"],
    old_logprob: Float[torch.Tensor, " T"],
    advantage: Float[torch.Tensor, " T"],
    weight: Float[torch.Tensor, " T"],
    *,
    share: Float[torch.Tensor, " T"] | None = None,
    clip: Clip = "ppo",
    clip_low: float | Float[torch.Tensor, " T"] = 0.2,
    clip_high: float | Float[torch.Tensor, " T"] = 0.2,
    dual_clip: float | None = None,
    bounds: LogRatio = "free",
    span: Int[torch.Tensor, " T"] | None = None,
    tilt: Float[torch.Tensor, " T"] | None = None,
    penalty: Float[torch.Tensor, " T"] | None = None,
) -> PolicyLoss:
    """Compute the policy-gradient loss on tokens.

        rho  = exp(logprob - old_logprob), or the ratio of its span (`span_log_ratio`)
        ppo:   loss = -sum_T weight * min(rho * A, clip(rho, 1 - clip_low, 1 + clip_high) * A)
        keep:  as ppo, with (1 + clip_high) * rho / sg(rho) as the upper bound
        cispo: loss = -sum_T weight * sg(clip(rho, 1 - clip_low, 1 + clip_high)) * A * logprob
        none:  loss = -sum_T weight * rho * A

    Under "ppo" a clipped token has no gradient; under "keep" it has one if it lies above, by the bound. Under
    "cispo" every token has one, and only its factor is bounded.

    Args:
        logprob: `[tokens]` log-probability under the current weights, with gradient (nats).
        old_logprob: `[tokens]` log-probability under the weights at the start of the step (nats).
        advantage: `[tokens]` advantage of the token's response.
        weight: `[tokens]` global weights from `token_weights`.
        share: `[tokens]` weights of the metrics; default: those of the loss.
        clip: Treatment of ratios far from 1, see above.
        clip_low: Clip width below 1, scalar or `[tokens]`; from 1 on there is no lower bound.
        clip_high: Clip width above 1, of the same shape; larger than `clip_low` is DAPO's clip-higher.
        dual_clip: Upper bound of rho where A < 0, above 1; default none. Under "ppo" and "none" a token with A < 0 and
            a larger rho has no gradient.
        bounds: "verl": a token's log-ratio is clamped to [-20, 20] before it becomes a ratio. A token beyond has no
            gradient, except under "cispo". Ratios of spans are bounded either way.
        span: `[tokens]` number of the span whose ratio a token has; a span must not be split over calls. Default: each
            token has its own ratio.
        tilt: `[tokens]` HAPO's redistribution: A * (1 + tilt) where tilt > 0 and rho is outside
            (1 - clip_low / 2, 1 + clip_high / 2), and where tilt <= 0 and rho is inside; A elsewhere. It uses the value
            of the ratio and adds no gradient.
        penalty: `[tokens]` KL-Cov's coefficients: adds `sum_T weight * penalty * |logprob - old_logprob|`.

    Reference: Schulman et al., arXiv 1707.06347; clip-higher: DAPO, arXiv 2503.14476; dual clip: Ye et al., arXiv
    1912.09729; keep: AEPO, 2510.14545; CISPO: MiniMax-M1, 2506.13585; HAPO, 2509.16591; KL-Cov, 2505.22617.
    """
    if clip not in get_args(Clip):
        raise ConfigError(f"clip={clip!r} is unknown.{did_you_mean(str(clip), get_args(Clip))}")
    log_ratio = logprob - old_logprob
    of_ratio = bounded_log_ratio(log_ratio, bounds) if span is None else span_log_ratio(log_ratio, span)
    ratio = finite_exp(of_ratio)
    if tilt is not None:
        inside = (ratio > 1 - clip_low / 2) & (ratio < 1 + clip_high / 2)
        advantage = torch.where((tilt > 0) ^ inside, advantage * (1 + tilt), advantage)
    free = objective = ratio * advantage
    if clip != "none":
        bounded = ratio.clamp(1 - clip_low, 1 + clip_high)  # pyright: ignore
        if clip == "keep":
            one = 1 + (of_ratio - of_ratio.detach())  # ratio / sg(ratio), which is 0 / 0 where the ratio underflows
            bounded = torch.where(ratio > 1 + clip_high, (1 + clip_high) * one, bounded)
        clipped = bounded * advantage
        objective = clipped if clip == "cispo" else torch.minimum(free, clipped)
    if dual_clip is not None:
        objective = torch.where(advantage < 0, torch.maximum(objective, dual_clip * advantage), objective)
    binds = (objective != free).detach()
    if clip == "cispo":
        objective = objective.detach() * logprob
    if penalty is not None:
        objective = objective - penalty * _beyond_rounding(log_ratio).abs()
    loss, missing = -(weight * objective).sum(), -(weight * binds * free).sum()
    with torch.no_grad():
        clipped, kl = (float(((weight if share is None else share) * each).sum()) for each in (binds, -log_ratio))
        return PolicyLoss(loss, clipped, kl, missing)


def bounded_log_ratio(log_ratio: Float[torch.Tensor, " T"], bounds: LogRatio) -> Float[torch.Tensor, " T"]:
    """Clamp log-ratios as verl does, or return them as they are."""
    return log_ratio if bounds == "free" else log_ratio.clamp(-VERL_BOUND, VERL_BOUND)


def finite_exp(log_ratio: Float[torch.Tensor, " T"], *, limit: float = 40.0) -> Float[torch.Tensor, " T"]:
    """Compute exp of log-ratios, with its tangent from `limit` on.

    Beyond 88.7, exp overflows float32. A bound that holds there would then have the gradient 0 * inf, which is NaN.
    Up to this limit the square of the gradient, which its norm needs, stays in float32 too.
    """
    return log_ratio.clamp(max=limit).exp() * (1 + (log_ratio - limit).clamp(min=0))


def _beyond_rounding(log_ratio: Float[torch.Tensor, " T"]) -> Float[torch.Tensor, " T"]:
    """Set log-ratios that are rounding to 0, without gradient: the sign of noise must not decide a gradient."""
    return torch.where(log_ratio.abs() > ROUNDING, log_ratio, torch.zeros_like(log_ratio))


def span_log_ratio(
    log_ratio: Float[torch.Tensor, " T"], span: Int[torch.Tensor, " T"], *, limit: float = 10.0
) -> Float[torch.Tensor, " T"]:
    """Compute the log-ratio of each token's span: the mean over the span as value, the token's own as gradient.

        sg(mean_span(log_ratio)) + log_ratio - sg(log_ratio), at most `limit`

    With one advantage per span, the gradient is that of the formula without `sg`. This form also allows advantages that
    differ within a span.
    Reference: GSPO, Zheng et al., arXiv 2507.18071 (a trajectory); ST-PPO, arXiv 2511.20718 (a turn). The limit is
    verl's.
    """
    value = log_ratio.detach()
    total = value.new_zeros(int(span.max()) + 1).index_add(0, span, value)
    mean = total / torch.bincount(span)
    return ((log_ratio - value) + mean[span]).clamp(max=limit)
