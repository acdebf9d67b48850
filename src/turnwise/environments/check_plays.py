"""Play the episodes of the conformance test."""

import asyncio
import contextlib
import dataclasses
import inspect
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from turnwise.base.errors import text_of
from turnwise.environments.base import Environment, SeatStep, Step, as_step, shown

NONSENSE = ("", "xyzzy", "go to nowhere 99", "<action>look</action>", "a" * 2000)
"""Responses that no environment admits; it must still answer them."""

Respond = Callable[[int, Step], str | None]
"""Chooses the response to the step of a turn; None ends the episode."""

MAY_DIFFER = ("observation", "admissible")
"""What an environment without `repeats` may answer differently when the same responses are played again."""

OnCall = Callable[[str | None], None]
"""Called with the name of a call before it begins, and with None after it returns."""


@dataclasses.dataclass(frozen=True, slots=True)
class Defect:
    """A problem to fix; `severe` if training would break or give wrong results."""

    what: str
    mend: str
    severe: bool = True


class Broken(Exception):
    """The environment gave no answer that an episode could continue with."""

    def __init__(self, problem: Defect):
        super().__init__(problem.what)
        self.problem = problem


@dataclasses.dataclass(slots=True)
class Play:
    """One episode."""

    environment: Environment
    steps: list[Step]  # its answers, starting with that of `start`
    responses: list[str] = dataclasses.field(default_factory=list)  # the responses played, one fewer than steps
    seconds: list[float] = dataclasses.field(default_factory=list)  # time of each step

    def refused(self) -> list[str]:
        """Responses that the previous step offered as admissible, and that were not valid."""
        turns = zip(self.steps, self.responses, self.steps[1:], strict=False)
        return [response for before, response, after in turns if response in offered(before) and after.valid is False]

    def visible(self) -> list[dict[str, Any]]:
        """Return what a policy sees of each step, as plain data that any process can read."""
        return [
            {
                "observation": step.observation,
                "admissible": offered(step),
                "reward": float(step.reward),
                "valid": bool(step.valid),
                "terminated": bool(step.terminated),
                "truncated": bool(step.truncated),
                "success": bool(step.info.get("success", False)),
            }
            for step in self.steps
        ]


def offered(step: Step) -> list[str]:
    """Return the admissible actions of a step that are strings."""
    actions = step.admissible
    if actions is None or isinstance(actions, str):
        return []
    with contextlib.suppress(Exception):  # it may be of any class
        return [action for action in actions if isinstance(action, str)]
    return []


def nonsense_first() -> Respond:
    """Respond with nonsense first, then with random admissible actions, or nonsense if there are none."""
    rng = random.Random(0)

    def respond(turn: int, step: Step) -> str:
        return NONSENSE[turn] if turn < len(NONSENSE) else rng.choice(offered(step) or NONSENSE)

    return respond


def scripted(responses: list[str]) -> Respond:
    """Repeat the same responses."""
    return lambda turn, step: responses[turn] if turn < len(responses) else None


def untried(tried: set[str]) -> Respond:
    """Respond with admissible actions, untried ones first, and add them to `tried`."""
    rng = random.Random(0)

    def respond(turn: int, step: Step) -> str | None:
        actions = offered(step)
        if not actions:
            return None
        response = next((action for action in actions if action not in tried), None) or rng.choice(actions)
        tried.add(response)
        return response

    return respond


def play(build: Callable[[], Environment], respond: Respond, max_turns: int, on_call: OnCall) -> Play:
    """Play one episode.

    Args:
        build: Builds a fresh environment.
        respond: Chooses the responses.
        max_turns: Maximum number of turns.
        on_call: Called with the name of every call, and None after it.

    Raises:
        Broken: The environment cannot be built, raised, or did not answer with a `Step`.
    """
    with contextlib.closing(asyncio.Runner()) as runner:
        environment = guarded(
            "the constructor", build, (), runner, on_call, "build an environment for every task of tasks()"
        )
        for method, form in (("start", "start() -> str | Step"), ("step", "step(response) -> Step")):
            if not callable(getattr(environment, method, None)):
                raise Broken(Defect(f"{type(environment).__name__} has no {method}()", f"give it {form}"))
        played = Play(environment, [answered("start()", environment.start, (), runner, on_call)])
        while not played.steps[-1].ended and len(played.responses) < max_turns:
            response = respond(len(played.responses), played.steps[-1])
            if response is None:
                break
            begun = time.perf_counter()
            step = answered(f"step({response[:40]!r})", environment.step, (response,), runner, on_call)
            played.seconds.append(time.perf_counter() - begun)
            played.steps.append(step)
            played.responses.append(response)
        return played


def answered(
    call: str, function: Callable[..., Any], arguments: tuple[Any, ...], runner: asyncio.Runner, on_call: OnCall
) -> Step:
    """Return a step of the environment; see `guarded`.

    Raises:
        Broken: It raised, or did not answer with a `Step`.
    """
    answer = guarded(
        call, function, arguments, runner, on_call, "answer every response, even nonsense, with Step(..., valid=False)"
    )
    if isinstance(answer, str) and call.startswith("start"):
        answer = as_step(answer)
    if not isinstance(answer, Step):
        raise Broken(
            Defect(
                f"{call} returned {type(answer).__name__}, expected turnwise.environments.base.Step",
                'return the first observation, a text such as "You are in a hall"'
                if call.startswith("start")
                else "return Step(observation=..., reward=..., terminated=...)",
            )
        )
    try:
        bool(answer.ended)
    except Exception:  # an array, for one
        raise Broken(
            Defect(
                f"{call} returned terminated={shown(answer.terminated)} and truncated={shown(answer.truncated)}, "
                "expected True or False",
                "wrap both in bool()",
            )
        ) from None
    return answer


def guarded(
    call: str,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    runner: asyncio.Runner,
    on_call: OnCall,
    mend: str,
) -> Any:
    """Call the environment and report any exception, even `SystemExit`, as a problem."""
    on_call(call)
    try:
        answer = function(*arguments)
        return runner.run(_wait(answer)) if inspect.isawaitable(answer) else answer
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # an environment may raise anything
        raise Broken(Defect(f"{call} raised {type(error).__name__}: {text_of(error)}", mend)) from error
    finally:
        on_call(None)


def alike(one: Step, other: Step, repeats: bool) -> bool:
    """Return whether two plays gave equal answers; without `repeats`, texts and what depends on them may differ."""
    fields = [name for name in Step.__slots__ if repeats or name in ("reward", "terminated", "truncated", "valid")]
    same = all(_equal(getattr(one, name), getattr(other, name)) for name in fields)
    if not isinstance(one, SeatStep) or not isinstance(other, SeatStep):
        return same
    ends = zip(one.ends, other.ends, strict=False)
    return (
        same
        and one.seat == other.seat
        and len(one.ends) == len(other.ends)
        and all(alike(*pair, repeats) for pair in ends)
    )


def _equal(one: Any, other: Any) -> bool:
    """Return whether two values are equal or print the same, which covers nan and arrays."""
    with contextlib.suppress(Exception):
        if one == other:
            return True
    with contextlib.suppress(Exception):
        return repr(one) == repr(other)
    return False


async def _wait(answer: Awaitable[Any]) -> Any:
    return await answer


MEND = "let copy() return an environment that shares no mutable state with this one, or leave it out"


def check_copy(build: Callable[[], Environment], first: Play, on_call: OnCall) -> list[Defect]:
    """Copy an environment at some turns, continue in one copy and then in the other, and compare the answers.

    Args:
        build: Builds a fresh environment.
        first: An episode of it; its responses are played again.
        on_call: Called with the name of every call, and None after it.

    Returns:
        At most one problem; none if the environment has no method `copy`.
    """
    if not callable(getattr(first.environment, "copy", None)):
        return []
    num_turns = len(first.responses)
    for turn in sorted({0, num_turns // 2, num_turns - 1} & set(range(num_turns))):
        for copy_first in (False, True):
            who = ("the copy", "its original") if copy_first else ("the original", "its copy")
            try:
                answers = _play_both(build, first.responses, turn, copy_first, on_call)
            except Broken as broken:
                return [Defect(f"with copy() at turn {turn}, {broken.problem.what}", MEND)]
            repeats = getattr(first.environment, "repeats", True)
            for played, name in zip(answers, who, strict=True):
                expected = first.steps[turn + 1 :]
                if not all(alike(one, other, repeats) for one, other in zip(played, expected, strict=True)):
                    return [
                        Defect(
                            f"after copy() at turn {turn}, {who[0]} was played on first; {name} answered differently "
                            "than without a copy",
                            MEND,
                        )
                    ]
    return []


def _play_both(
    build: Callable[[], Environment], responses: Sequence[str], turn: int, copy_first: bool, on_call: OnCall
) -> list[list[Step]]:
    """Copy an environment before a turn, play both to the end, and return the answers of each in the order played."""
    with contextlib.closing(asyncio.Runner()) as runner:
        environment = build()

        def play(one: Environment, chosen: Sequence[str]) -> list[Step]:
            return [answered(f"step({each[:40]!r})", one.step, (each,), runner, on_call) for each in chosen]

        answered("start()", environment.start, (), runner, on_call)
        play(environment, responses[:turn])
        copy = getattr(environment, "copy")  # noqa: B009 (no part of the protocol)
        twin = guarded("copy()", copy, (), runner, on_call, MEND)
        pair = (twin, environment) if copy_first else (environment, twin)
        return [play(one, responses[turn:]) for one in pair]
