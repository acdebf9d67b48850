"""turnwise: credit assignment for multi-turn LLM agents.

    import turnwise as tw

    batch, order = tw.Batch.from_arrays(group=..., trajectory=..., reward=..., columns={"state_key": ...})
    advantage[order] = tw.gigpo()(batch)

To read the code, start with `segments`, `batch`, `transform`, `methods.grpo`, `train.loop`.

The public names are imported on first use, so that `import turnwise` is fast.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from turnwise.batch import Batch as Batch
    from turnwise.card import Card as Card
    from turnwise.card import Gradient as Gradient
    from turnwise.columns import COLUMNS as COLUMNS
    from turnwise.errors import BatchError as BatchError
    from turnwise.errors import ConfigError as ConfigError
    from turnwise.errors import DataError as DataError
    from turnwise.errors import TurnwiseError as TurnwiseError
    from turnwise.methods import *  # noqa: F403
    from turnwise.segments import Labels as Labels
    from turnwise.segments import Partition as Partition
    from turnwise.segments import Segments as Segments
    from turnwise.trace import Trace as Trace
    from turnwise.transform import Transform as Transform
    from turnwise.transform import block as block
    from turnwise.transform import card_of as card_of
    from turnwise.transform import chain as chain
    from turnwise.transform import method as method
    from turnwise.transform import mix as mix
    from turnwise.transform import trial as trial
    from turnwise.transforms import *  # noqa: F403

__version__ = "0.2.0"

_HOMES: dict[str, tuple[str, ...]] = {
    "errors": ("TurnwiseError", "ConfigError", "BatchError", "DataError"),
    "columns": ("COLUMNS",),
    "segments": ("Segments", "Labels", "Partition"),
    "batch": ("Batch",),
    "trace": ("Trace",),
    "card": ("Card", "Gradient"),
    "transform": ("Transform", "block", "card_of", "chain", "method", "mix", "trial"),
    "transforms": (),
    "methods": (),
}
"""Modules that define the public names, lower layers first, and those names; all of `__all__` where none is listed."""


def _names_of(home: str) -> tuple[str, ...]:
    """List the public names that a module defines; of methods and transforms they are written there alone."""
    return _HOMES[home] or tuple(import_module(f"{__name__}.{home}").__all__)


def _find(name: str) -> Any:
    """Import a public name, or a module that defines some, on first use (PEP 562)."""
    if name in _HOMES:
        return import_module(f"{__name__}.{name}")
    if name == "__all__":
        return sorted(name for home in _HOMES for name in _names_of(home))
    for home in _HOMES if not name.startswith("_") else ():
        if name in _names_of(home):
            globals()[name] = found = getattr(import_module(f"{__name__}.{home}"), name)  # skips this function later
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name, obj=sys.modules[__name__])


if not TYPE_CHECKING:  # else a type checker would accept every name
    __getattr__ = _find


def __dir__() -> list[str]:
    """List the public names for tab completion, imported or not."""
    return sorted({*_find("__all__"), *_HOMES, *globals()})
