"""What an environment starts ends with its worker, or with the check that plays it, also if it left the session."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.needs import skip_without
from tests.rollout.straying import Straying, is_alive
from tests.rollout.test_workers import exists, soon, tell

from turnwise.base.errors import ConfigError
from turnwise.environments.check_apart import check_apart
from turnwise.environments.settings import EnvironmentConfig
from turnwise.environments.tamper_apart import tamper
from turnwise.environments.workers import WorkerEnvironments

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere only the session ends with the program")


@pytest.mark.parametrize("level", ["worker", "bubblewrap"])
@pytest.mark.parametrize("how", ["hangs", "exits"])
def test_strays_end_with_their_worker_and_those_of_others_do_not(level, how, tmp_path):
    if level == "bubblewrap":
        skip_without("bwrap")

    async def play() -> None:
        environments = WorkerEnvironments(Straying, workers=2, step_timeout_s=3.0, isolation=level)
        try:
            for key in range(2):
                await environments.start(key, (key, str(marks[key]), how if key else ""))
            for key in range(2):
                await environments.step(key, "x")
            with pytest.raises(Exception, match="exit code 3" if how == "exits" else "step_timeout_s=3"):
                await environments.step(1, "x")
            if level == "worker":
                assert not is_alive(marks[1])
                assert is_alive(marks[0])
            assert (await environments.step(0, "x")).observation == "0: 2"
        finally:
            await environments.aclose()

    marks = [tmp_path / "first", tmp_path / "second"]
    if level == "bubblewrap":  # it can write only where nobody outside sees it
        marks = [Path(f"/tmp/{place.name}-{os.getpid()}") for place in marks]
    asyncio.run(play())
    assert not any(map(is_alive, marks))
    if level == "bubblewrap":
        assert not soon(lambda: bool(named(str(marks[0])) + named(str(marks[1]))))


def named(argument: str) -> list[str]:
    """List the processes with this argument."""
    found = []
    for place in Path("/proc").iterdir():
        try:
            if argument.encode() in (place / "cmdline").read_bytes().split(b"\0"):
                found.append(place.name)
        except OSError:
            pass
    return found


PLAYS = """
import asyncio, sys
from tests.rollout.straying import Straying
from turnwise.environments.workers import WorkerEnvironments

async def play():
    environments = WorkerEnvironments(Straying, workers=1)
    await environments.start(0, (0, sys.argv[1], ""))
    await environments.step(0, "x")
    print(environments.starter._process.pid, *[worker.pid for worker in environments._workers], flush=True)
    await asyncio.sleep(3600)

asyncio.run(play())
"""


@pytest.mark.parametrize("killed", ["trainer", "starter"])
def test_strays_end_with_the_trainer_and_with_the_starter(killed, tmp_path):
    mark = tmp_path / "alive"
    trainer = subprocess.Popen([sys.executable, "-c", PLAYS, str(mark)], stdout=subprocess.PIPE)
    assert trainer.stdout
    try:
        starter, worker = map(int, trainer.stdout.readline().split())
        assert is_alive(mark)
        os.kill(trainer.pid if killed == "trainer" else starter, signal.SIGKILL)
        assert soon(lambda: not exists(worker))
        assert not is_alive(mark)
    finally:
        trainer.kill()
        trainer.wait()
        trainer.stdout.close()


def test_orphans_that_an_environment_leaves_are_not_its_worker_s_children(tmp_path):
    """A worker must not collect zombies: what the environments leave belongs to the process above it."""

    async def play() -> list[str]:
        environments = WorkerEnvironments(Straying, workers=1)
        try:
            told = await tell(environments, 0, (0, str(tmp_path / "mark"), ""))
            assert len(told) == 4
            pid = environments._workers[0].pid
            return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        finally:
            await environments.aclose()

    assert asyncio.run(play()) == []


@pytest.mark.parametrize("check", [check_apart, tamper])
@pytest.mark.parametrize("how", ["", "hangs", "exits"])
def test_strays_end_with_the_check_that_plays_them(check, how, tmp_path):
    mark = tmp_path / "alive"
    config = EnvironmentConfig(
        name="tests.rollout.straying:Suite", options={"mark": str(mark), "how": how}, step_timeout_s=2.0
    )
    with contextlib.suppress(ConfigError):  # an environment that fails without any attack is not attacked
        check(config)
    assert not is_alive(mark)
