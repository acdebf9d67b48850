"""Packages of environments that not everybody needs, imported when they are used."""

import importlib
import os
import shutil
from pathlib import Path
from typing import Any

from turnwise.errors import ConfigError


def needed(module: str, package: str, *, by: str) -> Any:
    """Import a module.

    Args:
        module: What to import.
        package: What pip calls it.
        by: Who asks.

    Raises:
        ConfigError: It is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        raise ConfigError(f"{by} needs the module {module!r}; pip install '{package}'") from None


def needed_program(name: str, home: str, below: str, *, by: str, hint: str) -> str:
    """Find a program.

    Args:
        name: What the shell calls it.
        home: Environment variable that may name the folder where it is installed.
        below: The program in that folder.
        by: Who asks.
        hint: What to do where there is none.

    Raises:
        ConfigError: It is neither there nor on the PATH.
    """
    folder = os.environ.get(home)
    found = shutil.which(Path(folder, below)) if folder else shutil.which(name)
    if found is None:
        where = f"{home}={folder} has no {below}" if folder else f"it is not on the PATH, and {home} is not set"
        raise ConfigError(f"{by} needs the program {name!r}, but {where}; {hint}")
    return str(found)
