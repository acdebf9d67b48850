"""Define the `[store]` section of a recipe."""

from pathlib import Path
from typing import Literal

import pydantic

from turnwise.section import Section


class StoreConfig(Section):
    """Configure a store of the run's own trajectories, which is part of its checkpoints."""

    name: Literal["rlep"]
    """"rlep": a group learns from earlier successes of its task too."""
    capacity: int = pydantic.Field(ge=1)
    """Most trajectories in the store; the oldest leave first."""
    replays: int = pydantic.Field(ge=1)
    """Most stored trajectories that a group gets."""
    per_task: int | None = pydantic.Field(default=None, ge=1)
    """Most trajectories of a task in the store, the latest ones. Default: no limit but the capacity."""
    max_age: int | None = pydantic.Field(default=None, ge=1)
    """Steps after which a trajectory leaves the store. Default: never."""
    start: Path | None = None
    """Store to begin with: `store.jsonl` in a checkpoint of an earlier run. Default: an empty one."""
    damaged: Literal["refuse", "empty"] = "refuse"
    """What to do if the store of a checkpoint cannot be read: refuse to resume, or go on with an empty store."""
