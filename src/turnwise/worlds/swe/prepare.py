"""Find out from a task's right version what its tests and functions do; the agent's files are never there.

It runs the tests with all variants, twice and in a different order, and keeps the variants that behave as they must.
It records what the tests call, changes the arguments, and asks the right version and the one with the bug.
"""

import ast
import contextlib
import dataclasses
import random
import secrets
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from turnwise.base.errors import EnvironmentFault
from turnwise.base.terminal import say
from turnwise.worlds.swe import variants
from turnwise.worlds.swe.commands import CommandFailed, apply, begin, put, read_all, test_paths
from turnwise.worlds.swe.inside.calls import MOST_PICKLED
from turnwise.worlds.swe.patches import changed_lines
from turnwise.worlds.swe.plan import CallCase, SoundVariant, TaskPlan, Verdict, draw, judge, missing_tests, split_name
from turnwise.worlds.swe.tasks import SweTask
from turnwise.worlds.swe.testing import ask_calls, run_tests
from turnwise.worlds.swe.workspace import Files, Workspace

_TRIED_S = 1.0
"""Time for variants that are tried (seconds), in addition to that of the tests themselves."""
_FAILURE_S = 0.003
"""Time that reporting a failure adds to its test (seconds)."""
_NUM_RECORDED, _NUM_DRAWN = 300, 300
_MOST_TELLING, _MOST_OTHER = 150, 80
_Name = Annotated[str, Field(max_length=1000)]
_Arguments = Annotated[str, Field(max_length=2 * MOST_PICKLED)]
_Hash = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
_RECORDED = TypeAdapter(tuple[_Name, _Name, _Arguments, bool], config={"strict": True})
_ANSWERED = TypeAdapter(tuple[_Name, _Name, _Arguments, _Hash], config={"strict": True})
_DIGEST = TypeAdapter(_Hash)
"""What a sandbox that has run the task's own code may reply."""
Reply = TypeVar("Reply")


class Preparer:
    """Makes the plan of a task.

    Args:
        make_workspace: Makes a clean copy of the task's snapshot.
        task: The task.
        python: The interpreter in the workspace.
        path: Folders that pytest is imported from.
        seconds: Time limit of each test run.
    """

    def __init__(
        self,
        make_workspace: Callable[[], Workspace],
        task: SweTask,
        *,
        python: str,
        path: Sequence[str],
        seconds: float,
    ):
        self._make, self._task, self._python, self._path, self._seconds = make_workspace, task, python, path, seconds
        self._tests = test_paths(task)
        self._grading = {*self._tests, *task.hidden_files}

    def plan(self) -> TaskPlan:
        """Make the plan. Without a reference patch, or if the right version fails, it has no variants and no calls.

        Raises:
            EnvironmentFault: The task's own patches do not apply.
        """
        lines = changed_lines(self._task.patch)
        files = self._set_up(lines)
        plan = TaskPlan({path: text for path, text in files.items() if path in self._grading})
        plan = dataclasses.replace(plan, marked=_marked(plan.brought))
        if not self._task.patch:
            return plan
        checked = self._with_variants(plan)
        if checked is None:
            say(
                f"turnwise: swe: the right answer to {self._task.instance_id} fails its tests; it is graded without "
                "variants and calls, so a forged result may pass",
                file=sys.stderr,
            )
            return plan
        targets = [[path, name] for path in lines for name in _functions(files.get(path, ""), lines[path])]
        return dataclasses.replace(checked, calls=tuple(self._calls(targets)))

    def _set_up(self, lines: Collection[str]) -> dict[str, str]:
        """Find out how the versions differ from the snapshot; returns the tests' files, and those of the bug."""
        task = self._task
        with contextlib.closing(self._make()) as workspace:
            begin(workspace, task, hide=False)
            put(workspace, {name: text.encode() for name, text in task.test_files})
            if task.test_patch:
                apply(workspace, task.test_patch)
            read = read_all(workspace, sorted({*self._grading, *lines}))
            self._wrong = workspace.changes()
            if task.patch:
                apply(workspace, task.patch)
            self._right = workspace.changes()
        return {path: text for path, content in read.items() if (text := _text(content)) is not None}

    def _version(self, files: Files) -> Workspace:
        """Make a workspace with files that differ from the snapshot."""
        workspace = self._make()
        try:
            put(workspace, files)
        except CommandFailed:
            workspace.close()
            raise
        return workspace

    def _with_variants(self, plan: TaskPlan) -> TaskPlan | None:
        """Find the strictest way to run the tests that the right version passes; None if it passes none."""
        templates = {path: template for path, text in plan.brought.items() if (template := _template(path, text))}
        for read_only in (True, False):
            for these in (templates, {}):
                found = self._try(dataclasses.replace(plan, templates=these, read_only=read_only))
                if found is not None:
                    return found
        return None

    def _try(self, plan: TaskPlan) -> TaskPlan | None:
        alone = self._judged(plan, [])
        if alone is None:
            return None
        every = self._some(plan, alone)
        verdicts = [verdict for _ in range(2) if (verdict := self._judged(plan, every))]
        if len(verdicts) < 2:
            return None
        first, second = verdicts
        kept = []
        for checked in every:
            key = (checked.variant.function, checked.variant)
            one, other = (verdict.outcomes.get(key, {}) for verdict in verdicts)
            good = checked.variant.kind in variants.MUST_PASS
            items = tuple(sorted(item for item in one if one[item] is good and other.get(item) is good))
            if items:
                seconds = max(first.seconds.get(key, 0.0), second.seconds.get(key, 0.0))
                seconds += 0.0 if good else _FAILURE_S * len(items)
                kept.append(SoundVariant(checked.variant, seconds, items))
        wanted = {checked.variant for checked in kept}
        templates = {path: _only(template, wanted) for path, template in plan.templates.items()}
        seconds = sum(alone.seconds.values())
        return dataclasses.replace(plan, templates=templates, checked=tuple(kept), seconds=seconds)

    def _judged(self, plan: TaskPlan, chosen: Sequence[SoundVariant]) -> Verdict | None:
        """Run the right version's tests with variants; None unless all named tests pass."""
        drawn = draw(plan, self._task, self._tests, chosen)
        limits = {"seconds": self._seconds, "read_only": plan.read_only}
        with contextlib.closing(self._version({**self._right, **drawn.files})) as workspace:
            report = run_tests(workspace, drawn.tests, python=self._python, path=self._path, **limits)
        verdict = judge(plan, drawn, report)
        if report.problem or not verdict.as_drawn or missing_tests(self._task, verdict.passed):
            return None
        return verdict

    def _some(self, plan: TaskPlan, alone: Verdict) -> list[SoundVariant]:
        """Choose variants to try: of the tests that fail with the bug first, then of others, while there is time."""
        failing = {split_name(name)[1] for name in self._task.fail_to_pass}
        every = [variant for template in plan.templates.values() for variant in variants.variants_of(template)]
        random.SystemRandom().shuffle(every)
        every.sort(key=lambda variant: variant.function not in failing)
        left, some = _TRIED_S + sum(alone.seconds.values()), list[SoundVariant]()
        for variant in every:
            seconds = alone.seconds.get((variant.function, None), 0.0)
            if seconds <= left:
                left -= seconds
                some.append(SoundVariant(variant, 0.0, ()))
        return some

    def _calls(self, targets: list[list[str]]) -> list[CallCase]:
        """Record and draw calls; keep those of functions that the bug changes, where answers are always the same."""
        right = {**self._right, **dict.fromkeys(self._grading)}  # tests hold right answers: they are not there
        wrong_files = {**self._wrong, **dict.fromkeys(self._grading)}
        request = {"tests": self._tests, "path": list(self._path), "targets": targets}
        recorded = self._ask(self._right, "record", request, _RECORDED)
        recorded.sort(key=lambda call: not call[3])
        calls = [call[:3] for call in recorded[:_NUM_RECORDED]]
        if not calls:
            return []
        wanted = {"calls": calls, "number": len(calls) + _NUM_DRAWN, "seed": secrets.randbits(64)}
        drawn = self._ask(right, "draw", wanted, _ANSWERED)
        again = self._ask(right, "answer", {"calls": drawn}, _DIGEST)
        wrong = self._ask(wrong_files, "answer", {"calls": drawn}, _DIGEST)
        if not len(drawn) == len(again) == len(wrong):
            return []
        made = [
            CallCase(*call, telling=call[3] != bad)
            for call, good, bad in zip(drawn, again, wrong, strict=True)
            if call[3] == good
        ]
        changed = {(call.module, call.name) for call in made if call.telling}
        telling = [call for call in made if call.telling]
        others = [call for call in made if not call.telling and (call.module, call.name) in changed]
        return [*telling[:_MOST_TELLING], *others[:_MOST_OTHER]]

    def _ask(self, files: Files, do: str, request: dict[str, Any], form: TypeAdapter[Reply]) -> list[Reply]:
        with contextlib.closing(self._version(files)) as workspace:
            lines = ask_calls(workspace, do, request, python=self._python, seconds=self._seconds)
        try:
            return [form.validate_json(line) if form is not _DIGEST else form.validate_python(line) for line in lines]
        except ValidationError as error:
            raise EnvironmentFault(
                f"swe: the sandbox of task {self._task.instance_id!r} did not answer {do!r} as it must: "
                f"{error.errors()[0]['msg']}"
            ) from None


def _text(content: bytes) -> str | None:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return None


def _template(path: str, text: str) -> variants.Template | None:
    try:
        return variants.make_template(path, text)
    except (SyntaxError, ValueError, RecursionError):
        return None


def _marked(files: Mapping[str, str]) -> frozenset[tuple[str, str]]:
    found = set[tuple[str, str]]()
    for path, text in files.items():
        with contextlib.suppress(SyntaxError, ValueError):
            found |= {(path, name) for name in variants.known_to_fail(text)}
    return frozenset(found)


def _only(template: variants.Template, wanted: Collection[variants.Variant]) -> variants.Template:
    """Leave out the variants that are not wanted."""
    return tuple(
        part
        if isinstance(part, str)
        else variants.VariantGroup(
            part.function, tuple((key, text) for key, text in part.texts if key is None or key in wanted)
        )
        for part in template
    )


def _functions(text: str, lines: Collection[int]) -> set[str]:
    """Qualified names of the functions that hold lines; of nested functions the outermost one."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return set()
    spans = (
        (name, range(node.lineno, (node.end_lineno or node.lineno) + 1)) for name, node in variants.functions(tree)
    )
    return {name for name, span in spans if any(line in span for line in lines)}
