"""Import users' code by the name `module:attribute`."""

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from turnwise.base.errors import ConfigError, TurnwiseError, did_you_mean

_AS_DATA: ContextVar[bool] = ContextVar("as_data", default=False)


class NotLoaded(ConfigError):
    """A name of code is read as data."""


@contextmanager
def as_data() -> Iterator[None]:
    """Load no code that settings name: `import_named` raises. Whoever looks at a run of others does not run it."""
    token = _AS_DATA.set(True)
    try:
        yield
    finally:
        _AS_DATA.reset(token)


def import_named(name: str) -> Any:
    """Import `module:attribute`, also from the working directory.

    Raises:
        ConfigError: The module cannot be imported, or has no such attribute.
        NotLoaded: The settings are read as data.
    """
    if _AS_DATA.get():
        raise NotLoaded(f"{name!r} names code, which is not loaded to read a run")
    module_name, _, attribute = name.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        module = importlib.import_module(module_name)
    except TurnwiseError:
        raise
    except SystemExit as error:
        raise ConfigError(
            f"{module_name!r} ends the program when it is imported (sys.exit({error.code!r})); put what it runs as a "
            "script below `if __name__ == '__main__':`"
        ) from error
    except Exception as error:  # the user's module can raise anything
        raise ConfigError(
            f"cannot import {module_name!r}: {type(error).__name__}: {error}{_mend(module_name, error)}"
        ) from error
    if not hasattr(module, attribute):
        public = [known for known in vars(module) if not known.startswith("_")]
        raise ConfigError(f"{module_name!r} has no {attribute!r}.{did_you_mean(attribute, public)}")
    return getattr(module, attribute)


def import_callable(setting: str, name: str) -> Callable[..., Any]:
    """Import a class or a function that a setting names; see `import_named`."""
    found = import_named(name)
    if callable(found):
        return found
    raise ConfigError(f"{setting}={name!r} is a {type(found).__name__}, expected a class or a function")


def _mend(module: str, error: Exception) -> str:
    """Say how to fix a missing module: the user's, or one that it imports."""
    if not isinstance(error, ModuleNotFoundError):
        return ""
    if error.name and not f"{module}.".startswith(f"{error.name}."):
        return f"; install the package that has it, such as by `pip install {error.name.split('.')[0]}`"
    return "; it must be in the working directory or on PYTHONPATH"
