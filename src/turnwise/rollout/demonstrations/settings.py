"""Define the `[demonstrations]` section of a recipe."""

from pathlib import Path
from typing import Literal

import pydantic

from turnwise.section import Section


class DemonstrationsConfig(Section):
    """Configure which tasks are taught by a demonstration while the policy trains."""

    name: Literal["hpt"]
    """"hpt": a group with too few successes is taught by the demonstration of its task."""
    file: Path | None = None
    """JSON Lines of your own trajectories (docs/how-to/demonstrations.md). Default: the environment's expert."""
    gate: int = pydantic.Field(default=0, ge=0)
    """Most successes of a group that is taught by its demonstration."""
    weight: float = pydantic.Field(default=1.0, gt=0)
    """Coefficient of the loss on demonstrations."""
    beside: bool = False
    """Learn from the own trajectories of a taught group too. HPT learns from its demonstration alone."""
