"""The bare machine of `make test-bare` lacks what it should, in children too; the tests that depend on it are found."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.bare import choose, machine, narrow
from tests.needs import HOW, PACKAGES, PROGRAMS, REASON, reason, summarise

SOURCE = machine.ROOT / "src" / "turnwise"
ALWAYS = {"unshare", "nsenter"}
"""Programs that every Linux has."""
LOOK = """
import importlib.util, shutil, subprocess, sys
packages, programs = sys.argv[1].split(), sys.argv[2].split()
found = [name for name in packages if importlib.util.find_spec(name)]
found += [name for name in programs if shutil.which(name)]
print(*found)
import hypothesis, torch, turnwise, xdist
if len(sys.argv) < 4:
    print(turnwise.__file__, flush=True)
    subprocess.run([sys.executable, "-I", "-c", sys.stdin.read(), *sys.argv[1:], "child"], check=True)
"""


def test_nothing_optional_is_found_by_the_machine_or_its_children(tmp_path):
    (tmp_path / "here").mkdir()
    for name in PROGRAMS:
        (tmp_path / "here" / name).write_text("#!/bin/sh\n")
        (tmp_path / "here" / name).chmod(0o755)
    given = {**os.environ, "PATH": f"{tmp_path / 'here'}:{os.environ['PATH']}", "ALFWORLD_DATA": "x", "CHROMIUM": "x"}
    variables = machine.make_variables(tmp_path / "path", given)
    assert not {"ALFWORLD_DATA", "CHROMIUM"} & variables.keys()
    python = machine.make_environment(tmp_path / "venv")
    command = [python, "-c", LOOK, " ".join(PACKAGES), " ".join(PROGRAMS)]
    done = subprocess.run(command, input=LOOK, env=variables, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["", str(SOURCE / "__init__.py"), ""], done.stderr
    there = subprocess.run(["sh", "-c", "command -v sh"], env=variables, capture_output=True, text=True, check=True)
    assert there.stdout.strip()


def test_files_that_depend_on_the_machine_are_chosen_by_their_text(tmp_path, monkeypatch):
    texts = {
        "plain/test_sum.py": "def test_sum(): assert 1 + 1 == 2",
        "test_mark.py": 'import pytest\n@needs("bwrap")\ndef test(): ...',
        "test_package.py": "def test():\n    from peft import LoraConfig",
        "test_program.py": 'def test(): subprocess.run(["git", "init"])',
        "test_data.py": 'def test(): os.environ["SWE_DATA"]',
        "helper.py": "def skipping(): pytest.skip('no')",
        "test_uses_the_helper.py": "from tests.helper import skipping",
        "test_uses_it_through_another.py": "from tests import test_uses_the_helper",
        "shop/conftest.py": 'def folder(): skip_without("Stemmer")',
        "shop/deep/test_fixture.py": "def test(folder): ...",
    }
    for name, text in texts.items():
        (tmp_path / "tests" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tests" / name).write_text(text)
    monkeypatch.setattr(choose, "TESTS", tmp_path / "tests")
    chosen = {path.relative_to(tmp_path / "tests").as_posix() for path in choose.chosen_files()}
    assert chosen == {name for name in texts if Path(name).name.startswith("test_")} - {"plain/test_sum.py"}


MACHINE = {
    "conftest.py": """
import pytest
from tests.needs import skip_without

@pytest.fixture
def shop():
    skip_without("Stemmer")

@pytest.fixture
def deeper(shop): ...
""",
    "test_package.py": """
import subprocess
from importlib.util import find_spec
import pytest
from tests.needs import needs

MARK = needs("pandas")

def ask():
    return find_spec("peft")

class Asking:
    def __init__(self):
        ask()

def test_plain(): ...

@MARK
def test_marked(): ...

@pytest.mark.parametrize("number", [1, pytest.param(2, marks=MARK)])
def test_some(number): ...

def test_asks():
    Asking()

def test_fixture(deeper): ...

def test_fixture_by_name(request):
    request.getfixturevalue("shop")

def test_starts():
    subprocess.run([])
""",
    "test_program.py": """
def test_sandbox():
    assert ["bwrap"]

def test_careless(): ...
""",
    "test_at_once.py": """
import pytest
pytest.importorskip("json")

def test_all(): ...
""",
    "test_none.py": "def test_none(): ...",
}


def test_in_chosen_files_only_tests_that_may_depend_on_the_machine_are_kept(tmp_path):
    for name, text in MACHINE.items():
        (tmp_path / name).write_text(text)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--collect-only",
        "-q",
        "-p",
        "tests.bare.narrow",
        "-p",
        "no:cacheprovider",
    ]
    done = subprocess.run(
        [*command, "--rootdir", tmp_path, tmp_path], cwd=machine.ROOT, capture_output=True, text=True, check=False
    )
    kept = {line.partition("::")[2] for line in done.stdout.splitlines() if "::" in line}
    asking = {"test_marked", "test_some[2]", "test_asks", "test_fixture", "test_fixture_by_name", "test_starts"}
    assert kept == {*asking, "test_sandbox", "test_careless", "test_all"}, done.stdout + done.stderr


def test_programs_that_turnwise_looks_for_are_hidden():
    asked = re.compile(r"""\b(?:which|installed|needed_program)\(\s*["']([\w.-]+)["']""")
    named = {name for path in SOURCE.rglob("*.py") for name in asked.findall(path.read_text())}
    assert named - ALWAYS, "no file of turnwise looks for a program: the pattern is out of date"
    assert named <= {*PROGRAMS, *ALWAYS}
    assert not named & narrow.ONLY_TESTS, "turnwise starts them: files of tests that name them stay whole"


def test_packages_of_extras_are_hidden():
    """Those that training requires are kept; `turnwise` and its extras name the others."""
    project = tomllib.loads((machine.ROOT / "pyproject.toml").read_text())["project"]
    kept = {found.name.lower() for found in machine.kept_distributions()}
    extras = [text for texts in project["optional-dependencies"].values() for text in texts]
    names = {re.split(r"[^\w.-]", text)[0].lower() for text in extras} - kept
    modules = {name.replace("-", "_").replace("pystemmer", "stemmer") for name in names}
    assert modules <= {name.lower() for name in PACKAGES}


@pytest.mark.parametrize("name", HOW)
def test_a_reason_says_what_is_missing_and_how_to_get_it(name):
    found = REASON.match(reason(name, "it says: no"))
    assert found
    assert found.groups() == (name, HOW[name])


def test_a_summary_counts_what_skipped_tests_need():
    skipped = [("tests/test_a.py", reason("bwrap")), ("tests/test_b.py", reason("bwrap", "again"))]
    skipped += [("/x/tests/crosscheck/trl/test_trl.py", "TRL is not installed"), ("tests/test_a.py", "Linux only")]
    assert summarise(skipped) == [
        "     2  bwrap: apt install bubblewrap",
        "     1  packages of tests/crosscheck: see CONTRIBUTING.md",
        "     1  Linux only",
    ]


def test_a_failure_on_the_bare_machine_fails_the_command(tmp_path):
    """`make test-bare` fails where a test asks for a package that it does not say it needs."""
    (tmp_path / "test_careless.py").write_text("def test_careless():\n    import peft\n")
    python = machine.make_environment(tmp_path / "venv")
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", tmp_path, tmp_path]
    done = subprocess.run(command, cwd=tmp_path, env={**os.environ}, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "No module named 'peft'" in done.stdout
    assert sys.executable not in done.stdout
