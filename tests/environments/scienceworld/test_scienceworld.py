"""ScienceWorld, in its own Java process; skipped where the package or Java is missing."""

import asyncio
import os
import pickle
import signal
import subprocess
import sys
import time
from typing import Any

import pytest
from tests.needs import needs

from turnwise.base.errors import ConfigError, EnvironmentFault
from turnwise.environments.check import check_environment
from turnwise.environments.hosts import InProcessEnvironments
from turnwise.environments.settings import EnvironmentConfig
from turnwise.environments.suites import make_suite
from turnwise.environments.workers import make_environments
from turnwise.worlds.scienceworld import java

real = needs("scienceworld", "java")

TASKS = ["find-plant", "use-thermometer"]


def suite(max_steps: int = 40, workers: int = 0, **options) -> Any:
    return make_suite(config(max_steps, workers, **options))


def config(max_steps: int = 40, workers: int = 0, **options) -> EnvironmentConfig:
    options = {"tasks": TASKS, "variations_per_task": 3, **options}
    return EnvironmentConfig(name="scienceworld", max_steps=max_steps, workers=workers, options=options)


@pytest.fixture(autouse=True, scope="module")
def _java_ends():
    yield
    java.stop()


def test_without_the_package_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "scienceworld", None)
    monkeypatch.setitem(sys.modules, "scienceworld.constants", None)
    with pytest.raises(ConfigError, match=r"pip install 'turnwise-rl\[scienceworld\]'"):
        suite()


@real
def test_without_java_it_says_so(monkeypatch):
    java.stop()
    made = suite()
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(
        ConfigError, match="needs the program 'java', but it is not on the PATH, and JAVA_HOME is not set"
    ):
        made.tasks("train")
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with pytest.raises(ConfigError, match="JAVA_HOME=/nowhere has no bin/java"):
        made.tasks("train")


@real
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tasks": ["boyl"]}, "no 'boyl'. Did you mean 'boil'?"),
        ({"tasks": "boil"}, "expected a list"),
        ({"simplifications": ["opendoors"]}, "Did you mean 'openDoors'?"),
        ({"tasks": ["test-conductivity"], "simplifications": ["noElectricalAction"]}, "needs electrical actions"),
        ({"reward": "gains"}, "Did you mean 'gain'?"),
        ({"state_key": "stat"}, "Did you mean 'state'?"),
        ({"variations_per_task": -1}, "a whole number, 0 or more"),
        ({"seed": 1}, "has no option 'seed'"),
    ],
)
def test_a_wrong_option_is_one_line(options, message):
    with pytest.raises(ConfigError) as caught:
        suite(**options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@real
def test_splits_are_the_packages():
    made = suite()
    names = {split: [made.task_name(task) for task in made.tasks(split)] for split in ("train", "valid", "test")}
    assert names["train"] == [f"{task}-{number}" for task in TASKS for number in range(3)]
    assert names["valid"][0] == "find-plant-150"
    assert names["test"][3:] == ["use-thermometer-405", "use-thermometer-406", "use-thermometer-407"]
    assert made.tasks("dev") == made.tasks("valid")
    with pytest.raises(ConfigError, match=r"no split 'tests'\. Did you mean 'test'"):
        made.tasks("tests")
    assert pickle.loads(pickle.dumps(made.tasks("train"))) == made.tasks("train")


@real
def test_it_is_sound():
    assert check_environment(suite(max_steps=15), num_tasks=2) == []


@real
def test_the_gold_path_wins_and_pays_what_the_option_says():
    for reward in ("gain", "final", "success"):
        made = suite(reward=reward, state_key="state")
        for task in made.tasks("train")[::3]:
            turns = made.demonstrate(task, noise=0.0, seed=0)
            assert turns
            assert all(turn.imitate for turn in turns)
            environment = made.environment(task)
            start = environment.start()
            assert start.observation.startswith("Your task is to")
            assert start.info == {"success": False, "score": 0.0, "task_type": task.task}
            steps = [environment.step(turn.response) for turn in turns]
            assert steps[-1].terminated
            assert steps[-1].info["success"]
            assert sum(step.reward for step in steps) == pytest.approx(10)
            paying = [step for step in steps if step.reward > 0]
            assert len(paying) == 1 if reward != "gain" else len(paying) > 1
            assert len({step.state_key for step in steps}) > len(steps) / 2
            with pytest.raises(EnvironmentFault, match="after the end"):
                environment.step("look around")


@real
def test_noise_actions_are_marked_and_the_path_still_wins():
    made = suite(max_steps=60)
    turns = made.demonstrate(made.tasks("train")[0], noise=0.4, seed=1)
    assert turns
    assert {turn.imitate for turn in turns} == {True, False}
    assert turns == made.demonstrate(made.tasks("train")[0], noise=0.4, seed=1)


@real
def test_a_lost_task_scores_nothing():
    made = suite(reward="gain")
    environment = made.environment(made.tasks("train")[0])
    environment.start()
    total = environment.step("teleport to kitchen").reward
    step = environment.step("focus on agent")
    total += step.reward
    assert (step.terminated, step.info["success"], step.info["score"]) == (True, False, 0.0)
    assert total == pytest.approx(0)


@real
def test_nonsense_is_invalid_and_the_limit_truncates():
    made = suite(max_steps=2, admissible=True)
    environment = made.environment(made.tasks("train")[0])
    with pytest.raises(EnvironmentFault, match="before start"):
        environment.step("look around")
    assert "look around" in environment.start().admissible
    step = environment.step("xyzzy")
    assert (step.valid, step.ended) == (False, False)
    last = environment.step("look around")
    assert (last.valid, last.truncated, last.terminated, last.admissible) == (True, True, False, None)


@real
def test_environments_side_by_side_are_as_they_are_alone():
    made = suite(max_steps=60)
    scripts = {
        task: [turn.response for turn in made.demonstrate(task, noise=0.3, seed=2)] for task in made.tasks("train")[:4]
    }

    def answer(environment, action):
        step = environment.step(action)
        return step.observation, step.reward

    alone = {}
    for task, script in scripts.items():
        environment = made.environment(task)
        environment.start()
        alone[task] = [answer(environment, action) for action in script]
    environments = {task: made.environment(task) for task in scripts}
    for environment in environments.values():
        environment.start()
    beside: dict[Any, list[Any]] = {task: [] for task in scripts}
    for turn in range(max(map(len, scripts.values()))):
        for task, script in scripts.items():
            if turn < len(script):
                beside[task].append(answer(environments[task], script[turn]))
    assert beside == alone


@real
def test_one_java_process_serves_all_and_is_started_anew_when_it_died():
    made = suite()
    first, second, third = made.tasks("train")[:3]
    environments = InProcessEnvironments(made.environment)

    async def play():
        opening = (await environments.start(0, first)).observation
        await environments.start(1, second)
        process = java.running()
        assert process is not None
        process.send_signal(signal.SIGKILL)
        with pytest.raises(EnvironmentFault, match=r"find-plant-0: the Java process ended \(exit code -9\)"):
            await environments.step(0, "look around")
        with pytest.raises(EnvironmentFault, match="the Java process"):
            await environments.step(1, "look around")
        await environments.start(2, third)
        assert java.running().pid != process.pid
        assert (await environments.step(2, "look around")).valid
        assert (await environments.start(3, first)).observation == opening
        await environments.start(4, second)
        assert java.running().poll() is None
        return process.pid, java.running().pid

    pids = asyncio.run(play())
    assert children() == {pids[1]}
    java.stop()
    assert children() == set()
    java.stop()  # nothing to do


@real
@pytest.mark.parametrize("end", ["pass", "os._exit(0)", "os.kill(os.getpid(), 9)"])
def test_java_ends_with_the_process_that_started_it(end):
    program = f"""
import os
from turnwise.worlds.scienceworld import java
environment = java.simulator(256)
print(java.running().pid, flush=True)
{end}
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    deadline = time.monotonic() + 10
    while is_java(pid := int(done.stdout)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not is_java(pid)
    assert done.stderr == ""


@real
def test_a_heap_that_java_refuses_is_one_line():
    java.stop()
    with pytest.raises(
        ConfigError, match=r"does not start with environment.options.heap_mb=99999999 .*reserve"
    ) as caught:
        suite(heap_mb=99_999_999).tasks("train")
    assert "\n" not in str(caught.value)


@real
def test_every_worker_has_its_own_java_process_and_takes_it_along():
    settings = config(workers=2)
    made = make_suite(settings)
    tasks = made.tasks("train")[:2]
    assert java.running() is None  # of this process: its work was to list the tasks
    environments = make_environments(made, settings)

    async def play():
        await asyncio.gather(*(environments.start(key, task) for key, task in enumerate(tasks)))
        processes = all_java()
        assert len(processes) == 2
        os.kill(min(processes), signal.SIGKILL)
        answers = await asyncio.gather(
            *(environments.step(key, "look around") for key in range(2)), return_exceptions=True
        )
        assert sorted(isinstance(answer, EnvironmentFault) for answer in answers) == [False, True]
        lost = next(key for key, answer in enumerate(answers) if isinstance(answer, EnvironmentFault))
        environments.close(lost)
        await environments.start(7, tasks[lost])
        assert (await environments.step(7, "look around")).valid
        await environments.aclose()

    before = all_java()
    assert before == set()
    asyncio.run(play())
    deadline = time.monotonic() + 10
    while all_java() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert all_java() == set()


def children() -> set[int]:
    """Java processes that this process started."""
    return {pid for pid in all_java() if parent(pid) == os.getpid()}


def all_java() -> set[int]:
    """ScienceWorld's Java processes that descend from this process."""
    return {int(name) for name in os.listdir("/proc") if name.isdigit() and is_java(int(name)) and descends(int(name))}


def is_java(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return b"scienceworld.jar" in file.read()
    except OSError:
        return False


def parent(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def descends(pid: int) -> bool:
    while pid > 1:
        if pid == os.getpid():
            return True
        pid = parent(pid)
    return False
