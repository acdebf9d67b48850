"""Compute the metrics of credit assignment, with the same names in the trainer and in every adapter."""

from typing import Any

import numpy as np

from turnwise.credit.batch import Batch
from turnwise.credit.trace import Trace

LOGGED_TURNS = 10
"""Number of first turns whose mean advantage is logged."""
ROUNDING = 1e-9
"""Returns whose difference is below this share of them are equal."""


def credit_metrics(batch: Batch, trace: Trace) -> dict[str, float]:
    """Summarise the credit of one step.

    Args:
        batch: Responses of the step. Metrics whose columns it lacks are left out.
        trace: Credit of these responses.

    Returns:
        `entropy`: mean over tokens (nats). `alpha_min`, `alpha_max`: range of the coefficients. `signal_frac`: share of
        groups whose returns differ. `positive_frac`, `advantage_abs`: share of positive advantages and mean absolute
        advantage, over responses. `effective_frac`: effective sample size `(sum |A|)^2 / sum A^2` of the advantages as
        a share of the responses, times the squared factor on the learning rate. `kept_frac`: share of responses in the
        loss, if a method leaves some out. `mismatch_mean`, `mismatch_max`: absolute difference between the
        log-probabilities of engine and trainer, over tokens (nats).
    """
    signal_G = returns_differ(batch)
    coefficient_R, columns = trace.coefficient_R, batch.columns
    metrics = {}
    if "entropy_T" in columns:
        metrics["entropy"] = float(columns["entropy_T"].mean())
    elif "entropy" in columns:
        weight_R = np.ones(batch.num_responses) if batch.tokens is None else batch.tokens.lengths
        metrics["entropy"] = float(np.average(columns["entropy"], weights=weight_R))
    metrics |= {
        "alpha_min": float(coefficient_R.min()),
        "alpha_max": float(coefficient_R.max()),
        "signal_frac": float(signal_G.mean()),
        "positive_frac": float((trace.advantage_R > 0).mean()),
        "advantage_abs": float(np.abs(trace.advantage_R).mean()),
        "effective_frac": effective_size(trace.advantage_R) * trace.rate**2 / batch.num_responses,
    }
    if trace.kept_R is not None:
        metrics["kept_frac"] = float(trace.kept_R.mean())
    if "behavior_logprob_T" in columns and "logprob_T" in columns:
        mismatch_T = np.abs(columns["behavior_logprob_T"] - columns["logprob_T"])
        metrics |= {"mismatch_mean": float(mismatch_T.mean()), "mismatch_max": float(mismatch_T.max())}
    return metrics


def effective_size(credit_R: np.ndarray) -> float:
    """Return the effective sample size of an update, `(sum |A|)^2 / sum A^2`; 0 without credit."""
    return float(np.abs(credit_R).sum() ** 2 / max(float((credit_R**2).sum()), np.finfo(float).tiny))


def returns_differ(batch: Batch) -> np.ndarray:
    """Return whether the returns of each group's trajectories differ by more than rounding, `[groups]` bool."""
    return_N = batch.trajectories.sum(batch.reward_R)
    return is_apart(batch.groups.max(return_N), batch.groups.min(return_N))


def is_apart(high: Any, low: Any) -> Any:
    """Return whether two returns differ by more than rounding, elementwise for arrays."""
    return high - low > ROUNDING * np.maximum(np.abs(high), np.abs(low))


def turn_metrics(batch: Batch, trace: Trace) -> dict[str, float]:
    """Return `turns` (mean responses per trajectory) and `advantage_turn_0`, ... (mean advantages of first turns)."""
    turn_R, advantage_R = batch.turn_R, trace.advantage_R
    metrics = {"turns": batch.num_responses / batch.num_trajectories}
    for turn in range(min(LOGGED_TURNS, int(turn_R.max()) + 1)):
        metrics[f"advantage_turn_{turn}"] = float(advantage_R[turn_R == turn].mean())
    return metrics


def adapter_metrics(batch: Batch, trace: Trace) -> dict[str, float]:
    """Return the metrics that adapters add to another trainer's log, prefixed with `credit/`."""
    metrics = credit_metrics(batch, trace) | turn_metrics(batch, trace)
    return {f"credit/{name}": value for name, value in metrics.items()}
