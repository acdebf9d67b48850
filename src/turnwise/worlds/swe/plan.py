"""Decide how a repair is tested: a secret pattern of tests that must pass or fail, and calls to answer.

A `TaskPlan` is made once per task, from the right version alone (`prepare.py`). Each grading draws again (`Drawn`).
The tested process sees the tests and the calls, but never which outcomes are expected.
"""

import dataclasses
import random
import secrets
from collections.abc import Collection, Mapping, Sequence

from turnwise.worlds.swe.tasks import SweTask
from turnwise.worlds.swe.testing import Report
from turnwise.worlds.swe.variants import MUST_PASS, Template, Variant, make_template, write_variants

_TESTS = """
import unittest
import pytest

def test_bad_equal():
    assert 1 + 1 == 3

def test_good_equal():
    assert not 1 + 1 == 3

def test_bad_raises():
    with pytest.raises(ZeroDivisionError):
        1 / 1

def test_bad_fails():
    pytest.fail("as it must")

def test_bad_error():
    raise RuntimeError("as it must")

class TestMore(unittest.TestCase):
    def test_bad_equal_too(self):
        self.assertEqual(1, 2)

    def test_bad_true(self):
        self.assertTrue(0)

    def test_good_true(self):
        self.assertFalse(0)

    def test_bad_raises_too(self):
        with self.assertRaises(KeyError):
            {1: 1}[1]
"""
_GENERAL = make_template("", _TESTS)
"""Tests of no repository: those called bad must fail."""
_BUDGET = 0.25
"""Time of a grading's variants, as a share of the tests' own."""
_LEAST_S = 0.02
_FIRST_TESTS = 3
"""Tests that fail with the bug whose variants run at any cost."""
_NUM_TELLING, _NUM_OTHER = 16, 8
"""Calls of one grading: those that the bug answers wrongly, and others."""


@dataclasses.dataclass(frozen=True, slots=True)
class SoundVariant:
    """A variant that behaves as it must with the right version."""

    variant: Variant
    seconds: float  # its time
    items: tuple[tuple[str, str], ...]  # its places in the report: the text before and after the function's name


@dataclasses.dataclass(frozen=True, slots=True)
class CallCase:
    """A call of a function of the package."""

    module: str  # where the function is
    name: str  # its qualified name
    arguments: str  # pickled by the right version, in base64; only unpickled inside a sandbox
    answer: str  # digest of the right answer
    telling: bool  # whether the version with the bug answers differently


@dataclasses.dataclass(frozen=True, slots=True)
class TaskPlan:
    """What is known about the tests of one task."""

    brought: Mapping[str, str]  # files of tests as they must be for grading, by path
    # Those of them whose tests can have other names
    templates: Mapping[str, Template] = dataclasses.field(default_factory=dict)
    # File and name of tests that their author marks as expected to fail
    marked: frozenset[tuple[str, str]] = frozenset()
    read_only: bool = False  # whether the tests pass in a repository that cannot be written to
    seconds: float = 0.0  # time of the tests alone
    checked: tuple[SoundVariant, ...] = ()  # variants to draw from
    calls: tuple[CallCase, ...] = ()  # calls to draw from


@dataclasses.dataclass(frozen=True, slots=True)
class Drawn:
    """The tests and calls of one grading."""

    files: Mapping[str, bytes]  # files of tests to write
    tests: tuple[str, ...]  # paths for pytest
    # By new name, the test's old one and the variant; None: the test itself
    names: Mapping[str, tuple[str, Variant | None]]
    chosen: tuple[SoundVariant, ...]
    general: Mapping[str, bool]  # by new name, whether this general test must pass
    calls: tuple[CallCase, ...]


def draw(plan: TaskPlan, task: SweTask, tests: Sequence[str], chosen: Sequence[SoundVariant] | None = None) -> Drawn:
    """Draw the tests and calls of one grading.

    Args:
        plan: What there is to draw from.
        task: The task.
        tests: Paths of the test files.
        chosen: Variants; None: as many as the time allows, tests that fail with the bug first.
    """
    rng = random.SystemRandom()
    chosen = _chosen(plan, task, rng) if chosen is None else chosen
    texts, names = dict(plan.brought), {}
    variants = {checked.variant for checked in chosen}
    for file, template in plan.templates.items():
        texts[file], new = write_variants(template, variants, _new_name, rng)
        names |= new
    text, general = write_variants(_GENERAL, (), _new_name, rng)
    folder = tests[0].rpartition("/")[0] if tests else ""
    extra = f"{folder}/{_new_name()}.py".lstrip("/")
    texts[extra] = text
    telling = [call for call in plan.calls if call.telling]
    others = [call for call in plan.calls if not call.telling]
    calls = [*_sample(telling, _NUM_TELLING, rng), *_sample(others, _NUM_OTHER, rng)]
    rng.shuffle(calls)
    order = list(tests)
    order.insert(rng.randrange(len(order) + 1), extra)
    return Drawn(
        {path: content.encode() for path, content in texts.items()},
        tuple(order),
        names,
        tuple(chosen),
        {new: "good" in old for new, (old, _) in general.items()},
        tuple(calls),
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """What a report says about the tests that were meant."""

    passed: frozenset[str]  # names of tests that passed, as the task calls them
    failed: Mapping[str, str]  # messages of those that did not
    as_drawn: bool  # whether every variant did what it must, and nothing else
    seconds: Mapping[tuple[str, Variant | None], float]
    outcomes: Mapping[tuple[str, Variant], Mapping[tuple[str, str], bool]]


def judge(plan: TaskPlan, drawn: Drawn, report: Report) -> Verdict:
    """Compare a report with what was drawn."""
    passed, failed, seconds = set[str](), dict[str, str](), dict[tuple[str, Variant | None], float]()
    outcomes: dict[tuple[str, Variant], dict[tuple[str, str], bool]] = {}
    general: dict[str, bool] = {}
    for name in (*report.passed, *report.xfailed, *report.failed):
        before, function, after = split_name(name)
        good = name in report.passed
        if function in drawn.general:
            general[function] = good
            continue
        old, variant = drawn.names.get(function, (function, None))
        file = before.partition("::")[0]
        seconds[old, variant] = seconds.get((old, variant), 0.0) + report.seconds.get(name, 0.0)
        if variant is not None:
            outcomes.setdefault((old, variant), {})[before, after] = good
        elif good or (name in report.xfailed and (file, old) in plan.marked):
            passed.add(f"{before}{old}{after}")
        else:
            failed[f"{before}{old}{after}"] = report.failed.get(name, "it failed as its author did not expect")
    exact = general == drawn.general
    for checked in drawn.chosen:
        found = outcomes.get((checked.variant.function, checked.variant), {})
        good = checked.variant.kind in MUST_PASS
        exact &= all(found.get(item) is good for item in checked.items)
    return Verdict(frozenset(passed), failed, exact, seconds, outcomes)


def missing_tests(task: SweTask, passed: Collection[str]) -> list[str]:
    """List the task's named tests that did not pass; R2E-Gym leaves out files and writes dots in names."""
    known = {*passed, *(".".join(test.split("::")[1:]) for test in passed)}
    return [name for name in task.named_tests if name not in known]


def split_name(name: str) -> tuple[str, str, str]:
    """Split a test's name into the part before the function's name, that name, and its parameters."""
    base, bracket, parameters = name.partition("[")
    before, colons, function = base.rpartition("::")
    return before + colons, function, bracket + parameters


def _chosen(plan: TaskPlan, task: SweTask, rng: random.Random) -> list[SoundVariant]:
    """Choose variants: one of each kind for tests that fail with the bug, then any, while there is time."""
    ones: dict[tuple[str, str], dict[str, list[SoundVariant]]] = {}
    for checked in plan.checked:
        variant = checked.variant
        ones.setdefault((variant.file, variant.function), {}).setdefault(variant.kind, []).append(checked)
    failing = {(name.partition("::")[0], split_name(name)[1]) for name in task.fail_to_pass}
    order = list(ones)
    rng.shuffle(order)
    order.sort(key=lambda test: test not in failing)
    chosen, left = [], max(_LEAST_S, _BUDGET * plan.seconds)
    for place, test in enumerate(order):
        first = test in failing and place < _FIRST_TESTS
        kinds = list(ones[test])
        for kind in kinds if test in failing else rng.sample(kinds, 1):
            checked = rng.choice(ones[test][kind])
            if first or checked.seconds <= left:
                left -= checked.seconds
                chosen.append(checked)
    return chosen


def _sample(calls: list[CallCase], number: int, rng: random.Random) -> list[CallCase]:
    return rng.sample(calls, min(number, len(calls)))


def _new_name() -> str:
    return f"test_{secrets.token_hex(6)}"
