"""The reference pages are what the code says."""

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

import turnwise as tw
from tests.toys import small_config
from turnwise.base.section import Kinds, Section
from turnwise.commands.cli import _parser
from turnwise.config import Config
from turnwise.lab.diagnostics.study import StudyConfig
from turnwise.measures.verdict import how_to_train

sys.path.append(str(Path(__file__).parents[1] / "docs"))
from generator.settings import described

ROOT = Path(__file__).parents[1]
REFERENCE = {page.stem: page.read_text() for page in (ROOT / "docs" / "reference").glob("*.md")}


def test_the_made_pages_are_up_to_date():
    done = subprocess.run(
        [sys.executable, "docs/generate.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", tw.METHODS)
def test_a_page_says_what_its_reader_asks(name):
    text = (ROOT / "docs" / "reference" / "methods" / f"{name}.md").read_text()
    for asked in (
        "**Paper**",
        "**Needs**",
        "**Expected gradient**",
        "**Use it when**",
        "```text",
        "**Code**",
        "**Worked numbers**",
    ):
        assert asked in text, f"{asked} is not answered"
    (numbers,) = re.findall(r"\*\*Worked numbers\*\* \(\[all\]\(([^)]+)\)\)", text)
    assert json.loads((ROOT / "docs" / "reference" / "methods" / numbers).read_text())[0]["expected"]
    (code,) = re.findall(r"\*\*Code\*\*: \[\w+\.py\]\(([^)]+)\)", text)
    assert f"def {name}(" in (ROOT / "docs" / "reference" / "methods" / code).read_text()


MADE = [page for page in (ROOT / "docs" / "reference").rglob("*.md") if "docs/generate.py" in page.read_text()]


@pytest.mark.parametrize("page", MADE, ids=lambda page: page.stem)
def test_made_pages_keep_the_length_of_lines(page):
    long = [line for line in page.read_text().splitlines() if len(line) > 120]
    assert not long, "wrap them in docs/generator"


def settings(model, prefix=""):
    """Every key that a recipe or a study may have, with its field, found apart from the generator."""
    every = [model, *(model.kinds().values() if issubclass(model, Kinds) else ())]
    for name, field in {
        (name, id(field)): (name, field) for kind in every for name, field in described(kind).items()
    }.values():
        kinds = [field.annotation, *get_args(field.annotation)]
        sections = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Section)]
        for section in sections:
            yield from settings(section, f"{prefix}{name}.")
        if not sections:
            yield f"{prefix}{name}", field


SETTINGS = [*settings(Config), *settings(StudyConfig)]
EXPLAINED = REFERENCE["settings"] + "".join(
    page.read_text().partition("\n## Settings\n")[2] for page in (ROOT / "docs").rglob("*.md")
)
"""Settings of extensions stand at the end of their own pages."""


@pytest.mark.parametrize(("name", "field"), SETTINGS, ids=lambda value: value if isinstance(value, str) else "")
def test_every_setting_is_explained(name, field):
    assert field.description, f"{name} has no docstring under its field"
    if name.startswith("judge.engine."):
        assert "`judge.engine` has the keys of [`engine`](../reference/settings.md#engine)." in EXPLAINED
        name = name.removeprefix("judge.")
    found = re.findall(rf"^### `{re.escape(name)}`\n\n\*[^*]+\*\n\n(.+)$", EXPLAINED, re.MULTILINE)
    meanings = {each.description for other, each in SETTINGS if other == name}
    assert 1 <= len(found) <= len(meanings), f"no page explains {name}, or two do"
    assert field.description.split()[0] in {text.split()[0] for text in found}


def test_defaults_and_bounds_of_settings_are_what_a_recipe_would_say():
    for text in (
        '### `run.name`\n\n*text, length at least 1, default `"run"`*',
        "### `rollout.top_p`\n\n*number, > 0, \N{LESS-THAN OR EQUAL TO} 1, default `1.0`*",
        "### `update.kl`\n\n*number, \N{GREATER-THAN OR EQUAL TO} 0, default `0.0`*",
        '### `method`\n\n*name and options, default `"grpo"`*',
        '### `engine.sync_folder`\n\n*with `name = "server"`: path, unset*',
        "### `seeds`\n\n*integer, \N{GREATER-THAN OR EQUAL TO} 1, required*",
    ):
        assert text in REFERENCE["settings"]


def parsers(parser):
    """Every command, found apart from the generator."""
    for action in parser._actions:
        if isinstance(action.choices, dict):
            for inner in action.choices.values():
                yield inner
                yield from parsers(inner)


@pytest.mark.parametrize("parser", [*parsers(_parser())], ids=lambda parser: parser.prog)
def test_every_command_and_option_is_explained(parser):
    page = REFERENCE["commands"]
    assert f"\n## {parser.prog}\n\n" in page
    entry = page.partition(f"\n## {parser.prog}\n\n")[2].partition("\n## ")[0]
    for action in parser._actions:
        if action.help != argparse.SUPPRESS and action.dest != "help" and not isinstance(action.choices, dict):
            assert action.help, f"{parser.prog}: {action.dest} has no help"
            name = max(action.option_strings, key=len, default=action.metavar or action.dest.upper())
            assert name in entry


def documented_metrics() -> list[re.Pattern]:
    """Names in the table of metrics.md; capitals stand for any name, and a name without its section for the same."""
    patterns = []
    for cells in re.findall(r"^\| (`[^|]+) \|", REFERENCE["metrics"], re.MULTILINE):
        names = re.findall(r"`([^`]+)`", cells)
        for name in names:
            full = name if "/" in name else f"{names[0].partition('/')[0]}/{name}"
            patterns.append(re.compile(re.sub(r"[A-Z]{3,}", ".+", full)))
    return patterns


def test_every_metric_of_a_run_is_explained(tmp_path):
    from turnwise.train import loop

    config = small_config(tmp_path, update={"kl": 0.1, "mismatch_cap": 2.0, "entropy_bonus": 0.01})
    records = loop.train(config).metrics()
    seen = {name for record in records for name in record if "/" in name}
    assert len(seen) > 30
    known = documented_metrics()
    missing = [name for name in sorted(seen) if not any(pattern.fullmatch(name) for pattern in known)]
    assert not missing, "docs/reference/metrics.md does not explain them"


def test_every_method_stands_once_in_the_table_of_needs_and_costs():
    """Each row's methods train the same way, but for what is in the page's second column."""
    page = (ROOT / "docs" / "how-to" / "choose-credit.md").read_text(encoding="utf-8")
    _, _, below = page.partition("## What each method needs, and what a step costs")
    rows = [line.split(" | ") for line in below.partition("\n## ")[0].splitlines() if line.startswith("| `")]
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row[0])]
    assert sorted(named) == sorted(tw.METHODS)
    for row in rows:
        verdicts = {how_to_train(tw.trial(tw.METHODS[name]).needs) for name in re.findall(r"`(\w+)`", row[0])}
        assert len(verdicts) == 1, row
        key = verdicts.pop().removeprefix("with ")
        known = ("yes", "a critic", "a judge", "a reward model", "a critic and prompt.plan", "continuations")
        known = (*known, "a critic or continuations", "a teacher")
        assert key in known or f"`{key}`" in row[1], (key, row)
