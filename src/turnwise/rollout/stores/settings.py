"""Define the `[store]` section of a recipe."""

from pathlib import Path
from typing import Literal

import pydantic

from turnwise.section import Section


class StoreConfig(Section):
    """Configure a store of the run's own trajectories, which is part of its checkpoints."""

    name: Literal["rlep", "prefix_sampling"]
    """"rlep": a group learns from earlier successes of its task too. "prefix_sampling": groups start at a turn of a
    stored trajectory, so that tasks become neither too hard nor too easy."""
    capacity: int = pydantic.Field(ge=1)
    """Most trajectories in the store; the oldest leave first."""
    replays: int | None = pydantic.Field(default=None, ge=1)
    """Only for "rlep", which needs it: most stored trajectories that a group gets."""
    remaining: float | None = pydantic.Field(default=None, gt=0, lt=1)
    """Only for "prefix_sampling", which needs it, as are the fields up to `adaptive`: share of a success that is left
    to the policy. Published: 0.25, 0.45 and 0.75."""
    handicap: float | None = pydantic.Field(default=None, gt=0, lt=1)
    """Share of a failure that is replayed; needed. Published: 0.25 and 0.55."""
    cap: int = pydantic.Field(default=30, ge=1)
    """Most turns that are left of a success, and most that are replayed of a failure."""
    adaptive: bool = True
    """Let both shares follow the success of the tasks that they make, towards 0.5."""
    per_task: int | None = pydantic.Field(default=None, ge=1)
    """Most trajectories of a task in the store, the latest ones. Default: no limit but the capacity."""
    max_age: int | None = pydantic.Field(default=None, ge=1)
    """Steps after which a trajectory leaves the store. Default: never."""
    start: Path | None = None
    """Store to begin with: `store.jsonl` in a checkpoint of an earlier run. Default: an empty one."""
    damaged: Literal["refuse", "empty"] = "refuse"
    """What to do if the store of a checkpoint cannot be read: refuse to resume, or continue with an empty store."""

    @pydantic.model_validator(mode="after")
    def _options_fit_the_name(self) -> "StoreConfig":
        of_name = {"rlep": ("replays",), "prefix_sampling": ("remaining", "handicap")}
        for name, options in of_name.items():
            for option in options:
                given = getattr(self, option)
                if (given is None) == (self.name == name):
                    what = "needs a value" if given is None else f"is an option of store.name={name!r} only"
                    raise ValueError(f"store.{option} {what}, got {given} with store.name={self.name!r}")
        return self
