"""Refuse the import of adapters that were removed."""

from typing import NoReturn

from turnwise.base.errors import guide


def refuse(trainer: str) -> NoReturn:
    """Raise an `ImportError` that says what to write in place of an adapter, in one line.

    Adapters that cannot be run against their trainer are not kept: nobody would see that they no longer fit.
    """
    page = guide(f"how-to/other-trainers.md#{trainer.lower()}")
    raise ImportError(f"turnwise no longer has an adapter for {trainer}; write the lines of {page} instead")
