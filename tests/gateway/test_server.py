"""The gateway over HTTP: OpenAI's shapes, its error bodies, sessions, and what it refuses."""

import asyncio
import contextlib
import json
import logging
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from http.client import HTTPConnection
from types import SimpleNamespace
from typing import cast
from urllib.parse import urlsplit

import pytest

from tests.gateway.asking import assistant, post, serving, user
from tests.rollout import chat_models
from tests.toys import ScriptedEngine
from turnwise.base.errors import EngineFault
from turnwise.engines.base import Generation, Sampling
from turnwise.extensions.gateway import http, server
from turnwise.extensions.gateway.harness import Endpoint
from turnwise.extensions.gateway.server import Gateway
from turnwise.extensions.gateway.session import Session
from turnwise.models.chat import chat_format
from turnwise.models.settings import PromptConfig

FMT = chat_format(chat_models.tokenizer("qwen2_5"), PromptConfig())
TOKEN = "tok-1"
GREEN = [*FMT.encode("green red"), FMT.stop_id]
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


class Faulty(ScriptedEngine):
    """Fails its first call, then answers."""

    async def generate(self, conversation: int, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        if not self.calls:
            self.calls.append((conversation, list(prompt_ids)))
            raise EngineFault("lost")
        return await super().generate(conversation, prompt_ids, sampling)


@contextlib.contextmanager
def served(engine=None, **more) -> Iterator[tuple[Endpoint, Gateway]]:
    """A gateway with one session, in a thread of its own."""
    ready, loop, found = threading.Event(), asyncio.new_event_loop(), {}
    shared = serving(FMT, engine or ScriptedEngine(lambda conversation, turn: GREEN), **more)

    async def begin():
        gateway = Gateway(shared.fmt, token=TOKEN)
        found["address"] = await gateway.start()
        gateway.open(Session(shared, 0, name="one"))
        gateway.open(Session(shared, 1, name="two"))
        found["gateway"] = gateway
        ready.set()

    def run():
        loop.run_until_complete(begin())
        loop.run_forever()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield Endpoint(f"{found['address']}/s/one/v1", TOKEN, "policy"), found["gateway"]
    finally:
        asyncio.run_coroutine_threadsafe(found["gateway"].aclose(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def address_of(endpoint: Endpoint) -> tuple[str, int]:
    place = urlsplit(endpoint.base_url)
    return str(place.hostname), int(place.port or 0)


def refused(endpoint: Endpoint, path: str, content, **headers: str) -> tuple[int, dict]:
    with pytest.raises(urllib.error.HTTPError) as raised:
        post(endpoint, path, content, **headers)
    with raised.value as answer:
        body = json.load(answer)["error"]
    assert body.keys() == {"message", "type", "param", "code"}
    assert "\n" not in body["message"]
    return raised.value.code, body


def test_a_completion_has_the_shape_of_the_api():
    with served() as (endpoint, gateway):
        answer = post(endpoint, "chat/completions", {"messages": [user("a")], "logprobs": True, "n": 2})
        turns = gateway.sessions["one"].trajectory.turns
    assert answer["object"] == "chat.completion"
    assert [choice["message"]["content"] for choice in answer["choices"]] == ["green red"] * 2
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["stop"] * 2
    assert [token["logprob"] for token in answer["choices"][0]["logprobs"]["content"]] == [-0.5] * len(GREEN)
    assert "".join(token["token"] for token in answer["choices"][0]["logprobs"]["content"]) == "green red<|im_end|>"
    read, written = len(turns[0].prompt_ids), 2 * len(GREEN)
    counts = {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
    assert answer["usage"] == counts
    assert [(turn.response_ids, turn.fresh) for turn in turns] == [(GREEN, True)] * 2


def test_a_stream_holds_the_same_as_the_answer_and_ends_with_done():
    with served() as (endpoint, _):
        content = {"messages": [user("a")], "stream": True, "stream_options": {"include_usage": True}}
        request = urllib.request.Request(
            f"{endpoint.base_url}/chat/completions",
            json.dumps(content).encode(),
            {"Authorization": f"Bearer {TOKEN}"},
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert answer.headers["content-type"] == "text/event-stream"
            lines = [line[6:] for line in answer.read().decode().split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    chunks = [json.loads(line) for line in lines]
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks if c["choices"]) == "green red"
    assert [c["choices"][0]["finish_reason"] for c in chunks if c["choices"]] == [None, "stop"]
    assert chunks[-1]["usage"]["completion_tokens"] == len(GREEN)


def test_a_stop_text_is_left_out_of_the_content_and_kept_in_the_turn():
    with served() as (endpoint, gateway):
        messages = [user("a")]
        answer = post(endpoint, "chat/completions", {"messages": messages, "stop": [" red"]})
        messages += [answer["choices"][0]["message"], user("b")]
        post(endpoint, "chat/completions", {"messages": messages})
        turns = gateway.sessions["one"].trajectory.turns
    assert answer["choices"][0]["message"]["content"] == "green"
    assert turns[0].response_ids == GREEN
    assert not turns[1].fresh, "the cut text maps to all sampled ids"


@pytest.mark.parametrize(("fixed", "expected"), [(True, (1.0, 1.0, 0, 4)), (False, (0.3, 0.5, 7, 2))])
def test_a_training_run_keeps_its_sampling(fixed, expected):
    engine = ScriptedEngine(lambda conversation, turn: GREEN)
    with served(engine, fixed=fixed) as (endpoint, _):
        longest = {"max_tokens": 99} if fixed else {"max_completion_tokens": 2}
        asked = {"temperature": 0.3, "top_p": 0.5, "seed": 7, **longest}
        post(endpoint, "chat/completions", {"messages": [user("a")], **asked})
    (given,) = engine.samplings
    assert (given.temperature, given.top_p, given.seed, given.max_new_tokens) == expected


def test_models_are_listed():
    with served() as (endpoint, _):
        request = urllib.request.Request(f"{endpoint.base_url}/models", headers={"Authorization": f"Bearer {TOKEN}"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert [model["id"] for model in json.load(answer)["data"]] == ["policy"]


WRONG = [
    ({}, "messages", "at least one message"),
    ({"messages": "hi"}, "messages", "expected a list"),
    ({"messages": [assistant("a")]}, "messages", "the last message is the assistant's"),
    ({"messages": [{"role": "robot", "content": ""}]}, "messages[0].role", 'role="robot"'),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content", "expected text"),
    ({"messages": [user("a")], "n": 0}, "n", "n=0: expected a whole number from 1"),
    ({"messages": [user("a")], "n": True}, "n", "n=true"),
    ({"messages": [user("a")], "temperature": -1}, "temperature", "temperature=-1"),
    ({"messages": [user("a")], "max_tokens": 1.5}, "max_tokens", "max_tokens=1.5"),
    ({"messages": [user("a")], "stop": [1]}, "stop", "expected a text or a list"),
    ({"messages": [user("a")], "tools": [{}]}, "tools[0]", "function"),
    ({"messages": [user("a")], "response_format": {"type": "json_object"}}, "response_format", "Ask for text"),
    ({"messages": [user("a")], "logprobs": True, "top_logprobs": 3}, "top_logprobs", "is not supported"),
    ({"messages": [user("a")], "temprature": 1}, "temprature", "Did you mean 'temperature'?"),
]


def test_bad_requests_get_the_error_body_of_the_api():
    with served() as (endpoint, gateway):
        for content, param, said in WRONG:
            status, error = refused(endpoint, "chat/completions", content)
            assert (status, error["type"], error["param"]) == (400, "invalid_request_error", param)
            assert said in error["message"]
        long = {"messages": [user("green " * 5000)]}
        assert refused(endpoint, "chat/completions", long)[1]["code"] == "context_length_exceeded"
        assert refused(endpoint, "chat/completion", {})[0] == 404
        assert refused(endpoint, "models", {})[0] == 405
        unknown = Endpoint(endpoint.base_url.replace("/one/", "/nobody/"), TOKEN, "")
        assert refused(unknown, "chat/completions", {})[1]["code"] == "session_not_found"
        assert not gateway.sessions["one"].trajectory.turns


def test_headers_name_the_session_the_state_and_the_actor():
    with served() as (endpoint, gateway):
        plain = Endpoint(endpoint.base_url.replace("/s/one", ""), TOKEN, "")
        assert refused(plain, "chat/completions", {"messages": [user("a")]})[0] == 404
        headers = {"X-Turnwise-Session": "one", "X-Turnwise-State-Key": "kitchen"}
        post(plain, "chat/completions", {"messages": [user("a")]}, **headers)
        post(endpoint, "chat/completions", {"messages": [user("b")]}, **{"X-Turnwise-Actor": "helper"})
        turns = gateway.sessions["one"].trajectory.turns
    assert [turn.state_key for turn in turns] == ["kitchen", "b"]
    assert [turn.extras.get("actor", "") for turn in turns] == ["", "helper"]


def test_one_reward_ends_a_session():
    with served() as (endpoint, gateway):
        post(endpoint, "chat/completions", {"messages": [user("a")]})
        for wrong in ("much", float("nan"), None, {"reward": 1, "sucess": True}, {"reward": 1e9}, [1]):
            assert refused(endpoint, "reward", wrong)[0] == 400
        post(endpoint, "reward", {"reward": 0.5, "success": False})
        assert refused(endpoint, "reward", 1)[1]["code"] == "session_ended"
        assert refused(endpoint, "chat/completions", {"messages": [user("a")]})[0] == 409
        trajectory = gateway.sessions["one"].end()
    assert (trajectory.reward, trajectory.success, trajectory.ended) == (0.5, False, "terminated")


def test_a_session_of_two_harnesses_is_refused():
    with served() as (endpoint, _):
        post(endpoint, "chat/completions", {"messages": [user("a")]}, **{"X-Turnwise-Harness": "first"})
        status, error = refused(
            endpoint, "chat/completions", {"messages": [user("a")]}, **{"X-Turnwise-Harness": "second"}
        )
        assert (status, error["code"]) == (409, "session_in_use")
        other = Endpoint(endpoint.base_url.replace("/one/", "/two/"), TOKEN, "")
        post(other, "chat/completions", {"messages": [user("a")]}, **{"X-Turnwise-Harness": "second"})


def test_a_fault_of_the_engine_can_be_tried_again_and_is_told_if_not():
    with served(Faulty(lambda conversation, turn: GREEN)) as (endpoint, gateway):
        assert refused(endpoint, "chat/completions", {"messages": [user("a")]})[0] == 503
        session = gateway.sessions["one"]
        assert session.fault == "lost"
        post(endpoint, "chat/completions", {"messages": [user("a")]})
        assert (session.fault, len(session.trajectory.turns)) == ("", 1)


def test_callers_without_the_token_and_other_hosts_are_refused(monkeypatch):
    monkeypatch.setattr(http, "MAX_BODY", 2000)
    with served() as (endpoint, gateway):
        stranger = Endpoint(endpoint.base_url, "wrong", "")
        assert refused(stranger, "chat/completions", {})[1]["type"] == "authentication_error"
        assert refused(endpoint, "chat/completions", {}, Host="evil.example")[0] == 403
        assert refused(endpoint, "chat/completions", {"messages": [user("x" * 3000)]})[0] == 413
        assert not gateway.sessions["one"].trajectory.turns


def test_a_caller_that_goes_away_leaves_no_turn():
    class Slow(ScriptedEngine):
        async def generate(self, conversation, prompt_ids, sampling):
            asked.set()
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                cancelled.set()
                raise
            raise AssertionError("nobody cancelled it")

    asked, cancelled = threading.Event(), threading.Event()
    with served(Slow(lambda conversation, turn: GREEN)) as (endpoint, gateway):
        body = json.dumps({"messages": [user("a")]}).encode()
        request = urllib.request.Request(
            f"{endpoint.base_url}/chat/completions", body, {"Authorization": f"Bearer {TOKEN}"}
        )
        with pytest.raises(TimeoutError):
            urllib.request.urlopen(request, timeout=0.3)
        assert asked.wait(5)
        assert cancelled.wait(5), "the engine goes on for nobody"
        assert not gateway.sessions["one"].trajectory.turns


def test_an_answer_does_not_wait_for_the_caller_to_acknowledge_its_first_part():
    seconds = []
    with served() as (endpoint, _):
        caller = HTTPConnection(*address_of(endpoint), timeout=10)
        for _ in range(40):
            begun = time.perf_counter()
            caller.request("GET", "/s/one/v1/models", headers={"Authorization": f"Bearer {TOKEN}"})
            assert caller.getresponse().read()
            seconds.append(time.perf_counter() - begun)
        caller.close()
    assert min(seconds[20:]) < 0.03, "Linux delays acknowledgements by 40 ms, but for the first of a connection"


def test_logs_hold_no_prompt_and_no_key(caplog, monkeypatch):
    monkeypatch.setattr(Session, "respond", lambda *_, **__: 1 / 0)
    with served() as (endpoint, _), caplog.at_level(logging.DEBUG):
        assert refused(endpoint, "chat/completions", {"messages": [user("secret prompt")]})[0] == 500
    assert "ZeroDivisionError" in caplog.text
    assert "secret prompt" not in caplog.text
    assert TOKEN not in caplog.text


def test_a_request_that_trickles_in_is_ended(monkeypatch):
    monkeypatch.setattr(http, "HEADERS_S", 0.5)
    with served() as (endpoint, _), socket.create_connection(address_of(endpoint), 10) as caller:
        caller.settimeout(0.1)
        begun = time.monotonic()
        for byte in b"GET / HTTP/1.1\r\nX-Slow: " + b"a" * 100:
            with contextlib.suppress(TimeoutError, ConnectionError):
                caller.sendall(bytes([byte]))
                if caller.recv(1) == b"":
                    break
        assert time.monotonic() - begun < 5


def test_a_session_that_is_recorded_is_released_and_its_name_stays_refused():
    with served() as (endpoint, gateway):
        post(endpoint, "chat/completions", {"messages": [user("say green")]})
        session = gateway.sessions["one"]
        session.end()
        gateway.forget(session)
        assert "one" not in gateway.sessions
        code, body = refused(endpoint, "chat/completions", {"messages": [user("say green")]})
        assert (code, body["code"]) == (409, "session_ended")


def test_the_names_of_ended_sessions_do_not_pile_up(monkeypatch):
    monkeypatch.setattr(server, "REMEMBERED", 3)
    with served() as (_, gateway):
        for number in range(5):
            gateway.forget(gateway.open(cast(Session, SimpleNamespace(name=f"session-{number}"))))
        assert list(gateway._ended) == ["session-2", "session-3", "session-4"]


def test_a_reward_for_an_unknown_name_opens_no_session():
    """It was taken by a session of its own, and lost."""
    with served() as (endpoint, gateway):
        gateway._opens = lambda name, task: Session(gateway.sessions["one"].serving, 2, name=name, task=task)
        new, misspelt = (
            Endpoint(endpoint.base_url.replace("/one/", f"/{name}/"), TOKEN, "") for name in ("new", "nwe")
        )
        post(new, "chat/completions", {"messages": [user("a")]})
        status, error = refused(misspelt, "reward", 1.0)
        assert (status, error["code"]) == (404, "session_not_found")
        assert "there is no session 'nwe'; a call to the model opens it" in error["message"]
        post(new, "reward", 1.0)
        assert gateway.sessions.keys() == {"one", "two", "new"}


def test_a_body_that_is_too_large_is_answered_and_not_cut_off():
    """The answer comes before the caller has sent everything."""
    with served() as (endpoint, _):
        caller = HTTPConnection(*address_of(endpoint), timeout=20)
        headers = {"Authorization": f"Bearer {endpoint.api_key}", "Content-Type": "application/json"}
        path = urlsplit(endpoint.base_url).path + "/chat/completions"
        caller.request("POST", path, b" " * (http.MAX_BODY + (4 << 20)), headers)
        answer = caller.getresponse()
        assert (answer.status, "bytes" in answer.read().decode()) == (413, True)
        caller.close()
