"""Callers that harm others: pages of other sites, silent ones, ones that have gone, prompts that are too long."""

import asyncio
import contextlib
import dataclasses
import json
import resource
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from tests.gateway.asking import post, serving, user
from tests.gateway.test_server import GREEN, TOKEN, address_of, refused, served
from tests.toys import ScriptedEngine, color_policy
from turnwise.environments.serve_guard import RequestGuard, refusal
from turnwise.extensions.gateway import http
from turnwise.extensions.gateway.harness import Endpoint
from turnwise.extensions.gateway.outcome import Outcome
from turnwise.extensions.gateway.recorder import Recorder
from turnwise.rollout.record import write_rollouts

MANY_FILES = 3000
CHAT = "/s/one/v1/chat/completions"


def raw(method: str, path: str, body: bytes = b"", **headers: str) -> bytes:
    given = {"Host": "127.0.0.1", "Authorization": f"Bearer {TOKEN}", "Content-Length": str(len(body)), **headers}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {each}" for name, each in given.items())]
    return "\r\n".join([*lines, "", ""]).encode() + body


def connect(endpoint: Endpoint) -> socket.socket:
    return socket.create_connection(address_of(endpoint), 5)


def asked(text: str = "a") -> bytes:
    return json.dumps({"messages": [user(text)]}).encode()


@pytest.mark.parametrize("origin", ["http://evil.example", "http://127.0.0.1:1", "null", "http://["])
def test_a_page_of_another_site_is_refused(origin):
    with served() as (endpoint, gateway):
        for path in ("chat/completions", "reward"):
            assert refused(endpoint, path, {"messages": [user("a")]}, Origin=origin)[0] == 403
        assert not gateway.sessions["one"].trajectory.turns
        host = "{}:{}".format(*address_of(endpoint))
        post(endpoint, "chat/completions", {"messages": [user("a")]}, Origin=f"http://{host}")


def test_what_a_page_embeds_is_refused_and_a_link_is_not():
    host = {b"host": "127.0.0.1:8000"}
    told = {
        (site, mode): refusal({**host, b"sec-fetch-site": site, b"sec-fetch-mode": mode}, loopback=True, token=None)[0]
        for site in ("cross-site", "same-site", "same-origin", "none")
        for mode in ("no-cors", "navigate")
    }
    assert [key for key, code in told.items() if code] == [("cross-site", "no-cors"), ("same-site", "no-cors")]


def test_a_web_socket_of_a_foreign_page_is_closed():
    sent, served_by = [], []

    async def app(scope, receive, send):
        served_by.append(scope)

    async def send(message):
        sent.append(message)

    async def play(origin: bytes):
        headers = [(b"host", b"localhost:8000"), (b"origin", origin)]
        guard = RequestGuard(app, loopback=True, token=None)
        await guard({"type": "websocket", "headers": headers}, None, send)  # pyright: ignore[reportArgumentType]

    asyncio.run(play(b"https://evil.example"))
    assert [(each["type"], each["code"]) for each in sent] == [("websocket.close", 1008)]
    assert not served_by
    asyncio.run(play(b"http://localhost:8000"))
    assert len(served_by) == 1


def test_a_caller_that_goes_away_after_an_early_byte_leaves_no_turn():
    async def slow(*_: Any):
        await asyncio.sleep(0.5)

    class Slow(ScriptedEngine):
        async def generate(self, conversation, prompt_ids, sampling):
            await slow()
            return await super().generate(conversation, prompt_ids, sampling)

    with served(Slow(lambda conversation, turn: GREEN)) as (endpoint, gateway):
        with connect(endpoint) as caller:
            caller.sendall(raw("POST", CHAT, asked()))
            time.sleep(0.1)
            caller.sendall(b"G")
            time.sleep(0.1)
        time.sleep(0.7)
        assert not gateway.sessions["one"].trajectory.turns
        with connect(endpoint) as caller:  # a whole request that comes early is answered
            caller.sendall(raw("POST", CHAT, asked()))
            time.sleep(0.1)
            caller.sendall(raw("GET", "/v1/models", Connection="close"))
            answers = b""
            while data := caller.recv(4096):
                answers += data
        assert answers.count(b"HTTP/1.1 200") == 2
        assert len(gateway.sessions["one"].trajectory.turns) == 1


@pytest.mark.parametrize(
    ("path", "code", "host"),
    [("/v1/models", b"200", "127.0.0.1"), (CHAT, b"405", "127.0.0.1"), ("/v1/models", b"403", "evil.example")],
)
def test_head_is_answered_without_a_body(path, code, host):
    with served() as (endpoint, _), connect(endpoint) as caller:
        caller.sendall(raw("HEAD", path, Host=host, Connection="close"))
        answer = b""
        while data := caller.recv(4096):
            answer += data
    assert answer.split()[1] == code
    assert answer.endswith(b"\r\n\r\n")
    assert b"content-length: 0" not in answer.lower()


def test_a_caller_that_expects_100_is_told_to_continue():
    with served() as (endpoint, _), connect(endpoint) as caller:
        caller.sendall(raw("POST", CHAT, b"", **{"Expect": "100-continue", "Content-Length": str(len(asked()))}))
        assert caller.recv(4096).startswith(b"HTTP/1.1 100 ")
        caller.sendall(asked())
        assert caller.recv(4096).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("number", [10**400, -(10**400)])
@pytest.mark.parametrize("name", ["temperature", "top_p", "n", "max_tokens", "seed"])
def test_numbers_that_no_float_holds_are_400(name, number):
    with served() as (endpoint, _):
        assert refused(endpoint, "chat/completions", {"messages": [user("a")], name: number})[0] == 400


DEEP = b"[" * 900 + b"]" * 900


@pytest.mark.parametrize("value", [b"[" * 20_000, DEEP, b"1" * 5000])
def test_json_that_cannot_be_written_again_is_400(value):
    call = b'{"function": {"name": "f", "arguments": %s}}' % value
    messages = b'[{"role": "assistant", "content": "", "tool_calls": [%s]}, {"role": "user", "content": "a"}]' % call
    bodies = {CHAT: b'{"messages": %s}' % messages, "/s/one/v1/reward": b'{"reward": 1, "info": {"x": %s}}' % value}
    with served() as (endpoint, gateway):
        for path, body in bodies.items():
            with connect(endpoint) as caller:
                caller.sendall(raw("POST", path, body))
                assert caller.recv(4096).split()[1] == b"400"
        assert gateway.sessions["one"].outcome is None


def test_a_long_prompt_is_refused_before_it_is_tokenised():
    with served() as (endpoint, gateway):
        tokenizer, encoded = gateway._fmt.tokenizer, []
        plain = tokenizer.encode
        tokenizer.encode = lambda *given, **more: encoded.append(given) or plain(*given, **more)  # pyright: ignore
        try:
            for text in ("green " * 2_000_000, "x"):
                more = {} if len(text) > 1 else {"tools": [{"type": "function", "function": {"name": "y" * 10**6}}]}
                begun = time.monotonic()
                code, error = refused(endpoint, "chat/completions", {"messages": [user(text)], **more})
                assert (code, error["code"]) == (400, "context_length_exceeded")
                assert time.monotonic() - begun < 3
        finally:
            del tokenizer.encode
        assert not encoded
        assert gateway.sessions["one"].full, "it is a trajectory that got too long, as natively"


def test_what_no_call_needs_is_not_read():
    with served() as (endpoint, _):
        begun = time.monotonic()
        many = {"messages": [user("a")], "metadata": [[]] * 4_000_000}
        code, error = refused(endpoint, "chat/completions", many)
        assert (code, error["code"]) == (400, "context_length_exceeded")
        code, error = refused(endpoint, "chat/completions", {"messages": [user("a")], "x" * 10**6: 1})
        assert (code, len(error["param"]), len(error["message"]) < 300) == (400, 80, True)
        code, error = refused(endpoint, "chat/completions", {"messages": [user("a")], "stop": ["x" * 501]})
        assert (code, error["param"]) == (400, "stop")
        assert time.monotonic() - begun < 10


def test_addresses_and_schemes_may_be_written_in_other_ways():
    host = {b"host": "127.0.0.1:8000"}
    for given, code in {"bearer  a": 0, "BEARER a": 0, "a": 0, "bearer b": 401, "basic a": 401, "": 401}.items():
        assert refusal({**host, b"authorization": given}, loopback=True, token="a")[0] == code, given
    with served() as (endpoint, _), connect(endpoint) as caller:
        caller.sendall(raw("POST", f"http://127.0.0.1{CHAT}", asked()))
        assert caller.recv(4096).split()[1] == b"200"


@pytest.fixture
def many_files() -> Iterator[None]:
    """Both ends of 1,024 connections are files of this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < MANY_FILES:
        pytest.skip(f"needs {MANY_FILES} open files (ulimit -H -n)")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, MANY_FILES), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_files")
@pytest.mark.parametrize("silent", ["from the start", "after a request"])
@pytest.mark.parametrize("number", [8, pytest.param(1024, marks=pytest.mark.slow)])
def test_good_callers_wait_for_silent_ones_that_hold_all_connections(monkeypatch, number, silent):
    """The 1,024 meet the limits as they are."""
    if number < http.MAX_CONNECTIONS:
        monkeypatch.setattr(http, "MAX_CONNECTIONS", number)
        monkeypatch.setattr(http, "HEADERS_S", 1.0)
    assert number == http.MAX_CONNECTIONS
    with served() as (endpoint, _), contextlib.ExitStack() as held:
        callers = [held.enter_context(connect(endpoint)) for _ in range(number)]
        if silent == "after a request":
            for caller in callers:
                caller.sendall(raw("GET", "/v1/models"))
                assert caller.recv(4096).split()[1] == b"200"
        begun = time.monotonic()
        two = dataclasses.replace(endpoint, base_url=endpoint.base_url.replace("/one/", "/two/"))
        with ThreadPoolExecutor(2) as good:
            answers = [
                good.submit(post, each, "chat/completions", {"messages": [user("a")]}) for each in (endpoint, two)
            ]
            assert all(each.result()["choices"] for each in answers)
        assert time.monotonic() - begun < http.HEADERS_S + 4


def test_a_record_that_cannot_be_written_loses_no_other(tmp_path):
    class Unwritable:
        def __str__(self) -> str:
            raise ValueError("no text")

    recorded: list[list[Any]] = []

    def write(trajectories):
        write_rollouts(tmp_path / "step-000001.parquet", trajectories, {})
        recorded.append([(each.task, each.failure) for each in trajectories])

    async def play():
        shared = serving(color_policy().format, ScriptedEngine(lambda conversation, turn: [7]))
        recorder = Recorder(shared, write, batch=3)
        for name in "abc":
            session = recorder.open(name, "")
            await session.respond(dataclasses.replace(chat_call(), state_key=Unwritable() if name == "b" else None))
            session.finish(Outcome(1.0, True, {}))
        gateway: Any = SimpleNamespace(lost=asyncio.get_running_loop().create_future(), forget=lambda session: None)
        await recorder.serve(gateway, lambda: True)

    def chat_call():
        from tests.gateway.asking import call

        return call([user("say red")])

    asyncio.run(play())
    lost = "harness: its record cannot be written: ValueError"
    assert recorded == [[("a", None), ("b", lost), ("c", None)]]
