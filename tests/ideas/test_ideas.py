"""Each optional feature has a test of its idea, which fails while the idea is switched off, and most have a recipe."""

import ast
import os
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from tests.ideas.run import place, put
from tests.ideas.table import IDEAS
from turnwise.base.recipes import shipped_recipes
from turnwise.base.register import ENTROPY_RULES, SELECTORS, TOKEN_RULES
from turnwise.extensions.branching.growth import RULES
from turnwise.extensions.demonstrations.settings import DemonstrationsConfig
from turnwise.extensions.preference.settings import PreferenceConfig
from turnwise.extensions.stores.settings import StoreConfig
from turnwise.measures import MEASURES
from turnwise.models.settings import CriticConfig
from turnwise.rollout.collectors import COLLECTORS

ROOT = Path(__file__).parents[2]


def kinds(section) -> tuple[str, ...]:
    return get_args(section.model_fields["name"].annotation)


REGISTERED = {
    "collector": {*COLLECTORS} - {"independent"},
    "branching rule": RULES,
    "store": StoreConfig.kinds(),
    "demonstrations": DemonstrationsConfig.kinds(),
    "token rule": TOKEN_RULES,
    "entropy rule": ENTROPY_RULES,
    "critic": CriticConfig.kinds(),
    "preference": kinds(PreferenceConfig),
    "select": {*SELECTORS} - {"epochs"},
    "probe": [name for name, each in MEASURES.items() if each.model == "probe"],
}
"""Kinds by feature."""


def test_every_kind_that_is_registered_has_an_entry():
    assert {f"{feature} {kind}" for feature, names in REGISTERED.items() for kind in names} <= {*IDEAS}


@pytest.mark.parametrize("name", IDEAS)
def test_an_entry_names_a_recipe_and_a_test_that_exist(name):
    idea = IDEAS[name]
    assert not idea.recipe or idea.recipe in shipped_recipes()
    path, _, test = idea.test.partition("::")
    tree = ast.parse((ROOT / "tests" / path).read_text())
    assert test in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert idea.off
    for target in idea.off:
        place(target)


def test_what_is_not_there_cannot_be_replaced():
    for target in (
        "turnwise.extensions.branching.growth:nothing",
        "turnwise.extensions.branching.growth:RULES/nothing",
    ):
        with pytest.raises(AssertionError, match="nothing"):
            put(target, None)


@pytest.mark.slow
def test_each_test_fails_while_the_idea_is_switched_off():
    command = [sys.executable, "-m", "tests.ideas.run"]
    told = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stdout + told.stderr
    assert told.stdout.splitlines() == [f"failed  {name}" for name in IDEAS]
