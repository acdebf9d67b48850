"""Define the base classes of recipe sections. They do not import torch, so that recipes are checked fast."""

from collections.abc import Iterator, Mapping
from typing import Any, get_args

import pydantic

from turnwise.base.facets import Part


class Section(pydantic.BaseModel):
    """Base of the sections of a recipe."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    @pydantic.model_validator(mode="before")
    @classmethod
    def _false_leaves_out(cls, data: Any) -> Any:
        """Leave out what is `false` and may be absent, such as the critic of the recipe that this one extends."""
        if not isinstance(data, Mapping):
            return data
        return {name: value for name, value in data.items() if value is not False or name not in optional(cls)}

    def parts(self) -> Iterator[Part]:
        """Return the parts that this section adds to a recipe; by default those of the sections within it."""
        for name in type(self).model_fields:
            if isinstance(inner := getattr(self, name), Section):
                yield from inner.parts()


class Named(pydantic.BaseModel):
    """A name and its options, given as a table or, without options, as the bare name."""

    model_config = pydantic.ConfigDict(frozen=True, extra="allow")

    name: str

    @pydantic.model_validator(mode="before")
    @classmethod
    def _bare_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value


def optional(section: type[pydantic.BaseModel] | None) -> set[str]:
    """Return the settings that a section may lack, so that `false` leaves one out; not those that may be false."""
    fields = section.model_fields.items() if section else ()
    return {name for name, field in fields if field.default is None and bool not in get_args(field.annotation)}


def flattened(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested tables to values by dotted names, such as "update.learning_rate". Empty tables are left out."""
    result: dict[str, Any] = {}
    for name, value in settings.items():
        result |= flattened(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return result
