"""Run harnesses: agents with their own loop, tools and prompts, which call the policy over HTTP."""

import asyncio
import contextlib
import dataclasses
import datetime
import inspect
import json
import os
import pickle
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import PurePath
from typing import Any, Self

from turnwise.base.errors import EnvironmentFault
from turnwise.base.imports import import_named
from turnwise.base.terminal import visible
from turnwise.environments import supervise
from turnwise.environments.base import Task
from turnwise.environments.containers import make_launcher
from turnwise.environments.hosts import cause_of
from turnwise.environments.isolation import clean_variables, hide_this_process, how_ended
from turnwise.environments.launchers import Launcher
from turnwise.extensions.gateway.outcome import Outcome, as_outcome, last_line
from turnwise.extensions.gateway.settings import HarnessConfig

KEPT = 1 << 20
"""Bytes kept of the end of a program's output."""
PIPES_S = 2.0
"""Time limit for the output of an ended program to arrive (seconds)."""


@dataclasses.dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a harness finds the policy.

    Attributes:
        base_url: Base URL of OpenAI's API, for this trajectory only.
        api_key: Key to send; only this gateway accepts it.
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
        ConfigError: The function cannot be imported, or this machine does not support the isolation.
    """
    if settings.function is not None:
        function = import_named(settings.function)
        if settings.isolation == "thread":
            return lambda task, endpoint: run_function(function, task, endpoint)
    hide_this_process()
    level = "bubblewrap" if settings.isolation == "bubblewrap" else "worker"
    launcher, returned = make_launcher(level, clean_variables(settings.pass_variables)), settings.reward == "returned"
    if settings.function is None:
        command = shlex.split(settings.run) if isinstance(settings.run, str) else list(settings.run)
        return lambda task, endpoint: run_command(
            command,
            _encoded(lambda: json.dumps(task, default=_plain).encode()),
            launcher,
            endpoint.variables,
            returned=returned,
        )
    child = [sys.executable, "-m", "turnwise.extensions.gateway.child", settings.function]
    # without variables, which whatever the policy runs would inherit
    return lambda task, endpoint: run_command(child, _encoded(lambda: pickle.dumps((task, endpoint))), launcher, {})


def _encoded(write: Callable[[], bytes]) -> bytes:
    """Return what a process gets.

    Raises:
        EnvironmentFault: The task cannot be written.
    """
    try:
        return write()
    except Exception as error:  # a task may be of any class
        raise EnvironmentFault(f"the task cannot be given to a process: {_cause(error)}") from None


def _plain(value: Any) -> Any:
    """Return numbers and arrays as JSON has them, dates and paths as text."""
    if hasattr(value, "tolist"):  # of NumPy, torch and so on
        return value.tolist()
    if isinstance(value, (datetime.date, datetime.time, PurePath)):
        return str(value)
    raise TypeError(f"JSON has no {type(value).__name__}; name it in the task by a text or a number")


def call_function(function: Callable[[Task, Endpoint], Any], task: Task, endpoint: Endpoint) -> Any:
    """Call a harness's function; a coroutine is awaited in its own event loop."""
    result = function(task, endpoint)
    return asyncio.run(_awaited(result)) if inspect.isawaitable(result) else result


async def _awaited(result: Awaitable[Any]) -> Any:
    return await result


async def run_function(function: Callable[[Task, Endpoint], Any], task: Task, endpoint: Endpoint) -> Outcome | None:
    """Run a function in a thread that cannot keep the program from ending if it hangs.

    Raises:
        EnvironmentFault: The function raised, or did not return a reward.
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


async def run_command(
    command: Sequence[str], task: bytes, launcher: Launcher, variables: Mapping[str, str], *, returned: bool = False
) -> Outcome | None:
    """Run a program with the task on its standard input; its last line of output may be the reward.

    The program and all that it started end with this call.

    Args:
        command: The program and its arguments.
        task: What it reads.
        launcher: Starts it.
        variables: Environment variables that it gets besides those of the launcher.
        returned: Whether its last line must be the reward.

    Raises:
        EnvironmentFault: The program cannot be started, its exit code is not 0, or its last line is too long or not the
            reward that it must be.
    """
    line, opened = launcher.line(command), contextlib.ExitStack()
    try:
        ours, theirs = map(opened.enter_context, socket.socketpair())
        out, problems = (opened.enter_context(_Pipe()) for _ in range(2))
        if supervise.SUPERVISED:
            line = [sys.executable, "-I", "-S", supervise.__file__, str(theirs.fileno()), *line]
        with theirs, out.to_write, problems.to_write:
            process = await asyncio.create_subprocess_exec(
                *line,
                stdin=subprocess.PIPE,
                stdout=out.to_write,
                stderr=problems.to_write,
                env={**launcher.variables, **variables},
                start_new_session=True,
                pass_fds=[theirs.fileno()] if supervise.SUPERVISED else [],
            )
    except BaseException as error:  # such as a cancellation while it starts
        opened.close()
        if isinstance(error, OSError):
            raise EnvironmentFault(f"cannot run {command[0]!r}: {error.strerror or error}") from None
        raise
    reads = [asyncio.ensure_future(pipe.end()) for pipe in (out, problems)]
    try:
        assert process.stdin is not None
        given = asyncio.ensure_future(_give(process.stdin, task))
        code = await process.wait()
        given.cancel()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await asyncio.wait(reads, timeout=PIPES_S)  # the output counts, even if another process holds the pipe
    finally:
        why = _end_socket(ours)
        try:
            async with asyncio.timeout(2 * supervise.SWEEP_S):
                await process.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            for read in reads:
                read.cancel()
            await asyncio.gather(*reads, return_exceptions=True)
    if why:
        raise EnvironmentFault(f"cannot run {command[0]!r}: {os.strerror(int(why))}")
    if code:
        said = problems.text.strip().splitlines()[-1:] or ["it wrote nothing to stderr"]
        raise EnvironmentFault(f"{how_ended(code)}: {visible(said[0])[:300]}")
    if out.is_cut:
        raise EnvironmentFault(f"the last line of its output has more than {KEPT:,} bytes")
    return last_line(out.text, needed=returned)


def _end_socket(trainer: socket.socket) -> bytes:
    """Close the socket of a supervisor, which then ends its program; returns why the program could not be run."""
    with trainer:
        trainer.setblocking(False)
        with contextlib.suppress(OSError):
            return trainer.recv(16)
    return b""


class _Pipe:
    """A pipe that a program writes to. It is no pipe of `asyncio`'s process, whose end would wait for the pipe's."""

    def __init__(self) -> None:
        read, write = os.pipe()
        self.to_read, self.to_write = open(read, "rb", 0), open(write, "wb", 0)  # noqa: SIM115
        self._kept = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.to_read.close()
        self.to_write.close()

    async def end(self) -> None:
        """Read to the end, and keep the last `KEPT` bytes."""
        loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), self.to_read)
        try:
            while data := await reader.read(KEPT):
                self._kept = (self._kept + data)[-KEPT:]
        finally:
            transport.close()

    @property
    def is_cut(self) -> bool:
        """Whether what was kept may lack the beginning of its last line."""
        last = self._kept.strip()
        return len(self._kept) == KEPT and b"\n" not in last and b"\r" not in last

    @property
    def text(self) -> str:
        """What was kept."""
        return self._kept.decode(errors="replace")


async def _give(stream: asyncio.StreamWriter, data: bytes) -> None:
    with contextlib.suppress(OSError):  # the program need not read its task
        stream.write(data)
        await stream.drain()
    stream.close()


def _cause(error: BaseException) -> str:
    return visible(cause_of(error)[:600])
