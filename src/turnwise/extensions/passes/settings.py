"""Define `update.passes` of a recipe."""

from collections.abc import Iterator
from typing import Literal

import pydantic

from turnwise.base.facets import Facet, Part, for_all
from turnwise.base.section import Section

PASS = "makes a pass with them for every turn"


class PassesConfig(Section):
    """Configure passes over a step, one per turn, the last turn first."""

    name: Literal["seeupo"]
    """SeeUPO's passes (arXiv 2602.06554): each recomputes the old log-probabilities, and corrects the advantages of
    earlier turns for the change of a later turn's probability by its update."""
    clip: float = pydantic.Field(default=0.2, gt=0, lt=1)
    """Largest distance of a trajectory's correction from 1."""
    max_advantage: float = pydantic.Field(default=3.0, gt=0)
    """Advantages, in standard deviations over the step's trajectories, are clipped to this size."""

    def parts(self) -> Iterator[Part]:
        """Return what the passes break and need; see `turnwise.base.facets`."""
        needs = for_all(PASS, Facet.HERE, Facet.ALIKE)
        yield Part(f"update.passes.name={self.name!r}", {Facet.UPDATE: "updates turn by turn"}, needs)
