"""Define where trajectories begin: at the start of a task, or at a turn or token of another trajectory (a fork).

A fork begins in a copy of the environment, if there is one. Otherwise it replays the responses of the shared turns in a
fresh environment, and checks that it answers as before. The engine is not asked for those turns; it finds their tokens
in its cache if it still has them. For a fork inside a response, the engine continues from the response's first tokens.
"""

import dataclasses
import math
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Any

from turnwise.base.errors import EnvironmentFault
from turnwise.environments.base import Step, Task, shown
from turnwise.environments.hosts import Environments, ForkingEnvironments
from turnwise.models.format import Format
from turnwise.rollout.context import PromptContext
from turnwise.rollout.trajectory import Trajectory, Turn

REPLAY = "the replay "
"""Text in the failure of a trajectory whose given turns were answered differently."""


@dataclasses.dataclass(frozen=True, slots=True)
class Within:
    """A task and the wrappers of its environment, also for forks and continuations of its trajectory."""

    task: Task  # the task, which may be wrapped
    around: Callable[[Environments], Environments]  # returns environments in which it is played, given those below


def ends_of(task: Task) -> Callable[[Sequence[Turn], Hashable], dict[str, Any] | None]:
    """Return a function from turns and the state after them to the `info` of a trajectory that ends there.

    It is for agents that play by themselves; None: the trajectory continues.
    """
    around = wrappers(task)

    def ends(turns: Sequence[Turn], state: Hashable) -> dict[str, Any] | None:
        infos = (each.ends(turns, state) for each in around if hasattr(each, "ends"))
        return next((info for info in infos if info is not None), None)

    return ends


def wrappers(task: Task) -> tuple[Any, ...]:
    """Return the wrappers of a task, the outermost first."""
    found = []
    while isinstance(task, Within):
        found, task = [*found, task.around], task.task
    return tuple(found)


def plain(task: Task) -> Task:
    """Return a task without its wrappers."""
    while isinstance(task, Within):
        task = task.task
    return task


def inside(environments: Environments, task: Task) -> tuple[Environments, Task]:
    """Return where a task is played, and the task without its wrappers."""
    if not isinstance(task, Within):
        return environments, task
    below, plain = inside(environments, task.task)
    return task.around(below), plain


@dataclasses.dataclass(frozen=True, slots=True)
class Start:
    """Where a trajectory begins.

    Attributes:
        task: The task to play.
        group: Index of the group.
        name: Name of the task in records.
        turns: First turns, as another trajectory played them.
        observation: Observation that must follow those turns; None: any.
        tree: Number of the trajectory's tree within the group; None: a tree by itself.
        conversation: Number of its conversation, on which its random draws depend; None: its place among the starts.
        origin: Number of the conversation of the trajectory that it forks from, if an environment may be copied.
        begun: Response whose first tokens begin the next one; None: it is generated from its first token.
        token: Number of these tokens.
        into: Trajectory that gets the turns, for observers during play; None: a new one.
        following: Turn that followed the given turns, whose whole prompt an agent must send again; None: any.
    """

    task: Task
    group: int
    name: str
    turns: tuple[Turn, ...] = ()
    observation: str | None = None
    tree: int | None = None
    conversation: int | None = None
    origin: int | None = None
    begun: Turn | None = None
    token: int = 0
    into: Trajectory | None = None
    following: Turn | None = None

    def trajectory(self) -> Trajectory:
        """Return the trajectory that gets the turns."""
        turns = list(self.turns)
        trajectory = self.into or Trajectory(self.group, self.name, turns, shared=len(turns), tree=self.tree)
        trajectory.played = self.task
        return trajectory


def make_starts(tasks: Sequence[Task], group_size: int, task_name: Callable[[Task], str] = str) -> list[Start]:
    """Start every task `group_size` times, each task a group."""
    return [Start(task, group, task_name(task)) for group, task in enumerate(tasks) for _ in range(group_size)]


def fork(trajectory: Trajectory, turn: int, task: Task, token: int = 0) -> Start:
    """Start from the state in which a trajectory gave a response, or from inside that response.

    Args:
        trajectory: Trajectory to fork.
        turn: Number of turns to share, from 0 to all but the last.
        task: Its task, unless it knows how it was played.
        token: Number of tokens to share of the response that follows these turns, from 0 to all but the last.
    """
    if not 0 <= turn < len(trajectory.turns):
        raise ValueError(f"fork at turn {turn}, expected 0 to {len(trajectory.turns) - 1}")
    shared, following = (*trajectory.given, *trajectory.turns[:turn]), trajectory.turns[turn]
    if trajectory.played is not None and plain(trajectory.played) == plain(task):
        task = trajectory.played  # within the wrappers it was played in
    start = Start(task, trajectory.group, trajectory.task, shared, following.observation, trajectory.tree)
    start = dataclasses.replace(start, following=following)
    if not token:
        return start
    if not 0 < token < len(following.response_ids):
        raise ValueError(f"fork at token {token} of turn {turn}, expected 0 to {len(following.response_ids) - 1}")
    return dataclasses.replace(start, begun=following, token=token)


def begin_response(start: Start, turn: Turn) -> None:
    """Give the first response of a fork inside a response its shared tokens."""
    if start.begun is not None:
        turn.put(origin=start.begun, begun=start.token)
        turn.response_ids = start.begun.response_ids[: start.token]
        turn.behavior_logprobs = start.begun.behavior_logprobs[: start.token]
        if "state" in (of := start.begun.extras):
            turn.put(state=of["state"])
        if start.begun.behavior_entropies is not None:
            turn.behavior_entropies = start.begun.behavior_entropies[: start.token]
        if "spreads" in of:
            turn.put(spreads=of["spreads"][: start.token])


async def begin(
    start: Start, key: int, environments: Environments, context: PromptContext, fmt: Format
) -> tuple[Step, bool]:
    """Bring an environment to the state where a trajectory begins.

    Args:
        start: Where the trajectory begins.
        key: Key of its environment.
        environments: Where it is played.
        context: Context of the new trajectory; gets the shared turns.
        fmt: Turns observations into tokens.

    Returns:
        The step that the trajectory continues, and whether the environment was copied instead of played.

    Raises:
        EnvironmentFault: The environment failed, or a replay answers differently.
    """
    if start.origin is not None and isinstance(environments, ForkingEnvironments):
        steps = await environments.fork(key, start.origin, len(start.turns))
        if steps:
            for step, turn in zip(steps, start.turns, strict=False):
                context.observe(step)
                context.respond(turn.response_ids)
            return steps[-1], True
    step = await environments.start(key, start.task)
    return await replay(start, step, context, fmt, lambda text: environments.step(key, text)), False


async def replay(
    start: Start, step: Step, context: PromptContext, fmt: Format, answer: Callable[[str], Awaitable[Step]]
) -> Step:
    """Play the shared turns again, and return the step that the new trajectory continues.

    Args:
        start: Where the trajectory begins.
        step: First step of the fresh environment.
        context: Context of the new trajectory; receives the shared turns.
        fmt: Turns observations into tokens.
        answer: Plays an action in the environment.

    Raises:
        EnvironmentFault: The environment answers differently; names the turn, and both answers.
    """
    for number, turn in enumerate(start.turns, 1):
        _check_same(step, turn.observation, number)
        context.observe(step)
        context.respond(turn.response_ids)
        step = await answer(fmt.action(turn.response)[0])
        if step.ended or step.reward != turn.reward:
            raise EnvironmentFault(
                f"the replay of turn {number} gave reward {step.reward:g}{' and ended' * step.ended}, expected "
                f"{turn.reward:g}; only environments that repeat can be forked"
            )
    if start.observation is not None:
        _check_same(step, start.observation, len(start.turns) + 1)
    return step


def _check_same(step: Step, expected: str, number: int) -> None:
    if step.observation != expected:
        raise EnvironmentFault(
            f"the replay observed {shown(step.observation)} before turn {number}, expected {shown(expected)}; "
            "only environments that repeat can be forked"
        )


def return_of(continuation: Trajectory) -> float:
    """Return the sum of a continuation's own rewards, without replayed turns; nan if it failed."""
    if continuation.failure is not None:
        return math.nan
    return sum(turn.reward for turn in continuation.turns[continuation.shared :])
