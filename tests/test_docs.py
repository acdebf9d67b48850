"""The documentation runs: every Python block of a page, in order, and a print prints what the comment after it says.

A block with a name after ```python or ```toml is a file, for later blocks. Blocks of bash run with a `turnwise` that
only records its arguments: the command line must understand each call, and each recipe and study must load.
"""

import contextlib
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.needs import skip_without
from tests.promises import assert_printed
from turnwise.base.errors import ConfigError
from turnwise.base.recipes import find_recipe
from turnwise.commands.cli import _parse
from turnwise.config import load_config
from turnwise.environments.settings import EnvironmentConfig
from turnwise.environments.suites import make_suite
from turnwise.lab.diagnostics.study import load_study

ROOT = Path(__file__).parents[1]
PAGES = [*(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "examples/other-trainers.md"))]
PAGES += sorted((ROOT / "docs").rglob("*.md"))
PROMISE = re.compile(r"^print.*?  # (.*)$|^ +# (.*)$", re.MULTILINE)
"""Behind a print, or on lines of their own under one in a loop."""
BLOCK = re.compile(r"^```(?:python(?: (?=\w))?|toml (?=\w))(\w+\.(?:py|toml))?\n(.*?)^```", re.MULTILINE | re.DOTALL)

TRAINED = re.compile(r"^turnwise train (\w+)\.toml(?! .*run\.name)", re.MULTILINE)
"""The run that a command makes."""
SHELL = re.compile(r"^```bash\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGE_NEEDS = {"search-qa.md": ("Stemmer",), "webshop.md": ("Stemmer", "rapidfuzz")}
"""What the code of a page needs."""


@pytest.mark.parametrize("page", [p for p in PAGES if BLOCK.search(p.read_text())], ids=lambda page: page.name)
def test_the_code_of_a_page_runs_and_prints_what_it_says(page: Path, tmp_path, monkeypatch) -> None:
    skip_without(*PAGE_NEEDS.get(page.name, ()))
    monkeypatch.chdir(tmp_path)  # where a page may leave its figures
    monkeypatch.syspath_prepend(tmp_path)
    text, namespace = page.read_text(), dict[str, object]()
    for name in TRAINED.findall(text):
        (tmp_path / "runs" / name).mkdir(parents=True)  # the reader's, which nothing else on the page may make again
    for name, block in BLOCK.findall(text):
        if name:
            Path(name).write_text(block)
            continue
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(compile(block, str(page), "exec"), namespace)
        assert_printed((behind or below for behind, below in PROMISE.findall(block)), output.getvalue())


STAND_IN = """#!{python}
import json, sys
open({calls!r}, "a").write(json.dumps(sys.argv[1:]) + "\\n")
"""


@pytest.mark.parametrize("page", [p for p in PAGES if SHELL.search(p.read_text())], ids=lambda page: page.name)
def test_the_commands_of_a_page_are_understood(page: Path, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    wheel_alone = page.name == "README.md" or page.parent.name == "tutorials"  # recipes are found by name there
    for name in ("studies",) if wheel_alone else ("recipes", "studies"):
        (tmp_path / name).symlink_to(ROOT / name)
    program = tmp_path / "bin" / "turnwise"
    program.parent.mkdir(parents=True)
    program.write_text(STAND_IN.format(python=sys.executable, calls=str(tmp_path / "calls")))
    program.chmod(0o755)
    for name, block in BLOCK.findall(page.read_text()):
        if name:
            (tmp_path / name).write_text(block)
    for block in SHELL.findall(page.read_text()):
        subprocess.run(["/bin/bash", "-c", block], env={"PATH": str(program.parent)}, capture_output=True, check=False)
    if not (tmp_path / "calls").exists():
        return
    for line in (tmp_path / "calls").read_text().splitlines():
        try:
            options = _parse(json.loads(line))
        except SystemExit as ended:
            if ended.code:
                raise
            continue  # a list was asked for
        recipe, study = getattr(options, "recipe", None), getattr(options, "study", None)
        if study is not None:
            load_study(study, tuple(options.overrides))
        elif recipe is None or find_recipe(Path(recipe)).exists():
            config = load_config(recipe and Path(recipe), getattr(options, "overrides", []))
            assert recipe is None or not wrong_options(config.environment)
        else:
            assert recipe.isupper(), f"{page.name} names the recipe {recipe}, which does not exist"


def wrong_options(environment: EnvironmentConfig) -> str:
    """Return what is wrong with the options of a command's environment; data, packages and servers may be missing."""
    try:
        make_suite(environment)
    except ConfigError as error:
        return str(error) if "has no option" in str(error) or "environment.options." in str(error) else ""
    return ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}, which does not exist"


README = (ROOT / "README.md").read_text()


def test_the_readme_fits_its_screen_and_names_runs_that_exist() -> None:
    """Each command names a run that an earlier one makes."""
    assert len(README.splitlines()) <= 90
    made = {load_config(Path("household-tiny-aem")).run_folder.as_posix()}
    assert SHELL.findall(README)[0].startswith("make train")
    assert "turnwise train household-tiny-aem" in SHELL.findall(README)[1]
    for command in SHELL.findall(README)[1].splitlines():
        named = set(re.findall(r"runs/[\w-]+", command))
        assert named <= made, f"no command before makes what this one names: {command}"
        made |= {f"runs/{name}" for name in re.findall(r"run\.name=([\w-]+)", command)}


def test_the_main_path_of_the_map_is_there_in_reading_order() -> None:
    files = re.findall(r"^\| `(src/turnwise/[\w/]+\.py)` \|", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    assert len(files) == len(set(files)) == 18
    assert all((ROOT / file).exists() for file in files)
    assert files[0].endswith("commands/train.py")
    assert files[-1].endswith("objective/losses.py")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_pictures_of_a_page_are_there(page: Path) -> None:
    text = page.read_text()
    found = re.findall(r"!\[[^\]]*\]\(([^)#]+\.png)[^)]*\)|(?:src|srcset)=\"([^\"]+\.png)\"", text)
    for name in (markdown or html for markdown, html in found):
        assert (page.parent / name).is_file(), f"{page.name} shows {name}"


def test_the_first_picture_of_the_readme_has_a_light_and_a_dark_version() -> None:
    picture = re.search(r"<picture>(.*?)</picture>", (ROOT / "README.md").read_text(), re.DOTALL)
    assert picture
    (dark,) = re.findall(r'prefers-color-scheme: dark\)" srcset="([^"]+)"', picture[1])
    (light,) = re.findall(r'<img [^>]*src="([^"]+)"', picture[1])
    assert dark == light.replace("light", "dark") != light


def test_each_part_of_your_own_fits_a_screen() -> None:
    page = (ROOT / "docs" / "how-to" / "extend.md").read_text()
    headings = re.findall(r"^## (?:A|An) (\w+)", page, re.MULTILINE)
    assert headings == ["method", "measure", "loss", "collector", "environment", "engine"]
    files = {name: block for name, block in BLOCK.findall(page) if name}
    assert len(files) == len(headings)
    assert all(len(block.splitlines()) <= 30 for block in files.values())
    assert len(page.split()) <= 1100
