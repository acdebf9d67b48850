"""Make a method from plain data: a name and options, as a recipe gives them.

{name = "gigpo", discount = 0.9}
{name = "empg", base = {name = "hgpo", depth = 4}}
{name = "mix", parts = ["grpo", {name = "gigpo"}], weights = [0.5, 0.5]}
{name = "my_module:my_method", discount = 0.9}          # your own: a function that returns a `Transform`, its keyword arguments the options
"""

import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Union, cast, get_args, get_origin

from turnwise.errors import ConfigError, did_you_mean
from turnwise.imports import import_named
from turnwise.methods import METHODS
from turnwise.transform import Transform, mix
from turnwise.transforms.grouping import choice


def split_name(name: str) -> tuple[str, bool]:
    """A name such as "gigpo+aem" as the method's name and whether AEM modulates it.

    Raises:
        ConfigError: Something else follows the plus sign.
    """
    base, _, modulation = name.partition("+")
    if modulation not in ("", "aem"):
        raise ConfigError(f"method {name!r}: expected a method's name, or NAME+aem")
    return base, bool(modulation)


def build_method(name: str, options: Mapping[str, Any], *, with_aem: bool) -> Transform:
    """Build `METHODS[name]`, or call what `module:function` names, inside `aem` if asked. Each option goes to whichever of the two has it.

    Raises:
        ConfigError: The name or an option is unknown, missing, of the wrong type, or of both.
    """
    if name == "mix":
        method = _mixed(options)
        return METHODS["aem"](method) if with_aem else method
    own, modulation = _parameters(name), _parameters("aem")
    if not with_aem or name == "aem":
        for option in options:
            if option not in own:
                off = "; it belongs to aem, which is off" if option in modulation else ""
                raise ConfigError(f"method {name!r} has no option {option!r}{off}.{did_you_mean(option, own)}")
        return _construct(name, options)
    modulation.pop("base")
    for option in options:
        if option in own and option in modulation:
            raise ConfigError(f"{name!r} and 'aem' both have an option {option!r}; say whose: "
                              f'method = {{name = "aem", base = {{name = "{name}", {option} = ...}}}}')  # fmt: skip
        if option not in own and option not in modulation:
            hint = did_you_mean(option, {**own, **modulation})
            raise ConfigError(f"method {name!r} has no option {option!r}.{hint}")
    method = _construct(name, {k: v for k, v in options.items() if k in own})
    return _construct("aem", {"base": method, **{k: v for k, v in options.items() if k in modulation}})


def _plain(data: object) -> Transform:
    """A method given as a name, or as a table with a name and options."""
    if isinstance(data, Transform):
        return data
    if isinstance(data, str):
        return build_method(data, {}, with_aem=False)
    if isinstance(data, Mapping) and isinstance(data.get("name"), str):
        return build_method(data["name"], {k: v for k, v in data.items() if k != "name"}, with_aem=False)
    raise ConfigError(f"expected a method, as a name or a table with a name, got {data!r}")


def _mixed(options: Mapping[str, Any]) -> Transform:
    unknown = set(options) - {"parts", "weights"}
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
                f"method {name!r} is no function; write one that returns a Transform, such as chain(...) makes"
            )
        return cast(Callable[..., Transform], made)
    if name not in METHODS:
        hint = did_you_mean(name, [*METHODS, "mix"])
        raise ConfigError(f"unknown method {name!r}.{hint} See `turnwise methods`; your own is 'module:function'")
    return METHODS[name]


def _construct(name: str, options: Mapping[str, Any]) -> Transform:
    """Call the constructor with options that it has, checking their types, which a recipe may get wrong."""
    parameters = _parameters(name)
    missing = [k for k, p in parameters.items() if p.default is p.empty and k not in options]
    if missing:
        raise ConfigError(f"method {name!r} needs the option {missing[0]!r}: no value of it is published, choose one")
    checked: dict[str, Any] = {}
    for option, value in options.items():
        if option == "base":
            checked[option] = _plain(value)
        elif get_origin(parameters[option].annotation) is Literal:
            choice(f"method option {name}.{option}", value, parameters[option].annotation)
            checked[option] = value
        elif parameters[option].annotation is inspect.Parameter.empty or _fits(value, parameters[option].annotation):
            checked[option] = float(value) if parameters[option].annotation is float else value
        else:
            expected = parameters[option].annotation
            expected = getattr(expected, "__name__", None) or str(expected).replace("typing.", "")
            raise ConfigError(f"method option {name}.{option}={value!r}: expected {expected}")
    made = _constructor(name)(**checked)
    if not isinstance(made, Transform):
        raise ConfigError(
            f"method {name!r} returned {type(made).__name__}, expected a Transform, such as chain(...) makes"
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
