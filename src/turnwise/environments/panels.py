"""Define an evaluation panel: fixed tasks, limits and sampling seeds, to compare runs on the same tasks."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """Define which tasks are played, and how long."""

    environment: str  # name of the suite
    split: str  # split of the tasks
    episodes: int | None  # number of tasks, evenly spaced over the split; None: all, which depends on the user's files
    max_steps: int  # turns after which an episode is truncated
    # Environment options that determine the tasks. All others have their defaults.
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    keeps: Sequence[str] = ()  # options that keep the run's values, such as paths and observation formats
    seeds: Sequence[int] = (0,)  # sampling seeds; the panel is played once per seed
    digest: str | None = None  # `task_digest` of the tasks, if known
    needs: str = ""  # required package, or variable with the path of the data
