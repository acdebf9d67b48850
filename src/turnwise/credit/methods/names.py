"""Read the names of methods, such as "gigpo", "gae(decay=0.7)", "gigpo+empg" or "module:function".

What follows a `+` modifies the advantage of what precedes it: "gigpo+empg" is `empg(gigpo())`. A method modifies
another one's advantage if it has the argument `base`; your own function may have it too.
"""

import functools
import inspect
import tomllib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from turnwise.base.errors import ConfigError, did_you_mean
from turnwise.base.imports import import_named
from turnwise.credit.methods import METHODS
from turnwise.credit.transform import Transform

MIX_OPTIONS = ("parts", "weights")
"""Options of "mix", which is not a method but a sum of some."""


def modifiers() -> list[str]:
    """List the methods that modify the advantage of another one, and may follow a `+`."""
    return [name for name in METHODS if is_modifier(name)]


def is_modifier(name: str) -> bool:
    """Return whether a method modifies the advantage of another one.

    Raises:
        ConfigError: There is no such method.
    """
    return "base" in parameters(name)


def parameters(name: str) -> dict[str, inspect.Parameter | None]:
    """Return the options of a method by name."""
    if name == "mix":
        return dict.fromkeys(MIX_OPTIONS)
    return dict(_parameters_of(constructor(name)))


@functools.cache
def _parameters_of(make: Callable[..., Transform]) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(make, eval_str=True).parameters


def constructor(name: str) -> Callable[..., Transform]:
    """Find the function that builds a method.

    Raises:
        ConfigError: There is none.
    """
    if ":" in name:
        made = import_named(name)
        if isinstance(made, Transform) or not callable(made):
            raise ConfigError(
                f"method {name!r} is not a function; write one that returns a Transform, for example chain(...)"
            )
        return cast(Callable[..., Transform], made)
    if name not in METHODS:
        hint = did_you_mean(name, [*METHODS, "mix"])
        raise ConfigError(f"unknown method {name!r}.{hint} See `turnwise methods`; name your own as 'module:function'")
    return METHODS[name]


def split_at_plus(name: str) -> list[str]:
    """Split "gigpo(discount=0.9)+empg" at each `+` outside of brackets."""
    parts: list[str] = []
    for text in name.split("+"):
        if parts and parts[-1].count("(") > parts[-1].count(")"):
            parts[-1] += f"+{text}"  # the sign of a number, such as 1e+3
        else:
            parts.append(text)
    return [part.strip() for part in parts]


def as_table(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the table of a method whose name may hold options and modifiers, each modifier around its base.

    >>> as_table("gigpo(discount=0.9)+empg", {"temperature": 2.0})
    {'name': 'empg', 'base': {'name': 'gigpo', 'discount': 0.9}, 'temperature': 2.0}

    Args:
        name: Name of the method.
        options: Further options; each goes to the part that has it.

    Raises:
        ConfigError: A part is unknown, does not modify what precedes it, or several or none have an option.
    """
    parts = split_at_plus(name)
    named = [_split_options(part) for part in parts]
    if "base" in options:
        options = {**options, "base": _base_table(options["base"])}
    if parts == [named[0][0]]:  # errors in a plain name and its options are reported by its builder
        return {"name": parts[0], **options}
    known = [set(parameters(named[0][0])), *(_options_of_modifier(part, name) for part, _ in named[1:])]
    given: list[dict[str, Any]] = [dict(own) for _, own in named]
    for option, value in options.items():
        places = [place for place, own in enumerate(known) if option in own]
        if len(places) > 1:
            a, b = (named[place][0] for place in places[:2])
            raise ConfigError(
                f"{a!r} and {b!r} both have an option {option!r}; say whose, as in "
                f'method = "{"+".join(f"{part}({option}=...)" if part == b else part for part, _ in named)}"'
            )
        if not places:
            raise ConfigError(f"method {name!r} has no option {option!r}.{did_you_mean(option, set().union(*known))}")
        given[places[0]][option] = value
    table: dict[str, Any] = {"name": named[0][0], **given[0]}
    for (part, _), own in zip(named[1:], given[1:], strict=True):
        table = {"name": part, "base": table, **own}
    return table


def as_written(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a method's table in its shortest form, such as `{"name": "gigpo+empg", "temperature": 2.0}`.

    It is the inverse of `as_table`. If two parts have an option that only one of them is given, the table stays nested.
    """
    table = {name: value for name, value in table.items() if name != "base" or value is not None}
    if "base" not in table:
        return dict(table)
    base = table["base"]
    inner = as_written({"name": base} if isinstance(base, str) else base)
    own = {name: value for name, value in table.items() if name not in ("name", "base")}
    flat = {**inner, "name": f"{inner['name']}+{table['name']}", **own}
    try:
        same = as_table(flat["name"], {name: value for name, value in flat.items() if name != "name"})
    except ConfigError:
        same = None
    return flat if same == {**table, "base": _base_table(base)} else dict(table)


def names_code(table: Any) -> bool:
    """Return whether the table of a method, or of one within it, names a function of somebody's own."""
    if isinstance(table, str):
        return ":" in table
    if isinstance(table, Mapping):
        return any(names_code(table[key]) for key in ("name", "base", "parts") if key in table)
    return isinstance(table, Sequence) and any(map(names_code, table))


def label_of(table: Mapping[str, Any]) -> str:
    """Return how tables and figures name a method, such as "gigpo + empg"."""
    base = table.get("base")
    if not base:
        return str(table["name"])
    return f"{label_of({'name': base} if isinstance(base, str) else base)} + {table['name']}"


def _base_table(base: Any) -> Any:
    """Return a base as a table; anything else is left to its builder."""
    if isinstance(base, str):
        return as_table(base, {})
    if isinstance(base, Mapping) and isinstance(base.get("name"), str):
        return as_table(base["name"], {name: value for name, value in base.items() if name != "name"})
    return base


def _options_of_modifier(part: str, name: str) -> set[str]:
    """Return the options of what follows a `+`, without its base."""
    known = modifiers()
    if ":" not in part and part not in METHODS:
        raise ConfigError(f"method {name!r}: nothing named {part!r} may follow a +.{did_you_mean(part, known)}")
    if not is_modifier(part):
        raise ConfigError(
            f"method {name!r}: {part!r} does not modify another method's advantage, so it cannot follow a +; these "
            f"can: {', '.join(known)}, and your own function with an argument `base`"
        )
    return set(parameters(part)) - {"base"}


def _split_options(name: str) -> tuple[str, dict[str, Any]]:
    """Split "gae(decay=0.7)" into the name and its options."""
    base, bracket, inside = name.partition("(")
    try:
        given = inside.removesuffix(")") if inside.endswith(")") else inside + "("
        return base, tomllib.loads(f"options = {{{given}}}")["options"] if bracket else {}
    except (tomllib.TOMLDecodeError, RecursionError):
        raise ConfigError(f"method {name!r}: expected options as in {base}(option=1.0, other='word')") from None
