"""Make the engine that a recipe names."""

from typing import Any

from turnwise.base.errors import ConfigError
from turnwise.engines.base import Decode, Engine
from turnwise.engines.local import LocalEngine
from turnwise.engines.roles import RoleEngines
from turnwise.engines.settings import EngineConfig
from turnwise.models.adapters import roles_of
from turnwise.models.policy import Policy, in_bf16


def make_engine(settings: EngineConfig, precision: str, policy: Policy, *, apart: bool = False) -> Engine:
    """Make the engine of `[engine]`, which generates with the policy's weights.

    Args:
        settings: The `[engine]` of a recipe.
        precision: `model.precision`; in bfloat16 the local engine rounds the weights.
        policy: The model to generate with.
        apart: Whether responses are generated while the trainer changes the weights; the local engine copies them.

    Raises:
        ConfigError: The server cannot be reached or serves another model, or the local engine does not support the
            model.
    """
    if settings.name == "local":
        _check_attention(policy)
        how: Any = {
            "rounded": in_bf16(precision, policy.model.device),
            "apart": apart,
            "decode": _decoder(policy),
            "max_rows": settings.max_rows,
            "graphs": settings.graphs and policy.model.device.type == "cuda",
        }
        if roles := roles_of(policy.model):
            return RoleEngines({role: LocalEngine(policy.model, role=role, **how) for role in roles})
        return LocalEngine(policy.model, **how)
    from turnwise.engines.server import ServerEngine  # only this engine needs the HTTP client

    return ServerEngine(policy.model, settings, max_context=policy.max_context, decode=_decoder(policy))


def check_engine(settings: EngineConfig) -> None:
    """Check early that the engine can be reached, before minutes of preparation.

    Raises:
        ConfigError: The server does not answer.
    """
    if settings.name == "server":
        from turnwise.engines.connection import check_server

        check_server(settings.url)


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


def _decoder(policy: Policy) -> Decode:
    return lambda ids: str(policy.tokenizer.decode(list(ids)))
