"""Conformance test for environments: what a world must keep to before anything can be learned in it."""

import asyncio
import contextlib
import dataclasses
import inspect
import math
import pickle
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from turnwise.environments.base import Environment, Step, Task, as_step
from turnwise.environments.suites import Suite

NONSENSE = ("", "xyzzy", "go to nowhere 99", "<action>look</action>", "a" * 2000)
"""Responses that no world admits; it must answer them all the same."""


@dataclasses.dataclass(frozen=True, slots=True)
class Problem:
    """Something to mend; `severe` when training would break or lie."""

    what: str
    mend: str
    severe: bool = True


def check_environment(
    suite: Suite, *, split: str = "train", num_tasks: int = 3, max_turns: int = 200, slow_s: float = 1.0
) -> list[Problem]:
    """Play some tasks twice with the same responses and look for what would break a run.

    Args:
        suite: The environment to test.
        split: Where the tasks come from.
        num_tasks: Tasks to play.
        max_turns: An episode that is longer has no end.
        slow_s: Median seconds a step above which a warning is due.

    Returns:
        Problems found, none for a sound environment: determinism, types, finiteness, ends, picklability, time a step.
    """
    problems: list[Problem] = []
    tasks = suite.tasks(split)
    if len(tasks) == 0:
        return [Problem(f"split {split!r} has no tasks", "return at least one task from tasks()")]
    count = min(num_tasks, len(tasks))
    for task in [tasks[index * len(tasks) // count] for index in range(count)]:
        try:
            if suite.task_name(pickle.loads(pickle.dumps(task))) != suite.task_name(task):
                problems.append(Problem("a task changes when it is pickled", "make tasks plain data"))
        except Exception as error:  # whatever pickling raises, the task cannot be sent to a worker
            problems.append(
                Problem(f"a task cannot be pickled ({error})", "make tasks plain data: numbers, strings, dataclasses")
            )
        problems += _check_task(lambda task=task: suite.environment(task), task, max_turns, slow_s)
    unique: dict[str, Problem] = {}
    for problem in problems:
        unique.setdefault(problem.what, problem)
    return list(unique.values())


def report(name: str, problems: Sequence[Problem]) -> str:
    """Text for people."""
    if not problems:
        return f"{name}: sound (determinism, types, finite rewards, ends, picklable tasks, time a step)"
    lines = [f"{name}: {len(problems)} to mend"]
    lines += [
        f"  {'ERROR' if problem.severe else 'warning'}: {problem.what}\n    {problem.mend}" for problem in problems
    ]
    return "\n".join(lines)


def _check_task(build: Callable[[], Environment], task: Task, max_turns: int, slow_s: float) -> list[Problem]:
    try:
        first, responses, seconds = _play(build, None, max_turns)
        second, _, _ = _play(build, responses, max_turns)
    except _Broken as broken:
        return [broken.problem]
    problems = _check_steps(first)
    pairs = enumerate(zip(first, second, strict=False))
    differ = [turn for turn, (a, b) in pairs if a != b and repr(a) != repr(b)]  # nan does not equal itself
    if differ or len(first) != len(second):
        turn = min([*differ, len(first), len(second)])
        problems.append(Problem(f"the same responses gave another answer at turn {turn} of a second play",
                                "derive all randomness from the task; keep no state outside the object"))  # fmt: skip
    if not first[-1].ended:
        problems.append(Problem(f"an episode did not end within {max_turns} turns",
                                "return truncated=True after a limit of the world's own"))  # fmt: skip
    median = sorted(seconds)[len(seconds) // 2]
    if median > slow_s:
        problems.append(Problem(f"a step takes {median:.2f} s", "meanwhile no response is generated; cache what is static, or "
                                "make step a coroutine", severe=False))  # fmt: skip
    return problems


def _play(
    build: Callable[[], Environment], script: list[str] | None, max_turns: int
) -> tuple[list[Step], list[str], list[float]]:
    """Play a script, or admissible actions and nonsense in turn; returns steps, responses and seconds."""
    with contextlib.closing(asyncio.Runner()) as runner:
        return _play_with(runner, build, script, max_turns)


def _play_with(
    runner: asyncio.Runner, build: Callable[[], Environment], script: list[str] | None, max_turns: int
) -> tuple[list[Step], list[str], list[float]]:
    rng = random.Random(0)
    try:
        world = build()
    except Exception as error:  # the world's own exception, of any kind
        raise _Broken(Problem(f"the constructor raised {type(error).__name__}: {error}",
                              "every task of tasks() must have a world")) from error  # fmt: skip
    for method, form in (("start", "start() -> str | Step"), ("step", "step(response) -> Step")):
        if not callable(getattr(world, method, None)):
            raise _Broken(Problem(f"{type(world).__name__} has no {method}()", f"give it {form}"))
    steps = [_answer(runner, "start()", world.start, ())]
    responses: list[str] = []
    seconds: list[float] = []
    while not steps[-1].ended and len(responses) < (len(script) if script is not None else max_turns):
        if script is not None:
            response = script[len(responses)]
        elif len(responses) < len(NONSENSE):
            response = NONSENSE[len(responses)]
        else:
            admissible = steps[-1].admissible
            response = rng.choice(list(admissible)) if admissible else rng.choice(NONSENSE)
        start = time.perf_counter()
        steps.append(_answer(runner, f"step({response[:40]!r})", world.step, (response,)))
        seconds.append(time.perf_counter() - start)
        responses.append(response)
    return steps, responses, seconds or [0.0]


class _Broken(Exception):
    def __init__(self, problem: Problem):
        super().__init__(problem.what)
        self.problem = problem


def _answer(runner: asyncio.Runner, call: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Step:
    try:
        answer = function(*arguments)
        if inspect.isawaitable(answer):
            answer = runner.run(_wait(answer))
    except Exception as error:  # the world's own exception, of any kind
        raise _Broken(Problem(f"{call} raised {type(error).__name__}: {error}",
                              "answer every response, also nonsense, with Step(..., valid=False)")) from error  # fmt: skip
    if isinstance(answer, str) and call.startswith("start"):
        answer = as_step(answer)
    if not isinstance(answer, Step):
        raise _Broken(Problem(f"{call} returned {type(answer).__name__}, expected turnwise.environments.base.Step",
                              "return Step(observation=..., reward=..., terminated=...)"))  # fmt: skip
    return answer


async def _wait(answer: Awaitable[Any]) -> Any:
    return await answer


def _check_steps(steps: Sequence[Step]) -> list[Problem]:
    problems: list[Problem] = []
    for turn, step in enumerate(steps):
        if not isinstance(step.observation, str):
            problems.append(Problem(f"observation at turn {turn} is {type(step.observation).__name__}, expected str",
                                    "describe the state in words"))  # fmt: skip
        if isinstance(step.reward, bool) or not isinstance(step.reward, (int, float)) or not math.isfinite(step.reward):
            problems.append(Problem(f"reward at turn {turn} is {step.reward!r}, expected a finite number",
                                    "return a float; 0.0 when nothing was earned"))  # fmt: skip
        for name in ("terminated", "truncated", "valid"):
            if not isinstance(getattr(step, name), bool):
                problems.append(Problem(f"{name} at turn {turn} is {getattr(step, name)!r}, expected True or False",
                                        "wrap it in bool()"))  # fmt: skip
        try:
            hash(step.state_key)
        except TypeError:
            problems.append(Problem(f"state_key at turn {turn} is not hashable", "use a string or a tuple"))
        if step.terminated and step.truncated:
            problems.append(Problem(f"turn {turn} is both terminated and truncated", "terminated wins: the task ended"))
    if steps[-1].ended and "success" not in steps[-1].info:
        problems.append(Problem("the last step's info has no 'success'", "add info={'success': True or False}; evaluation "
                                "counts it, and reads a missing one as failure", severe=False))  # fmt: skip
    return problems
