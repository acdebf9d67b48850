"""Environments made of verifiers' own classes, and one that comes with it, played as ours (see
benchmarks/requirements-verifiers.txt).

    PYTHONPATH=src <python with verifiers> -m pytest tests/crosscheck/verifiers -m crosscheck

What verifiers runs and scores is its own; only the model is ours.
"""

import asyncio
import contextlib
import gc
import http.server
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import pytest

from turnwise.base.errors import ConfigError, EnvironmentFault
from turnwise.environments.check import check_environment
from turnwise.environments.settings import EnvironmentConfig
from turnwise.environments.suites import make_suite
from turnwise.environments.workers import make_environments
from turnwise.integrations.logs.formats import read_log

pytestmark = [pytest.mark.crosscheck, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

pytest.importorskip("verifiers.v1", reason="verifiers is not installed; see benchmarks/requirements-verifiers.txt")

TASKSETS = str(Path(__file__).parent / "tasksets")


@pytest.fixture(autouse=True)
def tasksets_can_be_imported(monkeypatch):
    """As if they were installed; the servers of tools, in processes of their own, import them too."""
    monkeypatch.syspath_prepend(TASKSETS)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((TASKSETS, os.environ.get("PYTHONPATH", ""))))


def config(id, max_steps=6, workers=0, step_timeout_s=60.0, **options):
    options = {"id": id, "num_train": 5, "num_valid": 5, **options}
    world = {"max_steps": max_steps, "workers": workers, "step_timeout_s": step_timeout_s}
    return EnvironmentConfig(name="verifiers", options=options, **world)


def suite(id, **options):
    return make_suite(config(id, **options))


async def play(world, responses):
    return [await world.start(), *[await world.step(response) for response in responses]]


def test_turns_go_to_and_fro_and_the_rubric_pays_at_the_end():
    steps = asyncio.run(play(suite("guessing").environment(3), ["0", "4", "3"]))
    assert [step.observation for step in steps] == ["Say a number.\n\nGuess.", "higher", "lower", ""]
    assert [step.reward for step in steps] == [0.0, 0.0, 0.0, 2.0]  # its weight
    assert (steps[-1].terminated, steps[-1].truncated) == (True, False)
    assert steps[-1].info == {"success": True, "stop": "user_closed", "metrics": {"guesses": 3.0}}


def test_the_limit_of_turns_truncates_and_still_pays():
    steps = asyncio.run(play(suite("guessing", max_steps=3).environment(3), ["0"] * 3))
    assert (steps[-1].terminated, steps[-1].truncated, steps[-1].reward) == (False, True, 0.0)
    assert steps[-1].info["success"] is False
    assert steps[-1].info["stop"] == "max_turns"


def test_many_rollouts_go_side_by_side_in_one_event_loop_after_another():
    made = suite("guessing")

    async def all_of_them():
        rollouts = [play(made.environment(task), [str(n) for n in range(task + 1)]) for task in (*range(5), *range(5))]
        return await asyncio.gather(*rollouts)

    for _ in range(2):
        played = asyncio.run(all_of_them())
        assert [steps[-1].info["metrics"]["guesses"] for steps in played] == [1, 2, 3, 4, 5] * 2
        assert all(steps[-1].reward == 2.0 for steps in played)


def test_tools_are_called_by_text():
    made = suite("adding", num_train=4, num_valid=2)
    calls = [
        'Let me see. <tool_call>{"name": "calculator_add", "arguments": {"a": 3, "b": 40}}</tool_call>',
        "<tool_call>{oops}</tool_call>",
        '<tool_call>{"name": "subtract", "arguments": {}}</tool_call>',
        'both <tool_call>{"name": "calculator_add", "arguments": {"a": 1, "b": 2}}</tool_call>'
        '<tool_call>{"name": "calculator_add", "arguments": {"a": 3, "b": 4}}</tool_call>',
        "It is 43.",
    ]
    steps = asyncio.run(play(made.environment(3), calls))
    assert steps[0].observation.startswith("Call a tool with <tool_call>")
    assert '"name": "calculator_add", "description": "Add two numbers."' in steps[0].observation
    assert steps[0].observation.endswith("\n\nHow much is 3 + 40?")
    errors = ['error: expected {"name": NAME, "arguments": {...}}', "error: no tool 'subtract'"]
    assert [step.observation for step in steps[1:]] == ["43", *errors, "3\n\n7", ""]
    assert [step.valid for step in steps] == [True, True, False, False, True, True]
    assert (steps[-1].reward, steps[-1].info["success"]) == (1.0, True)
    with pytest.raises(ConfigError, match=r"the split 'valid' takes tasks 4 to 8, the taskset has 6: set .*num_train"):
        suite("adding", num_train=4).tasks("valid")


def test_a_wrong_answer_is_no_success():
    steps = asyncio.run(play(suite("adding", num_train=4).environment(0), ["It is 4."]))
    assert (steps[-1].terminated, steps[-1].reward, steps[-1].info["success"]) == (True, 0.0, False)


def test_a_world_that_breaks_is_a_fault():
    world = suite("guessing").environment(1)
    with pytest.raises(EnvironmentFault, match=r"the environment 'verifiers': EnvError: .*the world broke"):
        asyncio.run(play(world, ["0", "break"]))
    with pytest.raises(EnvironmentFault, match=r"step\(\) after the end"):
        asyncio.run(world.step("1"))
    with pytest.raises(EnvironmentFault, match=r"step\(\) before start\(\)"):
        asyncio.run(suite("guessing").environment(1).step("1"))


def test_a_world_that_breaks_before_the_first_turn_is_a_fault():
    world = suite("guessing", taskset={"breaks": True}).environment(1)
    with pytest.raises(EnvironmentFault, match=r"EnvError: GuessEnv.setup\(\): ValueError: no game today"):
        asyncio.run(world.start())


def test_a_seat_that_plays_twice_is_a_fault():
    with pytest.raises(EnvironmentFault, match=r"the seat played 2 times in one episode, expected once"):
        asyncio.run(play(suite("guessing", taskset={"again": True}).environment(0), ["0", "0"]))


def test_no_answer_in_time_is_a_fault():
    world = suite("adding", num_train=4, step_timeout_s=0.2).environment(0)  # its tools take seconds to come up
    with pytest.raises(EnvironmentFault, match=r"no answer within 0.2 s"):
        asyncio.run(world.start())


def test_an_abandoned_rollout_ends():
    made = suite("guessing")
    world = made.environment(1)
    asyncio.run(play(world, ["0"]))
    assert len(made._stage.seat.conversations) == 1
    del world
    gc.collect()
    asyncio.run(play(made.environment(0), ["0"]))  # what comes later in the background comes after it
    assert made._stage.seat.conversations == {}


def test_the_environments_are_sound():
    (warning,) = check_environment(suite("guessing"))  # tasks differ in a secret that no scripted response hits
    assert not warning.severe
    assert "the seed may be ignored" in warning.what


def test_rollouts_are_played_in_workers():
    chosen = config("guessing", workers=1)

    async def in_a_worker():
        environments = make_environments(make_suite(chosen), chosen)
        try:
            await asyncio.gather(*(environments.start(key, key) for key in range(3)))
            return await asyncio.gather(*(environments.step(key, "1") for key in range(3)))
        finally:
            await environments.aclose()

    assert [step.observation for step in asyncio.run(in_a_worker())] == ["lower", "", "higher"]


def test_an_environment_that_comes_with_verifiers_is_played():
    """Its taskset `openenv` plays a served household: our game, through OpenEnv's protocol and client, verifiers and
    back.
    """
    pytest.importorskip("openenv", reason="OpenEnv is not installed; see benchmarks/requirements-verifiers.txt")
    games = {"num_train": 4, "num_valid": 2}
    own = make_suite(EnvironmentConfig(name="household", options=games))
    with served("household", games) as url:
        resets = [{"split": "train", "index": index} for index in range(4)]
        made = suite("openenv", taskset={"base_url": url, "resets": resets}, max_steps=60, num_train=3, num_valid=1)
        for task in made.tasks("train"):
            world, game = made.environment(task), own.environment(own.tasks("train")[task])
            demonstration = own.demonstrate(own.tasks("train")[task], noise=0.2, seed=task)
            responses = [turn.response for turn in demonstration]
            steps, expected = asyncio.run(play(world, responses)), [game.start(), *map(game.step, responses)]
            assert [json.loads(step.observation)["observation"]["text"] for step in steps[:-1]] == [
                step.observation for step in expected[:-1]
            ]
            assert (steps[-1].terminated, steps[-1].reward, steps[-1].info["success"]) == (True, 10.0, True)


@contextlib.contextmanager
def served(name, options):
    """Serve an environment of ours in a process of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    given = [f"environment.options.{option}={value}" for option, value in options.items()]
    process = subprocess.Popen(
        [sys.executable, "-m", "turnwise.commands.cli", "serve-env", name, *given, "--port", str(port)]
    )
    try:
        for _ in range(600):
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health"):
                break
            assert process.poll() is None, "the server ended"
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"id": ""}, r"environment.options.id is missing: name a taskset of verifiers"),
        ({"id": "no_such_taskset"}, r"verifiers cannot make 'no_such_taskset': ModuleNotFoundError"),
        ({"id": "guessing", "taskset": {"number": 3}}, r"verifiers cannot make 'guessing': .*number"),
        ({"id": "relay"}, r"'relay' has the seats asker, teller; expected one"),
        ({"id": "guessing", "num_train": 0}, r"environment.options.num_train=0: expected a whole number of tasks"),
    ],
)
def test_what_is_wrong_is_said_before_a_run(options, message):
    with pytest.raises(ConfigError, match=message) as caught:
        suite(**options)
    assert "\n" not in str(caught.value)


def test_the_options_of_a_taskset_are_its_own():
    steps = asyncio.run(play(suite("guessing", taskset={"numbers": 2}).environment(3), ["0", "1"]))
    assert steps[-1].reward == 2.0  # number 3 of two numbers is 1
    assert suite("guessing").task_name(3) == "guess-3"


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "verifiers.v1", None)  # as if it were not installed
    with pytest.raises(
        ConfigError, match=r"'verifiers' needs the module 'verifiers.v1'; pip install 'turnwise-rl\[verifiers\]'"
    ):
        suite("guessing")


class Guesses(http.server.BaseHTTPRequestHandler):
    """An endpoint of chat completions whose model adds with a tool, and guesses 3, then 2, and so on."""

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        said, tools = asked["messages"], asked.get("tools")
        message = {"role": "assistant", "content": str(3 - sum(each["role"] == "assistant" for each in said))}
        if tools:
            call = {"name": tools[0]["function"]["name"], "arguments": '{"a": 1, "b": 40}'}
            calls = [{"id": "1", "type": "function", "function": call}]
            first = said[-1]["role"] == "user"
            message = {"role": "assistant", **({"tool_calls": calls} if first else {"content": said[-1]["content"]})}
        for index, call in enumerate(message.get("tool_calls", [])):
            call["index"] = index
        end = {"index": 0, "delta": {}, "finish_reason": "tool_calls" if "tool_calls" in message else "stop"}
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for choice in ({"index": 0, "delta": message, "finish_reason": None}, end):  # verifiers asks for streams
            chunk = {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": "m", "choices": [choice]}
            self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, *_):
        pass


@pytest.mark.parametrize(
    ("taskset", "agent", "sizes", "rewards"),
    [("guessing", "player", [1, 2, 3, 4], {2.0}), ("adding", "agent", [2, 2, 2, 2], {0.0, 1.0})],
)
def test_the_episodes_that_its_evaluation_writes_are_read(taskset, agent, sizes, rewards, tmp_path):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Guesses) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        command = [sys.executable, "-c", "from verifiers.v1.cli.eval.main import main; main()", taskset]
        command += ["--client.base-url", f"http://127.0.0.1:{server.server_port}/v1", "--client.api-key-var", "KEY"]
        command += ["-m", "m", "-n", "4", "-r", "2", "-o", str(tmp_path), "--no-push", "--no-rich"]
        command += [f"--env.{agent}.runtime.type", "subprocess", f"--env.{agent}.harness.id", "null"]
        environment = {**os.environ, "KEY": "none"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
        server.shutdown()
    assert done.returncode == 0, done.stderr[-2000:]
    (file,) = tmp_path.rglob("traces.jsonl")
    found, source = read_log(file)
    assert not source.left_out
    assert not [each.failure for each in found if each.failure]
    by_task = {each.task: len(each.responses) for each in found}
    assert sorted(by_task.values()) == sizes
    assert len(found) == 2 * len(by_task)
    assert {each.outcome.reward for each in found} == rewards
