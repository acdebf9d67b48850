"""Make the engine that a recipe names."""

from typing import Any

from turnwise.base.errors import ConfigError
from turnwise.engines.base import Engine
from turnwise.engines.local import LocalEngine
from turnwise.engines.roles import RoleEngines
from turnwise.engines.settings import EngineConfig, LocalEngineConfig
from turnwise.models.adapters import roles_of
from turnwise.models.policy import Policy, in_bf16


def make_engine(settings: EngineConfig, precision: str, policy: Policy, *, apart: bool = False) -> Engine:
    """Make the engine of `[engine]`; see `EngineConfig.make`.

    Args:
        settings: The `[engine]` of a recipe.
        precision: `model.precision`; in bfloat16 the local engine rounds the weights.
        policy: The model to generate with.
        apart: Whether responses are generated while the trainer changes the weights; the local engine copies them.
    """
    return settings.make(policy, rounded=in_bf16(precision, policy.model.device), apart=apart)


def make_local(settings: LocalEngineConfig, policy: Policy, *, rounded: bool, apart: bool) -> Engine:
    """Make the engine in this process.

    Raises:
        ConfigError: It does not support the model.
    """
    _check_attention(policy)
    how: Any = {
        "rounded": rounded,
        "apart": apart,
        "decode": policy.decode,
        "max_rows": settings.max_rows,
        "graphs": settings.graphs and policy.model.device.type == "cuda",
    }
    if roles := roles_of(policy.model):
        return RoleEngines({role: LocalEngine(policy.model, role=role, **how) for role in roles})
    return LocalEngine(policy.model, **how)


def _check_attention(policy: Policy) -> None:
    """Raise unless the model's attention is causal and full, which the local engine's cache assumes."""
    config = policy.model.config.get_text_config()
    window = getattr(config, "sliding_window", None)
    kinds = set(getattr(config, "layer_types", None) or ["sliding_attention" if window else "full_attention"])
    kinds -= {"full_attention"} | ({"sliding_attention"} if window and window >= policy.max_context else set())
    if kinds:
        raise ConfigError(
            f"engine.name='local' cannot generate with layers of {', '.join(sorted(kinds))}"
            + (
                f" beyond their window: set model.max_context={window} or less"
                if kinds == {"sliding_attention"} and window
                else ""
            )
            + "; or take engine.name='server'"
        )
