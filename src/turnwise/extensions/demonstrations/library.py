"""Find the demonstrations of tasks, play them in the environment, and turn them into trajectories."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from turnwise.base.blocking import blocking
from turnwise.base.errors import ConfigError, DataError, EngineFault, EnvironmentFault
from turnwise.base.jsonl import read_objects
from turnwise.engines.base import Generation, Sampling
from turnwise.environments.base import Demonstrated, Step, Task, shown
from turnwise.environments.hosts import Environments, InProcessEnvironments, agents_of
from turnwise.environments.suites import Suite
from turnwise.models.format import Format
from turnwise.models.policy import Policy
from turnwise.rollout.agents import Request
from turnwise.rollout.collect import play
from turnwise.rollout.context import make_context
from turnwise.rollout.starts import Start
from turnwise.rollout.trajectory import Trajectory, Turn

REMEMBERED = 1024
"""Number of latest demonstrations kept in memory."""


@dataclasses.dataclass(frozen=True)
class Demonstration:
    """Responses that solve a task."""

    turns: tuple[Demonstrated, ...]
    where: str


class Demonstrations:
    """Demonstrate tasks: by the environment's expert, or from a file, whose trajectories are all played once at first.

    Args:
        suite: Environment with its tasks.
        tasks: Tasks that may be asked for.
        file: JSON Lines with one trajectory per line; None: ask the expert.
        seed: Seed of the expert.
        window: Number of earlier turns that a prompt repeats; None: the whole conversation.
        environments: Where trajectories are played. A harness is given the responses, and makes the prompts.

    Raises:
        ConfigError: There is no file, and the environment has no expert.
        DataError: The file cannot be read, or the environment does not accept one of its trajectories.
    """

    def __init__(
        self,
        suite: Suite,
        tasks: Sequence[Task],
        *,
        file: Path | None,
        seed: int,
        window: int | None,
        environments: Environments | None = None,
    ):
        self._agent = environments if environments and agents_of(environments) else None
        self._suite, self._tasks, self._seed, self._window = suite, tasks, seed, window
        self._file = None if file is None else self._read(file)
        if file is None and not hasattr(suite, "demonstrate"):
            raise ConfigError(
                "demonstrations need an expert, and the environment has no demonstrate(); set demonstrations.file, or "
                "see TeachingSuite in turnwise.environments.suites"
            )
        for number, found in (self._file or {}).items() if self._agent is None else ():
            self._play(number, found)
        self.trajectory = functools.lru_cache(REMEMBERED)(self._trajectory)
        self.played = functools.lru_cache(REMEMBERED)(self._played)

    def _read(self, file: Path) -> dict[int, Demonstration]:
        numbers = {self._suite.task_name(task): number for number, task in enumerate(self._tasks)}
        found: dict[int, Demonstration] = {}
        for line, entry in read_objects(file, ["task"]):
            where, task = f"{file}, line {line}", entry["task"]
            if task not in numbers:
                raise DataError(
                    f"{where}: {shown(task)} is none of the {len(numbers)} training tasks, which are named like "
                    f"{next(iter(numbers))!r}; remove the line, or set environment.train_split"
                )
            if numbers[task] in found:
                raise DataError(f"{where}: {task!r} has a demonstration already; keep one line per task")
            found[numbers[task]] = Demonstration(_responses(entry, where), where)
        if not found:
            raise DataError(f"{file} has no demonstration, expected one JSON object per line; see demonstrations.md")
        return found

    def _found(self, number: int) -> Demonstration | None:
        if self._file is not None:
            return self._file.get(number)
        suite: Any = self._suite
        turns = suite.demonstrate(self._tasks[number], noise=0.0, seed=self._seed * 1_000_003 + number)
        return Demonstration(tuple(turns), "the environment's expert") if turns else None

    def _play(self, number: int, found: Demonstration) -> list[Step]:
        """Play a demonstration, and return the steps that it answers; see `play_demonstration` for errors."""
        task = self._tasks[number]
        environments = InProcessEnvironments(self._suite.environment)
        return blocking(play_demonstration(environments, task, self._suite.task_name(task), found))

    def _trajectory(self, number: int, fmt: Format, max_context: int) -> Trajectory | None:
        """Return the demonstration of a task as a trajectory.

        Turns that are not to be imitated are part of the next turn's prompt. The probabilities that it was sampled
        with are unknown and 0 here.

        Args:
            number: Number of the task.
            fmt: Turns observations and responses into tokens.
            max_context: Maximum sequence length (tokens).

        Returns:
            None if the task has no demonstration, or if that has more than `max_context` tokens.

        Raises:
            DataError: The environment does not accept it, or the policy plans and it has no subgoals.
        """
        found, _, turns = self._read_out(number, fmt, max_context)
        if found is None or not turns:
            return None
        kept = folded(turns, [turn.imitate for turn in found.turns])
        return Trajectory(0, self.name(number), kept, success=True, ended="terminated") if kept else None

    @property
    def numbers(self) -> list[int]:
        """Return the tasks that may have a demonstration: those of the file, or all."""
        return list(range(len(self._tasks))) if self._file is None else sorted(self._file)

    def name(self, number: int) -> str:
        """Return the name of a task in records."""
        return self._suite.task_name(self._tasks[number])

    def imitated(self, number: int, policy: Policy) -> list[int]:
        """Return the turns of a task's demonstration to imitate, from 0; empty if none fits."""
        _, turns, found = self.played(number, policy)
        return [turn for turn in range(len(turns)) if found.turns[turn].imitate]

    def _played(self, number: int, policy: Policy) -> tuple[list[Step], list[Turn], Demonstration]:
        """Return the steps that the turns of a demonstration answer, its turns, and its origin.

        All are empty for a task without a demonstration that fits.
        """
        found, steps, turns = self._read_out(number, policy.format, policy.max_context)
        return (steps, turns, found) if found and turns else ([], [], Demonstration((), ""))

    def _read_out(
        self, number: int, fmt: Format, max_context: int
    ) -> tuple[Demonstration | None, list[Step], list[Turn]]:
        """Return a demonstration, the steps that its turns answer, and its turns; None if they do not fit."""
        found = self._found(number)
        if found is None:
            return None, [], []
        if self._agent is not None:
            turns = play_agent(self._agent, self._tasks[number], self.name(number), found, fmt, max_context)
            return found, [Step(observation=turn.observation) for turn in turns], turns
        try:
            steps = self._play(number, found)
        except DataError:
            if self._file is not None:
                raise
            return None, [], []  # the environment's expert may fail a task, which has no demonstration then
        return found, steps, self._turns(found, steps, fmt, max_context) or []

    def _turns(self, found: Demonstration, steps: Sequence[Step], fmt: Format, max_context: int) -> list[Turn] | None:
        """Return the turns of a demonstration, or None if they have too many tokens."""
        context = make_context(fmt, 0, window=self._window, stride=1)
        turns: list[Turn] = []
        subgoal = ""
        for index, (step, demonstrated) in enumerate(zip(steps, found.turns, strict=True)):
            if fmt.plan and not demonstrated.subgoal:
                raise DataError(f"{found.where}: prompt.plan needs a subgoal in turn {index + 1}; give it as 'subgoal'")
            prompt = context.observe(step)
            response = fmt.response_ids(
                demonstrated.response, subgoal=demonstrated.subgoal, switch=not index or demonstrated.subgoal != subgoal
            )
            subgoal = demonstrated.subgoal
            context.respond(response)
            if len(context.ids) > max_context:
                return None
            given = Turn(step.observation, step.key, prompt, response, [0.0] * len(response), fmt.text(response), False)
            turns.append(dataclasses.replace(given, fresh=context.fresh))
        return turns


def _responses(entry: Mapping[str, Any], where: str) -> tuple[Demonstrated, ...]:
    """Read the responses of a line: its `responses`, or the assistant's among its `messages`."""
    given = entry.get("responses")
    if given is None and isinstance(messages := entry.get("messages"), list):
        given = [each.get("content") for each in messages if isinstance(each, dict) and each.get("role") == "assistant"]
    if not isinstance(given, list) or not given:
        raise DataError(f"{where}: expected 'responses', a list of texts, or 'messages' with some of the assistant")
    turns = []
    for number, each in enumerate(given, 1):
        line = {"response": each} if isinstance(each, str) else each
        if not (isinstance(line, dict) and isinstance(line.get("response"), str)) or line.keys() - _FIELDS:
            raise DataError(
                f"{where}, response {number}: expected a text, or an object with response, imitate and subgoal, got "
                f"{shown(each)}"
            )
        turns.append(Demonstrated(line["response"], bool(line.get("imitate", True)), str(line.get("subgoal", ""))))
    return tuple(turns)


_FIELDS = {"response", "imitate", "subgoal"}


async def play_demonstration(
    environments: InProcessEnvironments, task: Task, name: str, found: Demonstration
) -> list[Step]:
    """Play a demonstration and return the steps that its turns answer, `[turns]`.

    Raises:
        DataError: The environment does not accept a response that is to be imitated, ends before the last one, or
            does not declare success. The message names task, turn and command.
    """

    def refused(number: int, what: str) -> DataError:
        command = found.turns[number - 1].response
        return DataError(
            f"{found.where}: demonstration of task {name!r}, turn {number}, {shown(command)}: {what}; correct or "
            "remove it"
        )

    steps, number = [], 1
    try:
        step = await environments.start(0, task)
        for number, turn in enumerate(found.turns, 1):
            if step.ended:
                raise refused(number, "the task ended before this turn")
            steps.append(step)
            step = await environments.step(0, turn.response)
            if turn.imitate and not step.valid:
                raise refused(number, f"the environment does not accept it, and answers {shown(step.observation)}")
        if not step.info.get("success", False):
            raise refused(len(found.turns), "the environment declares no success after this last turn")
    except EnvironmentFault as fault:
        raise refused(number, f"the environment failed with {fault}") from None
    finally:
        environments.close(0)
    return steps


class _Teacher:
    """An engine that returns the responses of a demonstration in order; see `Engine` for the methods."""

    def __init__(self, responses: Sequence[list[int]]):
        self._left = list(responses)

    async def generate(self, conversation: int, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        """Give the next response."""
        if not self._left:
            raise EngineFault("the demonstration has no further response")
        response = self._left.pop(0)
        return Generation(response, [0.0] * len(response), False)

    async def update_weights(self, version: int = 0) -> None:
        """Do nothing."""

    def close(self, conversations: Sequence[int] | None = None) -> None:
        """Do nothing."""

    async def aclose(self) -> None:
        """Do nothing."""


def play_agent(
    environments: Environments, task: Task, name: str, found: Demonstration, fmt: Format, max_context: int
) -> list[Turn]:
    """Let an agent play a task with the responses of a demonstration, and return the turns; none if they do not fit.

    Raises:
        DataError: The agent fails, asks for another number of responses, or does not succeed.
    """
    responses = [fmt.response_ids(turn.response, subgoal=turn.subgoal) for turn in found.turns]
    sampling = Sampling(max_new_tokens=max(map(len, responses)), stop_ids=(fmt.stop_id,), seed=0)
    how: Any = {"environments": environments, "fmt": fmt, "sampling": sampling, "max_context": max_context}
    (trajectory,) = blocking(play([Start(task, 0, name)], Request(engine=_Teacher(responses), **how)))
    if trajectory.ended == "context":
        return []
    what = trajectory.failure
    if what is None and len(trajectory.turns) != len(responses):
        what = f"the agent asked for {len(trajectory.turns)} responses, expected {len(responses)}"
    if what is None and not trajectory.success:
        what = "the agent declares no success"
    if what is not None:
        raise DataError(f"{found.where}: demonstration of task {name!r}: {what}; correct or remove it")
    return trajectory.turns


def folded(turns: Sequence[Turn], learned: Sequence[bool]) -> list[Turn]:
    """Return the turns to learn from; the tokens of the others become part of the next prompt.

    So no loss, credit or mean counts tokens that the policy reads but did not generate.
    """
    result: list[Turn] = []
    before: list[int] = []
    fresh = True
    for turn, keep in zip(turns, learned, strict=True):
        if turn.fresh:
            before, fresh = [], True
        before = before + turn.prompt_ids
        if keep:
            result.append(dataclasses.replace(turn, prompt_ids=before, fresh=fresh))
            before, fresh = [], False
        else:
            before = before + turn.response_ids
    return result


def alone(trajectory: Trajectory, **origin: Any) -> Trajectory:
    """Return a trajectory with the policy's own turns alone; those that it shares are part of its first prompt.

    Args:
        trajectory: The trajectory, which begins with turns of another one.
        origin: What `info` says about these, in addition to their number.
    """
    shared, info = trajectory.shared, dict(trajectory.info)
    if isinstance(rewards := info.get("step_rewards"), Sequence | np.ndarray):
        info["step_rewards"] = rewards[shared:]
    if shared and isinstance(checks := info.get("checks"), Sequence | np.ndarray):
        info["checks"] = [check - checks[shared - 1] for check in checks[shared:]]  # what changes counts
    own = [number >= shared for number in range(len(trajectory.turns))]
    info["prefix"] = {"turns": shared, **origin}
    turns, given = folded(trajectory.turns, own), tuple(trajectory.turns[:shared])
    return dataclasses.replace(trajectory, turns=turns, given=given, shared=0, tree=None, info=info)
