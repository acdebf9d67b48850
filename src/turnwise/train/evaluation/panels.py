"""Define named evaluation panels with fixed tasks, limits and sampling seeds, to compare runs on the same tasks.

    turnwise eval runs/a --panel household-compact-valid-256

A panel never changes: other tasks get another name. `turnwise eval` without `--panel` uses none, and its records say
so.
"""

import hashlib
from collections.abc import Iterable, Sequence

from turnwise.base.errors import ConfigError, DataError, did_you_mean
from turnwise.base.register import PANELS as PLACE
from turnwise.base.register import find
from turnwise.config import Config, override_config
from turnwise.environments.panels import Panel

PANELS: dict[str, Panel] = find(PLACE)
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
