"""Build the data that the page loads first: metrics, settings, outcomes, and causes of failure."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from turnwise.base.section import flattened
from turnwise.config import Config
from turnwise.lab.report.steps import OUTCOMES, has_contrast, outcomes
from turnwise.train.folder import RunFolder
from turnwise.train.recorded import RecordedStep

QUANTILES = (0.05, 0.5, 0.95)
"""Quantiles of alpha over the responses of a step."""


def metrics_columns(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Turn records of metrics.jsonl into columns: "train" for training steps, "eval" for evaluations."""
    training = [_known(record, "rollout", record.get("rollout/failed_frac") != 1.0) for record in records]
    evaluations = [_known(record, "eval", record.get("eval/episodes") != 0.0) for record in records]
    return {
        "train": _columns([record for record in training if "rollout/success" in record]),
        "eval": _columns([record for record in evaluations if "eval/success" in record]),
    }


def _known(record: Mapping[str, Any], part: str, any_played: bool) -> Mapping[str, Any]:
    """Mark metrics of trajectories as unknown if all of them failed; their means are recorded as 0."""
    names = ("success", "success_low", "success_high", "reward", "turns", "invalid_frac", "truncated_frac")
    unknown = {name for name in (f"{part}/{name}" for name in names) if name in record}
    return record if any_played else {**record, **dict.fromkeys(unknown)}


def _columns(records: Sequence[Mapping[str, Any]]) -> dict[str, list[float | None]]:
    names = dict.fromkeys(name for record in records for name in record)
    return {name: [_number(record.get(name)) for record in records] for name in names}


def _number(value: Any) -> float | None:
    """Replace values that JSON cannot represent, such as nan, by None."""
    return value if isinstance(value, int | float) and math.isfinite(value) else None


def step_statistics(step: RecordedStep) -> dict[str, float | None]:
    """Summarise a step: trajectories by outcome, groups with contrast, quantiles of alpha, and balance of credit.

    `positive` and `negative` are shares of the responses that the step learned from. `gain` and `loss` are the means of
    the positive and the negative part of their advantages.
    """
    counts = np.bincount(outcomes(step), minlength=len(OUTCOMES))
    contrast_G = has_contrast(step)
    result: dict[str, Any] = {
        "step": step.number,
        **dict(zip(OUTCOMES, counts.tolist(), strict=True)),
        "groups": len(contrast_G),
        "contrast": int(contrast_G.sum()),
    }
    learned_R = step.learned_R
    if learned_R.any():
        alpha_R, advantage_R = step.values("alpha")[learned_R], step.values("advantage")[learned_R]
        quantiles = np.quantile(alpha_R, QUANTILES)
        result |= {f"alpha_{round(100 * q):02d}": float(value) for q, value in zip(QUANTILES, quantiles, strict=True)}
        result |= {
            "positive": float((advantage_R > 0).mean()),
            "negative": float((advantage_R < 0).mean()),
            "gain": float(np.maximum(advantage_R, 0).mean()),
            "loss": float(np.minimum(advantage_R, 0).mean()),
        }
    return {name: _number(value) for name, value in result.items()}


def failure_causes(step: RecordedStep) -> dict[str, tuple[int, int]]:
    """Count failures by cause: (number of trajectories, first trajectory). Causes that differ in numbers are merged."""
    result: dict[str, tuple[int, int]] = {}
    for row in (
        step.table.filter(step.table["failure"].is_valid()).select(["trajectory", "turn", "failure"]).to_pylist()
    ):
        if row["turn"] == 0:
            cause = re.sub(r"\d+", "N", (row["failure"].strip().splitlines() or ["no cause given"])[0])[:200]
            count, example = result.get(cause, (0, row["trajectory"]))
            result[cause] = (count + 1, example)
    return result


def describe_run(run: RunFolder, config: Config, label: str) -> dict[str, Any]:
    """Describe a run: name, method, settings by path, versions and machine."""
    record = json.loads((run.path / "config.json").read_text(encoding="utf-8"))
    return {
        "label": label,
        "method": config.label,
        "environment": config.environment.name,
        "model": config.model.name,
        "steps_planned": config.run.steps,
        "groups": config.rollout.groups,
        "group_size": config.rollout.group_size,
        "max_turns": config.most_turns,
        "weights": config.model.train,
        "settings": _as_text(record["config"]),
        "made": _as_text({name: value for name, value in record.items() if name != "config"}),
        "imported": record.get("imported"),
        "recorded": record.get("recorded"),
    }


def _as_text(settings: Mapping[str, Any]) -> dict[str, str]:
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in flattened(settings).items()}
