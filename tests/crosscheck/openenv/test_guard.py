"""`serve-env` among callers that are malformed, slow, or elsewhere; TURNWISE_SOAK_S=600 for ten minutes."""

import asyncio
import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("openenv", reason="OpenEnv is not installed; see benchmarks/requirements-openenv.txt")

sys.path.insert(0, str(Path(__file__).parents[3]))  # for tests.soak, without the tests' own configuration
from tests.soak import SECONDS, is_flat, soak

from turnwise.environments.settings import EnvironmentConfig
from turnwise.environments.suites import make_suite

TOKEN = "the-token"
pytestmark = pytest.mark.crosscheck


class Served(str):
    """The address of a server, with its process id."""

    process: int

    def __new__(cls, url: str, process: int):
        made = super().__new__(cls, url)
        made.process = process
        return made


@contextlib.contextmanager
def served(*options, **variables):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ("environment.options.size=tiny", *options)
    command = [sys.executable, "-m", "turnwise.commands.cli", "serve-env", "household", "--port", str(port), *options]
    process = subprocess.Popen(command, env={**os.environ, **variables})
    try:
        for _ in range(2000):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            assert process.poll() is None, "the server ended"
            time.sleep(0.1)
        yield Served(f"http://127.0.0.1:{port}", process.pid)
    finally:
        process.terminate()
        process.wait()


def ask(url, path, body=None, **headers):
    data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(f"{url}{path}", data, {"Content-Type": "application/json", **headers})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_a_callers_mistake_is_4xx():
    with served() as url:
        assert ask(url, "/health") == 200
        assert ask(url, "/health", Host="evil.example") == 403
        assert ask(url, "/reset", {"index": 10**9}) == 400
        assert ask(url, "/reset", {"split": "none"}) == 400
        assert ask(url, "/reset", {"colour": "red"}) in (400, 422)
        assert ask(url, "/reset", b"{") == 422
        assert ask(url, "/step", {"action": {}}) == 422
        assert ask(url, "/step", {"action": {"text": "look"}}) == 400
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
        connection.putrequest("POST", "/reset")
        connection.putheader("Content-Length", str(1 << 21))
        connection.endheaders()  # refused before the body is sent
        assert connection.getresponse().status == 413


ODD = ["x", "0", 1.5, 1.0, True, False, [], [0], {}, -1, 10**30, float("nan"), float("inf")]


def test_a_value_that_is_not_an_index_a_seed_or_a_split_is_4xx():
    with served() as url:
        for value in ODD:
            assert ask(url, "/reset", {"index": value}) in (400, 422), value
        for value in ("x", 1.5, [], {}, -1, float("nan"), float("inf")):
            assert ask(url, "/reset", {"seed": value}) in (400, 422), value
        for value in (3, None, ["train"], {}, float("nan"), True, "../train"):
            assert ask(url, "/reset", {"split": value}) in (400, 422), value
        for value in ("x", [], float("nan")):
            assert ask(url, "/step", {"action": {"text": "x"}, "timeout_s": value}) in (400, 422), value
        assert ask(url, "/reset", b'{"index": ' + b"9" * 5000 + b"}") == 400
        assert ask(url, "/reset", {"index": 0, "split": "valid"}) == 200


def test_callers_that_ask_nothing_make_room_for_others():
    with served("--sessions", "4") as url, contextlib.ExitStack() as held:  # 2 * 4 + 64 connections
        place = url.removeprefix("http://").split(":")
        begun = time.monotonic()
        silent = [held.enter_context(socket.create_connection((place[0], int(place[1])), 10)) for _ in range(200)]
        assert ask(url, "/health") == 200
        time.sleep(0.5)
        closed = 0
        for each in silent:
            each.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                closed += each.recv(1) == b""
        assert time.monotonic() - begun < 9, "the time limit for headers closes them all"
        assert 200 - 72 <= closed < 200
        assert ask(url, "/reset", {"index": 0}) == 200


def test_other_machines_need_the_token_and_our_client_sends_it(monkeypatch):
    with served("--host", "0.0.0.0", TURNWISE_SERVE_TOKEN=TOKEN) as url:
        assert ask(url, "/health") == 401
        assert ask(url, "/health", Authorization="Bearer wrong") == 401
        assert ask(url, "/health", Authorization=f"Bearer {TOKEN}") == 200
        monkeypatch.setenv("TURNWISE_SERVE_TOKEN", TOKEN)
        environment = make_suite(EnvironmentConfig(name="openenv", options={"url": url})).environment({"seed": 0})
        assert asyncio.run(environment.start()).observation


def test_a_soak_loses_no_session():
    with served("environment.max_steps=1000000") as url:
        suite = make_suite(EnvironmentConfig(name="openenv", max_steps=10**6, options={"url": url, "sessions": 20}))

        async def session(seed: int) -> int:
            environment = suite.environment({"seed": seed})
            await environment.start()
            turns, until = 0, time.monotonic() + SECONDS
            while not turns or time.monotonic() < until:
                assert not (await environment.step("look")).ended
                turns += 1
                await asyncio.sleep(0.05)
            return turns

        async def together():
            return await asyncio.gather(
                soak(url, SECONDS, "/health", process=url.process), *(session(seed) for seed in range(20))
            )

        told, *turns = asyncio.run(together())
    print(told, turns)
    assert (told["lost"], told["server errors"]) == ([], [])
    assert min(turns) > 0  # a session that is lost raises
    assert told["files"][1] <= told["files"][0]
    assert is_flat(told["memory_mb"])


if __name__ == "__main__":
    sys.exit(pytest.main([__file__]))
