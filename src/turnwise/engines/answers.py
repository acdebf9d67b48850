"""What is read of a vLLM server's answers. Another version may answer otherwise, and so may another server."""

from typing import Any, TypeVar

import pydantic

from turnwise.base.errors import EngineLost
from turnwise.engines.connection import RESUME

OLDEST = "0.32"
"""First version of vLLM that says with which weights it made each token."""


class Answer(pydantic.BaseModel, strict=True, protected_namespaces=()):
    """Fields of an answer; others are ignored."""


A = TypeVar("A", bound=Answer)


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


def read(kind: type[A], answer: Any, url: str) -> A:
    """Read an answer.

    Raises:
        EngineLost: It has another form.
    """
    try:
        return kind.model_validate(answer)
    except pydantic.ValidationError as error:
        wrong = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, wrong["loc"])) or "the answer"
        raise EngineLost(
            f"the server at {url} does not answer as vLLM {OLDEST} and newer do ({place}: {wrong['msg']}); start "
            f"another one, {RESUME}"
        ) from None
