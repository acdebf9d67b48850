"""Run the conformance test in separate processes, to report a step that hangs or ends its process.

Two fresh interpreters play the same tasks with different PYTHONHASHSEEDs. Each reports every call, so that the parent
can stop one that takes too long.
"""

import contextlib
import dataclasses
import pickle
import subprocess
import sys
from collections.abc import Sequence
from os.path import commonprefix
from typing import Any, Literal, NamedTuple

from turnwise.base.errors import ConfigError, TurnwiseError, text_of
from turnwise.environments.apart import Reporter, interpreter
from turnwise.environments.check import MAX_TURNS, Conformance, Defect, inspect_environment
from turnwise.environments.check_plays import MAY_DIFFER
from turnwise.environments.hosts import cause_of
from turnwise.environments.isolation import how_ended
from turnwise.environments.settings import EnvironmentConfig
from turnwise.environments.suites import make_suite, refuse_agents_suite
from turnwise.environments.wire import Finite, Message, ProtocolError, Text

HASH_SEEDS = (1, 2)
PATIENCE_S = 10.0
"""Seconds for a process that has reported everything to exit."""


class CheckedApart(NamedTuple):
    """Result of the conformance test in separate processes."""

    problems: list[Defect]  # problems found, empty for a sound environment
    has_words: bool | None  # whether a tiny policy can play it; None if the test stopped before
    missed: tuple[str, ...] = ()  # what no play encountered, so that it was not tested


class _Problem(Message):
    what: Text
    mend: Text
    severe: bool


class _Seen(Message):
    """What a policy sees of a step; see `Play.visible`."""

    observation: Text
    admissible: list[Text]
    reward: Finite
    valid: bool
    terminated: bool
    truncated: bool
    success: bool


class _Report(Message):
    """A report of the process: a call that begins (None: ended), why it refuses, or the result."""

    kind: Literal["call", "refused", "result"]
    text: Text | None = None
    problems: tuple[_Problem, ...] = ()
    visible: dict[Text, list[_Seen]] | None = None
    repeats: bool = True
    missed: tuple[Text, ...] = ()
    has_words: bool | None = None

    @classmethod
    def of(cls, checked: Conformance, has_words: bool | None) -> "_Report":
        return cls(
            kind="result",
            problems=tuple(_Problem(**dataclasses.asdict(problem)) for problem in checked.problems),
            visible={name: [_Seen(**step) for step in steps] for name, steps in checked.visible.items()},
            repeats=checked.repeats,
            missed=checked.missed,
            has_words=has_words,
        )

    def checked(self) -> Conformance:
        problems = [Defect(each.what, each.mend, each.severe) for each in self.problems]
        visible = {name: [step.model_dump() for step in steps] for name, steps in (self.visible or {}).items()}
        return Conformance(problems, visible, self.repeats, self.missed)


def check_apart(config: EnvironmentConfig, answers: Sequence[str] = ()) -> CheckedApart:
    """Test a configured environment; `config.step_timeout_s` limits each of its calls.

    Args:
        config: Configures the environment.
        answers: Sample answers to play too.

    Raises:
        ConfigError: The environment cannot be made from this configuration.
    """
    first, words = _run(config, HASH_SEEDS[0], answers)
    if any(problem.severe for problem in first.problems):
        return CheckedApart(first.problems, words, first.missed)
    second, _ = _run(config, HASH_SEEDS[1], answers)
    known = {problem.what for problem in first.problems}
    new = [problem for problem in second.problems if problem.severe and problem.what not in known]
    return CheckedApart([*first.problems, *(new or _differences(first, second))], words, first.missed)


def _differences(first: Conformance, second: Conformance) -> list[Defect]:
    """Report the first difference between the answers in two interpreters."""
    for name, steps in first.visible.items():
        others = second.visible.get(name, [])
        for turn, (one, other) in enumerate(zip(steps, others, strict=False)):
            for field, value in one.items():
                if value != other[field] and (first.repeats or field not in MAY_DIFFER):
                    what = (
                        f"{field} at turn {turn} of task {name} depends on the interpreter: "
                        f"{_unlike(value, other[field])} with PYTHONHASHSEED={HASH_SEEDS[0]} and {HASH_SEEDS[1]}"
                    )
                    return [
                        Defect(what, "sort a set before it becomes text or a choice; use hashlib instead of hash()")
                    ]
        if len(steps) != len(others):
            return [
                Defect(
                    f"task {name} took {len(steps) - 1} and {len(others) - 1} turns in two interpreters, "
                    "with the same responses",
                    "derive all randomness from the task",
                )
            ]
    return []


def _unlike(one: Any, other: Any) -> str:
    """Describe two values, from the point where they differ."""
    if isinstance(one, str) and isinstance(other, str):
        same = len(commonprefix([one, other]))  # noqa: RUF071 (no paths)
        one, other = one[same : same + 40], other[same : same + 40]
    return f"{str(one)[:80]!r} and {str(other)[:80]!r}"


def _run(config: EnvironmentConfig, hash_seed: int, answers: Sequence[str]) -> tuple[Conformance, bool | None]:
    """Run the conformance test in a fresh interpreter."""
    call: str | None = None
    with interpreter((config, tuple(answers)), config, hash_seed, __name__) as (process, reports):
        while True:
            try:
                answer = reports.next(config.step_timeout_s if call else None)
                report = None if answer is None else _Report.read(answer)
            except ProtocolError as error:
                what = f"{call or 'the environment'} wrote into the channel of this test ({error})"
                return _stopped(what, "do not touch file descriptors that the environment did not open")
            except EOFError:
                what = f"{call or 'loading the environment'} ended its process ({how_ended(process.wait())})"
                mend = "raise an exception instead of os._exit(); a crash of native code needs environment.workers=1"
                return _stopped(what, mend)
            if report is None:
                what = f"{call} gave no answer within step_timeout_s={config.step_timeout_s:g}"
                mend = "answer sooner, or raise environment.step_timeout_s; in a run, workers also stop such a step"
                return _stopped(what, mend)
            if report.kind == "call":
                call = report.text
            elif report.kind == "refused":
                raise ConfigError(report.text or "")
            else:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(PATIENCE_S)
                return report.checked(), report.has_words


def _stopped(what: str, mend: str) -> tuple[Conformance, None]:
    return Conformance([Defect(what, mend)], {}, True), None


def main(descriptor: int) -> None:
    """Test the environment whose configuration is on the standard input."""
    config, answers = pickle.load(sys.stdin.buffer)
    send = Reporter(descriptor).send
    try:
        suite = make_suite(config)
        refuse_agents_suite(suite, config.name)
        checked = inspect_environment(
            suite,
            split=config.train_split,
            max_turns=max(MAX_TURNS, config.max_steps + 1),
            on_call=lambda call: send(_Report(kind="call", text=call)),
            answers=answers,
        )
        has_words, problems = _words(suite)
        send(_Report.of(checked._replace(problems=[*checked.problems, *problems]), has_words))
    except TurnwiseError as error:
        send(_Report(kind="refused", text=str(error)))
    except BaseException as error:  # the user's suite may raise anything
        what = f"loading the environment raised {cause_of(error)}"
        problem = Defect(what, "the suite's constructor, tasks() and task_name() must not raise")
        send(_Report.of(Conformance([problem], {}, True), None))


def _words(suite: Any) -> tuple[bool, list[Defect]]:
    """Test whether the suite has words for a tiny policy."""
    try:
        suite.words()
    except (TurnwiseError, AttributeError):
        return False, []
    except Exception as error:  # the user's function
        return False, [
            Defect(f"words() raised {type(error).__name__}: {text_of(error)}", "return a list of texts", severe=False)
        ]
    return True, []
