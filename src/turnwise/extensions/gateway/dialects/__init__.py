"""Name the APIs that the gateway speaks. Each reads its requests into a `Call`, and writes `Reply`s as its answers."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from turnwise.extensions.gateway.call import Call
from turnwise.extensions.gateway.dialects import anthropic, chat, responses
from turnwise.extensions.gateway.errors import error_body
from turnwise.extensions.gateway.messages import Message

Remembered = Mapping[str, list[Message]]
"""Conversations of a session up to an earlier answer, by the answer's id."""


@dataclasses.dataclass(frozen=True, slots=True)
class Dialect:
    """One API.

    Attributes:
        read: Reads the body of a request, given the conversations that it may continue by their ids.
        write: Makes the answer as a JSON object, from call, replies and the number of tokens of the prompt.
        events: Makes the same answer as server-sent events, from call and answer.
        error: Makes the body of an error, from status, message, parameter and code.
        remembers: Whether a later request may continue an answer by its id.
    """

    read: Callable[[bytes, Remembered], Call]
    write: Callable[..., dict[str, Any]]
    events: Callable[[Call, Mapping[str, Any]], list[str]]
    error: Callable[..., dict[str, Any]] = error_body
    remembers: bool = False


DIALECTS = {
    "chat/completions": Dialect(lambda body, _: chat.read(body), chat.write, chat.events),
    "responses": Dialect(responses.read, responses.write, responses.events, remembers=True),
    "messages": Dialect(lambda body, _: anthropic.read(body), anthropic.write, anthropic.events, anthropic.error_body),
}
"""APIs by their route."""


def error_body_at(path: str, status: int, message: str, param: str | None = None, code: str | None = None) -> Any:
    """Return the body of an error in the API that a path belongs to; OpenAI's if it belongs to none."""
    error = next((each.error for route, each in DIALECTS.items() if f"/{route}/" in f"{path}/"), error_body)
    return error(status, message, param, code)
