"""Name the settings in which two sides of a comparison differ, and separate methods from budgets."""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from turnwise.base.imports import as_data
from turnwise.base.section import flattened
from turnwise.config import Config

OF_THE_METHOD = ("method", "update.", "rollout.filter")
"""Settings that define a method: credit, loss, optimiser, and the groups that it learns from."""
IRRELEVANT = (
    *("run.name", "run.folder", "run.threads", "run.device", "run.seed"),
    *("log.", "checkpoint.", "evaluate.", "engine."),
)
"""Settings that no trained weight depends on, and the seed, which pairs runs."""
NOT_OF_THE_METHOD = ("update.max_tokens",)


@dataclasses.dataclass(frozen=True)
class Difference:
    """A setting in which two sides differ."""

    setting: str  # dotted name, such as `warmstart.steps`
    a: str  # values of A, as text
    b: str  # values of B, as text

    @property
    def is_of_the_method(self) -> bool:
        """Whether the setting belongs to the method; any other is a budget, a warm start, a model or an environment."""
        return self.setting.startswith(OF_THE_METHOD) and self.setting not in NOT_OF_THE_METHOD

    @property
    def is_of_the_credit(self) -> bool:
        """Whether a run's label includes the setting."""
        return self.setting.split(".")[0] == "method"

    def __str__(self) -> str:
        return f"{self.setting} ({self.a} against {self.b})"


def settings_of(config: Config, *, irrelevant: tuple[str, ...] = IRRELEVANT) -> dict[str, Any]:
    """Settings by their dotted names; the default leaves out those that no trained weight depends on."""
    with as_data():
        plain = flattened(config.model_dump(mode="json") | {"method": config.method.written})
    return {name: value for name, value in plain.items() if not name.startswith(irrelevant)}


def differences(a: Sequence[Config], b: Sequence[Config], *, paired: bool = False) -> list[Difference]:
    """Settings in which runs of A differ from runs of B, in the order of a recipe.

    A setting that varies equally within both sides, such as the environment of a comparison over several, is left out;
    of paired runs, in the order of the pairs, one that is equal within each pair.
    """
    sides = [[settings_of(config) for config in side] for side in (a, b)]
    names = dict.fromkeys(name for side in sides for settings in side for name in settings)
    found = []
    for name in names:
        given = [[json.dumps(settings.get(name)) for settings in side] for side in sides]
        values = [sorted(set(side)) for side in given]
        if paired and given[0] != given[1]:
            unlike = [pair for pair in zip(*given, strict=True) if pair[0] != pair[1]]
            values = [[*dict.fromkeys(side)] for side in zip(*unlike, strict=True)]
        if values[0] != values[1] or (paired and given[0] != given[1]):
            found.append(Difference(name, *(" / ".join(map(_shown, side)) for side in values)))
    return found


def _shown(value: str) -> str:
    return "-" if value == "null" else value.strip('"')
