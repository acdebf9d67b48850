"""Audit credit: how many responses have an effect, and how well does each method's credit find them?

Every statistic is computed with a weight per response. The bootstrap draws groups, whose responses then count as often
as their group was drawn; weights of 1 give the estimate itself.
"""

import dataclasses
import math
from collections.abc import Mapping

import numpy as np

from turnwise.base.shapes import Bool, Float, Int
from turnwise.credit.batch import Batch
from turnwise.lab.diagnostics.effects import EQUAL, Effects
from turnwise.lab.diagnostics.statistics import Interval, interval_of_draws

DRAWS = 500
"""Bootstrap draws of groups."""
TOP = 0.1
"""Share of the responses that precision is computed on: those with the most credit."""

Values = Float[np.ndarray, " R"]
Weights = Float[np.ndarray, "D R"]
"""Weight of each response in each draw; in the first row, which is not a draw, all are 1."""
Drawn = Float[np.ndarray, " D"]


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """How well one credit finds the responses that have an effect."""

    rank: Interval  # spearman's correlation of credit and effect over all responses
    rank_within: Interval  # the same within a trajectory, averaged over trajectories; constant credit counts as 0
    sign: Interval  # share of the responses with an effect whose credit has its sign; no credit counts as half
    precision: Interval  # share with an effect among the tenth of the responses with the largest credit, by size
    # Probability that a response with an effect has the larger credit, by size, than one without; chance is 0.5
    auroc: Interval
    effective: Interval  # effective sample size `(sum |A|)^2 / sum A^2` as a share of the responses; nan for a signal


@dataclasses.dataclass(frozen=True, slots=True)
class Audit:
    """Results of executed replay on the credit of some methods."""

    responses: int  # number of responses
    defined: int  # number of those where the policy drew something else often enough
    nonzero: Interval  # share of these whose contrast is not 0, noise included
    shown: Interval  # share of these whose effect is significant in a permutation test
    at_least: Interval  # `shown` minus what chance alone would show: a lower bound for the share that has an effect
    size: Interval  # root of the mean squared effect, without the noise of the estimates
    reliability: Interval  # share of the mean squared contrast that is not noise
    found: dict[str, Found]  # by method or signal, how well it finds effects


def audit(
    effects: Effects, credit: Mapping[str, Values], signals: Mapping[str, Values], batch: Batch, *, seed: int = 0
) -> Audit:
    """Audit methods, and other signals such as a judge's ratings.

    Args:
        effects: Effects of the responses.
        credit: `[responses]` advantages by method.
        signals: Values other than credit, by name; larger ones mean that more is decided.
        batch: The responses.
        seed: Seed of the bootstrap.
    """
    kept_R = effects.defined_R
    whole_DR = draw_weights(batch.group_responses.ids, batch.num_groups, seed)
    weight_DR, effect_R, shown_R = whole_DR[:, kept_R], effects.effect_R[kept_R], effects.shown_R[kept_R]
    net_R = effect_R**2 - effects.variance_R[kept_R]
    trajectory_R = batch.trajectories.ids[kept_R]
    group_R, groups = batch.group_responses.ids[kept_R], batch.num_groups
    with_effect = len(np.unique(group_R[shown_R]))
    # what compares responses with and without an effect cannot be surer than the rarer ones allow
    fewest = min(with_effect, len(np.unique(group_R[~shown_R])))

    def of(values_D: Drawn, lowest: float = 0.0, highest: float = 1.0, num: int = groups) -> Interval:
        return interval_of_draws(values_D, num).within(lowest, highest)

    def find(value_R: Values, size_R: Values, effective: Interval) -> Found:
        return Found(
            of(rank_correlation(value_R, effect_R, weight_DR), -1.0),
            of(rank_within(value_R, effect_R, trajectory_R, weight_DR), -1.0),
            of(mean((1 + np.sign(value_R) * np.sign(effect_R)) / 2, weight_DR * shown_R), num=with_effect),
            of(precision(size_R, shown_R, weight_DR), num=fewest),
            of(auroc(size_R, shown_R, weight_DR), num=fewest),
            effective,
        )

    made = {name: find(v[kept_R], np.abs(v[kept_R]), of(effective_share(v, whole_DR))) for name, v in credit.items()}
    none = Interval(math.nan, math.nan, math.nan)
    made |= {name: find(v[kept_R], v[kept_R], none) for name, v in signals.items()}
    return Audit(
        len(kept_R),
        int(kept_R.sum()),
        of(mean((np.abs(effect_R) > EQUAL).astype(float), weight_DR)),
        of(mean(shown_R.astype(float), weight_DR)),
        of(mean(shown_R - effects.size_R[kept_R], weight_DR)),
        of(np.sqrt(np.maximum(mean(net_R, weight_DR), 0.0)), 0.0, math.inf),
        of(_ratio(mean(net_R, weight_DR), mean(effect_R**2, weight_DR))),
        made,
    )


def draw_weights(group_R: Int[np.ndarray, " R"], num_groups: int, seed: int, draws: int = DRAWS) -> Weights:
    """Draw groups with replacement, and return how often each response is drawn; the first row is all 1."""
    drawn = np.random.default_rng(seed).multinomial(num_groups, np.full(num_groups, 1 / num_groups), draws)
    return np.concatenate([np.ones((1, num_groups)), drawn])[:, group_R]


def mean(value_R: Values, weight_DR: Weights) -> Drawn:
    """Average values with the weights of each draw; nan where they are all 0."""
    return _ratio(weight_DR @ value_R, weight_DR.sum(1))


def effective_share(value_R: Values, weight_DR: Weights) -> Drawn:
    """Return the effective sample size of an update, `(sum |A|)^2 / sum A^2`, per response; 0 without credit."""
    return np.nan_to_num(_ratio((weight_DR @ np.abs(value_R)) ** 2, (weight_DR @ value_R**2) * weight_DR.sum(1)))


def below(value_R: Values, weight_DR: Weights) -> Weights:
    """Sum, for each value, the weights of smaller values and half of those of equal ones."""
    distinct, place_R = np.unique(value_R, return_inverse=True)
    order = np.argsort(place_R, kind="stable")
    begins = np.searchsorted(place_R[order], np.arange(len(distinct)))
    weight_DU = np.add.reduceat(weight_DR[:, order], begins, axis=1)
    return (np.cumsum(weight_DU, axis=1) - weight_DU / 2)[:, place_R]


def _even(value_R: Values, size: float | None = None) -> Values:
    """Make values equal that differ by rounding alone, relative to a size; default: to the largest."""
    size = float(np.abs(value_R).max()) if size is None else size
    return np.round(value_R / (size * EQUAL)) if size > 0 else value_R


def rank_correlation(a_R: Values, b_R: Values, weight_DR: Weights) -> Drawn:
    """Compute Spearman's correlation: Pearson's of the ranks, where equal values share a rank; 0 if all are equal."""
    if not len(a_R):
        return np.full(len(weight_DR), np.nan)
    rank_a, rank_b = below(_even(a_R), weight_DR), below(_even(b_R, 1.0), weight_DR)
    middle_D1 = weight_DR.sum(1, keepdims=True) / 2  # the weighted mean of all ranks
    a_DR, b_DR = rank_a - middle_D1, rank_b - middle_D1
    square_D = (weight_DR * a_DR**2).sum(1) * (weight_DR * b_DR**2).sum(1)
    return np.nan_to_num(_ratio((weight_DR * a_DR * b_DR).sum(1), np.sqrt(square_D)))


def rank_within(a_R: Values, b_R: Values, trajectory_R: Int[np.ndarray, " R"], weight_DR: Weights) -> Drawn:
    """Average Spearman's correlation over the trajectories with three responses or more whose effects differ."""
    found, weights = [], []
    for name in np.unique(trajectory_R):
        rows = np.flatnonzero(trajectory_R == name)
        if len(rows) > 2 and np.ptp(b_R[rows]) > EQUAL:
            found.append(rank_correlation(a_R[rows], b_R[rows], np.ones((1, len(rows))))[0])
            weights.append(weight_DR[:, rows[0]])
    return mean(np.array(found), np.stack(weights, axis=1)) if found else np.full(len(weight_DR), np.nan)


def auroc(score_R: Values, has_R: Bool[np.ndarray, " R"], weight_DR: Weights) -> Drawn:
    """Compute the probability that a positive scores above a negative, ties half; nan if either is missing."""
    if not len(score_R):
        return np.full(len(weight_DR), np.nan)
    without_DR = weight_DR * ~has_R
    return _ratio(mean_of(below(_even(score_R), without_DR), weight_DR * has_R), without_DR.sum(1))


def mean_of(value_DR: Weights, weight_DR: Weights) -> Drawn:
    """Average values that differ by draw."""
    return _ratio((value_DR * weight_DR).sum(1), weight_DR.sum(1))


def precision(score_R: Values, has_R: Bool[np.ndarray, " R"], weight_DR: Weights, share: float = TOP) -> Drawn:
    """Compute the share of positives among the highest scores; tied scores at the edge count in part."""
    if not len(score_R):
        return np.full(len(weight_DR), np.nan)
    score_R = _even(score_R)
    from_top_DR = below(-score_R, weight_DR)
    _, place_R = np.unique(score_R, return_inverse=True)
    tied_DR = np.stack([np.bincount(place_R, weight_R) for weight_R in weight_DR])[:, place_R]
    wanted_D1 = share * weight_DR.sum(1, keepdims=True)
    taken_DR = np.clip(wanted_D1 - (from_top_DR - tied_DR / 2), 0.0, tied_DR)
    taken_DR = weight_DR * np.divide(taken_DR, tied_DR, out=np.zeros_like(taken_DR), where=tied_DR > 0)
    return _ratio((taken_DR * has_R).sum(1), taken_DR.sum(1))


def _ratio(above: np.ndarray, under: np.ndarray) -> np.ndarray:
    """Divide; nan where the divisor is 0."""
    return np.divide(above, under, out=np.full(np.shape(under), np.nan), where=under > 0)
