"""Compare the assumptions of a recipe's parts, and explain a conflict by two settings.

A part, such as a collector or a loss term, breaks some assumptions and needs others. It declares both where its
settings are defined, and knows no other part: two parts conflict if one breaks what the other needs.
"""

import dataclasses
import enum
from collections.abc import Iterable, Mapping


class Facet(enum.Enum):
    """Assumptions that parts of a recipe break or need."""

    TURNS = "turnwise plays the turns and makes the prompts"
    ANSWERS = "environments of the tasks answer the responses"
    SINGLE = "each trajectory is a separate game"
    COLLECTED = "a collector plays the groups of tasks"
    CLOSED = "no part looks into a trajectory while it is played"
    REPLAY = "the turns of a trajectory can be played again"
    WHOLE = "a step learns from whole trajectories"
    UPDATE = "one update learns from the whole step"
    OUTCOMES = "the groups of a step are played in that step, after the outcomes of the step before are known"
    WEIGHTS = "the weights at the start of the step sampled its responses"
    DISTRIBUTION = "the engine reports the probabilities of the policy's whole distribution"
    SCORED = "the trainer scores the responses"
    ENGINE = "one engine in the trainer generates every response"
    CHAT = "the policy is a chat model"
    HERE = "the weights that are trained lie in the trainer"
    LOSS = "the trainer computes the loss"
    ENTROPY = "entropies of the policy are known"
    UNFROZEN = "the policy's own weights are trained"
    ALIKE = "the same weights give all responses of a trajectory"


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of a recipe, with the assumptions that it breaks and needs."""

    setting: str  # what adds the part, as a user writes it, such as "rollout.max_lag=1" or "[harness]"
    # Assumptions that the part breaks, each with what it does: "plays ahead of the update"
    breaks: Mapping[Facet, str] = dataclasses.field(default_factory=dict)
    # Assumptions that the part needs, each with what it does: "counts all turns of a task"
    needs: Mapping[Facet, str] = dataclasses.field(default_factory=dict)
    mend: str = ""  # what to change instead of removing the part, such as "set update.scoring=trainer"


def for_all(reason: str, *facets: Facet) -> dict[Facet, str]:
    """Return the same reason for several assumptions."""
    return dict.fromkeys(facets, reason)


class Conflict(ValueError):
    """One part breaks what another one needs; the message explains it in one line."""

    def __init__(self, breaking: Part, needing: Part, facet: Facet):
        self.breaking, self.needing, self.facet = breaking, needing, facet
        mends = dict.fromkeys(part.mend for part in (needing, breaking) if part.mend)
        super().__init__(
            f"{breaking.setting} {breaking.breaks[facet]}, and {needing.setting} {needing.needs[facet]}; "
            f"{', or '.join(mends) or 'remove one of them'}"
        )


def broken(facet: Facet, parts: Iterable[Part]) -> Part | None:
    """Return the first part that breaks an assumption; None if it holds."""
    return next((part for part in parts if facet in part.breaks), None)


def refuse_conflicts(parts: Iterable[Part]) -> None:
    """Raise a Conflict for the first two parts where one breaks what the other needs."""
    parts = [*parts]
    for needing in parts:
        for facet in needing.needs:
            breaking = broken(facet, (part for part in parts if part is not needing))
            if breaking is not None:
                raise Conflict(breaking, needing, facet)
