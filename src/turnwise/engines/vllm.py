"""Ask a vLLM server: what is read of its answers, and what its failures mean."""

from typing import Any

import pydantic

from turnwise.base.errors import ConfigError, EngineFault, guide
from turnwise.engines.connection import Answer, Connection, Unanswered, get_once

OLDEST = "0.32"
"""First version of vLLM that says with which weights it made each token."""
GUIDE = f"start one as {guide('how-to/vllm.md')} says"


class Refused(Unanswered):
    """The server reports an internal error."""


class VllmServer(Connection):
    """Send requests to a vLLM server.

    They raise EngineFault if the server rejects one as wrong, and ConfigError if it does not offer this kind.
    """

    expected = f"vLLM {OLDEST} and newer do"

    def _fault(self, status: int, failure: str) -> Exception:
        if status == 500:
            return Refused(failure)
        if status in (408, 425, 429) or status > 500:
            return Unanswered(failure)
        if status in (400, 413, 422):
            return EngineFault(f"the server rejects the request: {failure}")
        return ConfigError(f"the server at {self.settings.url} does not offer a required endpoint ({failure}): {GUIDE}")


def check_server(url: str) -> None:
    """Check once that a server is healthy.

    Raises:
        ConfigError: The server cannot be reached, or reports that it is not healthy.
    """
    try:
        status, _ = get_once(url.rstrip("/") + "/health")
        cause = "" if status == 200 else f"HTTP {status} at /health"
    except Unanswered as error:
        cause = str(error)
    if cause:
        raise ConfigError(f"no server is ready at engine.url={url!r} ({cause}): {GUIDE}, or set engine.url")


class Weights(Answer):
    """Which weights the server has."""

    weight_version: str


class Done(Answer):
    """Whether the server did what it was asked for."""

    success: bool


class Listed(Answer):
    """A model or adapter that the server has."""

    id: str


class Offered(Answer):
    """What the server has."""

    data: list[Listed]


class Token(Answer):
    """A token that was drawn."""

    token_id: int
    logprob: float


class Logprobs(Answer):
    """Log-probabilities of a response."""

    content: list[Token]


class Span(Answer):
    """Tokens made with the same weights."""

    version: str


class Choice(Answer):
    """A response; `logprobs` is None for an aborted one."""

    token_ids: list[int]
    finish_reason: str | None
    logprobs: Logprobs | None = None
    weight_versions: list[Span] | None


class Responses(Answer):
    """Responses to a prompt."""

    choices: list[Choice] = pydantic.Field(min_length=1)


class Lora(Answer):
    """How many adapters the server holds, and of which rank."""

    max_lora_rank: int = 0
    max_loras: int = 0


class Model(Answer):
    """How the server runs the model."""

    max_model_len: int
    logprobs_mode: str
    hf_overrides: dict[str, Any] | None = None


class Device(Answer):
    """Where the server runs it."""

    device: str


class Launched(Answer):
    """What the server was started with."""

    model: Model = pydantic.Field(alias="model_config")
    device_config: Device
    lora_config: Lora | None = None


class Server(Answer):
    """What the server says of itself."""

    vllm_config: Launched
