"""Define the `[demonstrations]` section of a recipe."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pydantic

from turnwise.base.facets import Facet, Part, for_all
from turnwise.base.section import Kinds


class DemonstrationsConfig(Kinds):
    """Configure which tasks are taught by demonstrations during training."""

    name: str
    """"hpt": a group with too few successes is taught by the demonstration of its task. "adhint": each task is played
    again after the first turns of its demonstration. "pivot_rl": groups are single responses in states of
    demonstrations, rewarded for doing what the expert does."""
    file: Path | None = None
    """JSON Lines of your own trajectories (docs/how-to/demonstrations.md). Default: the environment's expert."""

    def parts(self) -> Iterator[Part]:
        """Return what the demonstrations break and need; see `turnwise.base.facets`."""
        needs = for_all("has demonstrations of whole tasks", Facet.SINGLE, Facet.WHOLE)
        yield Part(f"demonstrations.name={self.name!r}", {}, needs)


class TaughtConfig(DemonstrationsConfig, kind="hpt"):
    """Settings of "hpt"."""

    gate: int = pydantic.Field(default=0, ge=0)
    """Maximum number of successes of a group that its demonstration teaches."""
    weight: float = pydantic.Field(default=1.0, gt=0)
    """Coefficient of the loss on demonstrations."""
    beside: bool = False
    """Also learn from a taught group's own trajectories. HPT learns from the demonstration alone."""

    def parts(self) -> Iterator[Part]:
        """Return what the demonstrations break and need; see `turnwise.base.facets`."""
        for part in super().parts():
            yield Part(part.setting, part.breaks, {**part.needs, Facet.ALIKE: "teaches one model"})

    def check_recipe(self, recipe: Any) -> None:
        """Raise a ValueError if groups are too small for the gate."""
        if self.gate > recipe.rollout.group_size:
            raise ValueError(
                f"demonstrations.gate={self.gate} is above rollout.group_size={recipe.rollout.group_size}; lower it"
            )


class HintsConfig(DemonstrationsConfig, kind="adhint"):
    """Settings of "adhint"."""

    hinted: int = pydantic.Field(ge=2)
    """Trajectories of a group with a hint."""
    w_min: float = pydantic.Field(ge=0, le=1)
    """Share of the demonstration given as a hint if the group always solves the task."""
    w_max: float = pydantic.Field(ge=0, le=1)
    """Share of the demonstration given as a hint if the group never solves the task."""
    noise: float = pydantic.Field(ge=0)
    """Standard deviation of the normal noise on this share; 0: none. The paper's is not known."""

    @pydantic.model_validator(mode="after")
    def _harder_tasks_get_longer_hints(self) -> "HintsConfig":
        if self.w_min > self.w_max:
            raise ValueError(
                f"demonstrations.w_min={self.w_min:g} is above demonstrations.w_max={self.w_max:g}, and harder tasks "
                "get longer hints; exchange them"
            )
        return self


class PivotsConfig(DemonstrationsConfig, kind="pivot_rl"):
    """Settings of "pivot_rl"."""

    tasks: int = pydantic.Field(ge=1)
    """Tasks whose demonstrations a profile covers."""
    profile: int = pydantic.Field(default=8, ge=2)
    """Responses per state of a profile."""
    lambda_diff: float = pydantic.Field(default=1.0, gt=0, le=1)
    """Share of right responses at which a state becomes too easy. The paper's value is not known; 1 excludes none."""
    equal: str | None = None
    """Function of the policy's action and the expert's that returns whether they do the same, `module:function`.
    Default: the same text except for white space, or the same JSON."""
    reprofile: float | None = pydantic.Field(default=None, gt=0, le=1)
    """Mean reward of a step at which the next one makes a new profile. Default: never."""

    def parts(self) -> Iterator[Part]:
        """Return what the demonstrations break and need; see `turnwise.base.facets`."""
        single = "plays single turns of demonstrations without an environment"
        breaks = for_all(single, Facet.REPLAY, Facet.ANSWERS, Facet.COLLECTED)
        for part in super().parts():
            yield Part(part.setting, breaks, {**part.needs, **for_all(single, Facet.OUTCOMES, Facet.TURNS)})
