"""The OpenEnv client against a server that misbehaves on demand; tests/crosscheck/openenv uses real servers."""

import asyncio
import contextlib
import gc
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from tests.needs import reason

from turnwise.base.errors import ConfigError, EnvironmentFault
from turnwise.environments.base import Step
from turnwise.environments.check_apart import check_apart
from turnwise.environments.hosts import InProcessEnvironments
from turnwise.environments.isolation import TOKEN_VARIABLE
from turnwise.environments.settings import EnvironmentConfig
from turnwise.environments.suites import make_suite
from turnwise.worlds.adapters import openenv

pytest.importorskip("websockets", reason=reason("websockets"))
from websockets.asyncio.server import serve

TEXT = {"type": "string"}
SCHEMA = {"action": {"properties": {"say": TEXT}, "required": ["say"]}, "observation": {"properties": {"heard": TEXT}}}


class Server:
    """Echoes; some words have it do something else."""

    token = ""

    def __init__(self):
        self.sessions, self.resets, self.most = 0, [], 0
        self.loop = asyncio.new_event_loop()
        ready = threading.Event()
        self.thread = threading.Thread(target=lambda: self.loop.run_until_complete(self.main(ready)))
        self.thread.start()
        assert ready.wait(10.0)

    async def main(self, ready):
        self.over = asyncio.Event()
        async with serve(self.session, "127.0.0.1", 0, process_request=self.http) as server:
            self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            ready.set()
            await self.over.wait()

    def http(self, connection, request):
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            return connection.respond(401, "send the token")
        return connection.respond(200, json.dumps(SCHEMA)) if request.path == "/schema" else None

    async def session(self, socket):
        self.sessions += 1
        self.most = max(self.most, self.sessions)
        try:
            if self.sessions > 3:
                await socket.send(error("server at capacity", "CAPACITY_REACHED"))
                return
            async for text in socket:
                message = json.loads(text)
                if message["type"] == "reset":
                    self.resets.append(message["data"])
                await self.answer(socket, message["data"].get("say", "welcome"))
        finally:
            self.sessions -= 1

    async def answer(self, socket, said):
        if said == "cut":
            socket.transport.abort()
        elif said == "late":
            await asyncio.sleep(0.6)
            await socket.send(observation("too late"))
        elif said == "garbage":
            await socket.send("<html>")
        elif said == "invalid":
            await socket.send(error("Invalid message", "VALIDATION_ERROR"))
        elif said == "raise":
            await socket.send(error("the environment broke", "EXECUTION_ERROR"))
        elif said == "win":
            await socket.send(observation("won", done=True, reward=1.0))
        elif said == "all fields":
            fields = {"state_key": ["a", {"b": 1}], "admissible": ["look", "win"], "info": {"score": 2}}
            await socket.send(observation(said, done=True, reward=1.0, truncated=True, valid=False, **fields))
        elif said == "give up":
            await socket.send(observation("given up", done=True, reward=1.0, success=False))
        else:
            await socket.send(observation(said))


def observation(heard, done=False, reward=None, **more):
    return json.dumps(
        {"type": "observation", "data": {"observation": {"heard": heard, **more}, "done": done, "reward": reward}}
    )


def error(message, code):
    return json.dumps({"type": "error", "data": {"message": message, "code": code}})


@pytest.fixture
def server():
    made = Server()
    yield made
    made.loop.call_soon_threadsafe(made.over.set)
    made.thread.join()
    made.loop.close()


def suite(server, max_steps=20, step_timeout_s=10.0, **options):
    environment = {"max_steps": max_steps, "step_timeout_s": step_timeout_s}
    return make_suite(
        EnvironmentConfig(name="openenv", options={"url": server.url, "sessions": 3, **options}, **environment)
    )


async def play(environment, responses):
    return [await environment.start(), *[await environment.step(response) for response in responses]]


def test_held_out_seeds_stand_behind_those_of_training(server):
    made = suite(server, num_train=10, num_valid=4)
    seeds = {split: [task["seed"] for task in made.tasks(split)] for split in ("train", "valid", "test")}
    assert [*seeds["train"], *seeds["valid"], *seeds["test"]] == list(range(18))
    with pytest.raises(ConfigError, match="Did you mean 'valid'"):
        made.tasks("vali")


def test_a_server_on_this_machine_is_asked_without_a_proxy(server, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # nobody is there
    made = suite(server)
    assert asyncio.run(made.environment(made.tasks("train")[0]).start()).observation == "welcome"


def test_no_token_goes_to_where_a_server_points(monkeypatch):
    """websockets before 17 sends it there."""
    asked: list[str] = []

    class Elsewhere(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(str(self.headers.get("Authorization")))
            self.send_error(403)

        def log_message(self, *said: Any) -> None:
            """Say nothing."""

    class Redirecting(Elsewhere):
        def do_GET(self) -> None:
            self.send_response(302)
            self.send_header("Location", f"ws://localhost:{elsewhere.server_port}/ws")
            self.send_header("Content-Length", "0")
            self.end_headers()

    monkeypatch.setenv(TOKEN_VARIABLE, "secret")
    with HTTPServer(("127.0.0.1", 0), Elsewhere) as elsewhere, HTTPServer(("127.0.0.1", 0), Redirecting) as first:
        for each in (elsewhere, first):
            threading.Thread(target=each.serve_forever, daemon=True).start()
        with pytest.raises(EnvironmentFault, match="cannot connect"):
            asyncio.run(openenv._Session(f"http://127.0.0.1:{first.server_port}", 10.0).open(asyncio.Semaphore(1)))
        for each in (elsewhere, first):
            each.shutdown()
    assert asked == []


def test_the_conformance_test_has_the_token_of_the_server_in_its_processes(server, monkeypatch):
    server.token = "the-token"
    with pytest.raises(ConfigError, match="answers 401: send the token"):
        suite(server)
    monkeypatch.setenv(TOKEN_VARIABLE, server.token)
    checked = check_apart(EnvironmentConfig(name="openenv", max_steps=3, options={"url": server.url}))
    assert not any(problem.severe for problem in checked.problems)


def test_a_win_ends_the_session(server):
    made = suite(server, reset={"level": 2})
    task = made.tasks("valid")[3]
    steps = asyncio.run(play(made.environment(task), ["hello", "win"]))
    assert [step.observation for step in steps] == ["welcome", "hello", "won"]
    assert [(step.terminated, step.truncated, step.reward) for step in steps][1:] == [
        (False, False, 0.0),
        (True, False, 1.0),
    ]
    assert steps[-1].info == {"success": True}
    assert server.resets == [{"level": 2, "seed": 1_003}]
    assert_empty(server)


def test_what_the_environment_says_of_success_counts(server):
    steps = asyncio.run(play(suite(server).environment({"seed": 0}), ["give up"]))
    assert (steps[-1].terminated, steps[-1].reward, steps[-1].info) == (True, 1.0, {"success": False})
    steps = asyncio.run(play(suite(server, threshold=1.0).environment({"seed": 0}), ["win"]))
    assert steps[-1].info == {"success": False}


def test_the_fields_of_a_step_are_taken_over(server):
    steps = asyncio.run(play(suite(server).environment({"seed": 0}), ["hello", "all fields"]))
    assert steps[1] == Step(observation="hello")
    assert steps[2] == Step(
        observation="all fields",
        reward=1.0,
        truncated=True,
        valid=False,
        state_key=("a", "{'b': 1}"),
        admissible=("look", "win"),
        info={"score": 2, "success": False},
    )


def test_a_server_that_counts_its_tasks_is_asked_for_them(server, monkeypatch):
    real, counts = openenv.ask_http, {"train": 5, "valid": 2}

    def answer(url, data=None):
        if url == f"{server.url}/echo/num_tasks":
            return {"num_tasks": counts[data["split"]]}
        return ["echo"] if url == f"{server.url}/list_environments" else real(url)

    monkeypatch.setattr(openenv, "ask_http", answer)
    made = suite(server)
    tasks = made.tasks("valid")
    assert tasks == [{"split": "valid", "index": 0}, {"split": "valid", "index": 1}]
    assert made.task_name(tasks[1]) == "valid-1"
    asyncio.run(play(made.environment(tasks[1]), ["win"]))
    assert server.resets == [tasks[1]]
    assert suite(server, tasks="seed").tasks("train")[0] == {"seed": 0}
    counts["train"] = 0
    assert "seed" in suite(server).tasks("train")[0]


def test_what_the_server_calls_invalid_counts_as_a_step(server):
    steps = asyncio.run(play(suite(server, max_steps=2).environment({"seed": 0}), ["hello", "invalid"]))
    assert [(step.observation, step.valid, step.truncated) for step in steps[1:]] == [
        ("hello", True, False),
        ("hello", False, True),
    ]
    assert_empty(server)


@pytest.mark.parametrize(
    ("response", "message"),
    [
        ("cut", r"no answer to step: ConnectionClosed"),
        ("garbage", r"no answer to step: JSONDecodeError"),
        ("raise", r"step failed: the environment broke \(EXECUTION_ERROR\)"),
    ],
)
def test_a_step_that_fails_ends_the_episode_and_no_other(server, response, message):
    made = suite(server)
    other = made.environment({"seed": 1})

    async def side_by_side():
        await other.start()
        with pytest.raises(EnvironmentFault, match=message) as caught:
            await play(made.environment({"seed": 0}), ["hello", response])
        assert server.url in str(caught.value)
        return await other.step("still here")

    assert asyncio.run(side_by_side()).observation == "still here"


def test_a_late_answer_is_not_taken_for_the_next(server):
    environment = suite(server, step_timeout_s=0.2).environment({"seed": 0})
    with pytest.raises(EnvironmentFault, match=r"no answer to step within 0.2 s"):
        asyncio.run(play(environment, ["late"]))
    with pytest.raises(EnvironmentFault, match=r"after the end"):
        asyncio.run(environment.step("hello"))


def test_a_cancelled_step_ends_the_session(server):
    environment = suite(server).environment({"seed": 0})

    async def cancelled():
        await environment.start()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.1):
                await environment.step("late")

    asyncio.run(cancelled())
    assert_empty(server)


def test_a_full_server_says_so(server):
    made = suite(server, sessions=4)

    async def all_at_once():
        environments = [made.environment({"seed": seed}) for seed in range(4)]
        return await asyncio.gather(*(environment.start() for environment in environments), return_exceptions=True)

    faults = [str(answer) for answer in asyncio.run(all_at_once()) if isinstance(answer, EnvironmentFault)]
    assert faults == [f"{server.url}: reset failed: server at capacity (CAPACITY_REACHED)"]


def test_no_more_episodes_at_a_time_than_sessions(server):
    made = suite(server, sessions=2)

    async def many():
        return await asyncio.gather(*(play(made.environment({"seed": n}), ["hello", "win"]) for n in range(8)))

    assert [steps[-1].reward for steps in asyncio.run(many())] == [1.0] * 8
    assert server.most == 2


def test_an_abandoned_episode_gives_its_session_back(server):
    made = suite(server, sessions=1)
    environments = [made.environment({"seed": 0})]
    asyncio.run(play(environments[0], ["hello"]))
    environments.clear()
    gc.collect()
    assert_empty(server)
    assert asyncio.run(play(made.environment({"seed": 1}), ["win"]))[-1].reward == 1.0


def test_a_collection_that_lets_go_of_an_environment_ends_its_session(server):
    made = suite(server)
    environments = InProcessEnvironments(made.environment)

    async def begin_and_let_go():
        await asyncio.gather(*(environments.start(key, {"seed": key}) for key in range(3)))
        assert (await environments.step(1, "hello")).observation == "hello"
        for key in range(3):
            environments.close(key)

    asyncio.run(begin_and_let_go())
    assert_empty(server)


def assert_empty(server):
    """The server sees soon that nobody is there."""
    end = time.monotonic() + 5.0
    while server.sessions and time.monotonic() < end:
        time.sleep(0.01)
    assert server.sessions == 0
