"""Read recorded conversations to imitate, and tokenise them as the gateway would have."""

import dataclasses
import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from turnwise.base.errors import DataError, did_you_mean
from turnwise.base.imports import import_named
from turnwise.base.jsonl import read_objects
from turnwise.engines.base import Generation
from turnwise.environments.plain import sound
from turnwise.environments.tool_calls import THINK, THOUGHT, without_reasoning
from turnwise.extensions.gateway.call import Call, make_reply
from turnwise.extensions.gateway.errors import BadRequest
from turnwise.extensions.gateway.messages import Message, read_message, short
from turnwise.extensions.gateway.prompter import Prompter
from turnwise.models.format import Format

FUNCTION = re.compile(r"[\w.]+:\w+")
"""Name of a function, not of a file."""


@dataclasses.dataclass(frozen=True, slots=True)
class Conversation:
    """A recorded conversation."""

    messages: list[Message]  # its messages, in the form of `read_message`
    tools: list[Any]  # tools that the model could call, in the form of chat completions
    imitated: tuple[int, ...]  # indices of the messages to imitate: the assistant's, but for those with `weight` 0
    where: str  # its place, for errors

    @property
    def texts(self) -> Iterator[str]:
        """Texts of the messages, calls included, to learn a vocabulary from."""
        for message in self.messages:
            calls = [json.dumps(call["function"], ensure_ascii=False) for call in message.get("tool_calls", ())]
            yield message["content"] + "".join(f"<tool_call>{call}</tool_call>" for call in calls)


def read_conversations(given: str) -> list[Conversation]:
    """Read conversations with `messages`, and perhaps `tools`, of chat completions. Other keys are ignored.

    Args:
        given: A file of JSON Lines, or "module:function", which returns what its lines would hold.

    Raises:
        ConfigError: The function cannot be imported.
        DataError: The file cannot be read, or a line is not such a conversation.
    """
    lines = enumerate(import_named(given)(), start=1) if FUNCTION.fullmatch(given) else read_objects(Path(given))
    found = [_read(line, f"{given}, line {number}") for number, line in lines]
    if not any(conversation.imitated for conversation in found):
        raise DataError(f"{given} holds no message of an assistant; expected lines with 'messages' of chat completions")
    return found


def _with_reasoning(message: Any, where: str) -> Message:
    """Read a message; separate reasoning of an API comes before the text, as the model wrote it."""
    read = read_message(message, where)
    thought = message.get("reasoning_content")
    if read["role"] == "assistant" and isinstance(thought, str) and thought.strip() and THINK not in read["content"]:
        read["content"] = f"{THINK}\n{thought.strip()}\n{THOUGHT}\n\n{read['content']}"
    return read


def _read(line: dict[str, Any], where: str) -> Conversation:
    given, tools = line.get("messages"), line.get("tools")
    tools = [] if tools is None else tools
    if not isinstance(given, list):
        missing = "messages" not in line
        what = f"no key 'messages'.{did_you_mean('messages', line)}" if missing else f"messages={short(given)}"
        raise DataError(f"{where}: {what} Expected a list of messages of chat completions")
    if not isinstance(tools, list):
        raise DataError(f"{where}: tools={short(tools)}, expected a list")
    try:
        messages = [_with_reasoning(message, f"messages[{index}]") for index, message in enumerate(given)]
    except BadRequest as error:
        raise DataError(f"{where}: {error.message}") from None
    own = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    return Conversation(messages, sound(tools), tuple(index for index in own if given[index].get("weight") != 0), where)


def encode(conversation: Conversation, fmt: Format, prompter: Prompter) -> list[tuple[list[int], bool]]:
    """Return the pieces of a conversation as ids, each with whether it is a response to imitate.

    Prompts are those that the gateway would have made; it would have read the responses as these messages.

    Raises:
        DataError: The model's chat template refuses it, or no response would be read as one of its messages.
    """
    messages, tools = conversation.messages, conversation.tools
    pieces: list[tuple[list[int], bool]] = []
    begun: tuple[int, list[int]] | None = None
    for index in conversation.imitated:
        try:
            ids = prompter.prompt_ids(messages[:index], tools, {}, begun)
            response = _response_ids(messages[: index + 1], tools, fmt, prompter)
        except BadRequest as error:
            raise DataError(f"{conversation.where}, messages[{index}]: {error.message}") from None
        pieces += [(ids[len(begun[1]) if begun else 0 :], False), (response, True)]
        begun = index, [*ids, *response]
    return pieces


def encoder(fmt: Format) -> Callable[[Conversation], list[tuple[list[int], bool]]]:
    """Return `encode` for a format of prompts."""
    prompter = Prompter(fmt)
    return lambda conversation: encode(conversation, fmt, prompter)


def _response_ids(messages: Sequence[Message], tools: list[Any], fmt: Format, prompter: Prompter) -> list[int]:
    message = messages[-1]
    if message.get("tool_calls") and not tools:
        raise BadRequest("it calls a tool, and the line has no 'tools'; add those of the request")
    ids = [*fmt.encode(prompter.response_text(messages, tools)), fmt.stop_id]
    text = fmt.text(ids)
    read = make_reply(Generation(ids, [], False), text, Call([], tools=tools)).message
    said = without_reasoning(message["content"]).strip()
    if not said and not message.get("tool_calls"):
        raise BadRequest("it says nothing; leave it out, or give it the weight 0")
    if (read["content"], read.get("tool_calls")) != (said, message.get("tool_calls")):
        raise BadRequest(f"the model would write {short(text)}, which the gateway would read as another message")
    return ids
