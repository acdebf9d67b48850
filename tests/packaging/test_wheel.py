"""The sdist and the wheel: what they hold, what an index shows of them, and that they work where nothing else is."""

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest
from tests.newcomer import Failed, follow, run, start_python

import turnwise

ROOT = Path(__file__).parents[2]
SOURCE = Path(turnwise.__file__).parent
CORE = ("numpy", "jaxtyping", "wadler_lindig", "pydantic", "pydantic_core", "annotated_types", "typing_extensions")
"""What the wheel asks for without extras, with what that asks for."""
CORE_CODE = """
import importlib.util, turnwise as tw
assert importlib.util.find_spec("torch") is None and importlib.util.find_spec("rich") is None
batch, order = tw.Batch.from_arrays(group=[0, 0], trajectory=[0, 1], reward=[1, 0])
assert tw.grpo()(batch)[0] > 0
"""


def source_files() -> set[str]:
    return {
        path.relative_to(SOURCE.parent).as_posix()
        for path in SOURCE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as content:
        names = {name for name in content.namelist() if ".dist-info/" not in name}
        recipe = content.read("turnwise/recipes/household-tiny-aem.toml").decode()
    assert names == source_files()
    few = "py.typed demo/household-demo.tar.xz recipes/verl/swe-qwen3-32b-aem.sh lab/report/page/main.js"
    for name in few.split():
        assert f"turnwise/{name}" in names
    assert sum(name.startswith("turnwise/recipes/") for name in names) == len(list((ROOT / "recipes").rglob("*.*")))
    assert recipe == (ROOT / "recipes" / "household-tiny-aem.toml").read_text()
    assert wheel.stat().st_size < 6_000_000


def test_the_sdist_holds_real_files_too(wheel):
    (sdist,) = wheel.parent.glob("*.tar.gz")
    with tarfile.open(sdist) as content:
        members = {member.name.partition("/")[2]: member for member in content.getmembers()}
    assert {f"src/{name}" for name in source_files()} <= set(members)
    assert {"README.md", "CHANGELOG.md", "CITATION.cff", "LICENSE", "pyproject.toml"} <= set(members)
    assert not any(member.issym() for member in members.values())
    assert not any(name.startswith(("tests/", "recipes/", "runs/")) for name in members)


def test_an_index_shows_urls_classifiers_and_a_readme_whose_links_lead_somewhere(metadata):
    head, _, readme = metadata.partition("\n\n")
    for field in ("Author", "Keywords", "License-Expression", "Requires-Python", "Summary"):
        assert re.search(rf"^{field}: \S", head, re.MULTILINE), field
    assert {"Homepage", "Documentation", "Changelog", "Issues"} == set(re.findall(r"^Project-URL: (\w+),", head, re.M))
    assert "Classifier: Typing :: Typed" in head
    assert "Description-Content-Type: text/markdown" in head
    targets = re.findall(r"\]\(([^)]+)\)", readme) + re.findall(r'(?:src|srcset)="([^"]+)"', readme)
    assert len(targets) > 10
    assert all(target.startswith(("https://", "#")) for target in targets)
    assert any("/raw/main/docs/images/" in target for target in targets)


def test_the_version_stands_in_one_place_and_is_the_newest_of_the_changelog(wheel):
    assert wheel.name == f"turnwise_rl-{turnwise.__version__}-py3-none-any.whl"
    assert "version" in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dynamic"]
    newest = re.search(r"^## \[([\d.]+)\] - \d{4}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest
    assert newest[1] == turnwise.__version__
    assert f"\nversion: {turnwise.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_the_core_works_with_what_the_wheel_asks_for(wheel, tmp_path, monkeypatch):
    """Without torch, rich and the like: methods, recipes, configurations."""
    monkeypatch.setenv("TURNWISE_CACHE", str(tmp_path / "cache"))  # where no demo is unpacked yet
    with zipfile.ZipFile(wheel) as content:
        content.extractall(tmp_path)
    for name in CORE:
        for file in {Path(*path.parts[:1]) for path in distribution(name).files or () if ".." not in path.parts}:
            (tmp_path / file).symlink_to(distribution(name).locate_file(file))
    (tmp_path / "typing_inspection").symlink_to(distribution("typing_inspection").locate_file("typing_inspection"))

    def python(*arguments: str, code: int = 0) -> str:
        command = [sys.executable, "-S", "-I", "-c", f"import sys; sys.path.append({str(tmp_path)!r})\n{arguments[0]}"]
        done = subprocess.run([*command, *arguments[1:]], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    python(CORE_CODE)
    command = "from turnwise.commands.cli import main; sys.exit(main(sys.argv[1:]))"
    assert python(command, "--version").strip() == (f"turnwise {turnwise.__version__}, Python {sys.version.split()[0]}")
    assert "household-tiny-aem" in python(command, "recipes")
    assert '"label"' not in python(command, "config", "household-tiny-aem")
    assert "pip install 'turnwise-rl[train]'" in python(command, "train", "household-tiny-aem", code=2)
    assert "pip install 'turnwise-rl[logs]'" in python(command, "demo", code=2)
    assert "pip install 'turnwise-rl[train]'" in python(command, "play", "household", code=2)


@pytest.mark.slow
def test_a_newcomer_follows_the_readme_with_nothing_but_the_wheel(wheel, tmp_path, capsys):
    """Training is cut short. The whole, tutorials included, is `python tests/newcomer.py`."""
    follow([ROOT / "README.md"], wheel, tmp_path, quick=True)
    ran = capsys.readouterr().out
    for command in ("turnwise demo", "turnwise train household-tiny-aem", "turnwise import log.jsonl", "a block of"):
        assert f" s  {command}" in ran


def test_a_newcomer_learns_of_the_first_command_that_fails(tmp_path):
    variables = {"PATH": "/usr/bin:/bin"}
    run("echo fine", tmp_path, variables)
    for command in ("exit 3", "echo 'Traceback (most recent call last)'"):
        with pytest.raises(Failed, match="exit code"):
            run(command, tmp_path, variables)


def test_blocks_of_a_page_run_once_in_one_interpreter(tmp_path, capsys):
    variables = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    with start_python(tmp_path, variables) as run_block:
        run_block("from pathlib import Path\nPath('made').mkdir()\nprint('a line')")
        run_block("Path('made/within').write_text('x')")
        with pytest.raises(Failed, match="division by zero"):
            run_block("1 / 0")
    assert capsys.readouterr().out.count("a block of") == 2
