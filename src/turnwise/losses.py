"""The policy objective: orthogonal choices rather than one function a paper.

    importance   what a ratio stands for: a token, or the mean over its response or trajectory (`policy_loss`, argument `span`)
    clip         "ppo", "cispo" or "none", with widths for all tokens or one a token
    tokens       how much a token counts, from `turnwise.token_rules`
    aggregate    what the loss is the mean of (`token_weights`)
    entropy      a bonus, or a corridor (`entropy_loss`)

    PPO, GRPO    importance token,        clip ppo .2/.2,      aggregate token-mean or response-mean
    DAPO         importance token,        clip ppo .2/.28,     aggregate token-mean
    NGRPO        importance token,        clip ppo .16/.24
    GSPO         importance trajectory,   clip ppo 3e-4/4e-4 (agents: 3e-3/4e-3),    aggregate trajectory-mean
    ST-PPO       importance response,     clip ppo .2/.2 (its clipping-bias correction is not known well enough to be here)
    CISPO        importance token,        clip cispo, clip_low 1 (no lower bound)
    Clip-Cov     tokens clip_cov,         clip ppo .2/.2
    KL-Cov       tokens kl_cov,           clip none
    STEER        tokens steer,            clip ppo .2/.28, dual_clip 10
    HAPO         tokens hapo,             clip ppo .2/.28, dual_clip 10

Denominators are global: a token's weight is fixed for the whole step before it is cut into micro-batches, so that micro-batch size,
accumulation and packing cannot change the gradient. A weight of another kind, such as the truncated importance weight against the
engine's rounding (`mismatch_weights`), is a factor on the same weight.
"""

import dataclasses
from typing import Literal, get_args

import numpy as np
import torch
from jaxtyping import Bool, Float, Int

from turnwise.errors import ConfigError, did_you_mean
from turnwise.segments import Segments

Aggregate = Literal["token-mean", "response-mean", "trajectory-mean", "nested-mean", "constant"]
Clip = Literal["ppo", "cispo", "none"]


def token_weights(
    responses: Segments,
    trajectories: Segments,
    *,
    aggregate: Aggregate = "token-mean",
    constant: float = 1.0,
    kept: Bool[np.ndarray, " T"] | None = None,
) -> Float[np.ndarray, " T"]:
    """Weight of every generated token in the loss of a whole step.

    Args:
        responses: Segments of tokens, one a response.
        trajectories: Segments of responses, one a trajectory.
        aggregate: "token-mean": every token counts alike, 1 / T. "response-mean": the mean over responses of the mean over their
            tokens. "trajectory-mean": the mean over trajectories of the mean over their tokens. "nested-mean": the mean over
            trajectories of the mean over their responses of the mean over their tokens. "constant":
            1 / (trajectories * constant), as Dr. GRPO asks for.
        constant: Tokens for "constant", such as the generation limit.
        kept: `[tokens]` those that count; default all. The others weigh 0 and enter no mean: it runs over kept tokens, and over
            responses and trajectories that hold one. "constant" stays what it is.

    Returns:
        `[tokens]` weights; they sum to 1 except for "constant", and unless nothing is kept.
    """
    if aggregate not in get_args(Aggregate):
        raise ConfigError(f"aggregate={aggregate!r} is unknown.{did_you_mean(str(aggregate), get_args(Aggregate))}")
    kept_T = np.ones(responses.num_elements) if kept is None else kept.astype(np.float64)
    kept_R = responses.max(kept_T)
    kept_N = trajectories.max(kept_R)
    tokens = trajectories.of(responses)
    match aggregate:  # among how many tokens the whole is shared, as seen by each of them
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


def mismatch_weights(
    old_logprob: Float[np.ndarray, " T"],
    behavior_logprob: Float[np.ndarray, " T"],
    *,
    cap: float,
    spans: Segments | None = None,
) -> tuple[Float[np.ndarray, " T"], Bool[np.ndarray, " T"]]:
    """Truncated importance weights, for tokens that an engine sampled with slightly other probabilities than the trainer's.

        weight = min(exp(old_logprob - behavior_logprob), cap)

    Without a cap the weighted gradient is in expectation the one of tokens sampled by the trainer, each token given what came before it,
    or whole spans. The cap bounds its variance; what the engine draws far too seldom then counts too little.

    Args:
        old_logprob: Under the trainer's weights at the start of the step (nats).
        behavior_logprob: As the engine reported it (nats).
        cap: Largest weight; above 0.
        spans: Tokens whose probabilities multiply, such as those of a trajectory; all get the weight of the span. Default: each its own.

    Returns:
        The weights, and where the cap binds.

    Reference: Yao et al., "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training" (2025).
    """
    log_ratio = np.asarray(old_logprob, dtype=np.float64) - behavior_logprob
    if spans is not None:
        log_ratio = spans.broadcast(spans.sum(log_ratio))
    limit = np.log(cap)
    return np.exp(np.minimum(log_ratio, limit)), log_ratio > limit


@dataclasses.dataclass(frozen=True)
class PolicyLoss:
    """Sums over some tokens, ready to be added up over micro-batches.

    Attributes:
        loss: Scalar to minimise, with gradient.
        clipped: Weighted share of tokens at which the clip binds.
        kl: Weighted mean of log pi_old - log pi.
    """

    loss: torch.Tensor
    clipped: float
    kl: float


def policy_loss(
    logprob: Float[torch.Tensor, " T"],
    old_logprob: Float[torch.Tensor, " T"],
    advantage: Float[torch.Tensor, " T"],
    weight: Float[torch.Tensor, " T"],
    *,
    clip: Clip = "ppo",
    clip_low: float | Float[torch.Tensor, " T"] = 0.2,
    clip_high: float | Float[torch.Tensor, " T"] = 0.2,
    dual_clip: float | None = None,
    span: Int[torch.Tensor, " T"] | None = None,
    tilt: Float[torch.Tensor, " T"] | None = None,
    penalty: Float[torch.Tensor, " T"] | None = None,
) -> PolicyLoss:
    """The policy-gradient objective on tokens.

        rho  = exp(logprob - old_logprob), or that of its span (`span_log_ratio`)
        ppo:   loss = -sum_T weight * min(rho * A, clip(rho, 1 - clip_low, 1 + clip_high) * A)
        cispo: loss = -sum_T weight * sg(clip(rho, 1 - clip_low, 1 + clip_high)) * A * logprob
        none:  loss = -sum_T weight * rho * A

    Under "ppo" a clipped token has no gradient; under "cispo" every token has one, and only its factor is bounded.

    Args:
        logprob: Under the current weights, with gradient (nats).
        old_logprob: Under the weights at the start of the step.
        advantage: Of the token's response.
        weight: From `token_weights`, global.
        clip: What is done about ratios far from 1.
        clip_low: Room below 1, for all tokens or one a token; from 1 on there is no lower bound.
        clip_high: Room above 1; larger than `clip_low` is DAPO's clip-higher. One a token if `clip_low` is.
        dual_clip: Where A < 0, rho counts as at most this: under "ppo" and "none" a bad token that became likely by more than this
            factor has no gradient. Above 1; default no bound.
        span: Which tokens share a ratio, as a number a span; spans lie in one call as a whole. Default each token has its own.
        tilt: HAPO's redistribution: A * (1 + tilt) where tilt > 0 and rho is outside (1 - clip_low / 2, 1 + clip_high / 2),
            and where tilt <= 0 and rho is inside; A elsewhere. It acts on the value of the ratio and adds no gradient.
        penalty: KL-Cov's: adds `sum_T weight * penalty * |logprob - old_logprob|`.

    Reference: Schulman et al., arXiv 1707.06347; clip-higher: DAPO, arXiv 2503.14476; dual clip: Ye et al., arXiv 1912.09729;
    CISPO: MiniMax-M1, arXiv 2506.13585; HAPO, arXiv 2509.16591; KL-Cov, arXiv 2505.22617.
    """
    if clip not in get_args(Clip):
        raise ConfigError(f"clip={clip!r} is unknown.{did_you_mean(str(clip), get_args(Clip))}")
    log_ratio = logprob - old_logprob
    ratio = (log_ratio if span is None else span_log_ratio(log_ratio, span)).exp()
    if tilt is not None:
        inside = (ratio > 1 - clip_low / 2) & (ratio < 1 + clip_high / 2)
        advantage = torch.where((tilt > 0) ^ inside, advantage * (1 + tilt), advantage)
    free = objective = ratio * advantage
    if clip != "none":
        clipped = ratio.clamp(1 - clip_low, 1 + clip_high) * advantage  # pyright: ignore[reportArgumentType, reportCallIssue]
        objective = torch.minimum(free, clipped) if clip == "ppo" else clipped
    if dual_clip is not None:
        objective = torch.where(advantage < 0, torch.maximum(objective, dual_clip * advantage), objective)
    binds = (objective != free).detach()
    if clip == "cispo":
        objective = objective.detach() * logprob
    if penalty is not None:
        objective = objective - penalty * log_ratio.abs()
    loss = -(weight * objective).sum()
    with torch.no_grad():
        return PolicyLoss(loss, float((weight * binds).sum()), float(-(weight * log_ratio).sum()))


def span_log_ratio(
    log_ratio: Float[torch.Tensor, " T"], span: Int[torch.Tensor, " T"], *, limit: float = 10.0
) -> Float[torch.Tensor, " T"]:
    """Log-ratio of the span of each token: the mean over its tokens as value, the token's own as gradient.

        sg(mean_span(log_ratio)) + log_ratio - sg(log_ratio), at most `limit`

    With one advantage a span the loss has the gradient of the formula without `sg`; the form also stands for advantages that
    differ between the tokens of a span.
    Reference: GSPO, Zheng et al., arXiv 2507.18071 (a trajectory); ST-PPO, arXiv 2511.20718 (a turn). The limit is verl's.
    """
    value = log_ratio.detach()
    total = value.new_zeros(int(span.max()) + 1).index_add(0, span, value)
    mean = total / torch.bincount(span)
    return ((log_ratio - value) + mean[span]).clamp(max=limit)


def kl_loss(
    logprob: Float[torch.Tensor, " T"], ref_logprob: Float[torch.Tensor, " T"], weight: Float[torch.Tensor, " T"]
) -> torch.Tensor:
    """Low-variance estimate of KL(policy || reference): `sum_T weight * (exp(d) - d - 1)` with `d = ref_logprob - logprob`.

    It is non-negative and has the right expectation under the policy's samples.
    Reference: Schulman, "Approximating KL divergence" (2020), estimator k3; GRPO, arXiv 2402.03300.
    """
    difference = ref_logprob - logprob
    return (weight * (difference.exp() - difference - 1)).sum()


def entropy_loss(
    entropy: Float[torch.Tensor, " T"],
    weight: Float[torch.Tensor, " T"],
    *,
    bonus: float,
    penalty: float = 0.0,
    low: float = 0.0,
    high: float = float("inf"),
) -> torch.Tensor:
    """Entropy bonus, less for entropies outside a corridor: `sum_T weight * (penalty * (max(low - H, 0) + max(H - high, 0)) - bonus * H)`.

    Args:
        entropy: Of the policy at each token, with gradient (nats).
        weight: From `token_weights`, global.
        bonus: Weight of the entropy.
        penalty: Weight of what lies outside the corridor; 0 switches it off.
        low: Lower end of the corridor (nats).
        high: Upper end.

    Reference: the corridor is EPO's, Xu et al., arXiv 2509.22576; see `turnwise.token_rules.epo`.
    """
    objective = bonus * entropy
    if penalty:
        objective = objective - penalty * ((low - entropy).clamp(min=0) + (entropy - high).clamp(min=0))
    return -(weight * objective).sum()
