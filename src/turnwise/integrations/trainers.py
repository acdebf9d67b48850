"""Define which columns each trainer's batch has, and so which methods it can run. Needs no trainer.

The table in docs/reference/trainers.md and the errors of the adapters come from here.
"""

import dataclasses
import tomllib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from turnwise.base.errors import ConfigError, IntegrationError, guide
from turnwise.credit.options import check_transforms
from turnwise.credit.transform import Transform, trial

Range = tuple[tuple[int, int], tuple[int, int]]
"""First supported version, and first untested version."""


def check_version(name: str, installed: str, supported: Range) -> None:
    """Raise unless the installed version of a trainer is supported, since its private parts change without notice.

    Args:
        name: Name of the trainer; in lower case, it is its module here and its package.
        installed: Installed version.
        supported: Range of supported versions.

    Raises:
        IntegrationError: The version is not supported.
    """
    numbers = tuple(int(part) for part in installed.split(".")[:2] if part.isdigit())
    if not supported[0] <= numbers < supported[1]:
        first, beyond = (".".join(map(str, version)) for version in supported)
        package = name.lower()
        raise IntegrationError(
            f"turnwise.integrations.{package}: {name} {installed} is installed, expected >={first},<{beyond}; "
            f"pip install '{package}>={first},<{beyond}'"
        )


FREE = ("turn", "length")
"""Columns that follow from rewards, masks and groups."""


@dataclasses.dataclass(frozen=True, slots=True)
class Trainer:
    """Describe what a trainer's batch has."""

    name: str  # name of the trainer
    read: str  # version or commit that was read or run
    how: Mapping[str, str]  # column to what it takes to have it; an empty text if every batch has it

    def runs(self, method: Transform) -> str:
        """Return what it takes to run a method: "yes", conditions, or "no" with the reason."""
        if method.init is not None:
            return "no: keeps state"
        known = {**dict.fromkeys(FREE, ""), **self.how}
        if missing := [name for name in method.needs if name not in known]:
            return "no: " + ", ".join(missing)
        return "; ".join(dict.fromkeys(known[name] for name in method.needs if known[name])) or "yes"

    def check(self, method: Transform, given: Collection[str] = ()) -> None:
        """Raise unless the trainer's batch can have the columns that a method needs.

        Args:
            method: The method.
            given: Additional columns that the caller has.

        Raises:
            ConfigError: It is not a method, or keeps state.
            IntegrationError: A column is missing.
        """
        check_transforms(self.name, {"method": method}, Transform)
        if method.init is not None:
            raise ConfigError(
                f"{method} keeps state, which {self.name}'s checkpoints would lose; choose a stateless method"
            )
        known = {*FREE, *self.how, *given}
        if missing := [name for name in method.needs if name not in known]:
            raise IntegrationError(
                f"{method} needs column {missing[0]!r}, which {self.name} does not have; it has "
                f"{', '.join(sorted(known))}; {guide('reference/trainers.md')} lists the methods"
            )


TRAINERS: Mapping[str, Trainer] = {
    name: Trainer(name, entry["read"], {column: how for how, columns in entry["how"].items() for column in columns})
    for name, entry in tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")).items()
}
"""Trainers by name; trainers.toml describes them."""


def methods_of(trainer: Trainer, methods: Mapping[str, Callable[..., Transform]]) -> dict[str, str]:
    """Return what it takes to run each method, by name."""
    return {name: trainer.runs(trial(make)) for name, make in methods.items()}
