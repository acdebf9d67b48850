"""Define the base classes of recipe sections. They do not import torch, so that recipes are checked fast."""

from collections.abc import Mapping
from typing import Any

import pydantic


class Section(pydantic.BaseModel):
    """Base of the sections of a recipe."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


class Named(pydantic.BaseModel):
    """A name and its options, given as a table or, without options, as the bare name."""

    model_config = pydantic.ConfigDict(frozen=True, extra="allow")

    name: str

    @pydantic.model_validator(mode="before")
    @classmethod
    def _bare_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value


def flattened(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested tables to values by dotted names, such as "update.learning_rate". Empty tables are left out."""
    result: dict[str, Any] = {}
    for name, value in settings.items():
        result |= flattened(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return result
