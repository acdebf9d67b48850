"""Files of tasks as SWE-bench and R2E-Gym publish them, patches, and repositories in git mirrors."""

import gzip
import itertools
import json
import os
import subprocess

import pytest
from tests.environments.swe.conftest import BUG, FIX, RIGHT, TESTS, WRONG, suite, task, write
from tests.needs import needs

from turnwise.base.errors import ConfigError, DataError
from turnwise.worlds.swe.commands import test_paths as paths_of_tests
from turnwise.worlds.swe.patches import half_patch, make_patch, touched
from turnwise.worlds.swe.solver import solve
from turnwise.worlds.swe.tasks import load_tasks, split_tasks, write_tasks

SWE_BENCH = {
    "repo": "psf/requests",
    "instance_id": "psf__requests-1",
    "base_commit": "abc",
    "patch": "p",
    "test_patch": "t",
    "problem_statement": "s",
    "hints_text": "",
    "created_at": "2013-01-01",
    "version": "2.0",
    "FAIL_TO_PASS": '["test_a.py::x"]',
    "PASS_TO_PASS": '["test_a.py::y"]',
    "environment_setup_commit": "abc",
    "difficulty": "<15 min fix",
}
R2E = {
    "repo_name": "orange3",
    "docker_image": "namanjain12/orange3_final:1",
    "commit_hash": "1",
    "problem_statement": "s",
    "expected_output_json": '{"TestX.test_a": "PASSED", "test_b": "FAILED"}',
    "execution_result_content": json.dumps(
        {"test_file_names": ["test_1.py"], "test_file_codes": ["def test_b(): pass"]}
    ),
    "modified_files": ["x.py"],
    "prompt": "",
}


def test_fields_of_swe_bench(tmp_path):
    file = tmp_path / "tasks.jsonl.gz"
    lists = {"instance_id": "other", "FAIL_TO_PASS": ["a"], "PASS_TO_PASS": [], "image_name": "swe/image"}
    file.write_bytes(gzip.compress(f"{json.dumps(SWE_BENCH)}\n\n{json.dumps(SWE_BENCH | lists)}\n".encode()))
    first, second = load_tasks(file)
    assert (first.repo, first.version, first.named_tests, first.tier) == (
        "psf/requests",
        "2.0",
        ("test_a.py::x", "test_a.py::y"),
        0,
    )
    assert (second.fail_to_pass, second.pass_to_pass, second.docker_image) == (("a",), (), "swe/image")


def test_fields_of_r2e(tmp_path):
    file = tmp_path / "r2e.jsonl"
    file.write_text(json.dumps(R2E))
    (made,) = load_tasks(file)
    assert (made.instance_id, made.base_commit, made.named_tests) == ("orange3-1", "1^", ("TestX.test_a",))
    assert made.test_files == (("r2e_tests/test_1.py", "def test_b(): pass"),)
    assert paths_of_tests(made) == ["r2e_tests/test_1.py"]


def test_what_is_written_is_read(tmp_path):
    tasks = [task(), task(instance_id="b", tier=3, test_files=(("a.py", "x"),), version="2")]
    write_tasks(tmp_path / "t.jsonl", tasks)
    assert load_tasks(tmp_path / "t.jsonl") == tasks
    assert json.loads((tmp_path / "t.jsonl").read_text().splitlines()[0])["FAIL_TO_PASS"].startswith("[")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no tasks"),
        ("[]", "line 1: expected an object"),
        ("{", "line 1: not valid JSON"),
        ('{"repo": "x"}', "line 1: has no field 'instance_id'"),
        (json.dumps(SWE_BENCH | {"FAIL_TO_PASS": "3"}), "line 1: expected a list of names of tests, got '3'"),
        (f"{json.dumps(SWE_BENCH)}\n{json.dumps(SWE_BENCH)}", "'psf__requests-1' occurs twice in the tasks"),
    ],
)
def test_broken_files_are_said(tmp_path, text, message):
    (tmp_path / "t.jsonl").write_text(text)
    with pytest.raises(DataError, match=message):
        load_tasks(tmp_path / "t.jsonl")


def test_splits_part_the_tasks():
    tasks = [task(instance_id=str(number)) for number in range(200)]
    parts = {split: split_tasks(tasks, split) for split in ("train", "valid", "test")}
    assert sorted(itertools.chain(*parts.values()), key=lambda found: int(found.instance_id)) == tasks
    assert len(parts["train"]) > 130
    assert all(len(part) > 8 for part in parts.values())
    with pytest.raises(ConfigError, match=r"swe has no split 'vaild'. Did you mean 'valid'"):
        split_tasks(tasks, "vaild")


@needs("git")
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("a\nb\n", "a\nc\n"),
        (None, "a\n"),
        ("a\n", None),
        ("a", "a\n"),
        ("a\n", "b"),
        ("a\x0cb\nc\n", "a\x0cb\nd\n"),
        (WRONG, RIGHT),
    ],
)
def test_patches_apply(tmp_path, old, new):
    write(tmp_path, {"d/x.py": old} if old is not None else {"other": ""})
    patch = make_patch("d/x.py", old, new)
    assert touched(patch) == ["d/x.py"]
    subprocess.run(
        ["git", "apply", "-"],
        input=patch.encode(),
        cwd=tmp_path,
        check=True,
        env={"GIT_CEILING_DIRECTORIES": str(tmp_path.parent), "PATH": os.environ["PATH"]},
    )
    assert (tmp_path / "d/x.py").exists() == (new is not None)
    assert new is None or (tmp_path / "d/x.py").read_bytes() == new.encode()
    assert make_patch("x", old, old) == ""


def test_half_a_patch_is_less_than_it():
    half = half_patch(make_patch("a.py", "a\nb\nc\n", "a\nx\nc\n"))
    assert half is not None
    assert half.endswith("@@ -1,3 +1,2 @@\n a\n-b\n c\n")
    two = half_patch(make_patch("a.py", "a\nb", "a\nx\ny"))
    assert two is not None
    assert two.endswith("@@ -1,2 +1,2 @@\n a\n-b\n\\ No newline at end of file\n+x\n")
    far = make_patch("a.py", "\n".join(map(str, range(40))), "\n".join(["x", *map(str, range(1, 39)), "y"]))
    first = half_patch(far)
    assert first is not None
    assert "+x" in first
    assert "+y" not in first
    for old, new in (("", ""), ("a\n", "a\nb\n"), ("a\nb\n", "a\n")):
        assert half_patch(make_patch("a.py", old, new)) is None


def test_the_repairer_reads_patches():
    calls = solve(task())
    assert calls is not None
    assert [json.loads(call[11:-12])["name"] for call in calls] == ["edit", "edit", "submit"]
    assert json.loads(calls[0][11:-12])["arguments"] == {
        "path": "shapes/__init__.py",
        "line": 5,
        "new": "return side * side",
    }
    searching = solve(task(tier=2))
    assert searching is not None
    assert [json.loads(call[11:-12])["name"] for call in searching[:3]] == ["search", "view", "edit"]
    assert json.loads(searching[1][11:-12])["arguments"] == {"path": "shapes/__init__.py", "start": 2, "end": 8}
    longer = solve(task(patch=make_patch("a", "b\n", "a\nb\n")))
    assert longer is not None
    assert json.loads(longer[0][11:-12])["arguments"] == {"path": "a", "line": 1, "old": "b", "new": "a\nb"}
    indented = solve(task(patch=make_patch("a", "if x:\n    b\n", "if x:\n  b\n")))
    assert indented is not None
    assert json.loads(indented[0][11:-12])["arguments"] == {"path": "a", "line": 2, "old": "    b", "new": "  b"}
    assert solve(task(patch=make_patch("new.py", None, "a\n"))) is None


@needs("git")
def test_a_mirror_serves_versions_without_history(sandboxed, site, tmp_path):
    """A SWE-bench task on a git mirror: the tests that grade come with its test_patch."""
    work = write(tmp_path / "work", {"shapes/__init__.py": WRONG, "tests/test_old.py": "def test_old():\n    pass\n"})
    git = ["git", "-C", str(work), "-c", "user.name=x", "-c", "user.email=x@x"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "bug"]):
        subprocess.run([*git, *command], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    write(work, {"shapes/__init__.py": RIGHT})
    subprocess.run([*git, "commit", "-qam", "fix"], check=True)
    data = tmp_path / "data"
    (data / "environments").mkdir(parents=True)
    (data / "environments" / "own__shapes-1").symlink_to(site)
    subprocess.run(["git", "clone", "-q", "--mirror", str(work), str(data / "mirrors" / "own__shapes.git")], check=True)
    bench = task(
        repo="own/shapes",
        base_commit=commit,
        version="1",
        bug_patch="",
        hidden_files=(),
        tier=0,
        test_patch=make_patch("tests/test_shapes.py", None, TESTS),
    )
    made = suite(data)
    assert not made.judge(bench, {"README": b"x"}).success
    assert made.judge(bench, {"shapes/__init__.py": RIGHT.encode()}).success
    seen = made.workspace(bench).run("ls -a; grep -r 'side . side' .").output.decode()
    assert "side + side" in seen
    assert "side * side" not in seen
    assert ".git" not in seen
    with pytest.raises(DataError, match="has no ffff"):
        made.workspace(task(repo="own/shapes", base_commit="ffff", version="1"))
    assert BUG != FIX
