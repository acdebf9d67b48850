"""Check what blocks and methods are given, so that a mistake is one line."""

import inspect
import math
import sys
import types
from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from typing import Any, Literal, Union, get_args, get_origin

from turnwise.base.errors import BatchError, ConfigError, did_you_mean, guide
from turnwise.credit.batch import Batch
from turnwise.credit.columns import COLUMNS

SIMPLE = {
    float: (Real, "a number"),
    int: (Integral, "a whole number"),
    str: (str, "text"),
    bool: (bool, "True or False"),
}
"""Annotations whose values are checked: the accepted type, and its name in messages."""
FRACTIONS = ("discount", "decay", "turn_discount", "action_decay", "subgoal_decay", "omega", "mu", "smoothing")
"""Options that lie in [0, 1] wherever there is one: factors per turn or token, and shares of a mix."""

REMOVED = ("actfocus", "t2po")
"""Token rules and collectors of earlier versions."""


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """Report an unknown name, with the closest one, or that it was removed."""
    gone = f" It was removed after version 0.2; {guide('reference/methods.md')} says why" * (name in REMOVED)
    return f"unknown {what} {name!r}.{gone or did_you_mean(name, known)}"


def bind(name: str, signature: inspect.Signature, args: tuple, kwargs: Mapping[str, Any]) -> inspect.BoundArguments:
    """Bind the arguments of a constructor, with defaults, and check names and types.

    Args:
        name: Name of the constructor, for messages.
        signature: Its signature; annotations that are strings are not checked.
        args: Positional arguments.
        kwargs: Named arguments.

    Raises:
        ConfigError: An option is unknown, missing, of the wrong type, not finite or not among its choices, or a batch
            stands where options do.
    """
    parameters = signature.parameters
    if any(isinstance(value, Batch) for value in (*args, *kwargs.values())):
        raise ConfigError(f"{name}() takes options, not a batch; build it first, then call it: {name}()(batch)")
    if unknown := [option for option in kwargs if option not in parameters]:
        hint = did_you_mean(unknown[0], parameters) if parameters else " It has no options."
        raise ConfigError(f"{name}() has no option {unknown[0]!r}.{hint}")
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        missing = next((key for key, p in parameters.items() if p.default is p.empty and key not in kwargs), None)
        if missing and not args:
            raise ConfigError(f"{name}() needs the option {missing!r}: {name}({missing}=...)") from None
        named = ", ".join(f"{option}=..." for option in parameters)
        raise ConfigError(f"{name}(): {error}; give options by name: {name}({named})") from None
    bound.apply_defaults()
    for option, value in bound.arguments.items():
        if value is not parameters[option].default:
            annotation = parameters[option].annotation
            check_value(f"{name}({option}={_shown(value)})", value, annotation)
            if get_origin(annotation) is Literal:
                choice(f"{name}: {option}", value, annotation)
            if option in FRACTIONS and isinstance(value, int | float) and not 0.0 <= value <= 1.0:
                raise ConfigError(f"{name}: {option}={value} must lie in [0, 1]")
    return bound


def described(name: str, bound: inspect.BoundArguments) -> str:
    """Format the constructor call: `name(base, option=value)`."""
    given = {option: value for option, value in bound.arguments.items() if option != "base" or value is not None}
    parts = (repr(value) if option == "base" else f"{option}={value!r}" for option, value in given.items())
    return f"{name}({', '.join(parts)})"


def check_names(owner: str, options: Iterable[str], known: Iterable[str]) -> None:
    """Raise if an option is not among those that its owner has."""
    known = list(known)
    for option in options:
        if option not in known:
            hint = did_you_mean(option, known) if known else " It has no options."
            raise ConfigError(f"{owner} has no option {option!r}.{hint}")


def choice(name: str, value: object, options: object) -> None:
    """Raise if a value is not one of a `Literal`'s options, with a suggestion."""
    known = get_args(options)
    if value not in known:
        raise ConfigError(f"{name}={value!r} is not one of {known}.{did_you_mean(str(value), map(str, known))}")


def check_value(what: str, value: object, annotation: Any) -> None:
    """Raise unless a value fits an annotation of numbers and texts; other annotations are not checked."""
    kinds = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    expected = [SIMPLE.get(kind) for kind in kinds if kind is not types.NoneType]
    optional = value is None and types.NoneType in kinds
    if not optional and expected and all(expected):
        fits = any(_is(value, kind) for kind, _ in filter(None, expected))
        if not fits:
            raise ConfigError(f"{what}: expected {' or '.join(name for _, name in filter(None, expected))}")
    too_large = float in kinds and isinstance(value, int) and abs(value) > sys.float_info.max
    if too_large or (isinstance(value, float) and not math.isfinite(value)):
        raise ConfigError(f"{what}: expected a finite number")


def _is(value: object, kind: type) -> bool:
    """Return whether a value is of a kind; True and False are not numbers."""
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def check_batch(batch: object, needed_by: str, columns: Iterable[str] = ()) -> None:
    """Raise unless `batch` is a `Batch` with some columns, such as for the tuple that `Batch.from_arrays` returns."""
    if isinstance(batch, Batch):
        for name in columns:
            try:
                batch.column(name, needed_by=needed_by.partition("(")[0])
            except BatchError as error:
                meaning = f" ({COLUMNS[name].meaning})" if name in COLUMNS else ""
                raise BatchError(f"{error} Add columns={{{name!r}: ...}} to the batch{meaning}") from None
        return
    if isinstance(batch, tuple) and batch and isinstance(batch[0], Batch):
        cause = "got the tuple (batch, order) of Batch.from_arrays; write `batch, order = tw.Batch.from_arrays(...)`"
    else:
        cause = f"got {type(batch).__name__}; make one with `batch, order = tw.Batch.from_arrays(...)`"
    raise BatchError(f"{needed_by} needs a Batch, {cause}")


def check_transforms(name: str, parts: Mapping[str, object], transform: type) -> None:
    """Raise unless each part is a transform; `parts` maps how a message names a part to the part.

    Raises:
        ConfigError: A part is a constructor that was not called, the name of a method, or something else.
    """
    for what, part in parts.items():
        if isinstance(part, transform):
            continue
        if isinstance(part, str):
            cause = f"the text {part!r}; write tw.{part}()"
        elif callable(part):
            called = getattr(part, "__name__", "it")
            cause = f"the function {called}; call it: {called}()"
        else:
            cause = f"{_shown(part)}; write a method or a block, such as tw.grpo()"
        raise ConfigError(f"{name}(): {what} must be a transform, got {cause}")


def _shown(value: object) -> str:
    """Shorten a value for one line of a message."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."
