"""Run the conformance test in separate processes, to report a step that hangs or ends its process.

Two fresh interpreters play the same tasks with different PYTHONHASHSEEDs. Each reports every call, so that the parent
can stop one that takes too long.
"""

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from os.path import commonprefix
from typing import Any, NamedTuple

from turnwise.environments.check import Checked, Problem, inspect_environment
from turnwise.environments.check_plays import MAY_DIFFER
from turnwise.environments.isolation import TOKEN_VARIABLE, clean_variables, how_ended
from turnwise.environments.settings import EnvironmentConfig
from turnwise.environments.suites import make_suite
from turnwise.errors import ConfigError, TurnwiseError, text_of

HASH_SEEDS = (1, 2)
PATIENCE_S = 10.0
"""Seconds for a process that has reported everything to exit."""


class CheckedApart(NamedTuple):
    """Result of the conformance test in separate processes.

    Attributes:
        problems: Problems found, empty for a sound environment.
        has_words: Whether a tiny policy can play it; None if the test stopped before.
    """

    problems: list[Problem]
    has_words: bool | None


def check_apart(config: EnvironmentConfig) -> CheckedApart:
    """Test a configured environment; `config.step_timeout_s` is the longest time for one of its calls.

    Raises:
        ConfigError: The environment cannot be made from this configuration.
    """
    first, words = _run(config, HASH_SEEDS[0])
    if any(problem.severe for problem in first.problems):
        return CheckedApart(first.problems, words)
    second, _ = _run(config, HASH_SEEDS[1])
    known = {problem.what for problem in first.problems}
    new = [problem for problem in second.problems if problem.severe and problem.what not in known]
    return CheckedApart([*first.problems, *(new or _differences(first, second))], words)


def _differences(first: Checked, second: Checked) -> list[Problem]:
    """Report the first difference between the answers in two interpreters."""
    for name, steps in first.told.items():
        others = second.told.get(name, [])
        for turn, (one, other) in enumerate(zip(steps, others, strict=False)):
            for field, value in one.items():
                if value != other[field] and (first.repeats or field not in MAY_DIFFER):
                    what = (
                        f"{field} at turn {turn} of task {name} depends on the interpreter: "
                        f"{_unlike(value, other[field])} with PYTHONHASHSEED={HASH_SEEDS[0]} and {HASH_SEEDS[1]}"
                    )
                    return [
                        Problem(what, "sort a set before it becomes text or a choice; take hashlib in place of hash()")
                    ]
        if len(steps) != len(others):
            return [
                Problem(
                    f"task {name} took {len(steps) - 1} and {len(others) - 1} turns in two interpreters, "
                    "with the same responses",
                    "derive all randomness from the task",
                )
            ]
    return []


def _unlike(one: Any, other: Any) -> str:
    """Describe two values from where they differ."""
    if isinstance(one, str) and isinstance(other, str):
        same = len(commonprefix([one, other]))  # noqa: RUF071 (no paths)
        one, other = one[same : same + 40], other[same : same + 40]
    return f"{str(one)[:80]!r} and {str(other)[:80]!r}"


def _run(config: EnvironmentConfig, hash_seed: int) -> tuple[Checked, bool | None]:
    """Run the conformance test in a fresh interpreter."""
    call: str | None = None
    with interpreter(config, config, hash_seed, __name__) as (process, pipe):
        while True:
            if not pipe.poll(config.step_timeout_s if call else None):
                what = f"{call} gave no answer within step_timeout_s={config.step_timeout_s:g}"
                mend = "answer sooner, or raise environment.step_timeout_s; workers stop such a step in a run, too"
                return Checked([Problem(what, mend)], {}, True), None
            try:
                kind, value = pipe.recv()
            except EOFError:
                what = f"{call or 'loading the environment'} ended its process ({how_ended(process.wait())})"
                mend = "raise an exception in place of os._exit(); a crash of native code needs environment.workers=1"
                return Checked([Problem(what, mend)], {}, True), None
            if kind == "call":
                call = value
            elif kind == "refused":
                raise ConfigError(value)
            else:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(PATIENCE_S)
                return value


@contextlib.contextmanager
def interpreter(
    given: Any, config: EnvironmentConfig, hash_seed: int, module: str
) -> Iterator[tuple[subprocess.Popen[bytes], Connection]]:
    """Start a process that runs `main` of a module, and the pipe on which it reports; its descendants end with it.

    Args:
        given: What the process finds pickled on its standard input.
        config: Names the environment variables that it gets.
        hash_seed: Its PYTHONHASHSEED.
        module: Name of the module.
    """
    ours, theirs = Pipe(duplex=False)
    command = f"import sys; sys.path[:] = {sys.path!r}; from {module} import main; main({theirs.fileno()})"
    token = [TOKEN_VARIABLE] if config.name == "openenv" else []  # the client of a server, not what is served
    with ours, tempfile.TemporaryFile() as program:
        program.write(pickle.dumps(given))
        program.seek(0)
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-c", command],
                stdin=program,
                pass_fds=[theirs.fileno()],
                env={**clean_variables([*config.pass_variables, *token]), "PYTHONHASHSEED": str(hash_seed)},
                start_new_session=True,
            )
        try:
            yield process, ours
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def main(pipe_fd: int) -> None:
    """Test the environment whose configuration is on the standard input."""
    config = pickle.load(sys.stdin.buffer)
    with Connection(pipe_fd, readable=False) as pipe:
        try:
            suite = make_suite(config)
            checked = inspect_environment(
                suite, split=config.train_split, on_call=lambda call: pipe.send(("call", call))
            )
            has_words, problems = _words(suite)
            pipe.send(("result", (checked._replace(problems=[*checked.problems, *problems]), has_words)))
        except TurnwiseError as error:
            pipe.send(("refused", str(error)))
        except BaseException as error:  # the user's suite may raise anything
            where = traceback.extract_tb(error.__traceback__)[-1]
            cause = f"{type(error).__name__}: {text_of(error)} at {where.name}:{where.lineno}"
            what = f"loading the environment raised {cause}"
            problem = Problem(what, "the suite's constructor, tasks() and task_name() must not raise")
            pipe.send(("result", (Checked([problem], {}, True), None)))


def _words(suite: Any) -> tuple[bool, list[Problem]]:
    """Test whether the suite has words for a tiny policy."""
    try:
        suite.words()
    except (TurnwiseError, AttributeError):
        return False, []
    except Exception as error:  # the user's function
        return False, [
            Problem(f"words() raised {type(error).__name__}: {text_of(error)}", "return a list of texts", severe=False)
        ]
    return True, []
