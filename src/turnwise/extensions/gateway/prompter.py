"""Turn messages into token ids, with the sampled ids in place of known responses."""

import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from turnwise.environments.tool_calls import THINK, THOUGHT, describe_tools
from turnwise.extensions.gateway.errors import BadRequest
from turnwise.extensions.gateway.messages import Message
from turnwise.models.format import Format


class Prompter:
    """Make prompts for one model.

    Models without a chat template, such as `tiny`, read the texts of system, user and tools as observations.
    """

    def __init__(self, fmt: Format):
        self._fmt = fmt
        self._template = str(fmt.tokenizer.chat_template or "")
        self._writes_tools = "tool" in self._template
        self._secret = secrets.token_hex(8)  # no text of a harness can hold a placeholder

    def _mark(self, index: int) -> str:
        """Return the placeholder of a known response in rendered text."""
        return f"SAMPLED-{index}-{self._secret}"

    def prompt_ids(
        self,
        messages: Sequence[Message],
        tools: Sequence[Any],
        sampled: Mapping[int, Sequence[int]],
        begun: tuple[int, Sequence[int]] | None = None,
    ) -> list[int]:
        """Return the token ids of a conversation, up to the start of the next response.

        Args:
            messages: The conversation.
            tools: Tools that the model may call.
            sampled: Sampled ids of known responses, by the index of their message.
            begun: Index of a known response, and all ids of the conversation up to its end. The returned ids begin with
                them; nothing before is encoded again.

        Raises:
            BadRequest: The model's chat template refuses the conversation.
        """
        after, ids = (-1, []) if begun is None else (begun[0], list(begun[1]))
        known = [index for index in sorted(sampled) if index > after]
        text = self._render(messages, tools, {*known, after} - {-1})
        for index in [after, *known] if begun is not None else known:
            piece, found, text = text.partition(self._mark(index))
            if not found:
                raise BadRequest("the model's chat template leaves out an earlier response", param="messages")
            if index != after:
                ids = [*self._appended(ids, piece), *sampled[index]]
        return self._appended(ids, text)

    def response_text(self, messages: Sequence[Message], tools: Sequence[Any]) -> str:
        """Return the last message, the assistant's, as the model would write it, without the stop token.

        Raises:
            BadRequest: The model's chat template refuses the conversation.
        """
        last = len(messages) - 1
        if not self._template:
            self._observations(messages[:last], tools, [""] * last)  # refuses tools
            return messages[last]["content"]
        # Templates leave reasoning out, or write it their way. What follows is marked, since they treat the generation
        # prompt, and messages that are all calls, specially.
        thought, said = self._parts(messages[last]["content"])
        marked = [*messages[:last], {**messages[last], "content": self._mark(last) + said}]
        _, found, text = self._render(marked, tools, set(), asks=False).rpartition(self._mark(last))
        if not found:
            raise BadRequest("the model's chat template leaves out the response", param="messages")
        return (thought + text.partition(self._fmt.stop)[0]).strip()

    def _parts(self, content: str) -> tuple[str, str]:
        """Split a response after its reasoning, without the tag with which the prompt begins that."""
        before, tag, after = content.rpartition(THOUGHT)
        said = after.lstrip()
        thought = self._fmt.plain(before) + tag + after[: len(after) - len(said)]
        if self._fmt.opens_reasoning:
            thought = thought.lstrip().removeprefix(THINK).lstrip("\n") or f"{THOUGHT}\n\n"
        return thought, said

    def _appended(self, ids: list[int], text: str) -> list[int]:
        """Append a text that follows a response, or begins the conversation."""
        if ids and text.startswith(self._fmt.stop):  # the response has its own stop token, unless it was cut short
            ids, text = self._fmt.closed(ids), text[len(self._fmt.stop) :]
        return ids + self._fmt.encode(text)

    def _render(self, messages: Sequence[Message], tools: Sequence[Any], marked: set[int], *, asks: bool = True) -> str:
        from jinja2 import TemplateError  # it comes with transformers, which reading logs does not need

        texts = [
            self._mark(index) if index in marked else self._fmt.plain(message["content"])
            for index, message in enumerate(messages)
        ]
        if not self._template:
            return self._observations(messages, tools, texts)
        rendered, refusal = "", None
        for writes in dict.fromkeys((self._writes_tools, False)):  # a template may refuse calls or results of tools
            shown = [
                self._message(message, text, index in marked, writes)
                for index, (message, text) in enumerate(zip(messages, texts, strict=True))
            ]
            if writes:
                shown = with_ids(shown, messages)
            if tools and not writes:
                shown = _with_system(shown, self._fmt.plain(describe_tools(list(tools))))
            for arrange in (list, joined, folded):
                try:
                    text = self._apply(arrange(shown), tools if writes else (), asks=asks)
                except (TemplateError, TypeError, KeyError, ValueError, RecursionError) as error:
                    refusal = refusal or error
                    continue
                if all(each["content"].strip() in text for each in shown if each["role"] == "system"):
                    return text
                rendered = rendered or text  # the template leaves system messages out, or writes them differently
        if rendered:
            return rendered
        cause = " ".join(str(refusal).split())[:200]
        raise BadRequest(f"the model's chat template refuses the messages: {cause}", param="messages") from refusal

    def _apply(self, shown: list[dict[str, Any]], tools: Sequence[Any], *, asks: bool) -> str:
        return str(
            self._fmt.tokenizer.apply_chat_template(
                shown,
                tools=self._plain(list(tools)) or None,
                tokenize=False,
                add_generation_prompt=asks,
                enable_thinking=self._fmt.think,
            )
        )

    def _message(self, message: Message, text: str, marked: bool, writes_tools: bool) -> dict[str, Any]:
        """Return a message as the chat template gets it, with calls and results as text unless it writes tools."""
        role, calls = message["role"], [] if marked else message.get("tool_calls", [])
        if writes_tools:
            shown = {"role": role, "content": text}
            if calls:
                shown["tool_calls"] = [
                    {"type": "function", "function": self._plain(each["function"])} for each in calls
                ]
            return shown
        text += "".join(f"\n<tool_call>{json.dumps(self._plain(each['function']))}</tool_call>" for each in calls)
        if role == "tool":
            return {"role": "user", "content": f"<tool_response>\n{text}\n</tool_response>"}
        return {"role": role, "content": text.lstrip("\n") if calls else text}

    def _plain(self, value: Any) -> Any:
        """Break up special tokens in the texts of a JSON value, names of fields included."""
        if isinstance(value, str):
            return self._fmt.plain(value)
        if isinstance(value, list):
            return [self._plain(each) for each in value]
        if isinstance(value, dict):
            return {self._plain(name): self._plain(each) for name, each in value.items()}
        return value

    def _observations(self, messages: Sequence[Message], tools: Sequence[Any], texts: Sequence[str]) -> str:
        """Render for a model that reads observations: everything between two responses is one observation."""
        if tools:
            raise BadRequest("this model has no chat template, so it cannot call tools", param="tools")
        rendered, waiting = "", []
        for message, text in zip(messages, texts, strict=True):
            if message["role"] == "assistant":
                rendered += self._observation(waiting, first=not rendered) + text
                rendered, waiting = rendered + self._fmt.stop, []
            else:
                waiting.append(text)
        return rendered + self._observation(waiting, first=not rendered)

    def _observation(self, texts: Sequence[str], *, first: bool) -> str:
        template = self._fmt.first if first else self._fmt.following
        return template.replace("{observation}", "\n".join(texts))


def with_ids(shown: Sequence[dict[str, Any]], messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Name calls and their results by their place, with nine characters as some templates want."""
    found: list[dict[str, Any]] = []
    number, waiting = 0, list[str]()
    for each, message in zip(shown, messages, strict=True):
        if calls := message.get("tool_calls", []):
            waiting = [f"call{number + at:05}" for at in range(len(calls))]
            number += len(calls)
        if "tool_calls" in each:
            named = [{**call, "id": name} for call, name in zip(each["tool_calls"], waiting, strict=True)]
            found.append({**each, "tool_calls": named})
        elif each["role"] == "tool" and waiting:
            found.append({**each, "tool_call_id": waiting.pop(0)})
        else:
            found.append(each)
    return found


def _with_system(messages: list[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    """Add a text to a conversation's system message, or insert one."""
    first = messages[0]
    if first["role"] != "system":
        return [{"role": "system", "content": text}, *messages]
    return [{**first, "content": f"{first['content']}\n\n{text}"}, *messages[1:]]


def joined(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Join neighbours of one role, for templates in which roles must alternate."""
    found: list[dict[str, Any]] = []
    for message in messages:
        if found and found[-1]["role"] == message["role"] != "tool":
            both = [each["content"] for each in (found[-1], message) if each["content"]]
            calls = [*found[-1].get("tool_calls", ()), *message.get("tool_calls", ())]
            found[-1] = {**found[-1], "content": "\n\n".join(both), **({"tool_calls": calls} if calls else {})}
        else:
            found.append(message)
    return found


def folded(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Turn system messages into user messages, for templates that refuse them; neighbours are joined."""
    return joined([{**each, "role": "user"} if each["role"] == "system" else each for each in messages])
