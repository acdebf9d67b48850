"""Define the `[monitor]` section of a recipe."""

from collections.abc import Iterator

import pydantic

from turnwise.base.facets import Facet, Part
from turnwise.base.section import Section


class MonitorConfig(Section):
    """Configure the monitor of the mutual information between responses and their contexts, as in RAGEN-2."""

    every: int = pydantic.Field(default=5, ge=1)
    """Steps between two measurements."""
    samples: int = pydantic.Field(default=64, ge=2)
    """Responses to compare. Each is scored in all their contexts, which makes samples² scores."""

    def parts(self) -> Iterator[Part]:
        """Return what the monitor needs; see `turnwise.base.facets`."""
        yield Part("[monitor]", needs={Facet.ALIKE: "scores all responses with one model"})
