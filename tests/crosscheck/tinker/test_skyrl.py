"""A recipe trains through SkyRL's server of the Tinker API, JAX on the CPU (see benchmarks/requirements-tinker.txt).

make crosscheck-tinker
"""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = [pytest.mark.crosscheck, pytest.mark.filterwarnings("ignore")]
pytest.importorskip("skyrl.tinker", reason="see benchmarks/requirements-tinker.txt")

from benchmarks.tinker_household import random_policy, skyrl  # noqa: E402
from tests.combinations.table import BASE, merged  # noqa: E402

from turnwise.config import Config, parse_config  # noqa: E402
from turnwise.extensions.tinker.model import TinkerModel  # noqa: E402
from turnwise.objective.tokens import Sequences, score  # noqa: E402
from turnwise.rollout.trajectory import Trajectory, Turn  # noqa: E402
from turnwise.train.loop import train  # noqa: E402

GAMES = {
    "environment": {"name": "tests.toys:Colors", "success_reward": 1.0},
    "model": {"hidden_size": 32, "num_layers": 2, "num_heads": 2, "max_context": 64},
    "warmstart": {"steps": 5, "games": 16, "learning_rate": 0.01},
    "rollout": {"groups": 6, "group_size": 6},
    "update": {"learning_rate": 0.005},
    "evaluate": {"every": 0, "final_episodes": 128},
    "checkpoint": {"every": 1},
    "method": "grpo",
}


def recipe(folder: Path, url: str, **sections: Any) -> Config:
    """The games, through the server; SkyRL on JAX takes means over the tokens of sequences, and over sequences."""
    engine = {"name": "tinker", "url": url, "rank": 8, "sums": "means", "patience_s": 120.0}
    data = functools.reduce(merged, (BASE, GAMES, sections))
    return parse_config({**data, "engine": engine, "run": {**data["run"], "folder": str(folder), "name": "run"}})


@pytest.fixture(scope="module")
def policy() -> Any:
    """The policy that the server offers."""
    return random_policy(parse_config(merged(merged(BASE, GAMES), {"warmstart": {"steps": 0}})))


@pytest.fixture(scope="module")
def url(policy: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of SkyRL's server."""
    folder = tmp_path_factory.mktemp("skyrl")
    policy.save(folder / "model")
    with skyrl(folder / "model", folder) as address:
        yield address


def test_the_server_scores_as_the_model_itself(url: str, policy: Any, tmp_path: Path):
    config = recipe(tmp_path, url)
    model = TinkerModel()
    model.connect(config.engine, policy.max_context)  # pyright: ignore[reportArgumentType]
    turns = [Turn("", "", [2, 5, 6 + n], [5, 6, 4][: n + 1], [0.0] * (n + 1), "", True) for n in range(3)]
    sequences = Sequences.from_trajectories([Trajectory(0, "", [turn]) for turn in turns])
    theirs, _ = score(model, sequences)  # pyright: ignore[reportArgumentType]
    ours, _ = score(policy.model, sequences)
    np.testing.assert_allclose(theirs, ours, atol=1e-3)  # new adapters change nothing


def test_a_recipe_is_taught_learns_and_resumes(url: str, tmp_path: Path):
    first = train(recipe(tmp_path, url, run={"steps": 3}))
    folder = train(recipe(tmp_path, url, run={"steps": 10}), resume=first.path)
    lines = list(folder.metrics())
    steps = [line for line in lines if "update/loss" in line]
    assert [line["step"] for line in steps] == [*range(1, 11)]
    assert all(abs(line["measure/mismatch"]) < 0.05 for line in steps if "measure/mismatch" in line)
    taught, *_, trained = (line["eval/success"] for line in lines if "eval/success" in line)
    assert taught > 0.25  # four colors; imitated through the same API
    assert trained > taught + 0.1
