"""Play groups of trajectories concurrently: each one alternates between engine and environment at its own pace."""

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from turnwise.base.errors import EngineFault, EnvironmentFault
from turnwise.engines.base import Engine, Sampling
from turnwise.environments.hosts import Environments, agents_of
from turnwise.models.format import Format
from turnwise.rollout.context import make_context
from turnwise.rollout.starts import Start, begin, begin_response, inside
from turnwise.rollout.trajectory import Trajectory, Turn


async def play(
    engine: Engine,
    starts: Sequence[Start],
    environments: Environments,
    fmt: Format,
    *,
    sampling: Sampling,
    max_context: int,
    window: int | None = None,
    on_turn: Callable[[int, int], None] | None = None,
    stride: int | None = None,
    close: bool = True,
) -> list[Trajectory]:
    """Play one trajectory per start.

    Args:
        engine: Generates the responses; all its conversations are closed at the end.
        starts: Where the trajectories begin, those of a group adjacent.
        environments: Where they are played; the key is the number of the conversation.
        fmt: Turns observations into tokens.
        sampling: Sampling settings of all responses.
        max_context: Tokens; a trajectory ends ("context") when its conversation could exceed them.
        window: Observations and responses that a prompt repeats; None: the whole conversation.
        on_turn: Called at the start, after every turn and at every end of a trajectory, with the number of live
            trajectories and of all.
        stride: Above all numbers of conversations; default: the number of starts.
        close: Whether this is the engine's last use in this event loop. Without, it keeps the prefixes that it knows.

    Returns:
        Trajectories in the order of their starts. A fault of the engine or of an environment, or a replay that gives
        other observations, ends only its own trajectory; `failure` holds the cause.
    """
    trajectories = [start.trajectory() for start in starts]
    live = len(trajectories)
    agents, tally = agents_of(environments), getattr(environments, "tally", None)
    how: Any = {"engine": engine, "fmt": fmt, "sampling": sampling, "max_context": max_context}

    async def play_one(place: int, trajectory: Trajectory) -> None:
        nonlocal live
        here, task = inside(environments, starts[place].task)
        start = dataclasses.replace(starts[place], task=task)
        number = place if start.conversation is None else start.conversation
        if agents:
            try:
                await agents.play(starts[place], number, trajectory, stride=stride or len(trajectories), **how)
            finally:
                live -= 1
            progress(live, trajectory)
            return
        context = make_context(fmt, number, window=window, stride=stride or len(trajectories))
        try:
            step, trajectory.copied = await begin(start, number, here, context, fmt)
            while True:
                before, prompt_ids = context.conversation, context.observe(step)
                if context.conversation != before:
                    engine.close([before])
                if len(context.ids) + sampling.max_new_tokens > max_context:
                    trajectory.ended = "context"
                    break
                turn = Turn(step.observation, step.key, prompt_ids, [], [], "", False, fresh=context.fresh)
                if len(trajectory.turns) == len(start.turns):
                    begin_response(start, turn)
                trajectory.turns.append(turn)
                own = dataclasses.replace(sampling, begun=turn.begun) if turn.begun else sampling
                turn.add(await engine.generate(context.conversation, context.ids + turn.response_ids, own))
                context.respond(turn.response_ids)
                turn.response = fmt.text(turn.response_ids)
                action, formed = fmt.action(turn.response)
                step = await here.step(number, action)
                turn.reward, turn.valid = float(step.reward), bool(step.valid) and formed
                if step.ended:
                    trajectory.ended = "terminated" if step.terminated else "truncated"
                    trajectory.success = bool(step.info.get("success", False))
                    break
                progress(live)
            trajectory.info, trajectory.last_observation = dict(step.info), step.observation
            trajectory.last_key = None if step.terminated or step.key == "" else step.key  # nothing follows an end
        except (EngineFault, EnvironmentFault) as fault:
            where = "engine" if isinstance(fault, EngineFault) else "environment"
            trajectory.failure, trajectory.ended = f"{where}: {fault}", "failed"
        finally:
            here.close(number)
            engine.close([context.conversation])
            live -= 1
        progress(live, trajectory)

    def progress(live: int, ended: Trajectory | None = None) -> None:
        if tally and ended:
            tally.add(ended)
        if on_turn:
            on_turn(live, len(trajectories))

    progress(live)
    players = [asyncio.ensure_future(play_one(*numbered)) for numbered in enumerate(trajectories)]
    try:
        await asyncio.gather(*players)
    finally:
        for player in players:
            player.cancel()
        await asyncio.gather(*players, return_exceptions=True)
        if close:
            await engine.aclose()
    return trajectories
