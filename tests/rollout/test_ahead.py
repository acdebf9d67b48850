"""Playing ahead of the update: one version of the weights per response, batches apart, and an end that ends all."""

import asyncio
import contextlib
import gc
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from tests.rollout.playing import POLICY, STOP
from tests.toys import Colors, color_policy, output_layer

from turnwise.base.blocking import ThreadLoop, blocking, make_loop
from turnwise.base.errors import EngineLost
from turnwise.engines.base import Sampling
from turnwise.engines.local import LocalEngine
from turnwise.environments.base import Step
from turnwise.environments.hosts import InProcessEnvironments
from turnwise.objective.tokens import Sequences, score
from turnwise.rollout.agents import Request
from turnwise.rollout.collect import play
from turnwise.rollout.gate import Gate, OwnConversations, OwnEnvironments, VisitedEngine
from turnwise.rollout.starts import make_starts
from turnwise.rollout.trajectory import Trajectory

SAMPLING = Sampling(max_new_tokens=3, stop_ids=(STOP,), seed=3)


@contextlib.contextmanager
def ahead() -> Iterator[ThreadLoop]:
    loop = make_loop(apart=True)
    assert isinstance(loop, ThreadLoop)
    try:
        yield loop
    finally:
        loop.close()


class Slow(Colors):
    """Takes 2 ms for a step."""

    async def step(self, response: str) -> Step:  # pyright: ignore[reportIncompatibleMethodOverride]
        await asyncio.sleep(0.002)
        return super().step(response)


def player(loop: ThreadLoop, engine, make: Any = Colors, policy=POLICY) -> Any:
    """Start groups of four trajectories on an engine and environments that all groups share."""
    gate, environments = Gate(engine), InProcessEnvironments(make)
    outside = VisitedEngine(gate, loop)
    blocking(outside.update_weights(0))
    threads = ThreadPoolExecutor(4)

    def start(tasks: list) -> Callable[[], list[Trajectory]]:
        request = Request(
            engine=OwnConversations(gate),
            environments=OwnEnvironments(environments),
            fmt=policy.format,
            sampling=SAMPLING,
            max_context=policy.max_context,
        )
        return threads.submit(loop.run, play(make_starts(tasks, 2), request)).result

    start.engine, start.threads = outside, threads  # type: ignore[attr-defined]
    return start


def test_lag_0_plays_in_the_trainers_thread_and_ahead_in_another():
    async def here() -> threading.Thread:
        return threading.current_thread()

    for apart in (False, True):
        loop = make_loop(apart=apart)
        assert (loop.run(here()) is threading.main_thread()) == (not apart)
        assert blocking(loop.visit(here())).name == ("turnwise-rollouts" if apart else "MainThread")
        loop.close()


def test_batches_that_play_at_the_same_time_do_not_touch_each_other():
    with ahead() as rollouts:
        start = player(rollouts, LocalEngine(POLICY.model, apart=True), lambda task: Slow(task, turns=3))
        begun = [start([task, task + 1]) for task in (0, 1, 2)]
        played = [wait() for wait in begun]
    for first, trajectories in zip((0, 1, 2), played, strict=True):
        assert [trajectory.failure for trajectory in trajectories] == [None] * 4
        for trajectory in trajectories:
            assert trajectory.task == str(first + trajectory.group)
            assert [turn.observation for turn in trajectory.turns] == [
                f"say {Colors.color(first + trajectory.group, turn)}" for turn in range(3)
            ]


def test_weights_change_between_responses_and_every_turn_knows_its_version():
    policy = color_policy(seed=1)
    versions = {0: output_layer(policy).weight.detach().clone()}
    reached, updates = [0], [0]

    class Meeting(Slow):
        """Meets an update after every second turn; the other trajectories generate meanwhile."""

        async def step(self, response: str) -> Step:  # pyright: ignore[reportIncompatibleMethodOverride]
            reached[0] = max(reached[0], self.played)
            while self.seed == 0 and self.played >= 2 * (updates[0] + 1):
                await asyncio.sleep(0.001)
            return await super().step(response)

    with ahead() as rollouts:
        environment = lambda task: Meeting(task, turns=7)  # noqa: E731
        start = player(rollouts, LocalEngine(policy.model, apart=True), environment, policy=policy)
        engine = start.engine  # type: ignore[attr-defined]
        begun = start([0, 1, 2, 3])
        for version in (1, 2, 3):
            while reached[0] < 2 * version:
                time.sleep(0.001)
            with torch.no_grad():
                output_layer(policy).weight.mul_(0.5)
            versions[version] = output_layer(policy).weight.detach().clone()
            blocking(engine.update_weights(version))
            updates[0] = version if version < 3 else 100
        trajectories = begun()
    assert [trajectory.failure for trajectory in trajectories] == [None] * 8
    seen = [[turn.version for turn in trajectory.turns] for trajectory in trajectories]
    assert all(each == sorted(each) for each in seen)
    assert {version for each in seen for version in each} >= {0, 1, 2}
    assert all(len(set(each)) > 1 for each in seen[:2])
    sequences = Sequences.from_trajectories(trajectories)
    for version, weight in versions.items():
        with torch.no_grad():
            output_layer(policy).weight.copy_(weight)
        logprob_T, _ = score(policy.model, sequences)
        turns = [turn for trajectory in trajectories for turn in trajectory.turns]
        offsets = [0]
        for turn in turns:
            offsets.append(offsets[-1] + len(turn.response_ids))
        for turn, begin, end in zip(turns, offsets[:-1], offsets[1:], strict=True):
            error = abs(torch.tensor(turn.behavior_logprobs) - torch.tensor(logprob_T[begin:end])).max()
            assert (error < 1e-4) == (turn.version == version), (turn.version, version, error)


def test_the_end_ends_what_is_played_and_leaves_no_thread():
    before = set(threading.enumerate())

    class Endless(Slow):
        async def step(self, response: str) -> Step:
            await asyncio.sleep(0.001)
            return Step(observation="say red")

    class Deaf(Colors):
        async def step(self, response: str) -> Step:  # pyright: ignore[reportIncompatibleMethodOverride]
            await asyncio.sleep(60)
            return super().step(response)

    policy = color_policy(context=4096)
    for environment in (Endless, Deaf):
        start = time.monotonic()
        with ahead() as rollouts:
            begin = player(rollouts, LocalEngine(policy.model, apart=True), environment, policy)
            waits = [begin([0, 1]), begin([2, 3]), begin([4])]
            time.sleep(0.05)
        assert time.monotonic() - start < 5
        for wait in waits:
            with contextlib.suppress(BaseException):
                wait()
        begin.threads.shutdown()
    assert set(threading.enumerate()) <= before


def test_what_was_asked_last_and_never_began_is_ended_without_a_warning():
    loop = ThreadLoop()
    loop.soon(time.sleep, 0.1)
    asked = asyncio.run_coroutine_threadsafe(asyncio.sleep(60), loop._loop)
    loop.close()
    assert asked.cancelled()
    gc.collect()  # a coroutine that was never awaited warns when it is collected; warnings are errors here


def test_a_lost_engine_ends_the_step_that_waits_for_its_batch():
    class Lost(LocalEngine):
        async def generate(self, conversation, prompt_ids, sampling):
            raise EngineLost("the server is gone")

    with ahead() as rollouts:
        wait = player(rollouts, Lost(POLICY.model))([0])
        with pytest.raises(EngineLost, match="the server is gone"):
            wait()
