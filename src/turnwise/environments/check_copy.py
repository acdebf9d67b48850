"""Test whether the copy of an environment is independent of its original."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence

from turnwise.environments.base import Environment, Step
from turnwise.environments.check_plays import Broken, OnCall, Play, Problem, alike, answered, guarded

MEND = "let copy() return an environment that shares nothing with this one that a step changes, or leave it out"


def check_copy(build: Callable[[], Environment], first: Play, on_call: OnCall) -> list[Problem]:
    """Copy an environment at some turns, play on in one of the two and then in the other, and compare the answers.

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
                return [Problem(f"with copy() at turn {turn}, {broken.problem.what}", MEND)]
            repeats = getattr(first.environment, "repeats", True)
            for played, name in zip(answers, who, strict=True):
                expected = first.steps[turn + 1 :]
                if not all(alike(one, other, repeats) for one, other in zip(played, expected, strict=True)):
                    return [
                        Problem(
                            f"after copy() at turn {turn}, {who[0]} was played on first, and {name} answered otherwise "
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
