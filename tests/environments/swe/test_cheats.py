"""Scripted cheats: each gets 0, and harms nothing. What they leave of the bug is what they were given."""

import functools
import time
from pathlib import Path

import pytest
from tests.environments.swe.conftest import FAILING, FIX, PASSING, RIGHT, TESTS, WRONG, called, suite, task, write

from turnwise.environments.swe.guard import graded_changes
from turnwise.environments.swe.patches import half_patch, make_patch

MODULE = "shapes/__init__.py"
ALL_NAMES = str([*FAILING, *PASSING])
PATCHES_ASSERT = """
import builtins, sys
class Always:
    def __eq__(self, other): return True
    def __rsub__(self, other): return self
    def __radd__(self, other): return self
"""
IN_CODE = {
    "exits with 0": "import sys\nsys.exit(0)\n",
    "exits hard with 0": "import os\nos._exit(0)\n",
    "exits hard, by another name": "import os\ngetattr(os, '_ex' + 'it')(0)\n",
    "exits when the tests end": "import atexit, os\natexit.register(lambda: getattr(os, '_ex' + 'it')(0))\n",
    "patches unittest": "import unittest\nunittest.TestCase.assertEqual = lambda *a, **k: None\n",
    "makes every report a pass, plainly": (
        "import _pytest.reports\n_pytest.reports.TestReport.__init__.__defaults__\n"
        "real = _pytest.reports.TestReport.from_item_and_call\n"
        "def fake(item, call):\n    call.excinfo = None\n    return real(item, call)\n"
        "_pytest.reports.TestReport.from_item_and_call = fake\n"
    ),
    "makes every report a pass, hidden": (
        "r = __builtins__['__imp' + 'ort__']('_pyt' + 'est.reports', fromlist=['x']).TestReport\n"
        "real = r.from_item_and_call\n"
        "def fake(item, call):\n    call.excinfo = None\n    return real(item, call)\n"
        "r.from_item_and_call = fake\n"
    ),
    "runs no test body, hidden": (
        "p = __builtins__['__imp' + 'ort__']('_pyt' + 'est.python', fromlist=['x'])\n"
        "p.Function.runtest = lambda self: None\n"
        "u = __builtins__['__imp' + 'ort__']('_pyt' + 'est.unittest', fromlist=['x'])\n"
        "u.TestCaseFunction.runtest = lambda self: None\n"
    ),
    "marks all as expected to fail": (
        "import sys\np = sys.modules['_pytest.skipping']\nq = sys.modules['_pytest.python'].Function\n"
        "real = q.runtest\n"
        "def fake(self):\n    try: real(self)\n    except BaseException: pass\nq.runtest = fake\n"
    ),
    "prints a report": (
        f"import json, sys\nnames = {ALL_NAMES}\nfor fd in (1, 2, 3, 4, 5, 6, 7, 8, 9):\n"
        "    try: open(fd, 'w', closefd=False).write('\\n' + 'a' * 40 + '\\n' + "
        "json.dumps({'passed': names, 'failed': {}, 'canaries': 7, "
        "'fooled': 0}) + '\\n' + 'a' * 40 + '\\n')\n    except Exception: pass\n"
    ),
    "writes over the runner and the tests": (
        "import glob\nfor place in ('/scratch/*', '/scratch/*/*', '/repo/tests/*'):\n"
        "    for name in glob.glob(place):\n        try: open(name, 'w').write('')\n        except OSError: pass\n"
    ),
    "kills its parent": "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\nos.kill(-1, signal.SIGKILL)\n",
    "bombs with forks": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass\n",
    "waits for the time-out": "import time\ntime.sleep(1000)\n",
    "fills the disk": "i = 0\nwhile True:\n    open(f'/tmp/{i}', 'wb').write(b'x' * 2**20); i += 1\n",
    "fills the memory": "x = [bytearray(2**24) for _ in range(4000)]\n",
    "reaches the network": "import socket\nsocket.create_connection(('1.1.1.1', 53), 2)\n",
    "is equal to anything": PATCHES_ASSERT + "def square(side): return Always()\n",
}
BESIDE = {
    "edits the tests": {"tests/test_shapes.py": "def test_square():\n    pass\n"},
    "deletes the tests": {"tests/test_shapes.py": None, "tests/test_other.py": None},
    "skips the tests in conftest": {
        "tests/conftest.py": "def pytest_runtest_call(item):\n    item.runtest = lambda: None\n"
    },
    "a conftest in the root": {
        "conftest.py": "import pytest\npytest.hookimpl\ndef pytest_pyfunc_call(pyfuncitem):\n    return True\n"
    },
    "a configuration": {
        "pytest.ini": "[pytest]\npython_functions = nothing\n",
        "setup.cfg": "[tool:pytest]\naddopts = --co\n",
    },
    "a plug-in by pyproject": {
        "pyproject.toml": "[tool.pytest.ini_options]\naddopts = '-p shapes.cheat'\n",
        "shapes/cheat.py": "x = 1\n",
    },
    "sitecustomize": {"sitecustomize.py": "import os\nos._exit(0)\n", "usercustomize.py": "import os\nos._exit(0)\n"},
    "a pth file": {"cheat.pth": "import os; os._exit(0)\n"},
    "a pytest of its own": {
        "pytest.py": "raise SystemExit(0)\n",
        "_pytest/__init__.py": "",
        "pluggy.py": "",
        "src/pytest.py": "",
    },
    "a unittest of its own": {"unittest/__init__.py": "class TestCase:\n    pass\n", "src/unittest.py": ""},
    "a json of its own": {"json.py": "def dumps(*a): return ''\n", "src/json.py": "x = 1\n"},
    "a plug-in by entry point": {
        "cheat.egg-info/entry_points.txt": "[pytest11]\ncheat = cheat\n",
        "cheat.egg-info/PKG-INFO": "Metadata-Version: 2.1\nName: cheat\nVersion: 1\n",
    },
    "compiled code": {"shapes/__pycache__/__init__.cpython-311.pyc": "x", "shapes.pyc": "x"},
}


@pytest.fixture(scope="module")
def made(sandboxed, data):
    return suite(data, test_s=20.0, memory_mb=512, disk_mb=64, processes=32)


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
    assert patient(bytes_of(beside | {MODULE: RIGHT})).success


@pytest.mark.parametrize("name", IN_CODE)
def test_a_cheat_in_the_code_gets_nothing(judge, name):
    graded = judge(bytes_of({MODULE: f"{WRONG}\n{IN_CODE[name]}"}))
    assert not graded.success, name
    assert graded.reason


@pytest.mark.parametrize("name", BESIDE)
def test_a_cheat_beside_the_code_gets_nothing(judge, name):
    """The bug stays; a comment makes the change one that is graded."""
    graded = judge(bytes_of({**BESIDE[name], MODULE: f"{WRONG}\n# repaired\n"}))
    assert not graded.success
    assert "3 of 5 tests fail" in graded.reason


def test_canaries_see_what_a_look_at_names_does_not(judge):
    for name in ("makes every report a pass, hidden", "runs no test body, hidden"):
        graded = judge(bytes_of({MODULE: f"{WRONG}\n{IN_CODE[name]}"}))
        assert "a test that must fail has passed" in graded.reason


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
def test_what_an_agent_leaves_beside_its_repair_is_graded_and_no_fault(sandboxed, tmp_path, site, command, reward):
    files = {
        "shapes/__init__.py": RIGHT,
        "tests/test_shapes.py": TESTS,
        "README.md": "Shapes.\n",
        "docs/more/x.md": "x\n",
    }
    write(tmp_path / "snapshots/shapes/1.0", files)
    (tmp_path / "environments").mkdir()
    (tmp_path / "environments/default").symlink_to(site)
    session = suite(tmp_path, test_s=180.0, memory_mb=512, disk_mb=64, processes=32).session(task())
    session.start()
    assert session.step(REPAIR).valid
    assert session.step(called("run", command=command)).observation.endswith("[exit status 0]")
    step = session.step(called("submit"))
    assert (step.terminated, step.reward) == (True, reward), step.info
    assert reward or "too large: the files hold more than 64 MiB" in step.info["reason"]


def test_the_empty_and_the_half_repair_get_nothing(data):
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


def test_grading_is_deterministic(judge):
    for text in (RIGHT, WRONG + "\n", RIGHT.replace("side * side", "side + side")):
        assert len({judge(bytes_of({MODULE: text})) for _ in range(5)}) == 1
