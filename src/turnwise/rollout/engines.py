"""Which engine a recipe asks for."""

from turnwise.config import Config
from turnwise.policy import Policy
from turnwise.rollout.engine import Decode, Engine
from turnwise.rollout.local import LocalEngine


def make_engine(config: Config, policy: Policy) -> Engine:
    """The engine of `[engine]`, which generates with the policy's weights.

    Raises:
        ConfigError: The server cannot be reached, or serves another kind of model.
    """
    if config.engine.name == "local":
        return LocalEngine(policy.model, rounded=config.model.precision == "bf16", decode=_decoder(policy))
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


def _decoder(policy: Policy) -> Decode:
    return lambda ids: str(policy.tokenizer.decode(list(ids)))
