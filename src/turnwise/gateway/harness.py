"""Run harnesses: agents with a loop, tools and prompts of their own, which call the policy over HTTP."""

import asyncio
import contextlib
import dataclasses
import inspect
import json
import os
import pickle
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from turnwise.environments.base import Task
from turnwise.environments.isolation import clean_variables, hide_this_process, how_ended
from turnwise.environments.launchers import Launcher, make_launcher
from turnwise.errors import EnvironmentFault
from turnwise.gateway.outcome import Outcome, as_outcome, last_line
from turnwise.gateway.settings import HarnessConfig
from turnwise.imports import import_named
from turnwise.rollout.environments import cause_of

KEPT = 1 << 16
"""Bytes kept of the end of a program's output."""


@dataclasses.dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a harness finds the policy.

    Attributes:
        base_url: Base URL of OpenAI's API for this trajectory alone.
        api_key: Key to send; it opens nothing but this gateway.
        model: Name of the model.
    """

    base_url: str
    api_key: str
    model: str

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables that the clients of OpenAI and Anthropic read."""
        return {
            "OPENAI_BASE_URL": self.base_url,
            "OPENAI_API_BASE": self.base_url,
            "OPENAI_API_KEY": self.api_key,
            "OPENAI_MODEL": self.model,
            "ANTHROPIC_BASE_URL": self.base_url.removesuffix("/v1"),
            "ANTHROPIC_API_KEY": self.api_key,
            "ANTHROPIC_MODEL": self.model,
        }


Harness = Callable[[Task, Endpoint], Awaitable[Outcome | None]]
"""Plays one trajectory. Returns its reward, or None if the harness posts it. Raises `EnvironmentFault` if it failed."""


def make_harness(settings: HarnessConfig) -> Harness:
    """Make the harness that a recipe names.

    Raises:
        ConfigError: The function cannot be imported, or the isolation cannot be had on this machine.
    """
    if settings.function is not None:
        function = import_named(settings.function)
        if settings.isolation == "thread":
            return lambda task, endpoint: run_function(function, task, endpoint)
    hide_this_process()
    level = "bubblewrap" if settings.isolation == "bubblewrap" else "worker"
    launcher = make_launcher(level, clean_variables(settings.pass_variables))
    if settings.function is None:
        command = shlex.split(settings.run) if isinstance(settings.run, str) else list(settings.run)
        return lambda task, endpoint: run_command(command, _as_json(task), endpoint, launcher)
    child = [sys.executable, "-m", "turnwise.gateway.child", settings.function]
    return lambda task, endpoint: run_command(child, pickle.dumps((task, endpoint)), endpoint, launcher)


def call_function(function: Callable[[Task, Endpoint], Any], task: Task, endpoint: Endpoint) -> Any:
    """Call a harness's function, and await a coroutine in an event loop of its own."""
    result = function(task, endpoint)
    return asyncio.run(_awaited(result)) if inspect.isawaitable(result) else result


async def _awaited(result: Awaitable[Any]) -> Any:
    return await result


async def run_function(function: Callable[[Task, Endpoint], Any], task: Task, endpoint: Endpoint) -> Outcome | None:
    """Run a function in a thread, which does not keep the program from ending should it hang.

    Raises:
        EnvironmentFault: The function raised, or returned what is not a reward.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()

    def settle(result: Any, error: BaseException | None) -> None:
        if not done.done():  # otherwise nobody waits any more
            done.set_result(result) if error is None else done.set_exception(EnvironmentFault(_cause(error)))

    def work() -> None:
        result, error = None, None
        try:
            result = call_function(function, task, endpoint)
        except BaseException as raised:  # a harness may raise anything, also SystemExit
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=work, daemon=True, name="harness").start()
    result = await done
    return None if result is None else as_outcome(result)


async def run_command(command: Sequence[str], task: bytes, endpoint: Endpoint, launcher: Launcher) -> Outcome | None:
    """Run a program with the task on its standard input; its last line of output may be the reward.

    The program and all that it started end with this call.

    Raises:
        EnvironmentFault: The program cannot be started, or its exit code is not 0.
    """
    pipe, variables = subprocess.PIPE, {**launcher.variables, **endpoint.variables}
    try:
        process = await asyncio.create_subprocess_exec(
            *launcher.line(command), stdin=pipe, stdout=pipe, stderr=pipe, env=variables, start_new_session=True
        )
    except OSError as error:
        raise EnvironmentFault(f"cannot run {command[0]!r}: {error.strerror or error}") from None
    try:
        assert process.stdin is not None
        output, problems, _ = await asyncio.gather(
            _end_of(process.stdout), _end_of(process.stderr), _give(process.stdin, task)
        )
        code = await process.wait()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    if code:
        said = problems.strip().splitlines()[-1:] or ["it wrote nothing to stderr"]
        raise EnvironmentFault(f"{how_ended(code)}: {said[0][:300]}")
    return last_line(output)


async def _end_of(stream: asyncio.StreamReader | None) -> str:
    """Read a stream to its end, and return the last `KEPT` bytes."""
    assert stream is not None
    kept = b""
    while data := await stream.read(KEPT):
        kept = (kept + data)[-KEPT:]
    return kept.decode(errors="replace")


async def _give(stream: asyncio.StreamWriter, data: bytes) -> None:
    with contextlib.suppress(OSError):  # the program need not read its task
        stream.write(data)
        await stream.drain()
    stream.close()


def _as_json(task: Task) -> bytes:
    return json.dumps(task, default=str).encode()


def _cause(error: BaseException) -> str:
    return cause_of(error)[:600]
