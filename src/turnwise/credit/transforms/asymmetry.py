"""Weight advantages asymmetrically: by sign, confidence, or difficulty of the prompt."""

import zlib
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from turnwise.base.errors import ConfigError
from turnwise.base.shapes import Bool, Float
from turnwise.credit.batch import Batch
from turnwise.credit.options import choice
from turnwise.credit.transform import Credit, State, Transform, block
from turnwise.credit.transforms.grouping import Members
from turnwise.credit.transforms.outcomes import is_correct, success_of_trajectories

Sign = Literal["negative", "positive"]
"""Which half of the advantages is kept."""

EmptyRule = Literal["llm", "vl"]
"""How a length contrast treats a group without correct or without incorrect trajectories."""

EasyTerm = Literal["paper", "release"]
"""How the easy prompts' term of A-GRAE is scaled."""

Averages = Literal["turnwise", "release"]
"""How the moving averages of a rank bonus start and lag."""

KeptOver = Literal["trajectories", "responses"]
"""Unit that is kept or left out as a whole."""


@block(scales=True)
def keep_sign(credit_R: Credit, batch: Batch, *, sign: Sign = "negative") -> Credit:
    """Keep the negative advantages, or the positive ones, and set the others to 0: `min(A, 0)` or `max(A, 0)`."""
    return (credit_R < 0.0 if sign == "negative" else credit_R > 0.0).astype(np.float64)


@block(needs=("success", "length", "truncated"), scales=True)
def weigh_by_length_contrast(
    credit_R: Credit, batch: Batch, *, weight: float = 0.1, convention: EmptyRule = "llm"
) -> Credit:
    """Weight a group by whether its longest correct trajectory is longer than its incorrect ones on average.

        A' = A          where max(length of correct) > mean(length of incorrect)
        A' = weight * A elsewhere

    Lengths are generated tokens of the trajectory; correct means `success` above 1/2; incorrect trajectories with a
    truncated response are left out of the mean.

    Args:
        credit_R: `[responses]` advantages.
        batch: Their batch, with the columns `success`, `length` and `truncated`.
        weight: lambda in the paper.
        convention: Factor of one-sided groups. "llm": `weight` without a correct, 1 without an incorrect trajectory.
            "vl": the reverse.
    """
    groups = batch.groups
    length_N = batch.trajectories.sum(batch.column("length", needed_by="weigh_by_length_contrast").astype(np.float64))
    correct_N = is_correct(batch, needed_by="weigh_by_length_contrast")
    cut_N = batch.trajectories.max(batch.column("truncated", needed_by="weigh_by_length_contrast")) > 0
    wrong_N = ~correct_N & ~cut_N
    longest_G = groups.max(np.where(correct_N, length_N, -np.inf))
    num_wrong_G = groups.sum(wrong_N.astype(np.float64))
    mean_G = groups.sum(np.where(wrong_N, length_N, 0.0)) / np.maximum(num_wrong_G, 1)
    no_correct, no_wrong = (weight, 1.0) if convention == "llm" else (1.0, weight)
    factor_G = np.select(
        [longest_G == -np.inf, num_wrong_G == 0, longest_G > mean_G], [no_correct, no_wrong, 1.0], default=weight
    )
    return batch.group_responses.broadcast(factor_G)


@block(needs=("success",), across_groups=lambda options: True, scales=True)
def weigh_by_progress(
    credit_R: Credit, batch: Batch, *, full_at: float = 1.0, convention: EasyTerm = "paper", eps: float = 1e-6
) -> Credit:
    """Weight easy prompts more while the batch fails, hard ones once it succeeds, and damp successes at first.

        A'  = A * (w/2 / sqrt(p) + (1 - w)/2 / sqrt(1 - p))
        A'' = A' * min(1, w / full_at) where A' > 0
        p = mean success of the group, w = mean of p over the batch

    Groups where p is 0 or 1 are unchanged.

    Args:
        credit_R: `[responses]` advantages.
        batch: Their batch, with the column `success`.
        full_at: a in the paper: mean success above which positive advantages count in full.
        convention: "paper", or "release": divides the second term by 1 - sqrt(p) + eps.
        eps: Constant of the release's divisor.
    """
    if full_at <= 0:
        raise ConfigError(f"full_at={full_at} must be above 0; it is the mean success from which successes count fully")
    p_G = batch.groups.mean(success_of_trajectories(batch, needed_by="weigh_by_progress"))
    progress = float(p_G.mean())
    mixed_G = (p_G > 0) & (p_G < 1)
    p_G = np.where(mixed_G, p_G, 0.5)
    easy_G = np.sqrt(1.0 - p_G) if convention == "paper" else 1.0 - np.sqrt(p_G) + eps
    factor_G = progress / 2 / np.sqrt(p_G) + (1.0 - progress) / 2 / easy_G
    factor_R, mixed_R = (batch.group_responses.broadcast(each) for each in (factor_G, mixed_G))
    held_R = np.where(credit_R > 0, factor_R * min(1.0, progress / full_at), factor_R)
    return np.where(mixed_R, held_R, 1.0)


@block(needs=("logprob", "ref_logprob"), scales=True)
def amplify_sure_errors(credit_R: Credit, batch: Batch, *, weight: float) -> Credit:
    """Amplify negative advantages of likely responses: `A * (1 + weight * softplus(c))` where A < 0.

    `c = logprob - ref_logprob` of the response, nats per token. Every error is amplified, by 1 + 0.69 * weight where
    policy and reference agree.

    Args:
        credit_R: `[responses]` advantages.
        batch: Their batch, with the columns `logprob` and `ref_logprob`.
        weight: alpha in the paper.
    """
    logprob_R, reference_R = (batch.column(n, needed_by="amplify_sure_errors") for n in ("logprob", "ref_logprob"))
    return np.where(credit_R < 0, 1.0 + weight * np.logaddexp(0.0, logprob_R - reference_R), 1.0)


@block(needs=("rare_logprob", "prompt_logprob", "success"))
def add_confidence_gap(credit_R: Credit, batch: Batch, *, weight: float, only_correct: bool = False) -> Credit:
    """Add the confidence in the prompt minus that in the response, in groups with both outcomes.

        A' = A + weight * (exp(prompt_logprob) - exp(rare_logprob))

    Args:
        credit_R: `[responses]` advantages.
        batch: Their batch, with the columns `rare_logprob`, `prompt_logprob` and `success`.
        weight: alpha in the paper.
        only_correct: Add it only to trajectories with `success` above 1/2.
    """
    correct_N = is_correct(batch, needed_by="add_confidence_gap")
    share_G = batch.groups.mean(correct_N.astype(np.float64))
    counts_N = batch.groups.broadcast((share_G > 0) & (share_G < 1))
    if only_correct:
        counts_N = counts_N & correct_N
    prompt_R, rare_R = (batch.column(n, needed_by="add_confidence_gap") for n in ("prompt_logprob", "rare_logprob"))
    gap_R = np.exp(prompt_R) - np.exp(rare_R)
    return credit_R + np.where(batch.trajectories.broadcast(counts_N), weight * gap_R, 0.0)


@block(across_groups=lambda options: options["kept_frac"] < 1, scales=True)
def keep_extremes(
    credit_R: Credit, batch: Batch, *, kept_frac: float, over: KeptOver = "trajectories", seed: int = 0
) -> Credit:
    """Keep the subset of advantages with the largest variance, and set the others to 0.

    The best subset consists of some largest and some smallest values. All splits are compared in O(n log n). Ties
    between values and between splits are broken at random.

    Args:
        credit_R: `[responses]` advantages.
        batch: Their batch.
        kept_frac: Fraction of the batch to keep, above 0 and at most 1; rounded, at least one member.
        over: Unit that is kept or left out as a whole. With "trajectories", all responses of a trajectory must have the
            same credit.
        seed: Seed of the tie breaks. They depend on it and on the credit, so that no state is needed.
    """
    if not 0 < kept_frac <= 1:
        raise ConfigError(f"kept_frac={kept_frac} must be above 0 and at most 1; it is the fraction of the batch kept")
    if kept_frac == 1:
        return np.ones(len(credit_R))
    members = Members(credit_R, batch, over=over, needed_by="keep_extremes")
    lot = np.random.default_rng([seed, zlib.crc32(credit_R.tobytes())])
    kept = _most_varied(members.values, max(1, round(kept_frac * len(members.values))), lot)
    return members.broadcast(kept.astype(np.float64))


def _most_varied(values: Float[np.ndarray, " n"], num_kept: int, lot: np.random.Generator) -> Bool[np.ndarray, " n"]:
    """Mark the `num_kept` values with the largest variance."""
    order = np.lexsort((lot.random(len(values)), values))
    ascending = values[order] - values.mean()  # a shift keeps the variance and improves precision
    num_top = np.arange(num_kept + 1)
    variance = _sums(ascending**2, num_kept) / num_kept - (_sums(ascending, num_kept) / num_kept) ** 2
    best = np.flatnonzero(variance >= variance.max() - 1e-9 * np.square(ascending).max())  # equal up to rounding
    top = int(lot.choice(num_top[best]))
    kept = np.zeros(len(values), dtype=bool)
    kept[order[: num_kept - top]] = True
    kept[order[len(order) - top :]] = True
    return kept


def _sums(powers: Float[np.ndarray, " n"], num_kept: int) -> Float[np.ndarray, " splits"]:
    """Sum the `num_top` largest and the `num_kept - num_top` smallest values, for each `num_top` from 0 on."""
    smallest = np.concatenate([[0.0], np.cumsum(powers[:num_kept])])
    largest = np.concatenate([[0.0], np.cumsum(powers[::-1][:num_kept])])
    return largest + smallest[::-1]


RANK_COLUMNS = ("effective_rank", "rank_velocity", "rank_acceleration")


def add_rank_bonus(
    *, kappa: float = 2.0, gain: float = 2.0, rate: float = 0.3, convention: Averages = "turnwise"
) -> Transform:
    """Add a bonus for hidden states of unusually high effective rank, bounded by the advantage; keeps state.

        A'  = A + min(max(0, Phi), |A| / kappa)
        Phi = beta * tanh(dev(effective_rank)) + (1 - beta) * tanh(dev(rank_velocity))
        beta = sigmoid(gain * dev(rank_acceleration))       dev(m) = clip((m - usual) / (|usual| + 1e-8), -5, 5)

    Args:
        kappa: Bound: the bonus is at most |A| / kappa.
        gain: Slope of the sigmoid that selects between the two metrics by acceleration.
        rate: Weight of a new batch in the moving averages.
        convention: "turnwise": `usual` is a moving average of the metric's mean over previous batches; for the first
            batch, its own mean. "release": the averages start at 0 and lag one batch more; the first batch gets no
            bonus.

    Raises:
        ConfigError: `kappa` is below 1, where the bonus could change the sign of an advantage.
    """
    choice("convention", convention, Averages)
    if kappa < 1:
        raise ConfigError(f"kappa={kappa} must be at least 1, else the bonus could change the sign of an advantage")

    def update(credit_R: Credit, state: State, batch: Batch) -> tuple[Credit, State]:
        known: Mapping[str, Any] = state or {}
        after, deviation = {}, []
        for name in RANK_COLUMNS:
            metric_R = batch.column(name, needed_by="add_rank_bonus")
            mean = float(metric_R.mean())
            if convention == "release":  # pairs: the average, and the mean that enters it after this batch
                before, pending = known.get(name, (0.0, None))
                after[name] = [before if pending is None else (1.0 - rate) * before + rate * pending, mean]
            else:
                before = known.get(name, mean)
                after[name] = (1.0 - rate) * before + rate * mean
            deviation.append(np.clip((metric_R - before) / (abs(before) + 1e-8), -5.0, 5.0))
        if convention == "release" and not known:
            return credit_R.copy(), after
        rank_R, velocity_R, acceleration_R = deviation
        beta_R = 0.5 + 0.5 * np.tanh(gain * acceleration_R / 2)  # the sigmoid, without overflow
        bonus_R = beta_R * np.tanh(rank_R) + (1.0 - beta_R) * np.tanh(velocity_R)
        return credit_R + np.minimum(np.maximum(bonus_R, 0.0), np.abs(credit_R) / kappa), after

    name = f"add_rank_bonus(kappa={kappa!r}, gain={gain!r}, rate={rate!r}, convention={convention!r})"
    return Transform(name, update, init=dict, needs=RANK_COLUMNS, across_groups=True)
