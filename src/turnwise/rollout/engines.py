"""Which engine a recipe asks for."""

from turnwise.config import Config
from turnwise.errors import ConfigError
from turnwise.policy import Policy
from turnwise.rollout.engine import Decode, Engine
from turnwise.rollout.local import LocalEngine


def make_engine(config: Config, policy: Policy) -> Engine:
    """The engine of `[engine]`, which generates with the policy's weights.

    Raises:
        ConfigError: The server cannot be reached or serves another kind of model, or the local engine cannot generate with it.
    """
    if config.engine.name == "local":
        _check_attention(policy)
        return LocalEngine(
            policy.model,
            rounded=config.model.precision == "bf16",
            decode=_decoder(policy),
            max_rows=config.engine.max_rows,
        )
    from turnwise.rollout.server import ServerEngine  # the HTTP client is needed for nothing else

    return ServerEngine(policy.model, config.engine, max_context=policy.max_context, decode=_decoder(policy))


def check_engine(config: Config) -> None:
    """Fail now if the engine cannot be reached, rather than after minutes of work that come before its first use.

    Raises:
        ConfigError: The server does not answer.
    """
    if config.engine.name == "server":
        from turnwise.rollout.connection import check_server

        check_server(config.engine.url)


def _check_attention(policy: Policy) -> None:
    """The local engine's cache lets a token look back on all before it, and a model must be used to that."""
    config = policy.model.config.get_text_config()
    window = getattr(config, "sliding_window", None)
    kinds = set(getattr(config, "layer_types", None) or ["sliding_attention" if window else "full_attention"])
    kinds -= {"full_attention"} | ({"sliding_attention"} if window and window >= policy.max_context else set())
    if kinds:
        raise ConfigError(f"engine.name='local' cannot generate with layers of {', '.join(sorted(kinds))}"
                          + (f" beyond their window: set model.max_context={window} or less" if kinds == {"sliding_attention"} and window else "")
                          + "; or take engine.name='server'")  # fmt: skip


def _decoder(policy: Policy) -> Decode:
    return lambda ids: str(policy.tokenizer.decode(list(ids)))
