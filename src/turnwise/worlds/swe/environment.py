"""Play software repair: a repository with a bug.

A trajectory that fails is left out of its group, which is better for an agent than the reward 0. So whatever happens to
a workspace after the agent's first call earns 0: its commands can end it, or forge its answers. Faults before that, and
those of the task's own files, fail the trajectory.
"""

import asyncio
import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any

from turnwise.base.errors import EnvironmentFault
from turnwise.environments.base import Step
from turnwise.worlds.swe.grade import Grade, no_success
from turnwise.worlds.swe.tasks import SweTask
from turnwise.worlds.swe.tools import Rejected, Tools, describe, read_call
from turnwise.worlds.swe.workspace import Files, Oversized, Workspace


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SessionLimits:
    """Limits of one trajectory."""

    max_steps: int = 20  # turns; then the trajectory is truncated, and the repository is not graded
    seconds: float = 600.0  # time of all tools together; then the repository is submitted as it is
    output_chars: int = 4000  # maximum observation length (characters)
    view_lines: int = 60  # lines of a file shown at once
    search_lines: int = 20  # lines shown of a search
    statement_chars: int = 8000  # maximum length of the problem statement (characters)


class SweSession:
    """One trajectory, played without an event loop.

    Args:
        make_workspace: Makes the repository with the bug, and without the tests that grade.
        judge: Grades changes to the snapshot.
        task: The task.
        budget: Limits of the trajectory.
        success_reward: Reward of a repair that passes all named tests; anything else gets 0.
    """

    def __init__(
        self,
        make_workspace: Callable[[], Workspace],
        judge: Callable[[Files], Grade],
        task: SweTask,
        budget: SessionLimits,
        success_reward: float,
    ):
        self.task, self.budget, self.success_reward = task, budget, success_reward
        self._make, self._judge = make_workspace, judge
        self._workspace: Workspace | None = None
        self._given: Files = {}
        self._num_steps, self._seconds = 0, 0.0
        self._ended = False

    def start(self) -> Step:
        """Set up the repository and return the problem statement."""
        self._workspace = self._make()
        self._given = self._workspace.changes()
        budget = self.budget
        limits = {"view_lines": budget.view_lines, "search_lines": budget.search_lines}
        self._tools = Tools(self._workspace, output_chars=budget.output_chars, **limits)
        statement = self.task.problem_statement.strip()
        if len(statement) > budget.statement_chars:
            left = len(statement) - budget.statement_chars
            statement = f"{statement[: budget.statement_chars]}\n[... {left} characters left out ...]"
        return Step(observation=f"{describe()}\n\n{statement}", info=self._info(None))

    def step(self, response: str) -> Step:
        """Play a call; before `start` and after the end, raise an `EnvironmentFault`."""
        if self._workspace is None or self._ended:
            when = "after the end" if self._ended else "before start()"
            raise EnvironmentFault(f"step() {when} of task {self.task.instance_id}")
        self._num_steps += 1
        valid, begun = True, time.monotonic()
        try:
            name, arguments = read_call(response)
            observation = "" if name == "submit" else self._tools.call(name, arguments)
        except Rejected as rejected:
            name, observation, valid = "", str(rejected), False
        except EnvironmentFault as fault:
            lost = no_success(self.task, f"the workspace is lost: {fault}")
            return self._end(lost, "The workspace is lost.", valid)
        self._seconds += time.monotonic() - begun
        if name == "submit" or self._seconds > self.budget.seconds:
            return self._submit(name, valid)
        truncated = self._num_steps >= self.budget.max_steps
        if truncated:
            self._close()
        return Step(observation=observation, truncated=truncated, valid=valid, info=self._info(None))

    def changes(self) -> dict[str, bytes | None]:
        """Return the files that the agent changed."""
        assert self._workspace is not None
        now = self._workspace.changes()
        changed = {
            path: content for path, content in now.items() if path not in self._given or self._given[path] != content
        }
        back = [path for path in self._given if path not in now]  # as in the snapshot, which has the right answer
        return changed | {path: self._read(path) for path in back}

    def _read(self, path: str) -> bytes | None:
        assert self._workspace is not None
        outcome = self._workspace.run('cat -- "$(cat)"', stdin=path.encode("utf-8", "surrogateescape"))
        return outcome.output if outcome.code == 0 else None

    def _submit(self, name: str, valid: bool) -> Step:
        try:
            changes, grade = self.changes(), None
        except Oversized as oversized:
            changes, grade = {}, no_success(self.task, f"the change is too large: {oversized}")
        except EnvironmentFault as fault:
            changes, grade = {}, no_success(self.task, f"the workspace is lost: {fault}")
        self._close()
        grade = grade or self._judge(changes)
        observation = "The repair works." if grade.success else "The repair does not work."
        if name != "submit":
            observation = f"The time is up. {observation}"
        return self._end(grade, observation, valid)

    def _end(self, grade: Grade, observation: str, valid: bool) -> Step:
        self._close()
        reward = self.success_reward if grade.success else 0.0
        return Step(observation=observation, reward=reward, terminated=True, valid=valid, info=self._info(grade))

    def _close(self) -> None:
        self._ended = True
        if self._workspace:
            self._workspace.close()

    def _info(self, grade: Grade | None) -> dict[str, Any]:
        grade = grade or no_success(self.task, "not handed in")
        info: dict[str, Any] = {"success": grade.success, "reason": grade.reason, "tier": self.task.tier}
        return info | {"passed_frac": grade.num_passed / grade.num_named if grade.num_named else 0.0}


class SweEnvironment:
    """A `SweSession` with coroutines as methods: tools and tests of many trajectories run concurrently in threads."""

    repeats = False
    """False, because commands can print times and addresses."""

    def __init__(self, session: SweSession):
        self.session = session

    async def start(self) -> Step:
        """Set up the repository."""
        return await asyncio.to_thread(self.session.start)

    async def step(self, response: str) -> Step:
        """Play a call."""
        return await asyncio.to_thread(functools.partial(self.session.step, response))
