"""Define the `[store]` section of a recipe."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import pydantic

from turnwise.base.facets import Facet, Part, for_all
from turnwise.base.section import Section

OF_NAME = {
    "rlep": ("replays",),
    "r3": ("replays", "tau", "transcript"),
    "prefix_sampling": ("remaining", "handicap", "cap", "adaptive"),
    "slea_rl": ("extract", "evaluate", "shown", "warnings", "min_similarity", "warm_up", "least", "characters"),
}
"""Options that only some stores have, by the name of the store."""

REPLAYS: Mapping[Facet, str] = {Facet.WEIGHTS: "replays trajectories of earlier weights"}
BREAKS: Mapping[str, Mapping[Facet, str]] = {"rlep": REPLAYS, "r3": REPLAYS}
"""What stores break, by their names; see `turnwise.base.facets`."""
NEEDS: Mapping[str, Mapping[Facet, str]] = {
    "r3": {
        Facet.SINGLE: "plays failed tasks again",
        Facet.WHOLE: "compares the outcomes of groups",
        Facet.TURNS: "plays failed tasks again with other prompts",
    },
    "prefix_sampling": for_all("replays turns of stored trajectories", Facet.SINGLE, Facet.WHOLE, Facet.REPLAY),
    "slea_rl": {Facet.TURNS: "puts experiences into prompts"},
}
"""What each store needs, by its name."""


def of_store(option: str, name: Any) -> bool:
    """Return whether a store has an option."""
    return option in OF_NAME.get(name, ()) or not any(option in options for options in OF_NAME.values())


class StoreConfig(Section):
    """Configure a store of the run's own trajectories, which is part of its checkpoints."""

    name: Literal["rlep", "prefix_sampling", "slea_rl", "r3"]
    """"rlep": a group learns from earlier successes of its task too. "prefix_sampling": groups start at a turn of a
    stored trajectory, so that tasks become neither too hard nor too easy. "slea_rl": each turn is shown what was done
    in similar states. "r3": groups without contrast get stored trajectories of the other outcome, and tasks that fail
    are played again with a failure in the prompt."""
    capacity: int = pydantic.Field(ge=1)
    """Most trajectories in the store; the oldest leave first."""
    replays: int | None = pydantic.Field(default=None, ge=1)
    """Only for "rlep" and "r3", which need it: most stored trajectories that a group gets."""
    tau: float | None = pydantic.Field(default=None, gt=0, le=1)
    """Only for "r3", which needs it, as is `transcript`: mean success of a task in earlier steps below which it is also
    played with a failure in the prompt."""
    transcript: int | None = pydantic.Field(default=None, ge=1)
    """Most characters of this failure, its last ones; needed."""
    remaining: float | None = pydantic.Field(default=None, gt=0, lt=1)
    """Required by "prefix_sampling", and ignored by others, like all fields down to `adaptive`: share of a success
    that is left to the policy. Published: 0.25, 0.45 and 0.75."""
    handicap: float | None = pydantic.Field(default=None, gt=0, lt=1)
    """Share of a failure that is replayed; needed. Published: 0.25 and 0.55."""
    cap: int = pydantic.Field(default=30, ge=1)
    """Most turns that are left of a success, and most that are replayed of a failure."""
    adaptive: bool = True
    """Let both shares follow the success of the tasks that they make, towards 0.5."""
    extract: Literal["rule", "policy"] | None = None
    """Required by "slea_rl", and ignored by others, like all fields down to `characters`: how a trajectory
    becomes an experience. "rule": by its actions. "policy": by a sentence of the policy about it."""
    actions: int | None = pydantic.Field(default=None, ge=1)
    """Actions that an experience shows, from the similar state on; needed by extract = "rule", and only there."""
    lesson_tokens: int | None = pydantic.Field(default=None, ge=1)
    """Most tokens of the policy's sentence; needed by extract = "policy", and only there."""
    evaluate: bool | None = None
    """Whether evaluations are shown experiences too; needed. The release does so."""
    shown: int = pydantic.Field(default=2, ge=0)
    """Most experiences of successes that a turn is shown."""
    warnings: int = pydantic.Field(default=1, ge=0)
    """Most experiences of failures that a turn is shown; 0 stores none."""
    min_similarity: float = pydantic.Field(default=0.85, ge=0, le=1)
    """Least similarity of observations, by their words; 0 shows the best there is in any case."""
    warm_up: int = pydantic.Field(default=5, ge=0)
    """Steps before any turn is shown an experience."""
    least: int = pydantic.Field(default=10, ge=1)
    """Stored experiences before any turn is shown one."""
    characters: int = pydantic.Field(default=800, ge=1)
    """Most characters of the experiences that a turn is shown."""
    per_task: int | None = pydantic.Field(default=None, ge=1)
    """Most trajectories of a task in the store, the latest ones. Default: no limit but the capacity."""
    max_age: int | None = pydantic.Field(default=None, ge=1)
    """Steps after which a trajectory leaves the store. Default: never."""
    start: Path | None = None
    """Store to begin with: `store.jsonl` in a checkpoint of an earlier run. Default: an empty one."""
    damaged: Literal["refuse", "empty"] = "refuse"
    """What to do if the store of a checkpoint cannot be read: refuse to resume, or continue with an empty store."""

    @pydantic.model_validator(mode="after")
    def _options_fit_the_name(self) -> "StoreConfig":
        for option in dict.fromkeys(each for options in OF_NAME.values() for each in options):
            takes = [name for name, options in OF_NAME.items() if option in options]
            self._check(option, self.name in takes, " or ".join(f"store.name={name!r}" for name in takes))
        for extract, option in (("rule", "actions"), ("policy", "lesson_tokens")):
            self._check(option, self.extract == extract, f"store.extract={extract!r}")
        return self

    @classmethod
    def of_earlier(cls, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the section of an earlier version without options of other stores."""
        return {option: value for option, value in data.items() if of_store(option, data.get("name"))}

    def parts(self) -> Iterator[Part]:
        """Return what the store breaks and needs; see `turnwise.base.facets`."""
        needs = {Facet.ANSWERS: "stores whole trajectories of tasks"}
        yield Part(f"store.name={self.name!r}", BREAKS.get(self.name, {}), {**needs, **NEEDS.get(self.name, {})})

    def _check(self, option: str, wanted: bool, owner: str) -> None:
        given, usual = getattr(self, option), type(self).model_fields[option].default
        if given is None if wanted else given != usual:
            what = "needs a value" if given is None else f"is an option of {owner} only"
            raise ValueError(f"store.{option} {what}, got {given} with store.name={self.name!r}")
