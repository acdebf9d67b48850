"""Forks that begin in a copy of the environment: no step is played twice, and nothing else changes."""

import os
import time
from typing import Any

import pytest
from tests.rollout.playing import POLICY
from tests.toys import Colors
from tests.trees.counting import Awaited, Copied, Counting, mixed

from turnwise.base.blocking import blocking, make_loop
from turnwise.engines.local import LocalEngine
from turnwise.engines.models import Models, NamedModel
from turnwise.environments.check import check_environment
from turnwise.environments.check_plays import check_copy, scripted
from turnwise.environments.check_plays import play as play_check
from turnwise.environments.hosts import Environments, InProcessEnvironments
from turnwise.environments.settings import EnvironmentConfig
from turnwise.environments.suites import make_suite
from turnwise.environments.workers import WorkerEnvironments
from turnwise.extensions.branching.copies import Copies
from turnwise.rollout.collectors import make_collector
from turnwise.rollout.gate import Gate, VisitedEngine, VisitedEnvironments
from turnwise.rollout.metrics import rollout_metrics
from turnwise.rollout.plays import play_tasks
from turnwise.rollout.settings import RolloutConfig
from turnwise.rollout.trajectory import Trajectory, distinct_turns


def play(environments: Environments, *, tasks=(0, 1, 2), engine=None, **options: Any) -> list[Trajectory]:
    data = {
        "group_size": 8,
        "max_new_tokens": 3,
        "collector": {"name": "branching", "rule": "tree_grpo", "trees": 2, "expand": 1, "rounds": 3},
        **options,
    }
    collector = make_collector(RolloutConfig.model_validate(data), environments, str)
    models = Models(policy=NamedModel(POLICY, engine or LocalEngine(POLICY.model)))
    return play_tasks(collector, models, list(tasks), seed=3)


def told(trajectories: list[Trajectory]) -> list[Any]:
    """What trajectories are, apart from counts."""
    return [
        (
            each.shared,
            each.tree,
            each.failure,
            [(turn.prompt_ids, turn.response_ids, turn.reward) for turn in each.turns],
        )
        for each in trajectories
    ]


@pytest.mark.parametrize("context", ["append", "window"])
@pytest.mark.parametrize("environment", [Copied, Awaited])
def test_no_step_is_played_twice_and_the_trees_are_those_of_replays(environment, context):
    replayed = play(InProcessEnvironments(Counting), context=context)
    Counting.steps = 0
    environments = InProcessEnvironments(environment)
    copied = play(environments, context=context)
    assert told(copied) == told(replayed)
    forks = [each for each in copied if each.shared]
    assert any(each.shared > 1 for each in forks)
    assert Counting.steps == len(distinct_turns(copied)) == rollout_metrics(copied)["env_steps"]
    assert rollout_metrics(replayed)["env_steps"] > Counting.steps
    assert not environments._environments, "copies are released"


@pytest.fixture(scope="module")
def workers():
    environments = WorkerEnvironments(mixed, workers=1)
    yield environments
    blocking(environments.aclose())


def test_workers_copy_environments_where_they_are(workers):
    copied = play(workers)
    assert told(copied) == told(play(InProcessEnvironments(Copied)))
    assert max(each.info["steps"] for each in copied) == len(distinct_turns(copied))
    assert not workers._lives


def test_a_copy_in_a_worker_is_independent_and_survives_the_worker(workers):
    async def main() -> None:
        await workers.start(0, 0)
        await workers.step(0, "red")
        assert await workers.copy(0, 1)
        assert (await workers.step(0, "red")).reward == 0.0
        assert (await workers.step(1, "green")).reward == 1.0
        (worker,) = workers._workers
        os.kill(worker.pid, 9)
        while not worker.has_died_idle():
            time.sleep(0.01)
        assert not await workers.copy(0, 2), "its process was lost"
        step = await workers.step(1, "blue")  # rebuilt by replay
        assert (step.reward, step.observation) == (1.0, "say pink")
        workers.close(0)
        workers.close(1)

    blocking(main())


def test_an_environment_without_copies_says_so_to_workers_too(workers):
    async def main() -> None:
        await workers.start(0, 9)
        assert not await workers.copy(0, 1)
        assert set(workers._lives) == {0}
        assert (await workers.step(0, Colors.color(9, 0))).reward == 1.0
        workers.close(0)

    blocking(main())


@pytest.mark.parametrize("apart", [False, True])
def test_a_copy_that_raises_loses_its_trajectory_alone(workers, apart):
    played = play(workers if apart else InProcessEnvironments(mixed), tasks=(0, 11, 2))
    lost = [each for each in played if each.failure]
    assert {each.task for each in lost} == {"11"}
    assert all("OSError: no space left" in (each.failure or "") for each in lost)
    assert sum(each.usable for each in played) == 16
    assert not workers._lives


def test_what_is_not_kept_cannot_be_forked():
    copies = Copies(InProcessEnvironments(Copied))

    async def main() -> None:
        await copies.start(0, 0)
        assert await copies.fork(1, 0, 1) is None, "that turn has not been played"
        assert await copies.fork(1, 7, 0) is None, "nobody knows this trajectory"
        steps = await copies.fork(1, 0, 0)
        assert steps is not None
        assert [step.observation for step in steps] == ["say red"]

    blocking(main())


def test_rollouts_ahead_of_the_update_copy_too():
    loop = make_loop(apart=True)
    try:
        engine = VisitedEngine(Gate(LocalEngine(POLICY.model, apart=True)), loop)
        blocking(engine.update_weights())
        environments = VisitedEnvironments(InProcessEnvironments(Copied), loop)
        Counting.steps = 0
        played = play(environments, engine=engine)
    finally:
        loop.close()
    assert Counting.steps == len(distinct_turns(played)) < sum(len(each.turns) for each in played)


@pytest.mark.parametrize(
    ("name", "options"), [("household", {"size": "tiny"}), ("sokoban", {}), ("crossroads", {"turns": 6})]
)
def test_shipped_environments_have_sound_copies(name, options):
    suite = make_suite(EnvironmentConfig(name=name, max_steps=8, options=options))
    assert hasattr(suite.environment(suite.tasks("train")[0]), "copy")
    assert not [problem for problem in check_environment(suite, num_tasks=2, max_turns=20) if problem.severe]


def test_a_copy_of_a_house_keeps_its_things_to_itself():
    suite = make_suite(EnvironmentConfig(name="household", max_steps=30, options={"size": "tiny"}))
    for task in suite.tasks("train")[:5]:
        demonstration = suite.demonstrate(task, noise=0.0, seed=0)  # pyright: ignore[reportAttributeAccessIssue]
        responses = [turn.response for turn in demonstration]
        build = lambda task=task: suite.environment(task)  # noqa: E731
        first = play_check(build, scripted(responses), 30, lambda call: None)
        assert first.steps[-1].info["success"]
        assert check_copy(build, first, lambda call: None) == []
