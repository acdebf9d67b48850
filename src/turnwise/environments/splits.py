"""Which tasks a split has: of worlds that a number makes, and of tasks with names."""

import hashlib
from collections.abc import Callable

from turnwise.errors import ConfigError, did_you_mean

FIRST_SEED = {"train": 0, "valid": 1_000_000, "test": 2_000_000}
"""Where the seeds of a split begin."""
TENTHS = {"train": range(8), "valid": range(8, 9), "test": range(9, 10), "all": range(10)}
"""The tenths of named tasks that a split has."""


def split_seeds(split: str, count: int = 100_000, *, of: str) -> range:
    """The first seeds of a split.

    Args:
        split: A key of `FIRST_SEED`.
        count: How many.
        of: Whose split, for the message.

    Raises:
        ConfigError: There is no such split.
    """
    if split not in FIRST_SEED:
        raise ConfigError(f"{of} has no split {split!r}.{did_you_mean(split, FIRST_SEED)}")
    return range(FIRST_SEED[split], FIRST_SEED[split] + count)


def named_split(split: str, *, of: str) -> Callable[[str], bool]:
    """Says whether a task of this name belongs to a split: by a hash of the name alone, so that other tasks change nothing.

    Args:
        split: A key of `TENTHS`.
        of: Whose split, for the message.

    Raises:
        ConfigError: There is no such split.
    """
    if split not in TENTHS:
        raise ConfigError(f"{of} has no split {split!r}.{did_you_mean(split, TENTHS)}")
    return lambda name: int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) % 10 in TENTHS[split]
