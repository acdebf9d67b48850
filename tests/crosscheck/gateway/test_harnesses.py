"""Clients of other packages understand our gateway, and their histories continue; agents: tests/crosscheck/agents.

    make crosscheck-gateway

The engine is scripted, so that each agent's loop takes a known course; text, tools and ids are real.
"""

import asyncio
import contextlib
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("openai", reason="openai is not installed; see benchmarks/requirements-gateway.txt")

sys.path.insert(0, str(Path(__file__).parents[3]))  # for the tests' helpers
import openai
from tests.gateway.asking import serving
from tests.rollout import chat_models
from tests.toys import ScriptedEngine

from turnwise.extensions.gateway.server import Gateway
from turnwise.extensions.gateway.session import Session
from turnwise.models.chat import chat_format
from turnwise.models.settings import PromptConfig

pytestmark = pytest.mark.crosscheck
KEY = "key"
LOOK = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Look at a place.",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
    },
}


def spelled(fmt, text: str) -> list[int]:
    """Ids of a text, one per character: not those that the tokenizer would make of it."""
    return [*(token for character in text for token in fmt.encode(character)), fmt.stop_id]


@contextlib.contextmanager
def session(*responses: str, family: str = "qwen2_5") -> Iterator[tuple[str, Session]]:
    """A gateway with one session, whose engine gives these responses in order."""
    fmt, ready, loop, made = (
        chat_format(chat_models.tokenizer(family), PromptConfig()),
        threading.Event(),
        asyncio.new_event_loop(),
        {},
    )
    left = iter(responses)
    engine = ScriptedEngine(lambda conversation, turn: spelled(fmt, next(left)))
    shared = serving(fmt, engine, max_context=200_000)

    async def begin() -> None:
        made["gateway"] = Gateway(shared.fmt, token=KEY)
        made["address"] = await made["gateway"].start()
        made["session"] = made["gateway"].open(Session(shared, 0))
        ready.set()

    def run() -> None:
        loop.run_until_complete(begin())
        loop.run_forever()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(20)
    try:
        yield f"{made['address']}/s/{made['session'].name}/v1", made["session"]
    finally:
        asyncio.run_coroutine_threadsafe(made["gateway"].aclose(), loop).result(20)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def call_of(name: str, **arguments: object) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@pytest.mark.parametrize("family", ["qwen2_5", "qwen3", "smollm2"])
def test_the_tool_loop_of_the_openai_package_continues_every_turn(family):
    with session(
        f"Let me see. {call_of('look', place='hall')}", call_of("look", place="attic"), "A cat.", family=family
    ) as (
        address,
        recorded,
    ):
        with openai.OpenAI(base_url=address, api_key=KEY, max_retries=0) as client:
            messages: list = [{"role": "user", "content": "What is in the attic?"}]
            places = []
            while True:
                answer = client.chat.completions.create(model="policy", messages=messages, tools=[LOOK])
                message = answer.choices[0].message
                messages.append(message)
                if answer.choices[0].finish_reason != "tool_calls":
                    break
                for call in message.tool_calls or ():
                    places.append(json.loads(call.function.arguments)["place"])
                    messages.append({"role": "tool", "tool_call_id": call.id, "content": "dust"})
        turns = recorded.trajectory.turns
    assert (places, message.content) == (["hall", "attic"], "A cat.")
    assert [turn.fresh for turn in turns] == [True, False, False]


def test_streams_errors_and_models_of_the_openai_package():
    with (
        session("green", "blue") as (address, recorded),
        openai.OpenAI(base_url=address, api_key=KEY, max_retries=0) as client,
    ):
        ask = {"model": "policy", "messages": [{"role": "user", "content": "say"}]}
        stream = client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True})
        chunks = list(stream)
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "green"
        assert chunks[-1].usage.completion_tokens == len(recorded.trajectory.turns[0].response_ids)
        answer = client.chat.completions.create(**ask, logprobs=True)
        assert [token.logprob for token in answer.choices[0].logprobs.content] == [-0.5] * 5
        assert [model.id for model in client.models.list()] == ["policy"]
        with pytest.raises(openai.BadRequestError) as raised:
            client.chat.completions.create(**ask, response_format={"type": "json_object"})
        assert raised.value.param == "response_format"
        with (
            openai.OpenAI(base_url=address, api_key="other", max_retries=0) as stranger,
            pytest.raises(openai.AuthenticationError),
        ):
            stranger.models.list()
        long = {**ask, "messages": [{"role": "user", "content": "x" * 300_000}]}
        with pytest.raises(openai.BadRequestError) as raised:
            client.chat.completions.create(**long)
        assert raised.value.code == "context_length_exceeded"


FLAT = {"type": "function", "strict": False, **LOOK["function"]}


@pytest.mark.parametrize("by_id", [True, False])
def test_the_responses_client_of_the_openai_package_continues_every_turn(by_id):
    texts = (f"Let me see. {call_of('look', place='attic')}", "A cat.")
    with session(*texts) as (address, recorded), openai.OpenAI(base_url=address, api_key=KEY, max_retries=0) as client:
        ask = {"model": "policy", "tools": [FLAT], "instructions": "Be brief."}
        items: list = [{"role": "user", "content": "What is in the attic?"}]
        first = client.responses.create(**ask, input=items)
        (called,) = (item for item in first.output if item.type == "function_call")
        result = {"type": "function_call_output", "call_id": called.call_id, "output": "dust"}
        more = {"previous_response_id": first.id} if by_id else {}
        items = [result] if by_id else [*items, *first.output, result]
        with client.responses.stream(**ask, **more, input=items) as stream:
            kinds = [event.type for event in stream]
            last = stream.get_final_response()
        with pytest.raises(openai.BadRequestError) as raised:
            client.responses.create(model="policy", input="a", background=True)
        turns = recorded.trajectory.turns
    assert (first.output_text, json.loads(called.arguments)) == ("Let me see.", {"place": "attic"})
    assert (last.output_text, last.status) == ("A cat.", "completed")
    assert kinds[0] == "response.created"
    assert "response.output_text.delta" in kinds
    assert raised.value.param == "background"
    assert [turn.fresh for turn in turns] == [True, False]
    assert last.usage.output_tokens == len(turns[1].response_ids)


def test_the_anthropic_package_continues_every_turn():
    anthropic = pytest.importorskip("anthropic", reason="see benchmarks/requirements-gateway.txt")
    tool = {"name": "look", "description": "Look.", "input_schema": LOOK["function"]["parameters"]}
    texts = (f"Let me see. {call_of('look', place='attic')}", "A cat.")
    with session(*texts) as (address, recorded):
        base = address.removesuffix("/v1")
        with anthropic.Anthropic(base_url=base, api_key=KEY, max_retries=0) as client:
            ask = {"model": "policy", "max_tokens": 64, "tools": [tool], "system": "Be brief."}
            messages: list = [{"role": "user", "content": "What is in the attic?"}]
            first = client.messages.create(**ask, messages=messages)
            (called,) = (block for block in first.content if block.type == "tool_use")
            result = {"type": "tool_result", "tool_use_id": called.id, "content": "dust"}
            messages += [{"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
            with client.messages.stream(**ask, messages=messages) as stream:
                text = "".join(stream.text_stream)
                last = stream.get_final_message()
            with pytest.raises(anthropic.BadRequestError, match="cannot be continued"):
                client.messages.create(**ask, messages=messages[:2])
        with (
            anthropic.Anthropic(base_url=base, api_key="other", max_retries=0) as stranger,
            pytest.raises(anthropic.AuthenticationError),
        ):
            stranger.messages.create(**ask, messages=messages)
        turns = recorded.trajectory.turns
    assert (first.stop_reason, called.input) == ("tool_use", {"place": "attic"})
    assert (text, last.stop_reason) == ("A cat.", "end_turn")
    assert [turn.fresh for turn in turns] == [True, False]
    assert last.usage.output_tokens == len(turns[1].response_ids)
