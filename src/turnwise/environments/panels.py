"""Define an evaluation panel: fixed tasks, limits and sampling seeds, to compare runs on the same tasks."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any


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
