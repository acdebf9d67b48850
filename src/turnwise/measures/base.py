"""Define measures and their input."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from turnwise.base.errors import ConfigError
from turnwise.credit.segments import Segments
from turnwise.rollout.trajectory import Trajectory, Turn

if TYPE_CHECKING:
    from turnwise.environments.base import Task

Columns = Mapping[str, Any]
"""Values by the name of their column: one per response, or one per token for a name that ends in `_T`."""


@dataclasses.dataclass(frozen=True)
class Played:
    """Hold the usable trajectories of a step, with groups adjacent.

    Attributes:
        trajectories: Trajectories in the order of the batch.
        invalid_penalty: Penalty subtracted for an invalid response.
        models: Models available to measures, by name, such as `policy` and `reference`.
        score: Function that runs a model over the trajectories. It returns log-probabilities and entropies (nats) of
            all generated tokens.
        estimate: Function that returns a column of the critic's values.
        along: Models that read another model's pass and so make none of their own.
        probe: Scores given text in the contexts of the responses, for measures with `model="probe"`.
        judge: Judge of the run, for measures with `model="judge"`.
        continuations: Continues from the turns of trajectories, for measures with `model="continuations"`.
        tasks: Tasks, one per group.
    """

    trajectories: Sequence[Trajectory]
    invalid_penalty: float = 0.0
    models: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    score: Callable[[Any], tuple[np.ndarray, np.ndarray]] | None = None
    estimate: Callable[[str], np.ndarray] | None = None
    along: frozenset[str] = frozenset()
    probe: Any = None  # a Prober, which needs torch
    judge: Any = None  # a Judge, which may have a model
    continuations: Any = None  # Continuations, which have one
    tasks: "Sequence[Task]" = ()

    @cached_property
    def turns(self) -> list[Turn]:
        """Turns, one per response."""
        return [turn for trajectory in self.trajectories for turn in trajectory.turns]

    @cached_property
    def tokens(self) -> Segments:
        """Segments of generated tokens, one per response."""
        return Segments.from_lengths([len(turn.response_ids) for turn in self.turns])

    @cached_property
    def turns_of_trajectories(self) -> Segments:
        """Segments of responses, one per trajectory."""
        return Segments.from_lengths([len(trajectory.turns) for trajectory in self.trajectories])

    def scored(self, model: str) -> tuple[np.ndarray, np.ndarray]:
        """Return `[tokens]` log-probabilities and entropies (nats) of all generated tokens under the named model."""
        assert self.score is not None, "a measure that scores needs `score`"
        return self.score(self.models[model])

    def estimated(self, column: str) -> np.ndarray:
        """Return a column of the critic's values, one per response, or per token for a name that ends in `_T`."""
        assert self.estimate is not None, "a measure of values needs `estimate`"
        return self.estimate(column)

    def num_tokens(self, service: str) -> int:
        """Return the tokens that a service has computed so far."""
        return getattr(getattr(self, service), "num_tokens", 0)


@dataclasses.dataclass(frozen=True)
class Measure:
    """Fill columns of a step's batch.

    Attributes:
        name: Name in recipes and errors.
        provides: Columns that it fills; a name that ends in `_T` has a value per token.
        needs: Columns that other measures fill first.
        run: Function from the trajectories and the needed columns to the provided columns.
        model: Name of the model that it runs, such as "reference", or of a service: "probe", "judge", "continuations";
            empty: none, and the measure is always taken unless it `reads`.
        engine: What the engine must report: "entropies", or nothing.
        recorded: Whether the record of a step keeps its columns, if they have a value per response.
        reads: Keys of `Step.info` that the environment must fill, such as "gold".
    """

    name: str
    provides: tuple[str, ...]
    needs: tuple[str, ...]
    run: Callable[[Played, Columns], Columns]
    model: str = ""
    engine: Literal["", "entropies"] = ""
    recorded: bool = True
    reads: tuple[str, ...] = ()

    @property
    def level(self) -> Literal["response", "token"]:
        """Whether its columns have a value per response or per token."""
        return "token" if self.provides[0].endswith("_T") else "response"

    @property
    def is_free(self) -> bool:
        """Whether the measure needs no model pass."""
        return not self.model


def measure(
    *,
    provides: Sequence[str],
    needs: Sequence[str] = (),
    model: str = "",
    engine: Literal["", "entropies"] = "",
    recorded: bool = True,
    reads: Sequence[str] = (),
) -> Callable[[Callable[[Played, Columns], Columns]], Measure]:
    """Make a measure of `f(played, columns) -> columns`, named after the function; see `Measure` for the arguments.

    Raises:
        ConfigError: `provides` is empty, or mixes columns of both levels.
    """
    if len({name.endswith("_T") for name in provides}) != 1:
        raise ConfigError(
            f"a measure provides columns of one level, per response or per token (_T), got {list(provides)}"
        )

    def decorate(function: Callable[[Played, Columns], Columns]) -> Measure:
        return Measure(
            function.__name__, tuple(provides), tuple(needs), function, model, engine, recorded, tuple(reads)
        )

    return decorate
