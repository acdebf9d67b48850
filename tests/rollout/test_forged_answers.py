"""What a worker says is data: no message runs code in the trainer, and one that is not an answer ends its worker."""

import asyncio
import os
import resource
from pathlib import Path
from typing import Any, get_args

import pytest
from tests.needs import skip_without
from tests.rollout.forging import FORGED, FORKS, OBJECTS, Forging, Thief
from tests.rollout.test_workers import Told, tell

from turnwise.base.errors import EnvironmentFault
from turnwise.environments.hosts import InProcessEnvironments
from turnwise.environments.isolation import Level
from turnwise.environments.workers import WorkerEnvironments

NEEDED = {
    "worker": [],
    "bubblewrap": ["bwrap"],
    "bubblewrap-offline": ["bwrap"],
    "gvisor": ["runsc"],
    "docker": ["docker", "TURNWISE_DOCKER_IMAGE"],
}
"""Levels of isolation that have workers, and what a machine must have for each."""


@pytest.fixture(params=NEEDED)
def isolation(request) -> str:
    skip_without(*NEEDED[request.param])
    return request.param


def test_every_level_that_has_workers_is_attacked():
    assert {*NEEDED, "in-process"} == {*get_args(Level)}


async def told_by(isolation: str, kinds: list[str], folder: Path) -> list[tuple[str, Told, Told]]:
    """Play each kind in a worker of its own, beside a sound environment in another worker."""
    image = os.environ["TURNWISE_DOCKER_IMAGE"] if isolation == "docker" else ""
    environments = WorkerEnvironments(Forging, workers=2, isolation=isolation, image=image, step_timeout_s=10)
    told = []
    try:
        for place, kind in enumerate(kinds):
            bad, good = 2 * place, 2 * place + 1
            started = asyncio.gather(
                tell(environments, bad, (1, kind, str(folder / kind)), say="red"),
                tell(environments, good, (2, "", ""), say="red"),
            )
            told.append((kind, *await started))
            for worker in list(environments._workers):  # the next environment's requests are numbered from 1
                worker.abandon()
    finally:
        await environments.aclose()
    return told


def test_a_forged_message_ends_its_worker_and_nothing_else(isolation, tmp_path):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for kind, bad, good in asyncio.run(told_by(isolation, list(FORGED), tmp_path)):
        assert "its worker sent something that is not an answer" in str(bad[-1]), kind
        assert len(bad) == 3 or kind in ("doubled", "unasked"), kind
        assert [step.observation for step in good] == ["2: 0", "2: 1 red", "2: 2 red", "2: 3 red"], kind
    assert not list(tmp_path.iterdir()), "the trainer unpickled an answer"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10, "KiB"


def test_no_object_of_an_environment_reaches_the_trainer(isolation, tmp_path):
    for kind, bad, good in asyncio.run(told_by(isolation, list(OBJECTS), tmp_path)):
        if kind == "bomb_in_key":
            assert "state_key that cannot name a state" in str(bad[2])
        else:
            assert "Bomb object" in str(bad[2].info)
        assert len(good) == 4
    assert not list(tmp_path.iterdir()), "the trainer unpickled an answer"


def test_no_worker_answers_for_another(isolation):
    """Below bubblewrap, a worker of root could write into any process of the machine, so it is not tried."""
    if isolation == "worker" and os.geteuid() == 0:
        pytest.skip("needs a user: run as another one than root")

    async def play() -> tuple[Any, Any]:
        image = os.environ["TURNWISE_DOCKER_IMAGE"] if isolation == "docker" else ""
        environments = WorkerEnvironments(Thief, workers=2, isolation=isolation, image=image, step_timeout_s=30)
        try:
            await asyncio.gather(environments.start(0, "victim"), environments.start(1, "thief"))
            return await asyncio.gather(environments.step(0, "go"), environments.step(1, "go"))
        finally:
            await environments.aclose()

    victim, thief = asyncio.run(play())
    assert (victim.observation, victim.reward, thief.observation) == ("honest", 0.0, "took 0")


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_child_that_an_environment_forks_answers_nothing(workers, tmp_path):
    tasks = [(seed, FORKS[seed % 3] if seed % 4 == 1 else "", "") for seed in range(16)]

    async def play() -> list[Told]:
        environments = WorkerEnvironments(Forging, workers=workers) if workers else InProcessEnvironments(Forging)
        try:
            return await asyncio.gather(*[tell(environments, key, task, say="red") for key, task in enumerate(tasks)])
        finally:
            await environments.aclose()

    for (seed, _, _), told in zip(tasks, asyncio.run(play()), strict=True):
        assert [step.observation for step in told] == [f"{seed}: 0", *(f"{seed}: {turn} red" for turn in (1, 2, 3))]
        assert [step.reward for step in told] == [0, seed, seed, seed]


def test_what_a_broken_worker_played_before_does_not_count():
    async def play() -> None:
        environments = WorkerEnvironments(Forging, workers=1)
        await environments.start(0, (0, "", ""))
        await environments.start(1, (1, "noise", ""))
        await environments.step(1, "red")
        with pytest.raises(EnvironmentFault, match="not an answer"):
            await environments.step(1, "red")
        with pytest.raises(EnvironmentFault, match="not an answer"):
            await environments.step(0, "red")
        with pytest.raises(EnvironmentFault, match="not an answer"):
            await environments.copy(0, 5)
        assert (await environments.start(2, (2, "", ""))).observation == "2: 0"
        await environments.aclose()

    asyncio.run(play())
