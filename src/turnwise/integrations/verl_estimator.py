"""Compute advantages for verl with the configured method."""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from turnwise.base.errors import ConfigError, IntegrationError, did_you_mean
from turnwise.credit.methods import METHODS
from turnwise.credit.methods.build import build_method
from turnwise.credit.methods.former import read_former
from turnwise.credit.methods.names import as_written, split_at_plus
from turnwise.credit.metrics import adapter_metrics
from turnwise.credit.transform import Transform, chain, trial
from turnwise.credit.transforms import add_penalty
from turnwise.integrations.token_tables import tables_for
from turnwise.integrations.trainers import FREE, TRAINERS
from turnwise.integrations.verl_rows import Record, verl_batch

PREFIX = "turnwise"
TABLES = {
    "old_log_probs": "logprob_T",
    "rollout_log_probs": "behavior_logprob_T",
    "ref_log_prob": "ref_logprob_T",
    "values": "value_T",
}
"""verl's tables of tokens, and our names."""


@dataclasses.dataclass
class Seen:
    """Hold what verl knows about the current batch but does not pass to estimators.

    Attributes:
        keys: verl's names of the rows.
        scores: `[rows, length]` rewards without a KL penalty.
        mask: `[rows, length]` response mask before tokens were rejected.
        entropies: `[rows, length]` entropies (nats).
        token_tables: `[rows, length]` further values of tokens, by turnwise's names.
        records: Records of the agent loop, one per row.
        metrics: Metrics for the log, which the estimator fills; None: no metrics.
    """

    keys: Sequence[str] | None = None
    scores: Any = None
    mask: Any = None
    entropies: Any = None
    token_tables: Mapping[str, Any] = dataclasses.field(default_factory=dict)
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
    built = {name: trial(make) for name, make in METHODS.items()}
    return [name for name, method in built.items() if method.init is None and set(FREE).issuperset(method.needs)]


def configured(settings: Mapping[str, Any], name: str | None = None) -> Transform:
    """Build the method that `algorithm.turnwise` configures.

    Args:
        settings: Keys `method`, `options`, `penalty` (default: false), which subtracts the column `penalty` at the
            end, and `return_is_success` (default: false), which `estimate` reads.
        name: Name of the method, if the estimator's name contains it.

    Raises:
        ConfigError: A setting is unknown, or the method cannot be used.
    """
    settings = read_former(settings, name or "grpo")
    known = ("method", "options", "penalty", "return_is_success")
    for key in settings:
        if key not in known:
            raise ConfigError(f"unknown key algorithm.turnwise.{key}.{did_you_mean(key, known)}")
    asked = settings.get("method", name or "grpo")
    written = as_written({"name": asked} if isinstance(asked, str) else asked)
    if name is not None and split_at_plus(written["name"])[0] != name:
        raise ConfigError(
            f"algorithm.adv_estimator names {name!r}, but algorithm.turnwise.method={settings['method']!r}; remove "
            "the latter, or set adv_estimator=turnwise"
        )
    method = build_method(written.pop("name"), {**written, **(settings.get("options") or {})})
    TRAINERS["verl"].check(method, given=method.needs)  # an agent loop may record any column
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
    """Compute advantages and returns in the form of verl's estimators.

    Returns are what the critic learns, if the method reads one, else the advantages.

    Args:
        name: Name of the method; None: `algorithm.turnwise.method`.
        token_level_rewards: `[rows, length]` rewards.
        response_mask: `[rows, length]`, 1 at generated tokens.
        config: Section `algorithm` of verl's configuration.
        index: `[rows]` prompt of each row.

    Raises:
        IntegrationError: The batch lacks what the method needs.
    """
    settings, seen = settings_of(config), _seen.get() or Seen()
    method = configured(settings, name)
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
        token_tables={name: seen.token_tables[name] for name in tables_for(method.needs) if name in seen.token_tables},
        needs=method.needs,
        return_is_success=bool(settings.get("return_is_success")),
    )
    for column in method.needs:
        if column not in FREE and column not in padded.batch.columns:
            raise IntegrationError(f"{method} needs column {column!r}, which this batch does not have; {_how(column)}")
    trace, _ = method.trace(padded.batch)
    if seen.metrics is not None:
        seen.metrics.update(adapter_metrics(padded.batch, trace))
    advantages = padded.spread(trace.advantage_R, trace.within_T(padded.batch.tokens)).tokens
    if mask is not response_mask:
        advantages = advantages * response_mask
    targets = padded.targets(trace)
    return advantages, advantages if targets is None else targets * response_mask


def _how(column: str) -> str:
    conditions = {
        "entropy_T": "set trainer.v1.trainer_mode=turnwise_sync, and "
        "algorithm.rollout_correction.bypass_mode=False, since the pass over the old policy measures it",
        "value_T": "set critic.enable=True, so that verl's critic estimates it",
        "ref_logprob_T": "set actor_rollout_ref.actor.use_kl_loss=True, so that verl asks the reference model",
        "behavior_logprob_T": "set actor_rollout_ref.rollout.calculate_log_probs=True",
    }
    for table in sorted(tables_for([column])):
        if table in conditions:
            return conditions[table]
    success = ", or set algorithm.turnwise.return_is_success=true" if column == "success" else ""
    if column in TRAINERS["verl"].how:
        return (
            "let turnwise.integrations.verl_agent_loop play, or record it in your loop's extra_fields['turnwise'], "
            f"and set trainer.v1.trainer_mode=turnwise_sync{success}"
        )
    return "verl does not measure it; choose another method, or record it in your agent loop's extra_fields['turnwise']"
