"""Worlds in worker processes: the same answers as in this one, and a fault costs its own world only."""

import asyncio
import gc
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
from tests.rollout.hostile import WORDS, Fickle, Hostile, NotThere, Waiting, Watch
from tests.toys import ScriptedEngine, color_policy

from turnwise.config import EnvironmentConfig
from turnwise.environments.base import Step
from turnwise.environments.suites import make_suite
from turnwise.errors import ConfigError, WorldFault
from turnwise.rollout.collect import collect
from turnwise.rollout.engine import Sampling
from turnwise.rollout.record import Trajectory
from turnwise.rollout.workers import WorkerWorlds, make_worlds
from turnwise.rollout.worlds import InProcessWorlds, Worlds

Told = list[Any]
"""What one world answered: steps, and at the end the cause of a fault."""


async def tell(worlds: Worlds, key: int, task: Any, *, say: str | None = None, close: bool = True) -> Told:
    told: Told = []
    try:
        told.append(await worlds.start(key, task))
        while not told[-1].ended:
            told.append(await worlds.step(key, say or WORDS[(key + len(told)) % 4]))
    except WorldFault as fault:
        told.append(str(fault))
    finally:
        if close:
            worlds.close(key)
    return told


def tell_all(worlds: Worlds, tasks: Iterable[Any]) -> list[Told]:
    """Play side by side."""

    async def play() -> list[Told]:
        try:
            return await asyncio.gather(*[tell(worlds, key, task) for key, task in enumerate(tasks)])
        finally:
            await worlds.aclose()

    return asyncio.run(play())


def exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as stat:  # a zombie that nobody has waited for is dead, too
        return stat.read().rpartition(")")[2].split()[0] != "Z"


def soon(condition) -> bool:
    deadline = time.monotonic() + 10
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


def processes(worlds: WorkerWorlds) -> list[int]:
    """The starter and the workers that are ready."""
    starter = worlds._starter._process
    return ([starter.pid] if starter else []) + [worker.pid for worker in worlds._workers if worker.pid]


SOUND = [(seed, 2 + seed % 4, "") for seed in range(12)]
ORDINARY = ["constructor", "raise", "nan", "garbage"]


@pytest.mark.parametrize("world", [Hostile, Waiting])
@pytest.mark.parametrize("workers", [1, 3])
def test_answers_and_causes_are_those_of_worlds_in_this_process(world, workers):
    tasks = [*SOUND, *[(20 + number, 4, kind) for number, kind in enumerate(ORDINARY)]]
    here = tell_all(InProcessWorlds(world), tasks)
    assert tell_all(WorkerWorlds(world, workers=workers), tasks) == here
    assert [len(told) for told in here[:12]] == [1 + turns for _, turns, _ in SOUND]


CAUSES = {
    "hang": "step_timeout_s=0.4",
    "start hangs": "step_timeout_s=0.4",
    "exit": "exit code 3",
    "segfault": "SIGSEGV",
    "sys_exit": "SystemExit: enough",
    "raise": "ValueError: a wire came loose",
    "nan": "nan",
    "giant": "2000 characters, expected at most max_observation_chars=1000",
    "giant_info": "bytes",
    "unpicklable": "pickle",
    "memory": "MemoryError",
}


@pytest.mark.parametrize("kind", CAUSES)
def test_a_fault_costs_its_own_world_only(kind):
    tasks = [*SOUND[:3], (50, 4, kind), *SOUND[3:6]]
    patience = 0.4 if "step_timeout_s" in CAUSES[kind] else 60
    worlds = WorkerWorlds(Hostile, workers=1, step_timeout_s=patience, memory_mb=256, max_observation_chars=1000)
    told = tell_all(worlds, tasks)
    assert CAUSES[kind] in told[3][-1]
    assert len(told[3]) == (1 if kind == "start hangs" else 3)
    assert "\n" not in told[3][-1]
    sound = tell_all(InProcessWorlds(Hostile), [*SOUND[:3], (50, 1, ""), *SOUND[3:6]])
    assert told[:3] + told[4:] == sound[:3] + sound[4:]


def test_a_world_that_differs_when_played_again_fails_with_a_clear_cause():
    told = tell_all(WorkerWorlds(Fickle, workers=1), [(0, 9, ""), (1, 4, "exit"), (2, 9, "")])
    assert "exit code 3" in told[1][-1]
    for other in (told[0], told[2]):
        assert "played again after its worker was lost, and at turn 0 said" in other[-1]
        assert int(re.findall(r"\(character (\d+)\)", other[-1])[0]) >= len("say red, said process ")


def test_a_world_may_say_that_a_difference_does_not_matter():
    told = tell_all(WorkerWorlds(Watch, workers=1), [(0, 9, ""), (1, 4, "exit"), (2, 9, "")])
    assert "exit code 3" in told[1][-1]
    assert [len(told[0]), len(told[2])] == [10, 10]


@pytest.mark.parametrize("kind", ["", "long"])
def test_a_trainer_that_is_busy_for_longer_than_an_answer_may_take_blames_nobody(kind):
    async def play() -> Step:
        worlds = WorkerWorlds(Hostile, workers=1, step_timeout_s=0.5)
        try:
            await worlds.start(0, (0, 4, kind))
            await worlds.step(0, "red")
            asked = asyncio.ensure_future(worlds.step(0, "red"))
            await asyncio.sleep(0)
            time.sleep(1)  # a forward pass, say
            return await asked
        finally:
            await worlds.aclose()

    assert len(asyncio.run(play()).observation) == (90_000 if kind else len("0: red red x"))


def test_an_idle_worker_that_dies_costs_nobody():
    async def play() -> None:
        worlds = WorkerWorlds(Hostile, workers=1)
        for key in range(3):
            await worlds.start(key, (key, 5, ""))
            await worlds.step(key, "red")
        for waits in (False, True):  # the loop may notice it before the next request, or not
            os.kill(worlds._workers[0].pid, signal.SIGKILL)
            await asyncio.sleep(0.1) if waits else time.sleep(0.1)
            answers = [await worlds.step(key, "blue") for key in range(3)]
        assert [answer.observation for answer in answers] == [f"{key}: red blue blue \N{SNOWMAN}" for key in range(3)]
        await worlds.aclose()

    asyncio.run(play())


def test_a_starter_that_dies_costs_nobody():
    async def play() -> None:
        worlds = WorkerWorlds(Hostile, workers=2)
        for key in range(4):
            await worlds.start(key, (key, 5, ""))
            await worlds.step(key, "red")
        for pid in processes(worlds):
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)  # what is sent to a process that is about to die is blamed for it
        answers = await asyncio.gather(*[worlds.step(key, "blue") for key in range(4)])
        assert [answer.observation for answer in answers] == [f"{key}: red blue \N{SNOWMAN}" for key in range(4)]
        pids = processes(worlds)
        await worlds.aclose()
        assert soon(lambda: not any(map(exists, pids)))

    asyncio.run(play())


def test_an_episode_has_its_time_too():
    told = tell_all(
        WorkerWorlds(Hostile, workers=2, episode_timeout_s=0.25), [(0, 9, "slow"), (1, 9, ""), (2, 9, "hang")]
    )
    assert len(told[0]) == 1 + 2 + 1  # the third of its steps of 0.1 s was too much
    assert "episode_timeout_s=0.25" in told[0][-1]
    assert "episode_timeout_s=0.25" in told[2][-1]
    assert told[1][-1].terminated


def test_the_time_of_an_episode_is_not_that_of_waiting_for_others():
    tasks = [(number, 2, "slow") for number in range(5)]  # 0.2 s each, 1 s in all
    assert all(len(told) == 3 for told in tell_all(WorkerWorlds(Hostile, workers=1, episode_timeout_s=0.6), tasks))


def test_nothing_stops_while_a_world_hangs_or_a_worker_does_not_read():
    async def play() -> tuple[int, list[Any]]:
        worlds = WorkerWorlds(Hostile, workers=1, step_timeout_s=0.5, max_observation_chars=4_000_000)
        for key, kind in enumerate(["hang", ""]):
            await worlds.start(key, (key, 3, kind))
            await worlds.step(key, "red")
        steps = [worlds.step(0, "red"), worlds.step(1, "x" * 3_000_000)]  # far more than a pipe holds
        waiting, ticks = asyncio.gather(*steps, return_exceptions=True), 0
        while not waiting.done():
            await asyncio.sleep(0.01)
            ticks += 1
        await worlds.aclose()
        return ticks, await waiting

    ticks, (hung, told) = asyncio.run(play())
    assert ticks > 10
    assert isinstance(hung, WorldFault)
    assert len(told.observation) > 3_000_000


def test_one_pool_serves_one_event_loop_after_the_other():
    worlds = WorkerWorlds(Hostile, workers=1)
    first = asyncio.run(tell(worlds, 0, (1, 3, "process"), say="red"))
    again = asyncio.run(tell(worlds, 0, (1, 3, "process"), say="red"))
    assert first == again  # the answers hold the number of the process
    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(tell(worlds, 0, (1, 3, "hang")), 0.5))
    assert asyncio.run(tell(worlds, 0, (1, 3, "")))[-1].terminated
    asyncio.run(worlds.aclose())


def test_a_world_that_is_closed_while_waited_for_ends_the_wait():
    async def play() -> Told:
        worlds = WorkerWorlds(Hostile, workers=1)
        worlds.close(7)
        telling = asyncio.ensure_future(tell(worlds, 0, (1, 3, "hang")))
        await asyncio.sleep(0.5)
        worlds.close(0)
        told = await telling
        await worlds.aclose()
        await worlds.aclose()
        return told

    assert asyncio.run(play())[-1] == "its world was closed"


def test_no_process_is_left_after_aclose_whatever_the_worlds_do():
    async def play() -> list[int]:
        worlds = WorkerWorlds(Hostile, workers=3)
        playing = [asyncio.ensure_future(tell(worlds, key, (key, 9, "hang"))) for key in range(6)]
        await asyncio.sleep(0.1)
        while not all(worker.pid for worker in worlds._workers):
            await asyncio.sleep(0.01)
        pids = processes(worlds)
        await worlds.aclose()
        assert {told[-1] for told in await asyncio.gather(*playing)} == {"its world was closed"}
        return pids

    pids = asyncio.run(play())
    assert len(pids) == 4
    assert soon(lambda: not any(map(exists, pids)))


def test_no_process_computes_on_after_cancellation_nor_lives_on_without_its_owner():
    async def play(worlds: WorkerWorlds) -> list[int]:
        playing = asyncio.gather(*[tell(worlds, key, (key, 9, "hang")) for key in range(6)])
        while sum(bool(worker.pid) for worker in worlds._workers) < 2:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        pids = processes(worlds)
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing
        assert not worlds._workers
        return pids

    worlds = WorkerWorlds(Hostile, workers=2)
    starter, *workers = asyncio.run(play(worlds))
    assert len(workers) == 2
    assert soon(lambda: not any(map(exists, workers)))
    assert exists(starter)
    del worlds
    gc.collect()
    assert soon(lambda: not exists(starter))


KILLED = """
import asyncio
from tests.rollout.hostile import Fickle
from turnwise.rollout.workers import WorkerWorlds

async def play(worlds, key, kind):
    step = await worlds.start(key, (key, 9, kind))
    print(step.observation.split()[-1], worlds._starter._process.pid, flush=True)
    await worlds.step(key, "red")
    await worlds.step(key, "red")
    await asyncio.sleep(60)

async def main():
    worlds = WorkerWorlds(Fickle, workers=2)
    await asyncio.gather(play(worlds, 0, "hang"), play(worlds, 1, ""))

asyncio.run(main())
"""


def test_workers_die_with_the_process_that_they_serve():
    with subprocess.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        pids = {int(pid) for _ in range(2) for pid in parent.stdout.readline().split()}
        time.sleep(0.3)  # the first world hangs now
        assert len(pids) == 3
        assert all(map(exists, pids))
        parent.kill()
    assert soon(lambda: not any(map(exists, pids)))


def test_what_cannot_be_sent_is_said_in_one_line():
    with pytest.raises(ConfigError, match=r"make_environment cannot be sent to a worker: .*lambda"):
        WorkerWorlds(lambda task: Hostile(task))
    told = tell_all(WorkerWorlds(Hostile, workers=1), [(0, 2, ""), lambda: 0])
    assert told[0][-1].terminated
    assert "a task of type function cannot be sent to a worker" in told[1][-1]
    with pytest.raises(
        ConfigError, match=r"workers cannot load make_environment: ModuleNotFoundError: .*no_such_module"
    ):
        tell_all(WorkerWorlds(NotThere(), workers=2), SOUND)


@pytest.mark.parametrize(
    "name", ["workers", "step_timeout_s", "episode_timeout_s", "memory_mb", "max_observation_chars"]
)
def test_limits_are_positive(name):
    with pytest.raises(ConfigError, match=f"{name}=0"):
        WorkerWorlds(Hostile, **{name: 0})


def test_a_configuration_chooses_where_its_suite_is_played():
    config = EnvironmentConfig(options={"num_train": 2, "num_valid": 2}, max_steps=3)
    suite = make_suite(config)
    assert isinstance(make_worlds(suite, config), InProcessWorlds)
    there = make_worlds(suite, config.model_copy(update={"workers": 1, "step_timeout_s": 30.0}))
    assert isinstance(there, WorkerWorlds)
    assert (there.num_workers, there.step_timeout_s) == (1, 30)
    tasks = list(suite.tasks("train"))
    assert tell_all(there, tasks) == tell_all(make_worlds(suite, config), tasks)


POLICY = color_policy()


def play(worlds: Worlds, tasks: list[Any]) -> list[Trajectory]:
    word = {text: POLICY.tokenizer.encode(text, add_special_tokens=False) for text in WORDS}
    engine = ScriptedEngine(lambda number, turn: [*word[WORDS[(number + turn) % 4]], POLICY.format.stop_id])
    sampling = Sampling(max_new_tokens=3, stop_ids=(POLICY.format.stop_id,))

    async def run() -> list[Trajectory]:
        try:
            return await collect(
                engine, tasks, worlds, POLICY.format, group_size=1, sampling=sampling, max_context=10_000
            )
        finally:
            await worlds.aclose()

    return asyncio.run(run())


@pytest.mark.slow
def test_two_thousand_episodes_of_which_one_in_five_breaks():
    kinds = ["exit", "segfault", "hang", "garbage"]
    tasks = [(number, 2 + number % 3, kinds[number % 20] if number % 20 < 4 else "") for number in range(2000)]
    worlds, pids = WorkerWorlds(Hostile, workers=8, step_timeout_s=0.5), set()
    started = worlds._starter.end
    worlds._starter.end = lambda pid: pids.add(pid) or started(pid)  # pyright: ignore
    played = play(worlds, tasks)
    causes = {
        "exit": "exit code 3",
        "segfault": "SIGSEGV",
        "hang": "step_timeout_s=0.5",
        "garbage": "answered with str",
    }
    counts: Counter[str] = Counter()
    for trajectory, (_, _, kind) in zip(played, tasks, strict=True):
        if kind:
            counts[kind] += causes[kind] in (trajectory.failure or "")
            assert trajectory.ended == "failed"
            assert len(trajectory.turns) == 2
    assert counts == dict.fromkeys(kinds, 100)
    sound = play(InProcessWorlds(Hostile), [(seed, turns, "") for seed, turns, _ in tasks])
    for trajectory, other, (_, _, kind) in zip(played, sound, tasks, strict=True):
        if not kind:
            other.task = trajectory.task
            assert trajectory == other
    assert len(pids) >= 300  # workers were lost, and replaced
    assert not any(map(exists, pids))
