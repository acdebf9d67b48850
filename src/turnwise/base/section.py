"""Define the base classes of recipe sections. They do not import torch, so that recipes are checked fast."""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, ClassVar, Self, TypeVar, get_args

import pydantic
from pydantic_core import PydanticCustomError, PydanticKnownError, PydanticUndefined, core_schema

from turnwise.base.errors import did_you_mean
from turnwise.base.facets import Part
from turnwise.base.register import EXTENSIONS, find

S = TypeVar("S", bound="Section")


class Section(pydantic.BaseModel):
    """Base of the sections of a recipe."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)
    works_with: ClassVar[Mapping[str, tuple[str, Collection[Any]]]] = {}
    """For settings that depend on another one: its name, and the values with which they have an effect."""

    @pydantic.model_validator(mode="before")
    @classmethod
    def _false_leaves_out(cls, data: Any) -> Any:
        """Leave out what is `false` and optional, such as the critic of the extended recipe."""
        if not isinstance(data, Mapping):
            return data
        return {name: value for name, value in data.items() if value is not False or name not in optional(cls)}

    @classmethod
    def of_earlier(cls, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a section as in an earlier version, without what is now refused and had no effect."""
        return data

    def section(self, kind: type[S]) -> S | None:
        """Return the section of a kind that this one has; None if it has none."""
        return next((found for name in type(self).model_fields if isinstance(found := getattr(self, name), kind)), None)

    def check_recipe(self, recipe: Any) -> None:
        """Raise a ValueError if the section does not fit the numbers of the whole recipe."""

    def idle(self, prefix: str = "") -> Iterator[str]:
        """Return the settings that were given and have no effect, with the reason; names begin with a prefix."""
        fields = type(self).model_fields
        for name, (other, values) in self.works_with.items():
            given, found = getattr(self, name), getattr(self, other)
            if given != fields[name].default and found not in values:
                yield f"{prefix}{name}={given} with {prefix}{other}={found}"
        for name in fields:
            if isinstance(inner := getattr(self, name), Section):
                yield from inner.idle(f"{prefix}{name}.")

    def parts(self) -> Iterator[Part]:
        """Return the parts that this section adds to a recipe; by default those of the sections within it."""
        for name in type(self).model_fields:
            if isinstance(inner := getattr(self, name), Section):
                yield from inner.parts()


class Kinds(Section):
    """Base of a section of several kinds: `class Rlep(StoreConfig, kind="rlep")` has the fields of one of them.

    The base has the fields of all kinds. It is the annotation of the section, and validates it as the kind that the
    recipe names. Options of other kinds are refused unless they have their defaults, as those of recorded runs do, or
    the section is `lenient`.
    """

    named_by: ClassVar[str] = "name"
    """Field that names the kind."""
    named: ClassVar[str] = ""
    """Name of the kind; ":" is the user's own, `module:attribute`."""
    lenient: ClassVar[bool] = False
    """Whether options of other kinds are left out, so that one override changes the kind."""

    def __init_subclass__(cls, kind: str = "", **more: Any):
        super().__init_subclass__(**more)
        cls.named = kind

    def __new__(cls, **data: Any) -> Self:
        """Make a section of the kind that the data names."""
        return super().__new__(cls._kind_of(data))

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        if cls.named:
            return handler(source)
        return core_schema.no_info_before_validator_function(cls._of_its_kind, core_schema.any_schema())

    @classmethod
    def kinds(cls) -> dict[str, type[Self]]:
        """Return the kinds by name."""
        below = [cls, *cls.__subclasses__()]
        below += [each for kind in below[1:] for each in kind.kinds().values()]
        return {kind.named: kind for kind in below if kind.named}

    @classmethod
    def _kind_of(cls, data: Mapping[str, Any]) -> type[Self]:
        if cls.named:
            return cls
        kinds, name = cls.kinds(), data.get(cls.named_by, cls.model_fields[cls.named_by].default)
        kind = ":" if isinstance(name, str) and ":" in name else name
        if isinstance(kind, str) and kind in kinds:
            return kinds[kind]
        meant = did_you_mean(str(name), [each for each in kinds if each != ":"])
        what = "SECTION.{} needs a value" if name is PydanticUndefined else "unknown SECTION.{} {!r}"
        own = " Your own is 'module:function'." * (":" in kinds)
        raise _of_section(what.format(cls.named_by, name) + f".{meant}{own}")

    @classmethod
    def _of_its_kind(cls, data: Any) -> Self:
        if isinstance(data, cls):
            return data
        if not isinstance(data, Mapping):
            raise PydanticKnownError("model_type", {"class_name": cls.__name__})
        return cls._kind_of(data).model_validate(data)

    @pydantic.model_validator(mode="before")
    @classmethod
    def _without_other_kinds(cls, data: Any) -> Any:
        """Leave out options of other kinds that have their defaults, and refuse others."""
        if not isinstance(data, Mapping):
            return data
        if cls.named not in ("", ":"):  # made by its class, a section has its name too
            data = {cls.named_by: cls.named, **data}
        idle: dict[str, dict[str, Any]] = {}
        for option, value in data.items():
            having = {name: field for name, field in cls._others(option) if not _is_default(value, field.default)}
            if having and not cls.lenient:
                owners = " or ".join(f"SECTION.{cls.named_by}={name!r}" for name in having)
                got = f"got {value!r} with SECTION.{cls.named_by}={data.get(cls.named_by, cls.named)!r}"
                raise _of_section(f"SECTION.{option} is an option of {owners} only, {got}; remove it")
            for name in having:
                idle.setdefault(name, {cls.named_by: name})[option] = value
        for name, options in idle.items():  # a mistake without effect is still a mistake
            cls._every_kind()[name].model_validate(options)
        return cls.of_earlier(data)

    @classmethod
    def of_earlier(cls, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the section without the options of other kinds."""
        own = cls._kind_of(data)
        return {option: value for option, value in data.items() if not [*own._others(option)]}

    @classmethod
    def _others(cls, option: str) -> Iterator[tuple[str, Any]]:
        """Return the fields of an option that only other kinds have, with the names of the kinds."""
        if option not in cls.model_fields:
            for name, kind in cls._every_kind().items():
                if option in kind.model_fields:
                    yield name, kind.model_fields[option]

    @classmethod
    def _every_kind(cls) -> dict[str, "type[Kinds]"]:
        return next(each for each in cls.__mro__ if Kinds in each.__bases__).kinds()


def _is_default(value: Any, default: Any) -> bool:
    return value == default or value is None or (value is False and default is None)


def _of_section(message: str) -> PydanticCustomError:
    """Make an error whose message has SECTION for the key of the section; see `turnwise.config.mistakes`."""
    return PydanticCustomError("of_section", "{message}", {"message": message})


def fields_of(section: Any) -> dict[str, Any]:
    """Return the fields of a section, with those of all its kinds; none if it is something else."""
    if not (isinstance(section, type) and issubclass(section, pydantic.BaseModel)):
        return {}
    kinds = section.kinds().values() if issubclass(section, Kinds) else ()
    return {name: field for each in (*kinds, section) for name, field in each.model_fields.items()}


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
    """Return the optional settings of a section, which `false` leaves out; not those that may be false."""
    fields = section.model_fields.items() if section else ()
    return {name for name, field in fields if field.default is None and bool not in get_args(field.annotation)}


def flattened(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested tables to values by dotted names, such as "update.learning_rate". Empty tables are left out."""
    result: dict[str, Any] = {}
    for name, value in settings.items():
        result |= flattened(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return result
