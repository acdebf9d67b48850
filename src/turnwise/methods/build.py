"""Make a method from plain data: a name and options, as a recipe gives them."""

import inspect
from collections.abc import Mapping
from typing import Any

from turnwise.errors import ConfigError, did_you_mean
from turnwise.methods import METHODS
from turnwise.transform import Transform


def build_method(name: str, options: Mapping[str, Any], *, with_aem: bool) -> Transform:
    """Build `METHODS[name]`, inside `aem` if asked. Each option goes to whichever of the two has it.

    Raises:
        ConfigError: The name or an option is unknown.
    """
    if name not in METHODS:
        raise ConfigError(f"unknown method {name!r}.{did_you_mean(name, METHODS)} See `turnwise methods`")
    if name == "aem":
        name, with_aem = "grpo", True
    own = _options("base", METHODS[name])
    modulation = _options("base", METHODS["aem"]) if with_aem else {}
    for option in options:
        if option not in own and option not in modulation:
            hint = did_you_mean(option, {**own, **modulation})
            off = "; it belongs to aem, which is off" if option in _options("base", METHODS["aem"]) else ""
            raise ConfigError(f"method {name!r} has no option {option!r}{off}.{hint}")
    method = _construct(name, METHODS[name], {k: v for k, v in options.items() if k in own})
    if not with_aem:
        return method
    return _construct("aem", METHODS["aem"], {"base": method, **{k: v for k, v in options.items() if k in modulation}})


def _options(without: str, constructor: Any) -> dict[str, inspect.Parameter]:
    return {k: p for k, p in inspect.signature(constructor).parameters.items() if k != without}


def _construct(name: str, constructor: Any, options: Mapping[str, Any]) -> Transform:
    """Call the constructor, checking that numbers are numbers, which a recipe may get wrong."""
    checked: dict[str, Any] = {}
    for option, value in options.items():
        default = inspect.signature(constructor).parameters[option].default
        if isinstance(default, float) and type(value) is int:
            value = float(value)
        if default is not None and type(value) is not type(default):
            raise ConfigError(f"method option {name}.{option}={value!r}: expected {type(default).__name__}")
        checked[option] = value
    return constructor(**checked)
