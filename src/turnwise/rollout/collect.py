"""Play groups of episodes: all of them live at once, one engine call a turn."""

import asyncio
import contextlib
import dataclasses
import inspect
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from turnwise.environments.base import Environment, Step, Task, as_step, checked_step
from turnwise.errors import EngineFault
from turnwise.rollout.engine import Engine, Sampling
from turnwise.rollout.format import Format
from turnwise.rollout.record import Trajectory, Turn


@dataclasses.dataclass(slots=True)
class _Episode:
    """A live conversation with a world."""

    trajectory: Trajectory
    environment: Environment
    token_ids: list[int]
    step: Step


def collect(
    engine: Engine,
    tasks: Sequence[Task],
    make_environment: Callable[[Task], Environment],
    fmt: Format,
    *,
    group_size: int,
    sampling: Sampling,
    max_context: int,
    task_name: Callable[[Task], str] = str,
    on_turn: Callable[[int, int], None] | None = None,
) -> list[Trajectory]:
    """Play every task `group_size` times.

    Args:
        engine: Generates the responses.
        tasks: One a group.
        make_environment: Builds a fresh world for a task.
        fmt: Turns observations into tokens.
        group_size: Trajectories a task.
        sampling: How to sample; the seed is varied by turn.
        max_context: An episode ends ("context") when its conversation could outgrow this many tokens.
        task_name: Names a task in the record.
        on_turn: Called after every turn with the number of live episodes and of all, for progress displays.

    Returns:
        Trajectories, those of a group adjacent. A world that raises, or answers what is no `Step`, ends its own trajectory only,
        with the cause in `failure`; a fault of the engine ends those that are live.
    """
    trajectories = [Trajectory(group, task_name(task)) for group, task in enumerate(tasks) for _ in range(group_size)]
    with contextlib.closing(asyncio.Runner()) as runner, contextlib.closing(engine):
        _play(engine, runner, trajectories, tasks, make_environment, fmt, sampling, max_context, on_turn)
    return trajectories


def _play(
    engine: Engine,
    runner: asyncio.Runner,
    trajectories: Sequence[Trajectory],
    tasks: Sequence[Task],
    make_environment: Callable[[Task], Environment],
    fmt: Format,
    sampling: Sampling,
    max_context: int,
    on_turn: Callable[[int, int], None] | None,
) -> None:
    """Fill the trajectories."""
    worlds = _attempt(runner, [lambda t=t: make_environment(tasks[t.group]) for t in trajectories], trajectories)
    starts = _attempt(runner, [lambda world=world: world.start() for world in worlds], trajectories, as_step)
    live: dict[int, _Episode] = {}
    for number, (trajectory, world, start) in enumerate(zip(trajectories, worlds, starts, strict=True)):
        if trajectory.failure is None:
            live[number] = _Episode(trajectory, world, [], start)

    turn = 0
    while live:
        for number, episode in list(live.items()):
            prompt_ids = fmt.prompt_ids(episode.step.observation, first=turn == 0)
            if len(episode.token_ids) + len(prompt_ids) + sampling.max_new_tokens > max_context:
                episode.trajectory.ended = "context"
                del live[number]
                continue
            episode.token_ids += prompt_ids
            key = episode.step.state_key
            key = episode.step.observation if key is None else key
            episode.trajectory.turns.append(Turn(episode.step.observation, key, prompt_ids, [], [], "", False))
        engine.close([number for number in range(len(trajectories)) if number not in live] if turn else [])
        try:
            generations = engine.generate(
                {number: episode.token_ids for number, episode in live.items()},
                dataclasses.replace(sampling, seed=sampling.seed * 1009 + turn),
            )
        except EngineFault as fault:
            for episode in live.values():
                episode.trajectory.failure, episode.trajectory.ended = f"engine: {fault}", "failed"
            return
        for number, episode in live.items():
            current, generation = episode.trajectory.turns[-1], generations[number]
            current.response_ids, current.behavior_logprobs = generation.token_ids, generation.logprobs
            current.truncated = generation.truncated
            current.response = fmt.text(generation.token_ids)
            episode.token_ids += generation.token_ids
        episodes = list(live.values())
        answers = _attempt(
            runner,
            [lambda e=episode: e.environment.step(e.trajectory.turns[-1].response) for episode in episodes],
            [episode.trajectory for episode in episodes],
            checked_step,
        )
        for (number, episode), answer in zip(list(live.items()), answers, strict=True):
            if episode.trajectory.failure is None:
                _record(episode, answer)
            if episode.trajectory.ended:
                del live[number]
        turn += 1
        if on_turn:
            on_turn(len(live), len(trajectories))


def _record(episode: _Episode, step: Step) -> None:
    trajectory, current = episode.trajectory, episode.trajectory.turns[-1]
    current.reward, current.valid = float(step.reward), bool(step.valid)
    episode.step = step
    if step.ended:
        trajectory.ended = "terminated" if step.terminated else "truncated"
        trajectory.success = bool(step.info.get("success", False))
        trajectory.info = dict(step.info)


def _attempt(
    runner: asyncio.Runner,
    calls: Sequence[Callable[[], Any]],
    trajectories: Sequence[Trajectory],
    check: Callable[[Any], Any] = lambda result: result,
) -> list[Any]:
    """Run calls, awaiting those that are coroutines together; a failure is noted in its trajectory and gives None."""
    results: list[Any] = []
    for call, trajectory in zip(calls, trajectories, strict=True):
        try:
            results.append(call() if trajectory.failure is None else None)
        except Exception as error:  # a world may raise anything; the run must survive it
            results.append(error)
    waiting = [index for index, result in enumerate(results) if inspect.isawaitable(result)]
    if waiting:

        async def gather() -> list[Any]:
            return await asyncio.gather(*(results[index] for index in waiting), return_exceptions=True)

        for index, result in zip(waiting, runner.run(gather()), strict=True):
            results[index] = result
    return [_settle(result, trajectory, check) for result, trajectory in zip(results, trajectories, strict=True)]


def _settle(result: Any, trajectory: Trajectory, check: Callable[[Any], Any]) -> Any:
    if trajectory.failure is not None:
        return None
    try:
        if isinstance(result, BaseException):
            raise result
        return check(result)
    except (Exception, asyncio.CancelledError) as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        trajectory.failure = f"environment: {type(error).__name__}: {error} at {where.name}:{where.lineno}"
        trajectory.ended = "failed"
        return None
