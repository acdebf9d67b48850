"""Build a method from a name and options, as a recipe gives them.

{name = "gigpo", discount = 0.9} {name = "empg", base = {name = "hgpo", depth = 4}} {name = "mix", parts = ["grpo",
{name = "gigpo"}], weights = [0.5, 0.5]} {name = "my_module:my_method", discount = 0.9}  # your own function that
returns a `Transform`; options are its arguments
"""

import inspect
import math
import tomllib
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Union, cast, get_args, get_origin

from turnwise.errors import ConfigError, did_you_mean
from turnwise.imports import import_named
from turnwise.methods import METHODS
from turnwise.options import choice
from turnwise.transform import Transform, mix

MIX_OPTIONS = ("parts", "weights")


def split_name(name: str) -> tuple[str, bool]:
    """Split a name such as "gigpo+aem" into the method's name and whether AEM modulates it.

    Raises:
        ConfigError: The suffix is not "+aem".
    """
    base, _, modulation = name.partition("+")
    if modulation not in ("", "aem"):
        raise ConfigError(f"method {name!r}: expected a method's name, or NAME+aem")
    return base, bool(modulation)


def named_method(name: str) -> Transform:
    """Build a method by a name such as "gigpo+aem" or "gae(decay=0.7)", with default options beside those named.

    Raises:
        ConfigError: There is no such method, it needs an option, or options are not as in TOML.
    """
    base, with_aem = split_name(name)
    base, options = _split_options(base)
    return build_method(base, options, with_aem=with_aem)


def _split_options(name: str) -> tuple[str, dict[str, Any]]:
    """Split "gae(decay=0.7)" into the name and its options."""
    base, bracket, inside = name.partition("(")
    try:
        given = inside.removesuffix(")") if inside.endswith(")") else inside + "("
        return base, tomllib.loads(f"options = {{{given}}}")["options"] if bracket else {}
    except tomllib.TOMLDecodeError:
        raise ConfigError(f"method {name!r}: expected options as in {base}(option=1.0, other='word')") from None


def build_method(name: str, options: Mapping[str, Any], *, with_aem: bool = False) -> Transform:
    """Build `METHODS[name]`, or call your own `module:function`.

    Args:
        name: Name of the method.
        options: Options of the method.
        with_aem: Whether AEM modulates the method, as with `aem = true` in a recipe; see `with_aem_around`.

    Raises:
        ConfigError: The name or an option is unknown, missing, or of the wrong type.
    """
    if with_aem and name != "aem":
        whole = with_aem_around(name, options)
        name, options = "aem", {option: value for option, value in whole.items() if option != "name"}
    if name == "mix":
        return _mixed(options)
    own = _parameters(name)
    for option in options:
        if option not in own:
            off = "; it belongs to aem, which is off" if option in _parameters("aem") else ""
            raise ConfigError(f"method {name!r} has no option {option!r}{off}.{did_you_mean(option, own)}")
    return _construct(name, options)


def with_aem_around(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of AEM around a method. Each option goes to the one of the two that has it.

    Raises:
        ConfigError: Neither or both have an option.
    """
    modulation = _parameters("aem")
    modulation.pop("base")
    own = dict.fromkeys(MIX_OPTIONS) if name == "mix" else _parameters(name)
    for option in options:
        if option in own and option in modulation:
            raise ConfigError(
                f"{name!r} and 'aem' both have an option {option!r}; say whose: "
                f'method = {{name = "aem", base = {{name = "{name}", {option} = ...}}}}'
            )
        if option not in own and option not in modulation:
            raise ConfigError(f"method {name!r} has no option {option!r}.{did_you_mean(option, [*own, *modulation])}")
    base = {"name": name, **{option: value for option, value in options.items() if option in own}}
    return {"name": "aem", "base": base, **{option: value for option, value in options.items() if option in modulation}}


def _plain(data: object) -> Transform:
    """Build a method from a name, or from a table with a name and options."""
    if isinstance(data, Transform):
        return data
    if isinstance(data, str):
        return build_method(data, {})
    if isinstance(data, Mapping) and isinstance(data.get("name"), str):
        return build_method(data["name"], {k: v for k, v in data.items() if k != "name"})
    raise ConfigError(f"expected a method, as a name or a table with a name, got {data!r}")


def _mixed(options: Mapping[str, Any]) -> Transform:
    unknown = set(options) - set(MIX_OPTIONS)
    if unknown or not isinstance(options.get("parts"), Sequence):
        raise ConfigError(f"method 'mix' takes parts = [methods] and weights = [numbers], got {dict(options)}")
    return mix(*map(_plain, options["parts"]), weights=options.get("weights"))


def _parameters(name: str) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(_constructor(name), eval_str=True).parameters)


def _constructor(name: str) -> Callable[..., Transform]:
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


def _construct(name: str, options: Mapping[str, Any]) -> Transform:
    """Call the constructor after checking names and types of the options."""
    parameters = _parameters(name)
    missing = [k for k, p in parameters.items() if p.default is p.empty and k not in options]
    if missing:
        raise ConfigError(f"method {name!r} needs the option {missing[0]!r}; no value is published, choose one")
    checked: dict[str, Any] = {}
    for option, value in options.items():
        if option == "base":
            checked[option] = _plain(value)
        elif get_origin(parameters[option].annotation) is Literal:
            choice(f"method option {name}.{option}", value, parameters[option].annotation)
            checked[option] = value
        elif parameters[option].annotation is inspect.Parameter.empty or _fits(value, parameters[option].annotation):
            if isinstance(value, float) and not math.isfinite(value):
                raise ConfigError(f"method option {name}.{option}={value!r}: expected a finite number")
            checked[option] = float(value) if parameters[option].annotation is float else value
        else:
            expected = parameters[option].annotation
            expected = getattr(expected, "__name__", None) or str(expected).replace("typing.", "")
            raise ConfigError(f"method option {name}.{option}={value!r}: expected {expected}")
    try:
        made = _constructor(name)(**checked)
    except ConfigError as error:  # of a part of the method, which may not name it
        raise error if name in str(error) else ConfigError(f"method {name!r}: {error}") from None
    if not isinstance(made, Transform):
        raise ConfigError(
            f"method {name!r} returned {type(made).__name__}, expected a Transform, for example chain(...)"
        )
    return made


def _fits(value: object, annotation: Any) -> bool:
    if get_origin(annotation) in (Union, types.UnionType):
        return any(_fits(value, part) for part in get_args(annotation))
    if get_origin(annotation) is Literal:
        return value in get_args(annotation)
    if get_origin(annotation) is not None:
        return isinstance(value, get_origin(annotation))
    if annotation is None:
        return value is None
    if annotation in (float, int):
        return isinstance(value, (int, float) if annotation is float else int) and not isinstance(value, bool)
    return isinstance(value, annotation)
