"""Play a task of Harbor: an agent with a shell, graded by the task's own tests.

A trajectory that fails is left out of its group, which is better for an agent than the reward 0. So whatever happens to
a sandbox after the agent's first command earns 0: its commands can end it.
"""

import asyncio
import json
import math
from collections.abc import Callable
from typing import Any

from turnwise.base.errors import EnvironmentFault
from turnwise.environments.base import Step
from turnwise.environments.plain import sound_text
from turnwise.environments.tool_calls import describe_tools, read_response
from turnwise.worlds.harbor.sandbox import REWARDS, TaskSandbox
from turnwise.worlds.swe.tools import MAX_COMMAND
from turnwise.worlds.swe.workspace import CommandResult

_COMMAND = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
TOOL = {"type": "function", "function": {"name": "bash", "description": "Run a command.", "parameters": _COMMAND}}


class HarborEnvironment:
    """One task, in a copy of its files. A response calls `bash`, or calls nothing, which ends the task.

    Tests become visible once the agent and its processes have ended; they run on the files that it left.

    Args:
        instruction: What the agent is asked to do.
        make_sandbox: Makes the task's files.
        max_steps: Turns after which the trajectory is truncated, and graded.
        output_chars: Maximum length of the shown output.
    """

    repeats = False

    def __init__(self, instruction: str, make_sandbox: Callable[[], TaskSandbox], *, max_steps: int, output_chars: int):
        self._instruction, self._make_sandbox = instruction, make_sandbox
        self._max_steps, self._chars = max_steps, output_chars
        self._sandbox: TaskSandbox | None = None
        self._steps = 0

    async def start(self) -> Step:
        """Create the task's files, and return its instruction."""
        self._sandbox = await asyncio.to_thread(self._make_sandbox)
        return Step(observation=f"{describe_tools([TOOL])}\n\n{self._instruction.strip()}")

    async def step(self, response: str) -> Step:
        """Run the commands of a response.

        Raises:
            EnvironmentFault: The task has not begun, or is over.
        """
        if self._sandbox is None:
            raise EnvironmentFault(f"step() {'after the end' if self._steps else 'before start()'} of a task.")
        return await asyncio.to_thread(self._step, response, self._sandbox)

    def _step(self, response: str, sandbox: TaskSandbox) -> Step:
        self._steps += 1
        try:
            shown, valid, ended = self._answered(response, sandbox)
            truncated = not ended and self._steps >= self._max_steps
            if not (ended or truncated):
                return Step(observation=shown, valid=valid)
            reward, said = self._graded(sandbox)
        except EnvironmentFault as fault:
            shown, valid, ended, truncated = "The sandbox is lost.", True, True, False
            reward, said = 0.0, f"the sandbox is lost: {fault}"
        self._sandbox = None
        sandbox.close()
        info = {"success": reward >= 1.0, "verifier": said}
        ends: dict[str, Any] = {"terminated": ended, "truncated": truncated, "info": info}
        return Step(observation=shown, reward=reward, valid=valid, **ends)

    def _answered(self, response: str, sandbox: TaskSandbox) -> tuple[str, bool, bool]:
        """Run the commands of a response; returns what they print, whether all are valid, and whether there is none."""
        shown, valid, calls = [], True, read_response(response).calls
        for call in calls:
            command = json.loads(call.arguments).get("command") if not call.malformed and call.name == "bash" else None
            if not isinstance(command, str) or "\0" in command or sound_text(command) is not command:
                valid = False
                shown.append("Expected a call of bash with a command.")
            elif (size := len(command.encode())) > MAX_COMMAND:
                valid = False
                shown.append(f"The command has {size} bytes; it may have {MAX_COMMAND}.")
            else:
                shown.append(self._output_of(sandbox.run(command, output_chars=self._chars)))
        return "\n".join(shown), valid, not calls

    def _output_of(self, outcome: CommandResult) -> str:
        said = outcome.output.decode(errors="replace")
        stopped = f"\n[stopped: {outcome.stopped_by}]" if outcome.stopped_by else ""
        return f"{said.rstrip()}{stopped}\n[exit code {outcome.code}]".strip()

    def _graded(self, sandbox: TaskSandbox) -> tuple[float, str]:
        """Run the tests; returns the reward (0 if they write none), and the end of their output."""
        outcome, found = sandbox.test(output_chars=self._chars)
        said = self._output_of(outcome)[-500:]
        for name in REWARDS:
            if name in found:
                reward = _number(found[name])
                return (reward, said) if reward is not None else (0.0, f"{name} holds no number: {said}")
        return 0.0, f"the tests wrote no reward: {said}"


def _number(text: bytes) -> float | None:
    """Return the reward of a file: a number, or an object with `reward`, or else with one number alone."""
    try:
        value: Any = json.loads(text)
        if isinstance(value, dict):
            [value] = [value["reward"]] if "reward" in value else value.values()  # of several, none is the reward
        return float(value) if math.isfinite(float(value)) else None
    except (ValueError, TypeError, RecursionError, OverflowError):
        return None
