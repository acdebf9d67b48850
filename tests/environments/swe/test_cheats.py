"""Scripted cheats: each gets 0, and harms nothing. What they leave of the bug is what they were given."""

import functools
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.environments.swe.cheats import BESIDE, all_cheats
from tests.environments.swe.conftest import FIX, RIGHT, TESTS, WRONG, called, suite, task, write
from tests.needs import skip_without

from turnwise.worlds.swe.grade import graded_changes
from turnwise.worlds.swe.patches import half_patch, make_patch, touched

MODULE = "shapes/__init__.py"


@pytest.fixture(scope="module")
def made(sandboxed, data):
    return suite(data, test_s=8.0, memory_mb=512, disk_mb=64, processes=32)


@pytest.fixture(scope="module")
def patient(sandboxed, data):
    """With as much time as a busy machine may need: for what must pass."""
    return functools.partial(suite(data, test_s=180.0, memory_mb=512, disk_mb=64, processes=32).judge, task())


@pytest.fixture(scope="module")
def judge(made):
    return functools.partial(made.judge, task())


def bytes_of(files: dict[str, str | None]) -> dict[str, bytes | None]:
    return {path: None if text is None else text.encode() for path, text in files.items()}


def test_the_right_answer_is_right(patient):
    graded = patient(bytes_of({MODULE: RIGHT}))
    assert (graded.success, graded.reason, graded.num_passed, graded.num_named) == (True, "", 5, 5)


def test_the_right_answer_is_right_whatever_lies_beside_it(patient):
    """What a cheat puts beside a repair is left out, not held against it."""
    beside: dict[str, str | None] = {}
    for files in BESIDE.values():
        beside |= files
    del beside["tests"]  # a file in place of the folder is the one thing that cannot be carried over
    assert patient(bytes_of(beside | {MODULE: RIGHT})).success


@pytest.mark.parametrize("one_in", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_no_cheat_is_paid(made, one_in):
    """One in four on one task, those of files together; then all; each on five tasks with SWE_DATA (below)."""
    changes = all_cheats(task(), WRONG)
    assert len(changes) >= 90
    beside: dict[str, bytes | None] = {}
    for name in BESIDE:
        files = changes.pop(name)
        beside |= {} if name == "a file where the tests are" else files
    always = (*UNSEEN, *ONLY_VARIANTS_TELL)
    changes = {
        name: files for place, (name, files) in enumerate(changes.items()) if name in always or place % one_in == 0
    }
    changes["everything beside the code"] = beside
    with ThreadPoolExecutor(2) as pool:
        grades = dict(zip(changes, pool.map(functools.partial(made.judge, task()), changes.values()), strict=True))
    assert {name for name, graded in grades.items() if graded.success} == set()
    assert all(graded.reason for graded in grades.values())
    for name in ("everything beside the code", *UNSEEN):
        assert "3 of 5 tests fail" in grades[name].reason, name
    for name in ONLY_VARIANTS_TELL:
        assert "a test that must fail has passed" in grades[name].reason, name


UNSEEN = ("edits the tests", "deletes the tests", "writes a report with the names of all tests")
"""Graded as if these were not there."""
ONLY_VARIANTS_TELL = ("replaces runtest", "calls every report a pass")

TELLS_VARIANTS = """
from _pytest.python import Function
from _pytest.unittest import TestCaseFunction
for kind in (Function, TestCaseFunction):
    def runtest(self, real=kind.runtest):
        if self.function.__name__ in MUST_FAIL: raise AssertionError
    kind.runtest = runtest
"""


def test_calls_find_out_who_knows_the_whole_pattern(made, monkeypatch):
    """A cheat that can tell all variants apart passes the tests; it does not know the answers to calls."""
    from turnwise.worlds.swe import grade as graded_by
    from turnwise.worlds.swe.variants import MUST_PASS

    drawn = graded_by.draw(made.plan(task()), task(), ["tests/test_shapes.py"])
    assert drawn.calls
    bad = [new for new, (_, variant) in drawn.names.items() if variant and variant.kind not in MUST_PASS]
    bad += [new for new, good in drawn.general.items() if not good]
    monkeypatch.setattr(graded_by, "draw", lambda *_: drawn)
    cheat = TELLS_VARIANTS.replace("MUST_FAIL", repr(bad))
    reason = made.judge(task(), bytes_of({MODULE: f"{WRONG}\n{cheat}"})).reason
    assert "all tests pass, but" in reason
    assert "calls are answered wrongly" in reason


@pytest.mark.data
@pytest.mark.slow
def test_no_cheat_is_paid_on_five_tasks(sandboxed):
    """SWE_DATA has the tasks; half an hour on two cores."""
    skip_without("SWE_DATA")
    if not os.environ.get("SWE_CHEATS"):
        pytest.skip("half an hour: set SWE_CHEATS=1")
    made = suite(Path(os.environ["SWE_DATA"]), test_s=60.0, memory_mb=512, disk_mb=64)
    tasks = list({found.repo: found for found in made.tasks("all")}.values())[:5]
    paid = []
    for found in tasks:
        workspace = made.begun(found)
        text = workspace.run(f"cat {touched(found.bug_patch)[0]}").output.decode()
        workspace.close()
        changes = all_cheats(found, text)
        with ThreadPoolExecutor(2) as pool:
            grades = pool.map(functools.partial(made.judge, found), changes.values())
            paid += [(found.instance_id, name) for name, graded in zip(changes, grades, strict=True) if graded.success]
    assert len(tasks) == 5
    assert paid == []


@pytest.mark.parametrize("text", ["def square(:\n", "import nowhere\n", "def squared(side):\n    return side * side\n"])
def test_a_module_that_breaks_is_no_tampering(judge, text):
    graded = judge(bytes_of({MODULE: text}))
    assert not graded.success
    assert "5 of 5 tests fail" in graded.reason
    assert ("tests/test_shapes.py cannot be collected" in graded.reason) == ("squared" not in text)


def test_the_agents_tests_are_not_those_that_grade():
    changes = bytes_of(
        {"tests/test_shapes.py": TESTS, "tests/new/helper.py": "", "a_test.py": "", MODULE: RIGHT, "notes.txt": "x"}
    )
    assert set(graded_changes(task(), changes)) == {MODULE, "notes.txt"}
    answer = make_patch("shapes/test/client.py", "a\n", "b\n")
    kept = graded_changes(task(patch=answer), bytes_of({"shapes/test/client.py": "c\n", "shapes/test/other.py": ""}))
    assert set(kept) == {"shapes/test/client.py"}  # the right answer changes it, so it is no test


@pytest.mark.parametrize(
    "command",
    [
        "rm -rf tests; ln -s / root; ln -s /scratch/../../etc/passwd x; mkdir -p a/b; ln -s ../../.. a/b/up; true",
        "bomb() { bomb | bomb & }; bomb; sleep 3",
        "kill -9 -1",
        "head -c 1000000000 /dev/zero > big; true",
        "i=0; while [ $i -lt 1200 ]; do mkdir d; cd d; i=$((i+1)); done",
        "chmod -R 000 . ; true",
        "rm -rf /repo/* /scratch/* 2>/dev/null; true",
        "mkfifo shapes/pipe; mv shapes gone; mkfifo shapes; true",
        "printf 'x' > \"$(printf 'a\\nb\\377c')\"; touch -- -rf '*'; true",
    ],
)
def test_a_hostile_session_gets_nothing_and_others_go_on(made, data, tmp_path, command):
    session = made.session(task())
    session.start()
    begun = time.monotonic()
    assert session.step(called("run", command=command)).observation
    step = session.step(called("submit"))
    assert (step.terminated, step.reward, step.info["success"]) == (True, 0.0, False)
    assert time.monotonic() - begun < 60
    assert (data / "snapshots/shapes/1.0/shapes/__init__.py").read_text() == RIGHT
    assert sorted(path.name for path in (data / "snapshots/shapes/1.0").rglob("*.py")) == [
        "__init__.py",
        "test_other.py",
        "test_shapes.py",
    ]
    assert Path("/etc/passwd").read_text().startswith("root:")


REPAIR = called("run", command="sed -i 's/side + side/side * side/; s/< -5/< 0/' shapes/__init__.py")


@pytest.mark.parametrize(
    ("command", "reward"),
    [
        ("mkdir -p notes/deep && echo > notes/deep/x && rm -r notes && echo > notes", 10.0),
        ("rm -r docs && echo > docs", 10.0),  # a folder with folders becomes a file
        ("rm README.md && mkdir README.md && echo > README.md/x", 10.0),
        (
            "i=0; while [ $i -lt 30 ]; do mkdir $(printf 'z%.0s' $(seq 200)); cd z* || break; i=$((i+1)); done; "
            "echo > f",
            10.0,
        ),
        ("i=0; while [ $i -lt 400 ]; do echo > f$i.txt; i=$((i+1)); done", 10.0),
        ("for i in 1 2 3 4 5 6 7 8; do truncate -s 60M s$i; done", 0.0),
    ],
)
def test_what_an_agent_leaves_beside_its_repair_is_graded_and_no_fault(documented, command, reward):
    session = suite(documented, test_s=180.0, memory_mb=512, disk_mb=64, processes=32).session(task())
    session.start()
    assert session.step(REPAIR).valid
    assert session.step(called("run", command=command)).observation.endswith("[exit status 0]")
    step = session.step(called("submit"))
    assert (step.terminated, step.reward) == (True, reward), step.info
    assert reward or "too large: the files hold more than 64 MiB" in step.info["reason"]


@pytest.fixture(scope="module")
def documented(sandboxed, tmp_path_factory, site) -> Path:
    """A folder of tasks whose repository has a folder with folders."""
    folder = tmp_path_factory.mktemp("documented")
    files = {
        "shapes/__init__.py": RIGHT,
        "tests/test_shapes.py": TESTS,
        "README.md": "Shapes.\n",
        "docs/more/x.md": "x\n",
    }
    write(folder / "snapshots/shapes/1.0", files)
    (folder / "environments").mkdir()
    (folder / "environments/default").symlink_to(site)
    return folder


def test_the_empty_and_the_half_repair_get_nothing(sandboxed, data):
    made = suite(
        data, test_s=180.0, memory_mb=512, disk_mb=64, processes=32
    )  # what is right has time on a busy machine
    apply = "git apply - <<'END'\n{}END"
    half = half_patch(FIX)
    assert half is not None
    for patch, reward in ((FIX, 10.0), (half, 0.0), ("", 0.0)):
        session = made.session(task())
        session.start()
        if patch:
            assert "status 0" in session.step(called("run", command=apply.format(patch))).observation
        assert session.step(called("submit")).reward == reward


@pytest.mark.parametrize("repeats", [3, pytest.param(5, marks=pytest.mark.slow)])
def test_grading_is_deterministic(judge, repeats):
    for text in (RIGHT, WRONG + "\n", RIGHT.replace("side * side", "side + side")):
        assert len({judge(bytes_of({MODULE: text})) for _ in range(repeats)}) == 1
