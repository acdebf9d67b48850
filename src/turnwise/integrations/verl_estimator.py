"""Compute advantages for verl with the configured method."""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from turnwise.errors import ConfigError, IntegrationError, did_you_mean
from turnwise.integrations.verl_rows import Record, verl_batch
from turnwise.methods import METHODS
from turnwise.methods.build import build_method
from turnwise.metrics import adapter_metrics
from turnwise.transform import Transform, chain
from turnwise.transforms import add_penalty

PREFIX = "turnwise"
FREE = {"turn", "length"}
"""Columns that need only rewards, masks and groups."""


@dataclasses.dataclass
class Seen:
    """Hold what verl knows about the current batch but does not pass to estimators.

    Attributes:
        keys: verl's names of the rows.
        scores: `[rows, length]` rewards without a KL penalty.
        mask: `[rows, length]` response mask before tokens were rejected.
        entropies: `[rows, length]` entropies (nats).
        records: Records of the agent loop, one per row.
        metrics: Metrics for the log, which the estimator fills; None: no metrics.
    """

    keys: Sequence[str] | None = None
    scores: Any = None
    mask: Any = None
    entropies: Any = None
    records: Sequence[Record | None] | None = None
    metrics: dict[str, float] | None = None


_seen: ContextVar[Seen | None] = ContextVar("turnwise_seen", default=None)


@contextlib.contextmanager
def seeing(**what: Any) -> Iterator[None]:
    """Provide estimators with further data inside the block."""
    token = _seen.set(dataclasses.replace(_seen.get() or Seen(), **what))
    try:
        yield
    finally:
        _seen.reset(token)


def servable() -> list[str]:
    """List the methods that need only rewards, masks and groups."""
    built = {name: make(**make.card.trial) for name, make in METHODS.items()}  # pyright: ignore
    return [name for name, method in built.items() if method.init is None and FREE.issuperset(method.needs)]


def configured(settings: Mapping[str, Any], name: str | None = None) -> Transform:
    """Build the method that `algorithm.turnwise` configures.

    Args:
        settings: Keys `method`, `aem` (default: false), `options`, and `penalty` (default: false), which subtracts the
            column `penalty` at the end.
        name: Name of the method, if the estimator's name contains it.

    Raises:
        ConfigError: A setting is unknown, or the method cannot be used.
    """
    known = ("method", "aem", "options", "penalty")
    for key in settings:
        if key not in known:
            raise ConfigError(f"unknown key algorithm.turnwise.{key}.{did_you_mean(key, known)}")
    if name is not None and settings.get("method", name) != name:
        raise ConfigError(
            f"algorithm.adv_estimator names {name!r}, but algorithm.turnwise.method={settings['method']!r}; remove "
            "the latter, or set adv_estimator=turnwise"
        )
    method = build_method(
        name or settings.get("method", "grpo"), settings.get("options") or {}, with_aem=bool(settings.get("aem"))
    )
    if method.init is not None:
        raise ConfigError(f"{method} keeps state, which verl's checkpoints would lose; choose a stateless method")
    return chain(method, add_penalty()) if settings.get("penalty") else method


def settings_of(config: Any) -> dict[str, Any]:
    """Return `algorithm.turnwise` of verl's configuration as plain data."""
    from omegaconf import OmegaConf  # pyright: ignore[reportMissingImports]

    settings = {} if config is None else config.get(PREFIX) or {}
    if OmegaConf.is_config(settings):
        return OmegaConf.to_container(settings, resolve=True)  # pyright: ignore
    return dict(settings)


def estimate(
    name: str | None, token_level_rewards: Any, response_mask: Any, config: Any = None, index: Any = None, **_: Any
) -> Any:
    """Compute advantages in the form of verl's estimators; returns them twice, as advantages and as returns.

    Args:
        name: Name of the method; None: `algorithm.turnwise.method`.
        token_level_rewards: `[rows, length]` rewards.
        response_mask: `[rows, length]`, 1 at generated tokens.
        config: Section `algorithm` of verl's configuration.
        index: `[rows]` prompt of each row.

    Raises:
        IntegrationError: The batch lacks what the method needs.
    """
    method, seen = configured(settings_of(config), name), _seen.get() or Seen()
    if index is None:
        raise IntegrationError(
            "verl gave no uid for the rows, so their groups are unknown; use a trainer that has uids"
        )
    if seen.mask is None and ((config or {}).get("rollout_correction") or {}).get("rollout_rs"):
        raise IntegrationError(
            "algorithm.rollout_correction.rollout_rs removes tokens from the mask, which separates responses; set "
            "trainer.v1.trainer_mode=turnwise_sync, which uses the mask before rejection"
        )
    mask = response_mask if seen.mask is None else seen.mask
    padded = verl_batch(
        rewards=token_level_rewards,
        response_mask=mask,
        uid=index,
        keys=seen.keys,
        scores=seen.scores,
        entropies=seen.entropies if "entropy" in method.needs or seen.metrics is not None else None,
        records=seen.records,
    )
    for column in method.needs:
        if column not in FREE and column not in padded.batch.columns:
            raise IntegrationError(f"{method} needs column {column!r}, which this batch does not have; {_how(column)}")
    trace, _ = method.trace(padded.batch)
    if seen.metrics is not None:
        seen.metrics.update(adapter_metrics(padded.batch, trace))
    advantages = padded.spread(trace.advantage_R).tokens
    if mask is not response_mask:
        advantages = advantages * response_mask
    return advantages, advantages


def _how(column: str) -> str:
    if column == "entropy":
        return (
            "set trainer.v1.trainer_mode=turnwise_sync, and algorithm.rollout_correction.bypass_mode=False, since the "
            "pass over the old policy measures it"
        )
    if column in ("state_key", "penalty", "success"):
        return (
            "let turnwise.integrations.verl_agent_loop play, or record it in your loop's extra_fields['turnwise'], "
            "and set trainer.v1.trainer_mode=turnwise_sync"
        )
    return "verl does not measure it; choose another method, or record it in your agent loop's extra_fields['turnwise']"
