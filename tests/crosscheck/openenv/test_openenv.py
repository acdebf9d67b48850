"""Our client and our server against OpenEnv's own, and against an environment of OpenEnv's (see
benchmarks/requirements-openenv.txt).

    PYTHONPATH=src <python with openenv> -m pytest tests/crosscheck/openenv -m crosscheck

Every server runs in a process of its own.
"""

import asyncio
import contextlib
import gc
import random
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

from turnwise.base.errors import ConfigError, EnvironmentFault
from turnwise.environments.check import check_environment
from turnwise.environments.settings import EnvironmentConfig
from turnwise.environments.suites import make_suite

pytestmark = [pytest.mark.crosscheck, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

pytest.importorskip("openenv", reason="OpenEnv is not installed; see benchmarks/requirements-openenv.txt")

GAMES = {"num_train": 20, "num_valid": 5}

ADDER = '''
from fastmcp import FastMCP
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Observation, State

class Adder(MCPEnvironment):
    """Add up to ten with a tool."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        mcp = FastMCP("adder")
        self.sum = 0

        @mcp.tool
        def add(number: int) -> str:
            self.sum += number
            return f"the sum is {self.sum}"

        super().__init__(mcp)

    def reset(self, seed=None, episode_id=None, **kwargs):
        if seed == 13:
            raise ValueError("no game thirteen")
        self.sum = seed % 5
        return CallToolObservation(tool_name="", result=f"begin at {self.sum}", done=False, reward=0.0)

    def _step_impl(self, action, timeout_s=None, **kwargs):
        return Observation(done=False)

    def step(self, action, timeout_s=None, **kwargs):
        answer = super().step(action, timeout_s=timeout_s, **kwargs)
        return self._judged(answer)

    async def step_async(self, action, timeout_s=None, **kwargs):
        return self._judged(await super().step_async(action, timeout_s=timeout_s, **kwargs))

    def _judged(self, answer):
        answer.done, answer.reward = self.sum >= 10, float(self.sum == 10)
        return answer

    @property
    def state(self):
        return State()

app = create_fastapi_app(Adder, CallToolAction, CallToolObservation, max_concurrent_envs=8, env_name="adder")
'''


@contextlib.contextmanager
def served(*command, folder=None):
    """Run a server in a process of its own and return its address once it answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    process = subprocess.Popen([sys.executable, "-m", *command, "--port", str(port)], cwd=folder)
    try:
        for _ in range(600):
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health"):
                break
            assert process.poll() is None, "the server ended"
            time.sleep(0.1)
        yield url, process
    finally:
        process.terminate()
        process.wait()


@pytest.fixture(scope="module")
def household():
    options = [f"environment.options.{name}={value}" for name, value in GAMES.items()]
    with served("turnwise.commands.cli", "serve-env", "household", *options) as (url, _):
        yield url


def far(url, *, max_steps=50, **options):
    return make_suite(EnvironmentConfig(name="openenv", max_steps=max_steps, options={"url": url, **options}))


def near():
    return make_suite(EnvironmentConfig(name="household", options=GAMES))


async def play(world, responses):
    return [await world.start(), *[await world.step(response) for response in responses]]


def test_a_served_game_gives_the_very_transcript_of_the_game_itself(household):
    own, other = near(), far(household, tasks="index")
    assert [len(other.tasks(split)) for split in ("train", "valid")] == [20, 5]

    async def both(index):
        rng = random.Random(index)
        a, b = own.environment(own.tasks("train")[index]), other.environment(other.tasks("train")[index])
        expected, got = a.start(), await b.start()
        assert got == expected
        turns = 0
        while not expected.ended:
            response = rng.choice([*expected.admissible, "xyzzy"])
            expected, got = a.step(response), await b.step(response)
            assert got == expected
            turns += 1
        return turns

    async def all_games():
        return await asyncio.gather(*map(both, range(20)))

    assert sum(asyncio.run(all_games())) == 20 * 50  # in one event loop and again in another, as a trainer has them
    assert sum(asyncio.run(all_games())) == 20 * 50


def test_an_expert_wins_a_served_game(household):
    own, other = near(), far(household, tasks="index")
    turns = own.demonstrate(own.tasks("valid")[2], noise=0.0, seed=0)
    steps = asyncio.run(play(other.environment(other.tasks("valid")[2]), [turn.response for turn in turns]))
    assert (steps[-1].terminated, steps[-1].reward, steps[-1].info["success"]) == (True, 10.0, True)


def test_openenvs_own_client_plays_our_games(household):
    from openenv.core import GenericEnvClient

    with GenericEnvClient(base_url=household).sync() as client:
        begun = client.reset(split="train", index=3)
        again = client.reset(seed=23)  # counted round 20 games
        world = near().environment(near().tasks("train")[3])
        assert begun.observation["text"] == again.observation["text"] == world.start().observation
        assert begun.metadata == {"split": "train", "index": 3, "task": near().task_name(near().tasks("train")[3])}
        stepped, expected = client.step({"text": "look"}), world.step("look")
        assert (stepped.observation["text"], stepped.reward, stepped.done) == (expected.observation, 0.0, False)
        assert stepped.observation["admissible"] == list(expected.admissible)
        assert client.state()["step_count"] == 1
        with pytest.raises(RuntimeError, match="split 'train' has 20 tasks, counted from 0"):
            client.reset(index=20)
        with pytest.raises(RuntimeError, match=r"no split 'trian'. Did you mean 'train'"):
            client.reset(split="trian")
        with pytest.raises(RuntimeError, match=r"reset\(\) got sed; expected seed, split"):
            client.reset(sed=1)


def test_the_served_games_are_sound(household):
    assert check_environment(far(household, tasks="index")) == []
    assert check_environment(far(household)) == []


def test_a_full_server_is_a_fault_and_sessions_keep_within_it():
    with served("turnwise.commands.cli", "serve-env", "household", "--sessions", "2") as (url, _):
        crowd = far(url, sessions=3, max_steps=3)
        environments = [crowd.environment({"seed": seed}) for seed in range(3)]

        async def all_at_once(environments=environments):
            return await asyncio.gather(*(each.start() for each in environments), return_exceptions=True)

        faults = [answer for answer in asyncio.run(all_at_once()) if isinstance(answer, BaseException)]
        assert len(faults) == 1
        assert isinstance(faults[0], EnvironmentFault)
        assert "CAPACITY_REACHED" in str(faults[0])
        assert "\n" not in str(faults[0])

        all_at_once.__defaults__ = None
        del environments, faults  # abandoned: their sessions end with them
        gc.collect()
        patient = far(url, sessions=2, max_steps=3)

        async def in_turn():
            time.sleep(0.5)  # until the server has seen them go
            played = [play(patient.environment({"seed": seed}), ["look"] * 3) for seed in range(6)]
            return await asyncio.gather(*played)

        assert [steps[-1].truncated for steps in asyncio.run(in_turn())] == [True] * 6


def test_a_lost_server_is_a_fault_of_the_episode():
    with served("turnwise.commands.cli", "serve-env", "household") as (url, process):
        world = far(url).environment({"seed": 0})

        async def lose():
            await world.start()
            process.kill()
            process.wait()
            await world.step("look")

        with pytest.raises(EnvironmentFault, match=rf"{url}: no answer to step"):
            asyncio.run(lose())
        with pytest.raises(EnvironmentFault, match="after the end"):
            asyncio.run(world.step("look"))
        with pytest.raises(EnvironmentFault, match=rf"{url}: cannot connect"):
            asyncio.run(far_without_asking(world).start())
    with pytest.raises(ConfigError, match=rf"{url}/schema does not answer .* is an OpenEnv environment served there\?"):
        far(url)


def far_without_asking(world):
    fresh = type(world)(
        world.url, world.reset, act=world.act, show=world.show, slots=asyncio.Semaphore(1), timeout_s=world.timeout_s
    )
    with pytest.raises(EnvironmentFault, match=r"step\(\) before start\(\)"):
        asyncio.run(fresh.step("look"))
    return fresh


def test_a_slow_server_is_a_fault(household):
    config = EnvironmentConfig(name="openenv", step_timeout_s=1e-4, options={"url": household})
    with pytest.raises(EnvironmentFault, match=r"within 0.0001 s"):
        asyncio.run(make_suite(config).environment({"seed": 0}).start())


def test_openenvs_own_environment_is_played(tmp_path):
    """The one that the package makes for those who begin, as it stands: it echoes, and holds one session."""
    subprocess.run(
        [sys.executable, "-m", "openenv.cli", "init", "echo_env"], cwd=tmp_path, check=True, capture_output=True
    )
    assert "message_length" in (tmp_path / "echo_env" / "models.py").read_text()
    with served("uvicorn", "echo_env.server.app:app", folder=tmp_path) as (url, _):
        suite = far(url, max_steps=3, observation="echoed_message", sessions=1)  # the action's only field is found

        async def episodes():
            return await asyncio.gather(*(play(suite.environment({"seed": n}), ["hello", "you", ""]) for n in range(3)))

        for steps in asyncio.run(episodes()):
            assert [step.observation for step in steps[1:]] == ["hello", "you", ""]
            assert [round(step.reward, 6) for step in steps] == [0.0, 0.5, 0.3, 0.0]
            assert [step.truncated for step in steps] == [False, False, False, True]
        with pytest.raises(ConfigError, match=r"no field 'mesage'. Did you mean 'message'\?"):
            far(url, action="mesage")


def test_tools_of_an_environment_are_called(tmp_path):
    (tmp_path / "adder.py").write_text(ADDER)
    with served("uvicorn", "adder:app", folder=tmp_path) as (url, _):
        suite = far(url, action="tool_call", observation="result", max_steps=5)
        call = '<tool_call>{"name": "add", "arguments": {"number": %d}}</tool_call>'
        steps = asyncio.run(play(suite.environment({"seed": 3}), [call % 2, "add 5", call % 5]))
        assert [step.observation for step in steps] == ["begin at 3", "the sum is 5", "the sum is 5", "the sum is 10"]
        assert [step.valid for step in steps] == [True, True, False, True]
        assert (steps[-1].terminated, steps[-1].reward, steps[-1].info) == (True, 1.0, {"success": True})
        with pytest.raises(EnvironmentFault, match=r"reset failed: no game thirteen \(EXECUTION_ERROR\)"):
            asyncio.run(suite.environment({"seed": 13}).start())
