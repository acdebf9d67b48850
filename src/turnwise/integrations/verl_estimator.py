"""What turnwise answers when verl asks for advantages: the method that its configuration describes, on what is known of the batch."""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from turnwise.errors import ConfigError, IntegrationError, did_you_mean
from turnwise.integrations.measures import credit_metrics, what_entropy_did
from turnwise.integrations.verl_rows import Record, verl_batch
from turnwise.methods import METHODS
from turnwise.methods.build import build_method
from turnwise.transform import Transform, chain
from turnwise.transforms import add_penalty

PREFIX = "turnwise"
FREE = {"turn", "length"}
"""Columns that rewards, masks and groups alone give."""


@dataclasses.dataclass
class Seen:
    """What verl knows of the batch at hand, but does not tell its estimators.

    Attributes:
        keys: verl's names of the rows.
        scores: `[rows, length]`, rewards without a KL penalty.
        mask: `[rows, length]`, the response mask before tokens were rejected.
        entropies: `[rows, length]`, nats.
        records: One a row, what the agent loop recorded.
        metrics: Filled by the estimator, for the log; None: not wanted.
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
    """Add to what estimators know, until the end of the block."""
    token = _seen.set(dataclasses.replace(_seen.get() or Seen(), **what))
    try:
        yield
    finally:
        _seen.reset(token)


def servable() -> list[str]:
    """Names of the methods that rewards, masks and groups are enough for."""
    built = {name: make(**make.card.trial) for name, make in METHODS.items()}  # pyright: ignore[reportFunctionMemberAccess]
    return [name for name, method in built.items() if method.init is None and FREE.issuperset(method.needs)]


def configured(settings: Mapping[str, Any], name: str | None = None) -> Transform:
    """The method that `algorithm.turnwise` describes.

    Args:
        settings: `method`, `aem` (default no), `options`, and `penalty` (default no): take the column `penalty` off at the end.
        name: Of the method, where the estimator's own name says it.

    Raises:
        ConfigError: A setting is unknown, or the method cannot be used.
    """
    known = ("method", "aem", "options", "penalty")
    for key in settings:
        if key not in known:
            raise ConfigError(f"unknown key algorithm.turnwise.{key}.{did_you_mean(key, known)}")
    if name is not None and settings.get("method", name) != name:
        raise ConfigError(f"algorithm.adv_estimator says {name!r}, algorithm.turnwise.method={settings['method']!r}; leave out the latter, or "
                          "set adv_estimator=turnwise")  # fmt: skip
    method = build_method(
        name or settings.get("method", "grpo"), settings.get("options") or {}, with_aem=bool(settings.get("aem"))
    )
    if method.init is not None:
        raise ConfigError(f"{method} keeps state, which verl's checkpoints would lose; use one without")
    return chain(method, add_penalty()) if settings.get("penalty") else method


def settings_of(config: Any) -> dict[str, Any]:
    """`algorithm.turnwise` of verl's configuration as plain data."""
    from omegaconf import OmegaConf  # pyright: ignore[reportMissingImports]

    settings = {} if config is None else config.get(PREFIX) or {}
    return OmegaConf.to_container(settings, resolve=True) if OmegaConf.is_config(settings) else dict(settings)  # pyright: ignore


def estimate(
    name: str | None, token_level_rewards: Any, response_mask: Any, config: Any = None, index: Any = None, **_: Any
) -> Any:
    """Advantages in the form of verl's estimators, twice: as advantages and as returns.

    Args:
        name: Of the method; None: `algorithm.turnwise.method`.
        token_level_rewards: `[rows, length]`.
        response_mask: `[rows, length]`.
        config: verl's `algorithm`.
        index: `[rows]` prompt of each row.

    Raises:
        IntegrationError: The batch does not tell what the method needs.
    """
    method, seen = configured(settings_of(config), name), _seen.get() or Seen()
    if index is None:
        raise IntegrationError(
            "verl gave no uid for the rows, so their groups are unknown; use a trainer that has uids"
        )
    if seen.mask is None and ((config or {}).get("rollout_correction") or {}).get("rollout_rs"):
        raise IntegrationError(
            "algorithm.rollout_correction.rollout_rs takes tokens out of the mask, which tells responses apart; set "
            "trainer.v1.trainer_mode=turnwise_sync, which knows the mask before"
        )
    mask = response_mask if seen.mask is None else seen.mask
    padded = verl_batch(
        rewards=token_level_rewards, response_mask=mask, uid=index, keys=seen.keys, scores=seen.scores,
        entropies=seen.entropies if "entropy" in method.needs or seen.metrics is not None else None, records=seen.records,
    )  # fmt: skip
    for column in method.needs:
        if column not in FREE and column not in padded.batch.columns:
            raise IntegrationError(f"{method} needs column {column!r}, which this batch does not have; {_how(column)}")
    advantage_R = method(padded.batch)
    if seen.metrics is not None:
        alpha_R = what_entropy_did(method, padded.batch, advantage_R) if "entropy" in method.needs else None
        seen.metrics.update(credit_metrics(padded.batch, advantage_R, alpha_R))
    advantages = padded.spread(advantage_R).tokens
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
            "let turnwise.integrations.verl_agent_loop play, or record it in your loop's extra_fields['turnwise'], and set "
            "trainer.v1.trainer_mode=turnwise_sync"
        )
    return (
        "verl measures no such thing; choose another method, or record it in your agent loop's extra_fields['turnwise']"
    )
