"""Mutators and the tasks made of their bugs, end to end on a small repository, without the package index."""

import ast
import itertools
import json
import time
from pathlib import Path

import pytest
from tests.environments.swe.conftest import RIGHT, TESTS, suite, write
from tests.environments.swe.prove import prove

from turnwise.base.errors import ConfigError, DataError
from turnwise.commands.cli import main
from turnwise.worlds.swe.make import build
from turnwise.worlds.swe.make import subject as subject_module
from turnwise.worlds.swe.make.build import Maker, said, statement
from turnwise.worlds.swe.make.build import test_source as source_of_test
from turnwise.worlds.swe.make.mutate import MUTATORS, mutations
from turnwise.worlds.swe.make.packages import Package, clean_copy, find_packages, source_files
from turnwise.worlds.swe.make.packages import test_files as files_of_tests
from turnwise.worlds.swe.make.subject import Kept, Subject
from turnwise.worlds.swe.tasks import write_tasks

ALL_KINDS = '''
def f(a, b, c=1):
    """Text."""
    if not a and b < 3:
        return min(a, b)
    total = a + b[1:]
    total += "é" and g(a, b)
    raise ValueError("1" + 2)


class C:
    def m(self, x: int = 3):
        return x[0] is not None
'''
MORE = """

def largest(values):
    best = values[0]
    for value in values[1:]:
        if value > best:
            best = value
    return best


def count(values, wanted):
    number = 0
    for value in values:
        if value == wanted:
            number += 1
    return number


def clip(value, low, high):
    return max(low, min(value, high))


def spread(values):
    return largest(values) - min(values)
"""
MORE_TESTS = """

def test_largest():
    assert shapes.largest([1, 3, 2]) == 3


def test_count():
    assert shapes.count([1, 2, 1], 1) == 2


def test_clip():
    assert [shapes.clip(value, 1, 3) for value in (0, 2, 4)] == [1, 2, 3]


def test_spread():
    assert shapes.spread([4, 1]) == 3


@pytest.mark.parametrize("number", range(12))
def test_always(number):
    assert number >= 0
"""


def test_each_mutator_makes_bugs_of_one_line_that_parse():
    found = list(mutations(ALL_KINDS, seed=0))
    assert {mutation.kind for mutation in found} == set(MUTATORS)
    lines = ALL_KINDS.splitlines()
    for mutation in found:
        source = mutation.put_into(ALL_KINDS)
        changed = source.splitlines()
        assert [n for n, (a, b) in enumerate(zip(lines, changed, strict=True), 1) if a != b] == [mutation.line]
        assert (lines[mutation.line - 1], changed[mutation.line - 1]) == (mutation.old, mutation.new)
        assert ast.dump(ast.parse(source)) != ast.dump(ast.parse(ALL_KINDS))
    assert {mutation.function for mutation in found} == {"f", "C.m"}
    assert not [
        mutation for mutation in found if "raise" in mutation.old or "def " in mutation.old or "Text" in mutation.old
    ]
    assert list(mutations(ALL_KINDS, 0)) == found != list(mutations(ALL_KINDS, 1))


def test_a_line_is_counted_as_python_counts():
    source = "x = 1\n\x0c\ndef f(a):\n    return a < 1"
    changed = {mutation.put_into(source) for mutation in mutations(source, seed=0) if mutation.kind == "compare"}
    assert changed == {source.replace("<", "<=")}


def test_a_long_file_has_bugs_at_once():
    """Each bug was once parsed with its whole file: minutes for packages of some thousand lines."""
    source = "".join(f"def f{number}(a, b):\n    return a[1:] + b - {number % 90}\n\n\n" for number in range(2000))
    begun = time.process_time()
    assert len(list(itertools.islice(mutations(source, seed=0), 100))) == 100
    assert time.process_time() - begun < 5


@pytest.mark.parametrize(
    ("line", "bugs"),
    [
        ("return a <= b", {"return a < b", "return None"}),
        ("return (a) not in (b)", {"return (a) in (b)", "return None"}),
        ("return a or b", {"return a and b", "return None"}),
        ("return f(a, g(b))", {"return f(g(b), a)", "return None"}),
        ("return a[1:n]", {"return a[:n]", "return a[1:]", "return a[2:n]", "return a[0:n]", "return None"}),
        ("x.append(a)", {"x.extend(a)", "pass"}),
        ("return not a", {"return a", "return None"}),
    ],
)
def test_bugs_of_a_line(line, bugs):
    found = mutations(f"def f(a, b, n, x):\n    {line}\n", seed=0)
    assert {mutation.new.strip() for mutation in found} == bugs


@pytest.fixture(scope="module")
def repository(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("more")
    return write(folder, {"shapes/__init__.py": RIGHT + MORE, "tests/test_shapes.py": TESTS + MORE_TESTS})


def subject_of(snapshot: Path, site: Path, aside: Path, name: str = "shapes") -> Subject:
    return Subject(Package(name, "1.0"), snapshot, site, aside)


@pytest.fixture(scope="module")
def made(sandboxed, repository, site, tmp_path_factory):
    """A data folder with six made tasks, the package, and the tasks."""
    data = tmp_path_factory.mktemp("made")
    clean = data / "snapshots" / "shapes" / "1.0"
    clean.mkdir(parents=True)
    clean_copy(repository, clean)
    (data / "environments").mkdir()
    (data / "environments" / "default").symlink_to(site)
    subject = subject_of(clean, site, data / "tried")
    tasks = Maker(subject, seed=0, jobs=2).tasks(6)
    write_tasks(data / "tasks.jsonl", tasks)
    return data, subject, tasks


def test_tasks_are_of_all_tiers_and_say_what_their_tier_says(made):
    _, subject, tasks = made
    assert len(subject.passing) == 21
    assert [task.tier for task in tasks] == [1, 2, 1, 2, 3, 1]
    for task in tasks:
        told = task.problem_statement
        assert ("line" in told.partition("This test fails")[0]) == (task.tier == 1)
        assert ("The bug is in shapes/__init__.py" in told) == (task.tier < 3)
        assert "It says: " in told
        assert set(task.fail_to_pass) <= subject.passing
        assert task.bug_patch.count("\n+") - task.bug_patch.count("\n+++") == (2 if task.tier == 3 else 1)
    assert len({task.instance_id for task in tasks}) == 6


@pytest.mark.parametrize("repeats", [2, pytest.param(5, marks=pytest.mark.slow)])
def test_gold_earns_all_and_nothing_or_half_of_it_nothing(made, repeats):
    data, _, tasks = made
    assert prove(suite(data), tasks[2:5], repeats=repeats, workers=8) == []  # one of each tier


def test_the_same_seed_makes_the_same_tasks_and_runs_no_test_again(made, site, tmp_path, monkeypatch):
    data, subject, tasks = made
    fresh = Maker(subject_of(subject.snapshot, site, tmp_path / "tried"), seed=0, jobs=1)
    assert fresh.tasks(2) == tasks[:2]
    monkeypatch.setattr(subject_module, "BubblewrapWorkspace", None)
    again = subject_of(subject.snapshot, site, data / "tried")
    assert Maker(again, seed=0, jobs=2).tasks(6) == tasks


def test_the_tests_that_enter_a_function_are_known(made):
    _, subject, _ = made
    lines = subject.sources["shapes/__init__.py"].splitlines()
    assert subject.reaching("shapes/__init__.py", lines.index("    best = values[0]") + 1) == ["tests/test_shapes.py"]
    assert subject.reaching("shapes/__init__.py", 1) == []


def test_files_that_patches_would_not_fit_are_left_alone(tmp_path):
    files = {"a.py": b"x = 1\n", "b.py": b"x = 1\r\n", "c.py": "x = 'é'\n".encode("latin-1"), "d.py": b"x =\n"}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    assert dict(subject_module._read_sources(tmp_path)) == {"a.py": "x = 1\n"}


def test_what_is_kept_outlives_a_torn_line(tmp_path):
    kept = Kept(tmp_path / "a" / "b.jsonl")
    kept["first"], kept["second"] = {"x": [1]}, None
    with (tmp_path / "a" / "b.jsonl").open("ab") as file:
        file.write(b'["third", {"x')
    again = Kept(tmp_path / "a" / "b.jsonl")
    assert ("first" in again, again["first"], again["second"], "third" in again) == (True, {"x": [1]}, None, False)
    again["third"] = 3
    assert Kept(tmp_path / "a" / "b.jsonl")["third"] == 3


def test_a_bug_that_hangs_is_no_bug(made):
    _, subject, _ = made
    assert subject.effect({"shapes/__init__.py": b"while True:\n    pass\n"}, ["tests/test_shapes.py"]) is None


def test_a_package_that_the_tests_need_is_no_subject(sandboxed, site, tmp_path):
    write(tmp_path, {"pluggy/__init__.py": "x = 1\n", "test_x.py": "def test_x():\n    pass\n"})
    with pytest.raises(DataError, match="pluggy has 'pluggy', which the tests' own packages have, too"):
        subject_of(tmp_path, site, tmp_path / "tried", "pluggy")


def test_tests_that_do_not_pass_are_said(sandboxed, site, tmp_path):
    write(tmp_path, {"x.py": "y = 1\n", "test_x.py": "def test_x():\n    assert 0\n"})
    with pytest.raises(DataError, match=r"0 tests of x 1.0 pass, expected 10 or more"):
        subject_of(tmp_path, site, tmp_path / "tried", "x")


def test_a_copy_leaves_out_where_the_answer_would_stand_again(tmp_path):
    files = [
        "a.py",
        "build/lib/a.py",
        "docs/conf.py",
        "src/a.egg-info/x.py",
        "src/a/__init__.py",
        "src/a/tests/helper.py",
        "tests/test_a.py",
        "setup.py",
        "conftest.py",
    ]
    write(tmp_path / "from", dict.fromkeys(files, "x = 1\n"))
    (tmp_path / "to").mkdir()
    clean_copy(tmp_path / "from", tmp_path / "to")
    assert source_files(tmp_path / "to") == ["a.py", "src/a/__init__.py"]
    assert files_of_tests(tmp_path / "to") == ["tests/test_a.py"]


def test_statements():
    module = "import pytest\n\nclass A:\n    @pytest.mark.x\n    def test_a(self):\n        assert f(1) == 2\n"
    source = source_of_test(module, "t.py::A::test_a[1-2]")
    assert source == "def test_a(self):\n    assert f(1) == 2\nwith the parameters 1-2"
    long = "def test_b():\n" + "    x = 1\n" * 40
    assert source_of_test(long, "t.py::test_b").splitlines()[-1] == "    ..."
    assert source_of_test(module, "t.py::made_elsewhere") == "made_elsewhere"
    assert said("/repo/t.py:3: AssertionError: assert 1 == 2\n  more") == "AssertionError: assert 1 == 2 more"
    assert (
        statement("p", 3, [("a.py", 1, "x", "f")] * 2, [("t", "s")])
        == "p has 2 bugs.\nFind where they are.\nThis test fails:\nt\nIt says: s"
    )


def test_the_command_makes_tasks_once(sandboxed, repository, site, tmp_path, monkeypatch, capsys):
    from turnwise.worlds.swe.make import packages

    monkeypatch.setattr(packages, "PACKAGES", {"shapes": Package("shapes", "1.0")})
    monkeypatch.setattr(packages, "fetch", lambda package, folder: repository)
    monkeypatch.setattr(packages, "fetch_tools", lambda folder: site)
    assert main(["make-swe-tasks", "--output", str(tmp_path), "--per-package", "1", "--jobs", "1"]) == 0
    assert "shapes 1.0: 1 tasks (tier 1: 1)" in capsys.readouterr().out
    monkeypatch.setattr(build, "Maker", None)  # what is made is not made again
    assert main(["make-swe-tasks", "--output", str(tmp_path), "--per-package", "1"]) == 0
    assert json.loads((tmp_path / "tasks.jsonl").read_text())["repo"] == "shapes"
    assert main(["make-swe-tasks", "--packages", "shape"]) == 2
    assert "knows no package 'shape'. Did you mean 'shapes'?" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_one_line(monkeypatch, capsys):
    monkeypatch.setattr("turnwise.worlds.swe.bubblewrap.check_bubblewrap", lambda: None)
    assert main(["make-swe-tasks", "--output", "/proc/tasks"]) == 2
    assert capsys.readouterr().err.startswith("turnwise: cannot write into /proc/tasks: ")


def test_packages_are_found():
    assert len(find_packages([])) >= 5
    with pytest.raises(ConfigError, match="Did you mean 'toolz'"):
        find_packages(["tolz"])
