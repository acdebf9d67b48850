"""Define the base classes of recipe sections. They do not import torch, so that recipes are checked fast."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar, get_args

import pydantic

from turnwise.base.facets import Part
from turnwise.base.register import EXTENSIONS, find

S = TypeVar("S", bound="Section")


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

    @classmethod
    def of_earlier(cls, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the section that a recipe of an earlier version had, without what is refused and had no effect."""
        return data

    def section(self, kind: type[S]) -> S | None:
        """Return the section of a kind that this one has; None if it has none."""
        return next((found for name in type(self).model_fields if isinstance(found := getattr(self, name), kind)), None)

    def check_recipe(self, recipe: Any) -> None:
        """Raise a ValueError if the section does not fit the numbers of the whole recipe."""

    def parts(self) -> Iterator[Part]:
        """Return the parts that this section adds to a recipe; by default those of the sections within it."""
        for name in type(self).model_fields:
            if isinstance(inner := getattr(self, name), Section):
                yield from inner.parts()


def extensible(prefix: str = "") -> Callable[[type[S]], type[S]]:
    """Return a decorator that gives a section the sections of extensions whose keys begin with a prefix."""

    def extend(section: type[S]) -> type[S]:
        added: dict[str, Any] = {}
        for key, entry in EXTENSIONS.items():
            within, _, name = key.rpartition(".")
            if within == prefix:
                added[name] = (find(entry.settings) | None, pydantic.Field(default=None, description=entry.about))
        return pydantic.create_model(section.__name__, __base__=section, __module__=section.__module__, **added)

    return extend


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
