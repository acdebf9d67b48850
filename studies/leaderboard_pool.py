"""Pool what was measured on several policies: every figure is their mean, with its 95 % interval over them."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from turnwise.lab.diagnostics.audit import Audit
from turnwise.lab.diagnostics.audit_show import as_json
from turnwise.lab.diagnostics.fidelity_gradient import PERFECT
from turnwise.lab.diagnostics.statistics import contrast

AUDITED = ("auroc", "precision", "rank", "rank_within", "effective")
"""What is kept of an audit for each credit."""


def kept_audit(made: Audit) -> dict[str, Any]:
    """Return what is known of an audit by credit, and the shares of responses with an effect."""
    plain = as_json(made)
    shares = {name: plain[name] for name in ("nonzero", "shown", "at_least", "size") if _is_known(plain[name])}
    by_credit = {
        what: {name: _closed(one[what], what) for name, one in plain["found"].items() if one[what]["value"] is not None}
        for what in AUDITED
    }
    return {"defined": made.defined / made.responses, **shares, **by_credit}


def _closed(interval: Mapping[str, float | None], what: str) -> dict[str, float | None]:
    """Return an interval of all that can be where one policy alone gives none."""
    ends = {"low": -1.0 if what.startswith("rank") else 0.0, "high": 1.0}
    return {side: ends[side] if side in ends and value is None else value for side, value in interval.items()}


def _is_known(interval: Mapping[str, float | None]) -> bool:
    return None not in (interval["value"], interval["low"], interval["high"])


def pooled(policies: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Pool the data of one environment at one time.

    Returns:
        Data of the same form, with intervals over policies. Numbers are means; a figure that one policy alone has is
        left out, since its spread over policies is unknown.
    """
    kept = [{key: value for key, value in policy.items() if key not in _OWN} for policy in with_shown(policies)]
    equal = equal_in_all([policy.get("equal", ()) for policy in policies])
    return {"policies": len(policies), "equal": equal, **_pool(kept)}


def with_shown(policies: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Return the data of policies, without transfer unless all of them show that true gradients agree across tasks.

    Pooling those alone that do would choose them by their estimates.
    """
    gradients = [policy.get("gradient") or {} for policy in policies]
    shown = [bool(one := each.get("transfer")) and one["transfer"][PERFECT]["low"] > 0 for each in gradients]
    if all(shown):
        return policies
    without = [{name: value for name, value in each.items() if name != "transfer"} for each in gradients]
    return [{**policy, "gradient": each or None} for policy, each in zip(policies, without, strict=True)]


_OWN = ("importance", "left_out", "explained", "equal")
"""What is of one policy: no page shows its mean."""


def equal_in_all(partitions: Sequence[Sequence[Sequence[str]]]) -> list[list[str]]:
    """List the names that share an entry in every partition, in the first one's order."""
    places = [{name: number for number, names in enumerate(one) for name in names} for one in partitions]
    entries: dict[tuple[int | None, ...], list[str]] = {}
    for name in (name for names in partitions[0] for name in names):
        entries.setdefault(tuple(of.get(name) for of in places), []).append(name)
    return list(entries.values())


def _pool(values: Sequence[Any]) -> Any:
    """Pool values of the same kind; None where too few policies have one."""
    values = [value for value in values if value is not None]
    if not values:
        return None
    if not isinstance(values[0], dict):
        return np.mean(values, axis=0).tolist()
    if "value" in values[0]:
        return _interval([value["value"] for value in values])
    if "error" in values[0]:  # signal and noise of one group's gradient
        signal = [value["signal"] for value in values]
        error = float(np.std(signal, ddof=1) / math.sqrt(len(signal))) if len(signal) > 1 else 0.0
        return {"signal": float(np.mean(signal)), "error": error, "noise": _pool([value["noise"] for value in values])}
    names = dict.fromkeys(name for value in values for name in value)
    made = {name: _pool([value.get(name) for value in values]) for name in names}
    return {name: one for name, one in made.items() if one is not None}


def _interval(values: Sequence[float]) -> dict[str, float] | None:
    """Average over policies; what is the same in all has an interval of no width, such as no credit."""
    if len(values) < 2:
        return None
    found = contrast([np.array(values)], [1.0])
    known = math.isfinite(found.high - found.low)
    low, high = (found.low, found.high) if known else (found.value, found.value)
    return {"value": found.value, "low": low, "high": high}
