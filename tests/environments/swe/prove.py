"""What must be true of every task, whoever made it."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from turnwise.worlds.swe.patches import half_patch, touched
from turnwise.worlds.swe.suite import Swe
from turnwise.worlds.swe.tasks import SweTask


def prove(suite: Swe, tasks: Sequence[SweTask], *, repeats: int, workers: int = 2) -> list[str]:
    """Report errors in the grading of tasks, repeated several times.

    The reference patch must earn the full reward. No change, a change that repairs nothing (exactly the named tests
    fail), and half the reference patch must earn nothing. Half of a one-line patch removes the wrong line.
    """
    with ThreadPoolExecutor(workers) as pool:
        return [line for lines in pool.map(lambda task: list(_wrong(suite, task, repeats)), tasks) for line in lines]


def _wrong(suite: Swe, task: SweTask, repeats: int) -> Iterator[str]:
    half = half_patch(task.patch)
    if half is None:
        yield f"{task.instance_id}: half of the patch is nothing"
        return
    (path, *_) = touched(task.patch)
    kinds = {
        "gold": f"git apply - <<'END'\n{task.patch}END",
        "empty": "true",
        "a comment": f"printf '\\n# repaired\\n' >> {path}",
        "half": f"git apply - <<'END'\n{half}END",
    }
    for kind, command in kinds.items():
        changes = _changes(suite, task, command)
        for _ in range(repeats if changes else 1):
            grade = suite.judge(task, changes)
            if grade.success != (kind == "gold"):
                yield f"{task.instance_id}, {kind}: {grade.reason or 'success'}"
            if kind == "a comment" and (grade.num_passed, grade.num_named) != (
                len(task.pass_to_pass),
                len(task.named_tests),
            ):
                yield f"{task.instance_id}: {grade.reason}, expected {len(task.fail_to_pass)} to fail"


def _changes(suite: Swe, task: SweTask, command: str) -> dict[str, bytes | None]:
    """What an agent has changed that runs a command."""
    session = suite.session(task)
    session.start()
    workspace = session._workspace
    assert workspace is not None
    try:
        done = workspace.run(command)
        assert done.code == 0, (task.instance_id, done.output)
        return session.changes()
    finally:
        workspace.close()
