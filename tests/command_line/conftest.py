"""What commands are tried on: an empty working directory, and a finished run."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.toys import small_config
from turnwise.train import loop

WORLD = """
class Door:
    def __init__(self, seed, width=3):
        self.seed = seed

    @staticmethod
    def words(**options):
        return ["open the door"]

    def start(self):
        return "the door"

    def step(self, response):
        from turnwise.environments.base import Step
        return Step(observation="", reward=1.0, terminated=True, info={"success": True})

class Doors(Door):
    def step(self, response):
        from turnwise.environments.base import Step
        return Step(observation=f"it was door {self.seed}", terminated=True, info={"success": True})

class Speechless:
    def __new__(cls, seed):
        return Doors(seed)

class Faulty(Door):
    def start(self):
        raise OSError("the door is locked")

class Long(Door):
    def start(self):
        return "the door " * 40

class Random(Door):
    def start(self):
        import random
        return str(random.random())
"""


@pytest.fixture
def here(tmp_path, monkeypatch) -> Iterator[Path]:
    """An empty working directory with a recipe and a world, and nothing that a failed command may touch."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    (tmp_path / "tiny.toml").write_text('[environment]\noptions = { size = "tiny" }\n')
    (tmp_path / "bad.toml").write_text("[run\n")
    (tmp_path / "study.toml").write_text('recipes = ["tiny.toml"]\nseeds = 2\n[methods]\ngrpo = []\n')
    (tmp_path / "recipe.toml").write_text('[environment]\nname = "household"\n')
    (tmp_path / "doors.py").write_text(WORLD)
    (tmp_path / "broken.py").write_text("import nothing_like_it\n")
    monkeypatch.delitem(sys.modules, "doors", raising=False)
    yield tmp_path
    sys.modules.pop("doors", None)


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A run of two steps, for tests that do not change it."""
    folder = loop.train(small_config(tmp_path_factory.mktemp("runs"), checkpoint={"every": 1}))
    return folder.path
