"""Define the `[demonstrations]` section of a recipe."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pydantic

from turnwise.base.facets import Facet, Part, for_all
from turnwise.base.section import Section


class DemonstrationsConfig(Section):
    """Configure which tasks are taught by a demonstration while the policy trains."""

    name: Literal["hpt", "adhint", "pivot_rl"]
    """"hpt": a group with too few successes is taught by the demonstration of its task. "adhint": each task is played
    again from the first turns of its demonstration. "pivot_rl": groups are single responses at states of
    demonstrations, rewarded for doing what the expert does."""
    file: Path | None = None
    """JSON Lines of your own trajectories (docs/how-to/demonstrations.md). Default: the environment's expert."""
    hinted: int | None = pydantic.Field(default=None, ge=2)
    """Required by "adhint", and ignored by others, like all fields down to `noise`: trajectories of a group with a
    hint."""
    w_min: float | None = pydantic.Field(default=None, ge=0, le=1)
    """Share of the demonstration that is the hint of a task that the group always solves."""
    w_max: float | None = pydantic.Field(default=None, ge=0, le=1)
    """Share of the demonstration that is the hint of a task that the group never solves."""
    noise: float | None = pydantic.Field(default=None, ge=0)
    """Standard deviation of the normal noise of this share. That of the paper is not known; 0 is none."""
    tasks: int | None = pydantic.Field(default=None, ge=1)
    """Required by "pivot_rl", and ignored by others, like all fields down to `reprofile`: tasks whose demonstrations a
    profile looks at."""
    profile: int = pydantic.Field(default=8, ge=2)
    """Responses per state of a profile."""
    lambda_diff: float = pydantic.Field(default=1.0, gt=0, le=1)
    """Share of right responses from which on a state is too easy. The paper's value is not known; 1 excludes none."""
    equal: str | None = None
    """Function of the policy's action and the expert's that returns whether they do the same, `module:function`.
    Default: the same text except for white space, or the same JSON."""
    reprofile: float | None = pydantic.Field(default=None, gt=0, le=1)
    """Mean reward of a step from which on the next one makes a new profile. Default: never."""
    gate: int = pydantic.Field(default=0, ge=0)
    """Only for "hpt", like the fields below: most successes of a group that is taught by its demonstration."""
    weight: float = pydantic.Field(default=1.0, gt=0)
    """Coefficient of the loss on demonstrations."""
    beside: bool = False
    """Learn from the own trajectories of a taught group too. HPT learns from its demonstration alone."""

    @pydantic.model_validator(mode="after")
    def _options_fit_the_name(self) -> "DemonstrationsConfig":
        of_name = {
            "hpt": ("gate", "weight", "beside"),
            "adhint": ("hinted", "w_min", "w_max", "noise"),
            "pivot_rl": ("tasks", "profile", "lambda_diff", "equal", "reprofile"),
        }
        for name, options in of_name.items():
            for option in options:
                if name != self.name and getattr(self, option) != type(self).model_fields[option].default:
                    raise ValueError(f"demonstrations.{option} is an option of demonstrations.name={name!r} only")
        needs = {"adhint": of_name["adhint"], "pivot_rl": ("tasks",)}.get(self.name, ())
        if lacking := next((option for option in needs if getattr(self, option) is None), None):
            raise ValueError(f"demonstrations.name={self.name!r} needs demonstrations.{lacking}, which has no default")
        if self.w_min is not None and self.w_max is not None and self.w_min > self.w_max:
            raise ValueError(
                f"demonstrations.w_min={self.w_min:g} is above demonstrations.w_max={self.w_max:g}, and harder tasks "
                "get longer hints; exchange them"
            )
        return self

    def check_recipe(self, recipe: Any) -> None:
        """Raise a ValueError if groups are too small for the gate."""
        if self.gate > recipe.rollout.group_size:
            raise ValueError(
                f"demonstrations.gate={self.gate} is above rollout.group_size={recipe.rollout.group_size}; lower it"
            )

    def parts(self) -> Iterator[Part]:
        """Return what the demonstrations break and need; see `turnwise.base.facets`."""
        needs = for_all("has demonstrations of whole tasks", Facet.SINGLE, Facet.WHOLE)
        breaks: dict[Facet, str] = {}
        if self.name == "pivot_rl":
            single = "plays single turns of demonstrations without an environment"
            breaks = for_all(single, Facet.REPLAY, Facet.ANSWERS, Facet.COLLECTED)
            needs |= for_all(single, Facet.OUTCOMES, Facet.TURNS)
        yield Part(f"demonstrations.name={self.name!r}", breaks, needs)
