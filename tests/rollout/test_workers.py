"""Environments in worker processes: the same answers as in this one, and a fault costs its own environment only."""

import asyncio
import contextlib
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
from tests.doses import doses
from tests.rollout.hostile import ANSWERS, WORDS, Fickle, Hostile, NotThere, Waiting, Watch
from tests.toys import ScriptedEngine, color_policy

from turnwise.base.errors import ConfigError, EnvironmentFault
from turnwise.engines.base import Sampling
from turnwise.environments.base import Step
from turnwise.environments.hosts import Environments, InProcessEnvironments
from turnwise.environments.settings import EnvironmentConfig
from turnwise.environments.suites import make_suite
from turnwise.environments.workers import WorkerEnvironments, make_environments
from turnwise.rollout.agents import Request
from turnwise.rollout.collect import play as play_starts
from turnwise.rollout.starts import make_starts
from turnwise.rollout.trajectory import Trajectory

Told = list[Any]
"""What one environment answered: steps, and at the end the cause of a fault."""


async def tell(environments: Environments, key: int, task: Any, *, say: str | None = None, close: bool = True) -> Told:
    told: Told = []
    try:
        told.append(await environments.start(key, task))
        while not told[-1].ended:
            told.append(await environments.step(key, say or WORDS[(key + len(told)) % 4]))
    except EnvironmentFault as fault:
        told.append(str(fault))
    finally:
        if close:
            environments.close(key)
    return told


def tell_all(environments: Environments, tasks: Iterable[Any]) -> list[Told]:
    """Play side by side."""

    async def play() -> list[Told]:
        try:
            return await asyncio.gather(*[tell(environments, key, task) for key, task in enumerate(tasks)])
        finally:
            await environments.aclose()

    return asyncio.run(play())


def exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        with open(f"/proc/{pid}/stat") as stat:  # a zombie that nobody has waited for is dead, too
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
        return False


def soon(condition) -> bool:
    deadline = time.monotonic() + 10
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


def processes(environments: WorkerEnvironments) -> list[int]:
    """The starter and the workers that are ready."""
    starter = environments.starter._process
    return ([starter.pid] if starter else []) + [worker.pid for worker in environments._workers if worker.pid]


SOUND = [(seed, 2 + seed % 4, "") for seed in range(12)]
ORDINARY = ["constructor", "raise", "sys_exit", "nan", "garbage", *ANSWERS]


@pytest.mark.parametrize("environment", [Hostile, Waiting])
@pytest.mark.parametrize("workers", [1, 3])
def test_answers_and_causes_are_those_of_environments_in_this_process(environment, workers):
    tasks = [*SOUND, *[(20 + number, 4, kind) for number, kind in enumerate(ORDINARY)]]
    here = tell_all(InProcessEnvironments(environment), tasks)
    assert tell_all(WorkerEnvironments(environment, workers=workers), tasks) == here
    assert [len(told) for told in here[:12]] == [1 + turns for _, turns, _ in SOUND]


def test_an_answer_that_no_run_can_use_fails_its_trajectory_with_the_cause():
    tasks = [(number, 4, kind) for number, kind in enumerate(ANSWERS)]
    for environments in (InProcessEnvironments(Hostile), WorkerEnvironments(Hostile, workers=1)):
        for trajectory, (kind, (_, cause)) in zip(play(environments, tasks), ANSWERS.items(), strict=True):
            assert cause in (trajectory.failure or ""), kind
            assert (trajectory.ended, trajectory.success, len(trajectory.turns)) == ("failed", False, 2)


CAUSES = {
    "hang": "step_timeout_s=2",
    "start hangs": "step_timeout_s=2",
    "exit": "exit code 3",
    "segfault": "SIGSEGV",
    "sys_exit": "SystemExit: enough",
    "raise": "ValueError: a wire came loose",
    "nan": "nan",
    "giant": "2000 characters, expected at most max_observation_chars=1000",
    "giant_info": "bytes, expected at most 1048576",
    "giant_list": "bytes, expected at most 1048576",
    "memory": "MemoryError",
}


@pytest.mark.parametrize("kind", CAUSES)
def test_a_fault_costs_its_own_environment_only(kind):
    tasks = [*SOUND[:3], (50, 4, kind), *SOUND[3:6]]
    patience = 2 if "step_timeout_s" in CAUSES[kind] else 60
    environments = WorkerEnvironments(
        Hostile, workers=1, step_timeout_s=patience, memory_mb=256, max_observation_chars=1000
    )
    told = tell_all(environments, tasks)
    assert CAUSES[kind] in told[3][-1]
    assert len(told[3]) == (1 if kind == "start hangs" else 3)
    assert "\n" not in told[3][-1]
    sound = tell_all(InProcessEnvironments(Hostile), [*SOUND[:3], (50, 1, ""), *SOUND[3:6]])
    assert told[:3] + told[4:] == sound[:3] + sound[4:]


def test_an_environment_that_differs_when_played_again_fails_with_a_clear_cause():
    told = tell_all(WorkerEnvironments(Fickle, workers=1), [(0, 9, ""), (1, 4, "exit"), (2, 9, "")])
    assert "exit code 3" in told[1][-1]
    for other in (told[0], told[2]):
        assert "replayed after its worker was lost, and at turn 0 answered" in other[-1]
        assert int(re.findall(r"\(character (\d+)\)", other[-1])[0]) >= len("say red, said process ")


def test_an_environment_may_say_that_a_difference_does_not_matter():
    told = tell_all(WorkerEnvironments(Watch, workers=1), [(0, 9, ""), (1, 4, "exit"), (2, 9, "")])
    assert "exit code 3" in told[1][-1]
    assert [len(told[0]), len(told[2])] == [10, 10]


@pytest.mark.parametrize("kind", ["", "long"])
def test_a_trainer_that_is_busy_for_longer_than_an_answer_may_take_blames_nobody(kind):
    async def play() -> Step:
        environments = WorkerEnvironments(Hostile, workers=1, step_timeout_s=1.5)
        try:
            await environments.start(0, (0, 4, kind))
            await environments.step(0, "red")
            asked = asyncio.ensure_future(environments.step(0, "red"))
            await asyncio.sleep(0)
            time.sleep(2.5)  # a forward pass, say
            return await asked
        finally:
            await environments.aclose()

    assert len(asyncio.run(play()).observation) == (90_000 if kind else len("0: red red x"))


def test_an_idle_worker_that_dies_costs_nobody():
    async def play() -> None:
        environments = WorkerEnvironments(Hostile, workers=1)
        for key in range(3):
            await environments.start(key, (key, 5, ""))
            await environments.step(key, "red")
        for waits in (False, True):  # the loop may notice it before the next request, or not
            os.kill(environments._workers[0].pid, signal.SIGKILL)
            await asyncio.sleep(0.1) if waits else time.sleep(0.1)
            answers = [await environments.step(key, "blue") for key in range(3)]
        assert [answer.observation for answer in answers] == [f"{key}: red blue blue \N{SNOWMAN}" for key in range(3)]
        await environments.aclose()

    asyncio.run(play())


def test_a_starter_that_dies_costs_nobody():
    async def play() -> None:
        environments = WorkerEnvironments(Hostile, workers=2)
        for key in range(4):
            await environments.start(key, (key, 5, ""))
            await environments.step(key, "red")
        for pid in processes(environments):
            with contextlib.suppress(ProcessLookupError):  # a process ends with its starter
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)  # what is sent to a process that is about to die is blamed for it
        answers = await asyncio.gather(*[environments.step(key, "blue") for key in range(4)])
        assert [answer.observation for answer in answers] == [f"{key}: red blue \N{SNOWMAN}" for key in range(4)]
        pids = processes(environments)
        await environments.aclose()
        assert soon(lambda: not any(map(exists, pids)))

    asyncio.run(play())


def test_nothing_stops_while_an_environment_hangs_or_a_worker_does_not_read():
    async def play() -> tuple[int, list[Any]]:
        environments = WorkerEnvironments(Hostile, workers=1, step_timeout_s=2, max_observation_chars=4_000_000)
        for key, kind in enumerate(["hang", ""]):
            await environments.start(key, (key, 3, kind))
            await environments.step(key, "red")
        steps = [environments.step(0, "red"), environments.step(1, "x" * 3_000_000)]  # far more than a pipe holds
        waiting, ticks = asyncio.gather(*steps, return_exceptions=True), 0
        while not waiting.done():
            await asyncio.sleep(0.01)
            ticks += 1
        await environments.aclose()
        return ticks, await waiting

    ticks, (hung, told) = asyncio.run(play())
    assert ticks > 10
    assert isinstance(hung, EnvironmentFault)
    assert len(told.observation) > 3_000_000


def test_one_pool_serves_one_event_loop_after_the_other():
    environments = WorkerEnvironments(Hostile, workers=1)
    first = asyncio.run(tell(environments, 0, (1, 3, "process"), say="red"))
    again = asyncio.run(tell(environments, 0, (1, 3, "process"), say="red"))
    assert first == again  # the answers hold the number of the process
    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(tell(environments, 0, (1, 3, "hang")), 0.5))
    assert asyncio.run(tell(environments, 0, (1, 3, "")))[-1].terminated
    asyncio.run(environments.aclose())


def test_an_environment_that_is_closed_while_waited_for_ends_the_wait():
    async def play() -> Told:
        environments = WorkerEnvironments(Hostile, workers=1)
        environments.close(7)
        telling = asyncio.ensure_future(tell(environments, 0, (1, 3, "hang")))
        await asyncio.sleep(0.5)
        environments.close(0)
        told = await telling
        await environments.aclose()
        await environments.aclose()
        return told

    assert asyncio.run(play())[-1] == "its environment was closed"


def test_no_process_is_left_after_aclose_whatever_the_environments_do():
    async def play() -> list[int]:
        environments = WorkerEnvironments(Hostile, workers=3)
        playing = [asyncio.ensure_future(tell(environments, key, (key, 9, "hang"))) for key in range(6)]
        await asyncio.sleep(0.1)
        while not all(worker.pid for worker in environments._workers):
            await asyncio.sleep(0.01)
        pids = processes(environments)
        await environments.aclose()
        assert {told[-1] for told in await asyncio.gather(*playing)} == {"its environment was closed"}
        return pids

    pids = asyncio.run(play())
    assert len(pids) == 4
    assert soon(lambda: not any(map(exists, pids)))


def test_no_process_computes_on_after_cancellation_nor_lives_on_without_its_owner():
    async def play(environments: WorkerEnvironments) -> list[int]:
        playing = asyncio.gather(*[tell(environments, key, (key, 9, "hang")) for key in range(6)])
        while sum(bool(worker.pid) for worker in environments._workers) < 2:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        pids = processes(environments)
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing
        assert not environments._workers
        return pids

    environments = WorkerEnvironments(Hostile, workers=2)
    starter, *workers = asyncio.run(play(environments))
    assert len(workers) == 2
    assert soon(lambda: not any(map(exists, workers)))
    assert exists(starter)
    del environments
    gc.collect()
    assert soon(lambda: not exists(starter))


KILLED = """
import asyncio
from tests.rollout.hostile import Fickle
from turnwise.environments.workers import WorkerEnvironments

async def play(environments, key, kind):
    step = await environments.start(key, (key, 9, kind))
    print(step.observation.split()[-1], environments.starter._process.pid, flush=True)
    await environments.step(key, "red")
    await environments.step(key, "red")
    await asyncio.sleep(60)

async def main():
    environments = WorkerEnvironments(Fickle, workers=2)
    await asyncio.gather(play(environments, 0, "hang"), play(environments, 1, ""))

asyncio.run(main())
"""


def test_workers_die_with_the_process_that_they_serve():
    with subprocess.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        pids = {int(pid) for _ in range(2) for pid in parent.stdout.readline().split()}
        time.sleep(0.3)  # the first environment hangs now
        assert len(pids) == 3
        assert all(map(exists, pids))
        parent.kill()
    assert soon(lambda: not any(map(exists, pids)))


def test_what_cannot_be_sent_is_said_in_one_line():
    with pytest.raises(ConfigError, match=r"make_environment cannot be sent to a worker: .*lambda"):
        WorkerEnvironments(lambda task: Hostile(task))
    told = tell_all(WorkerEnvironments(Hostile, workers=1), [(0, 2, ""), lambda: 0])
    assert told[0][-1].terminated
    assert "a task of type function cannot be sent to a worker" in told[1][-1]
    with pytest.raises(
        ConfigError, match=r"workers cannot load make_environment: ModuleNotFoundError: .*no_such_module"
    ):
        tell_all(WorkerEnvironments(NotThere(), workers=2), SOUND)


@pytest.mark.parametrize(
    "name", ["workers", "step_timeout_s", "episode_timeout_s", "memory_mb", "max_observation_chars"]
)
def test_limits_are_positive(name):
    with pytest.raises(ConfigError, match=f"{name}=0"):
        WorkerEnvironments(Hostile, **{name: 0})


def test_a_configuration_chooses_where_its_suite_is_played():
    config = EnvironmentConfig(options={"num_train": 2, "num_valid": 2}, max_steps=3)
    suite = make_suite(config)
    assert isinstance(make_environments(suite, config), InProcessEnvironments)
    there = make_environments(suite, config.model_copy(update={"workers": 1, "step_timeout_s": 30.0}))
    assert isinstance(there, WorkerEnvironments)
    assert (there.num_workers, there.step_timeout_s) == (1, 30)
    tasks = list(suite.tasks("train"))
    assert tell_all(there, tasks) == tell_all(make_environments(suite, config), tasks)


POLICY = color_policy()


def play(environments: Environments, tasks: list[Any]) -> list[Trajectory]:
    word = {text: POLICY.tokenizer.encode(text, add_special_tokens=False) for text in WORDS}
    engine = ScriptedEngine(lambda number, turn: [*word[WORDS[(number + turn) % 4]], POLICY.format.stop_id])
    sampling = Sampling(max_new_tokens=3, stop_ids=(POLICY.format.stop_id,))
    how: Any = {"fmt": POLICY.format, "sampling": sampling, "max_context": 10_000}

    async def run() -> list[Trajectory]:
        try:
            starts = make_starts(tasks, 1)
            return await play_starts(starts, Request(engine=engine, environments=environments, **how))
        finally:
            await environments.aclose()

    return asyncio.run(run())


@pytest.mark.parametrize("episodes", doses(300, 2000, "TURNWISE_EPISODES"))
def test_one_in_five_of_many_episodes_breaks(episodes):
    kinds = ["hang"] + ["exit", "segfault", "garbage"] * 6
    faults = [kinds[number % len(kinds)] for number in range(episodes // 5)]
    tasks = [(number, 2 + number % 3, "" if number % 5 else faults[number // 5]) for number in range(episodes)]
    environments, pids = WorkerEnvironments(Hostile, workers=8, step_timeout_s=3), set()
    lost = environments.lost
    environments.lost = lambda worker: pids.add(worker.pid) or lost(worker)  # pyright: ignore
    played = play(environments, tasks)
    causes = {
        "exit": "exit code 3",
        "segfault": "SIGSEGV",
        "hang": "step_timeout_s=3",
        "garbage": "answered with str",
    }
    counts: Counter[str] = Counter()
    for trajectory, (_, _, kind) in zip(played, tasks, strict=True):
        if kind:
            counts[kind] += causes[kind] in (trajectory.failure or "")
            assert trajectory.ended == "failed"
            assert len(trajectory.turns) == 2
    assert counts == Counter(faults)
    sound = play(InProcessEnvironments(Hostile), [(seed, turns, "") for seed, turns, _ in tasks])
    for trajectory, other, (_, _, kind) in zip(played, sound, tasks, strict=True):
        if not kind:
            other.task = trajectory.task
            assert trajectory == other
    assert len(pids) >= 0.75 * (counts["exit"] + counts["segfault"] + counts["hang"])  # were lost, and replaced
    assert not any(map(exists, pids))


def test_an_environment_that_was_closed_is_a_fault_of_what_plays_on():
    async def play() -> None:
        environments = WorkerEnvironments(Hostile, workers=1)
        await environments.start(0, (0, 9, ""))
        await environments.aclose()
        with pytest.raises(EnvironmentFault, match="its environment was closed"):
            await environments.step(0, "red")
        with pytest.raises(EnvironmentFault, match="its environment was closed"):
            await environments.copy(0, 1)

    asyncio.run(play())
