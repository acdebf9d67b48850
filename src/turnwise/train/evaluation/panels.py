"""Define named evaluation panels with fixed tasks, limits and sampling seeds, to compare runs on the same tasks.

    turnwise eval runs/a --panel household-compact-valid-256

A panel never changes: other tasks get another name. `turnwise eval` without `--panel` uses no panel, and its records
say so.
"""

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from turnwise.base.errors import ConfigError, DataError, did_you_mean
from turnwise.config import Config, override_config
from turnwise.worlds.alfworld.game import TASK_TYPES


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """Define which tasks are played, and how long.

    Attributes:
        environment: Name of the suite.
        split: Split of the tasks.
        episodes: Number of tasks, evenly spaced over the split; None: all, which depends on the user's files.
        max_steps: Turns after which an episode is truncated.
        options: Environment options that determine the tasks. All others have their defaults.
        keeps: Options that keep the run's values, such as paths and observation formats.
        seeds: Sampling seeds; the panel is played once per seed.
        digest: `task_digest` of the tasks, if known.
        needs: Required package, or variable with the path of the data.
    """

    environment: str
    split: str
    episodes: int | None
    max_steps: int
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    keeps: Sequence[str] = ()
    seeds: Sequence[int] = (0,)
    digest: str | None = None
    needs: str = ""


def _household(size: str, *, max_steps: int, digest: str, **options: Any) -> Panel:
    options |= {"size": size, "num_valid": 256, "task_types": list(TASK_TYPES)}
    return Panel(
        environment="household", split="valid", episodes=256, max_steps=max_steps, options=options, digest=digest
    )


_FEAST = {"recipe": 3, "take": 3, "go": 6, "open": True, "cook": True, "cut": True, "drop": True}

PANELS: dict[str, Panel] = {
    "household-compact-valid-256": _household(
        "tiny",
        num_receptacles=[2, 3],
        num_objects=[2, 3],
        max_steps=10,
        digest="f3a326a309a614cc",
    ),
    "household-tiny-valid-256": _household("tiny", max_steps=12, digest="4d5db54d043a090f"),
    "household-medium-valid-256": _household("medium", max_steps=30, digest="8f251d0eee543e77"),
    "alfworld-valid_seen-140": Panel(
        environment="alfworld",
        split="valid_seen",
        episodes=140,
        max_steps=50,
        seeds=(0, 1, 2),
        options={"task_types": list(TASK_TYPES)},
        keeps=("data",),
        digest="ef35bea9156a6c9b",
        needs="ALFWORLD_DATA",
    ),
    "alfworld-valid_unseen-134": Panel(
        environment="alfworld",
        split="valid_unseen",
        episodes=134,
        max_steps=50,
        seeds=(0, 1, 2),
        options={"task_types": list(TASK_TYPES)},
        keeps=("data",),
        needs="ALFWORLD_DATA",
    ),
    "webshop-test-500": Panel(
        environment="webshop",
        split="test",
        episodes=500,
        max_steps=15,
        options={
            "splits": "papers",
            "catalogue": "small",
            "goals": "synthetic",
            "num_products": 0,
            "seed": 0,
            "noun_model": "",
        },
        keeps=("data", "observation", "attributes_page"),
        digest="aef9c378910312da",
        needs="WEBSHOP_DATA",
    ),
    "search_qa-test": Panel(
        environment="search_qa",
        split="test",
        episodes=None,
        max_steps=4,
        keeps=("corpus", "questions"),
        needs="SEARCH_QA_DATA",
        options={"max_searches": 3, "num_passages": 3, "passage_words": 150},
    ),
    "frozen_lake-4x4-valid-256": Panel(
        environment="frozen_lake",
        split="valid",
        episodes=256,
        max_steps=12,
        digest="c922c65edc2781fe",
        needs="gymnasium",
        options={"size": 4, "frozen_frac": 0.7, "slippery": False, "num_valid": 256},
    ),
    "sokoban-6x6-valid-256": Panel(
        environment="sokoban",
        split="valid",
        episodes=256,
        max_steps=50,
        digest="ac716d7c9aa157e2",
        options={"size": 6, "num_boxes": 1, "num_walls": 2, "min_moves": 5, "num_valid": 256},
    ),
    "scienceworld-test-271": Panel(
        environment="scienceworld",
        split="test",
        episodes=271,
        max_steps=100,
        digest="9a7e656f57c649c4",
        needs="scienceworld",
        options={"tasks": [], "simplifications": [], "variations_per_task": 10},
        keeps=("admissible", "heap_mb"),
    ),
    "textworld-cooking-valid-100": Panel(
        environment="textworld",
        split="valid",
        episodes=100,
        max_steps=50,
        needs="textworld",
        keeps=("admissible",),
        options={"challenge": "cooking", "num_valid": 100, "settings": _FEAST},
    ),
}
"""All panels by name."""


def find_panel(name: str) -> Panel:
    """Look up a panel by name.

    Raises:
        ConfigError: There is no panel of this name.
    """
    if name not in PANELS:
        raise ConfigError(
            f"there is no panel {name!r}.{did_you_mean(name, PANELS)} `turnwise eval --panels` lists them"
        )
    return PANELS[name]


def on_panel(config: Config, name: str, overrides: Iterable[str] = ()) -> Config:
    """Return a run's configuration with the panel's environment.

    Raises:
        ConfigError: There is no such panel, or an override would change what it fixes.
    """
    panel, overrides = find_panel(name), list(overrides)
    for override in overrides:
        key = override.partition("=")[0].strip()
        whole = ("environment", "environment.options")
        fixed = key in ("environment.name", "environment.eval_split", "environment.max_steps", *whole)
        option = key.removeprefix("environment.options.")
        if fixed or (option != key and option not in panel.keeps):
            raise ConfigError(f"the panel {name!r} fixes {key}; remove the override, or evaluate without --panel")
    same = config.environment.name == panel.environment
    kept = {key: value for key, value in config.environment.options.items() if same and key in panel.keeps}
    fixes = {"name": panel.environment, "eval_split": panel.split, "max_steps": panel.max_steps}
    environment = config.environment.model_copy(update={**fixes, "options": {**kept, **panel.options}})
    return override_config(config.model_copy(update={"environment": environment}), overrides)


def task_digest(names: Iterable[str]) -> str:
    """Return a short hash of task names in their order."""
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]


def check_tasks(name: str, names: Sequence[str]) -> None:
    """Check that the tasks found are the panel's.

    Args:
        name: Name of the panel.
        names: Names of the tasks found.

    Raises:
        DataError: The tasks differ, because files are missing or of another version.
    """
    panel = find_panel(name)
    where = f"; check that {panel.needs} is complete and the official version" if panel.needs else ""
    if panel.episodes is not None and len(set(names)) != panel.episodes:
        raise DataError(f"the panel {name!r} has {panel.episodes} tasks, but {len(set(names))} were found{where}")
    if panel.digest and (found := task_digest(names)) != panel.digest:
        raise DataError(
            f"the tasks of the panel {name!r} have the digest {panel.digest}, but those found have {found}{where}"
        )
