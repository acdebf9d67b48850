"""Make validated tasks of a package: insert a bug, run the tests that reach it, and keep it if only some fail."""

import ast
import dataclasses
import hashlib
import itertools
import textwrap
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from turnwise.worlds.swe.make.mutate import Mutation, mutations
from turnwise.worlds.swe.make.subject import Subject
from turnwise.worlds.swe.patches import make_patch
from turnwise.worlds.swe.tasks import SweTask

_TEST_LINES, _SAID_CHARS = 12, 300


def statement(package: str, tier: int, places: list[tuple[str, int, str, str]], failures: list[tuple[str, str]]) -> str:
    """A problem statement.

    Args:
        package: Its name.
        tier: 1: names file, line and the line's text; 2: file and function; 3: only what happens.
        places: Path, line, text of the line, and function of each bug.
        failures: Source of a test that fails, and what it said.
    """
    parts = []
    for path, line, text, function in places:
        if tier == 1:
            parts.append(f"The bug is in {path}, line {line}:\n{text.strip()}")
        elif tier == 2:
            parts.append(f"The bug is in {path}, in {function}.")
    begin = f"{package} has a bug." if len(places) == 1 else f"{package} has {len(places)} bugs."
    if tier == 3:
        parts.append("Find where it is." if len(places) == 1 else "Find where they are.")
    for source, said in failures:
        parts.append(f"This test fails:\n{source}\nIt says: {said}")
    return "\n".join([begin, *parts])


def test_source(module: str, name: str) -> str:
    """The source of a test, shortened.

    Args:
        module: Source of the test's file.
        name: The test's name, as `path::Class::test[parameters]`.
    """
    *within, function = name.partition("::")[2].partition("[")[0].split("::")
    nodes: list[ast.AST] = [ast.parse(module)]
    for wanted in (*within, function):
        nodes = [
            child
            for node in nodes
            for child in ast.walk(node)
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and child.name == wanted
        ]
    parameters = name.partition("[")[2].rstrip("]")
    shown = f"{function}[{parameters}]" if parameters else function
    if not nodes:
        return shown
    source = textwrap.dedent(ast.get_source_segment(module, nodes[0], padded=True) or shown)
    lines = [line for line in source.splitlines() if line.strip()]
    if len(lines) > _TEST_LINES:
        lines = [*lines[:_TEST_LINES], "    ..."]
    return "\n".join([*lines, *([f"with the parameters {parameters}"] if parameters else [])])


def said(reason: str) -> str:
    """What a failing test said, in one short line."""
    words = " ".join(reason.partition(": ")[2].split() or reason.split())
    return words if len(words) <= _SAID_CHARS else f"{words[:_SAID_CHARS]} ..."


MAX_FAILING = 0.25
"""Largest fraction of tests that a bug may fail; with more, the tests hardly locate it."""
_TIERS = (1, 2, 1, 2, 3)  # tier 3 takes two bugs
_AHEAD = 5
"""Bugs tried ahead for each job, so that none waits for one that hangs."""
_SPARE = 0.05
"""Share of extra tasks to make, since the grader refuses some."""


@dataclasses.dataclass(frozen=True, slots=True)
class Bug:
    """A mutation of a file."""

    path: str  # the file
    mutation: Mutation  # what is changed
    failing: frozenset[str]  # tests that fail with it
    failure: tuple[str, str]  # source of the shortest of these tests, and what it says


class Maker:
    """Make the tasks of one package."""

    def __init__(self, subject: Subject, *, seed: int, jobs: int):
        self.subject, self.seed, self.jobs = subject, seed, jobs

    def tasks(self, count: int) -> list[SweTask]:
        """Make up to `count` tasks; there are fewer where the mutators find no more bugs."""
        tiers = list(itertools.islice(itertools.cycle(_TIERS), round(count * (1 + _SPARE))))
        wanted = sum(2 if tier == 3 else 1 for tier in tiers)
        with ThreadPoolExecutor(self.jobs) as pool:
            bugs = list(itertools.islice(self._bugs(pool), wanted))
            made = [task for task in pool.map(self._task, _drafts(bugs, tiers)) if task]
        return made[:count]

    def _bugs(self, pool: ThreadPoolExecutor) -> Iterator[Bug]:
        """Bugs that fail some tests, from each file in turn, at most one per line."""
        running: deque[Future[Bug | None]] = deque()
        seen: set[tuple[str, int]] = set()
        candidates = (found for found in self._candidates() if (found[0], found[1].line) not in seen)
        while True:
            for path, mutation in itertools.islice(candidates, _AHEAD * self.jobs - len(running)):
                running.append(pool.submit(self._try, path, mutation))
            if not running:
                return
            bug = running.popleft().result()
            if bug and (bug.path, bug.mutation.line) not in seen:
                seen.add((bug.path, bug.mutation.line))
                yield bug

    def _candidates(self) -> Iterator[tuple[str, Mutation]]:
        orders = [
            zip(itertools.repeat(path), mutations(source, self.seed), strict=False)
            for path, source in self.subject.sources.items()
        ]
        for turn in itertools.zip_longest(*orders):
            yield from (found for found in turn if found and self.subject.reaching(found[0], found[1].line))

    def _try(self, path: str, mutation: Mutation) -> Bug | None:
        found = self._effect([(path, mutation)])
        if found is None or not 0 < len(found["failing"]) <= max(1, MAX_FAILING * len(self.subject.passing)):
            return None
        return Bug(path, mutation, frozenset(found["failing"]), tuple(found["failure"]))

    def _effect(self, bugs: list[tuple[str, Mutation]]) -> dict[str, Any] | None:
        """Names of the tests that fail with bugs, and how one does; None if the tests do not run to the end."""
        subject = self.subject
        question = " ".join(f"{path}:{mutation.line}: {mutation.new}" for path, mutation in bugs)
        if question not in subject.kept:
            texts = self._broken(bugs)
            tests = sorted({file for path, mutation in bugs for file in subject.reaching(path, mutation.line)})
            effect = subject.effect({path: text.encode() for path, text in texts.items()}, tests)
            if effect is None:
                subject.kept[question] = None
            else:
                failure = self._failure(effect.failing, effect.said) if effect.failing else ()
                subject.kept[question] = {"failing": sorted(effect.failing), "failure": failure}
        return subject.kept[question]

    def _broken(self, bugs: list[tuple[str, Mutation]]) -> dict[str, str]:
        texts: dict[str, str] = {}
        for path, mutation in bugs:
            texts[path] = mutation.put_into(texts.get(path, self.subject.sources[path]))
        return texts

    def _failure(self, failing: frozenset[str], reasons: dict[str, str]) -> tuple[str, str]:
        """The shortest test that fails, and what it says."""
        sources = {}
        for name in sorted(failing):
            module = (self.subject.snapshot / name.partition("::")[0]).read_text(encoding="utf-8")
            sources[name] = test_source(module, name)
        name = min(sources, key=lambda name: (len(sources[name]), name))
        return sources[name], said(reasons.get(name, "it was not run"))

    def _task(self, draft: tuple[int, list[Bug]]) -> SweTask | None:
        """Make the task of a tier with these bugs; None if one hides another, or the grader does not validate it."""
        tier, bugs = draft
        subject, changed = self.subject, [(bug.path, bug.mutation) for bug in bugs]
        failing = bugs[0].failing
        if len(bugs) > 1:
            found = self._effect(changed)
            if found is None or not all(bug.failing & set(found["failing"]) for bug in bugs):
                return None
            failing = frozenset(found["failing"])
        texts, package = self._broken(changed), subject.package
        files = sorted({name.partition("::")[0] for name in failing})
        bug_patch = "".join(make_patch(path, subject.sources[path], text) for path, text in texts.items())
        digest = hashlib.sha256(f"{tier}{bug_patch}".encode()).hexdigest()[:8]
        places = [(bug.path, bug.mutation.line, bug.mutation.new, bug.mutation.function) for bug in bugs]
        task = SweTask(
            instance_id=f"{package.name}__{package.version}-{digest}",
            repo=package.name,
            base_commit=package.version,
            version=package.version,
            problem_statement=statement(package.name, tier, places, [bug.failure for bug in bugs]),
            fail_to_pass=tuple(sorted(failing)),
            pass_to_pass=tuple(sorted(name for name in subject.passing - failing if name.partition("::")[0] in files)),
            patch="".join(make_patch(path, text, subject.sources[path]) for path, text in texts.items()),
            bug_patch=bug_patch,
            hidden_files=tuple(files),
            tier=tier,
        )
        return task if subject.is_valid(task) else None


def _drafts(bugs: list[Bug], tiers: list[int]) -> Iterator[tuple[int, list[Bug]]]:
    """Deal bugs out to tiers; the two of tier 3 are not close to each other."""
    waiting = list(bugs)
    for tier in tiers:
        if not waiting:
            return
        if tier < 3:
            yield tier, [waiting.pop(_first(waiting, tier))]
            continue
        first = waiting.pop(0)
        for number, other in enumerate(waiting):
            if other.path != first.path or abs(other.mutation.line - first.mutation.line) > 10:
                yield tier, [first, waiting.pop(number)]
                break


def _first(bugs: list[Bug], tier: int) -> int:
    """Choose the next bug; a tier-1 bug must leave enough of the line for a repair."""
    fits = (number for number, bug in enumerate(bugs) if tier != 1 or bug.mutation.kind != "statement")
    return next(fits, 0)
