"""Play tasks with the tools of an MCP server, over its standard input and output: `environment.name = "mcp"`.

options = { command = "my-server {folder}", tasks = "tasks.jsonl", reward = "module:function" }
"""

import asyncio
import contextlib
import json
import re
import shlex
import tempfile
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from turnwise.base.errors import ConfigError, EnvironmentFault, did_you_mean, text_of
from turnwise.base.imports import import_named
from turnwise.base.jsonl import check_unique, read_objects
from turnwise.environments.base import Environment, Step, Task
from turnwise.environments.needs import needed
from turnwise.environments.settings import EnvironmentConfig
from turnwise.environments.splits import named_split
from turnwise.environments.tool_calls import describe_tools, read_response
from turnwise.worlds.adapters.background import Background

FOLDER = "{folder}"
"""Stands in the command for the episode's own folder."""
WANTS_ANOTHER = re.compile(r"'(Fast|MCP)*Server' object has no attribute|from 'mcp[.'\w]|No module named 'mcp[.']")
"""What Python says of a server whose package `mcp` has another interface: many do not bound its version."""
OTHER_VERSION = (
    "; the server was written for another version of the package mcp than it finds: give it its own environment with "
    "'mcp<2' (or 'mcp>=2'), and name its program there in environment.options.command"
)

_BACKGROUND = Background()


class McpEpisode:
    """What a reward function reads.

    Attributes:
        task: The task, as its line has it.
        answer: The last response, which called no tool; empty if the turns ran out before.
        calls: Calls so far: name, arguments, result, and whether it is an error.
        folder: The episode's own folder.
    """

    def __init__(self, task: Mapping[str, Any], server: "_Server", timeout_s: float):
        self.task, self.folder, self.answer = task, server.folder, ""
        self.calls: list[dict[str, Any]] = []
        self._server, self._timeout_s = server, timeout_s

    async def call(self, name: str, arguments: Mapping[str, Any] | None = None) -> str:
        """Call a tool, to inspect the server's state; returns its result as text."""
        return (await self._server.ask(name, dict(arguments or {}), self._timeout_s))[0]


class McpEnvironment:
    """One task, with its own server and folder.

    A response calls tools, or is the answer, which ends the task. A call that cannot be read, or of a tool that does
    not exist, is invalid and takes its turn.

    Args:
        task: The task: its `prompt`, and what the reward needs.
        command: Starts the server.
        place: Its working directory.
        reward: Function of `McpEpisode`, which may be awaited; it gives a number, or `reward` and `success` by name.
        explain: Whether the first observation describes the tools.
        max_steps: Turns after which the trajectory is truncated.
        timeout_s: Time limit for the start, and for each call (seconds).
        longest: Maximum observation length (characters).
    """

    def __init__(
        self,
        task: Mapping[str, Any],
        *,
        command: Sequence[str],
        place: str,
        reward: Callable[[McpEpisode], Any],
        explain: bool,
        max_steps: int,
        timeout_s: float,
        longest: int,
    ):
        self._task, self._command, self._place, self._reward = task, command, place, reward
        self._explain, self._max_steps, self._timeout_s, self._longest = explain, max_steps, timeout_s, longest
        self._server: _Server | None = None
        self._played: McpEpisode | None = None  # None: not playing
        self._steps = 0

    async def start(self) -> Step:
        """Start the server, and return the task."""
        self._server = server = _Server(self._command, self._place)
        weakref.finalize(self, lambda: _BACKGROUND.soon(server.close()))  # a trajectory that failed is released
        await _BACKGROUND.run(self._server.start(self._timeout_s))
        self._played = McpEpisode(self._task, self._server, self._timeout_s)
        tools = describe_tools(self._server.tools) + "\n\n" if self._explain else ""
        return Step(observation=tools + self._task["prompt"])

    async def step(self, response: str) -> Step:
        """Carry out the calls of a response.

        Raises:
            EnvironmentFault: The task has not begun, or is over; the server has ended or hangs, or the reward function
                raised.
        """
        if self._played is None or self._server is None:
            raise EnvironmentFault(f"step() {'after the end' if self._steps else 'before start()'} of a task.")
        return await _BACKGROUND.run(self._step(response, self._played, self._server))

    async def _step(self, response: str, played: McpEpisode, server: "_Server") -> Step:
        self._steps += 1
        read = read_response(response)
        results, valid = [], True
        for call in read.calls:
            known = [tool["function"]["name"] for tool in server.tools]
            if call.malformed or call.name not in known:
                valid = False
                wrong = "The call cannot be read." if call.malformed else f"There is no tool {call.name!r}."
                results.append(wrong + ("" if call.malformed else did_you_mean(call.name, known)))
                continue
            arguments = json.loads(call.arguments)
            result, is_error = await server.ask(call.name, arguments, self._timeout_s)
            played.calls.append({"name": call.name, "arguments": arguments, "result": result, "is_error": is_error})
            results.append(result)
        if not read.calls:
            played.answer = read.text
        ended, truncated = not read.calls, self._steps >= self._max_steps
        observation = "\n".join(results)
        if len(observation) > self._longest:
            observation = observation[: self._longest - 20] + " ... (cut off)"
        if not (ended or truncated):
            return Step(observation=observation, valid=valid)
        self._played = None
        try:
            reward, success = await self._rewarded(played)
        finally:
            await server.close()
        ends: dict[str, Any] = {"terminated": ended, "truncated": not ended, "info": {"success": success}}
        return Step(observation=observation, reward=reward, valid=valid, **ends)

    async def _rewarded(self, played: McpEpisode) -> tuple[Any, Any]:
        try:
            given = self._reward(played)
            given = await given if isinstance(given, Awaitable) else given
            outcome = given if isinstance(given, Mapping) else {"reward": given}
            return outcome["reward"], outcome.get("success", outcome["reward"] > 0)
        except EnvironmentFault:
            raise
        except Exception as error:  # the user's function
            raise EnvironmentFault(f"the reward function raised {type(error).__name__}: {text_of(error)}") from None


class _Server:
    """A server with its folder. Its connection lives in one asyncio task, as the package requires."""

    def __init__(self, command: Sequence[str], place: str):
        self._place = place
        self._home = tempfile.TemporaryDirectory(prefix="turnwise-mcp-", ignore_cleanup_errors=True)
        self._log, self.folder = Path(self._home.name) / "stderr.log", Path(self._home.name) / "own"
        self.folder.mkdir()
        self.tools: list[dict[str, Any]] = []
        self._command = [part.replace(FOLDER, str(self.folder)) for part in command]
        self._ending: asyncio.Event | None = None
        self._session: Any = None
        self._task: asyncio.Task[None] | None = None

    async def start(self, timeout_s: float) -> None:
        self._ending, ready = asyncio.Event(), asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._live(ready))
        try:
            await asyncio.wait_for(asyncio.shield(ready), timeout_s)
        except TimeoutError:
            await self.close()
            raise EnvironmentFault(f"{self._command[0]} did not start as an MCP server in {timeout_s:g} s") from None

    async def _live(self, ready: asyncio.Future[None]) -> None:
        mcp = needed("mcp", by="environment.name='mcp'", package="mcp")
        parameters = mcp.StdioServerParameters(command=self._command[0], args=self._command[1:], cwd=self._place)
        assert self._ending is not None
        try:
            with self._log.open("w") as log:
                async with mcp.stdio_client(parameters, errlog=log) as streams, mcp.ClientSession(*streams) as session:
                    await session.initialize()
                    listed = (await session.list_tools()).model_dump(by_alias=True)["tools"]
                    self.tools = [_as_function(tool) for tool in listed]
                    self._session = session
                    ready.set_result(None)
                    await self._ending.wait()
        except Exception as error:  # of the system, the protocol, or a group of them
            if not ready.done():
                ready.set_exception(EnvironmentFault(f"{shlex.join(self._command)}: {self._why(error)}"))
        finally:
            self._session = None

    def _why(self, error: BaseException) -> str:
        """Return what a server says last before it ends, else the error."""
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        with contextlib.suppress(OSError):
            if last := self._log.read_text(errors="replace").strip().splitlines():
                return last[-1][:300] + (OTHER_VERSION if WANTS_ANOTHER.search(last[-1]) else "")
        return f"{type(error).__name__}: {text_of(error)[:300]}"

    async def ask(self, name: str, arguments: dict[str, Any], timeout_s: float) -> tuple[str, bool]:
        """Call a tool; returns the result as text, and whether it is an error."""
        if self._session is None:
            raise EnvironmentFault(f"{self._command[0]} has ended")
        try:
            result = await asyncio.wait_for(self._session.call_tool(name, arguments), timeout_s)
        except TimeoutError:
            await self.close()
            raise EnvironmentFault(f"the tool {name!r} did not answer in {timeout_s:g} s") from None
        except Exception as error:
            raise EnvironmentFault(f"the tool {name!r}: {self._why(error)}") from None
        answer = result.model_dump(by_alias=True)
        parts = answer.get("content") or ()
        texts = [part["text"] if part.get("type") == "text" else f"[{part.get('type')}]" for part in parts]
        return "\n".join(texts), bool(answer.get("isError"))

    async def close(self) -> None:
        if self._ending is not None and self._task is not None:
            self._ending.set()
            with contextlib.suppress(Exception):
                await asyncio.wait_for(self._task, 10.0)
        self._home.cleanup()


def _as_function(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = {"name": tool["name"], "description": tool.get("description") or ""}
    return {"type": "function", "function": {**function, "parameters": tool.get("inputSchema") or {}}}


class Mcp:
    """Tasks of a file, played with the tools of a server that is started for each trajectory.

    Options:
        command: Starts the server, as a text or a list; `{folder}` is the trajectory's own empty folder.
        tasks: JSON Lines: `prompt`, perhaps `name` and `split` (default: by a hash of the name), and what the reward
            needs.
        reward: "module:function" of a `McpEpisode`; it gives a number, or {"reward": ..., "success": ...}.
        explain: Whether the first observation describes the tools.
    """

    def __init__(
        self,
        config: EnvironmentConfig,
        *,
        command: str | Sequence[str] | None = None,
        tasks: str = "",
        reward: str = "",
        explain: bool = True,
    ):
        given = {"command": command, "tasks": tasks, "reward": reward}
        for name in (name for name, value in given.items() if not value):
            raise ConfigError(f"environment.options.{name} is missing; see turnwise.worlds.adapters.mcp.Mcp")
        words = shlex.split(command) if isinstance(command, str) else command
        if not isinstance(words, list | tuple) or not all(isinstance(word, str) for word in words):
            raise ConfigError(f"environment.options.command={command!r}: expected a text, or a list of texts")
        needed("mcp", by="environment.name='mcp'", package="mcp")
        self._file, self._tasks = tasks, list[dict[str, Any]]()
        self._places: list[str] = []  # what decides the splits of tasks that name none
        for number, line in read_objects(Path(tasks), ["prompt"]):
            if not isinstance(line["prompt"], str):
                raise ConfigError(f"{tasks}, line {number}: prompt is {line['prompt']!r}, expected a text")
            # not by the number of the line, which changes with lines before it
            self._places.append(str(line["name"]) if "name" in line else json.dumps(line, sort_keys=True))
            self._tasks.append({"name": f"task {number}", **line})
        check_unique(Path(tasks), "tasks", "name", [str(task["name"]) for task in self._tasks])
        self._options: dict[str, Any] = {
            "command": list(words),
            "place": str(Path.cwd()),
            "reward": import_named(reward),
            "explain": explain,
            "max_steps": config.max_steps,
            "timeout_s": config.step_timeout_s,
            "longest": config.max_observation_chars,
        }

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the tasks of a split.

        Raises:
            ConfigError: There are none.
        """
        belongs = named_split(split, of="an MCP server")
        found = [
            task
            for task, place in zip(self._tasks, self._places, strict=True)
            if split == "all" or task.get("split", split if belongs(place) else "") == split
        ]
        if not found:
            raise ConfigError(f"{self._file} has no tasks of the split {split!r}; give its lines a `split`")
        return found

    def environment(self, task: Task) -> Environment:
        """Build a fresh environment."""
        return McpEnvironment(task, **self._options)

    def task_name(self, task: Task) -> str:
        """Name a task in records."""
        return str(task["name"])
