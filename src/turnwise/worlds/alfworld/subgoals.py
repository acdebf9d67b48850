"""Name the subgoal of each command of a demonstration: the next one that takes, changes or moves something."""

from collections.abc import Sequence

from turnwise.environments.base import Demonstrated

DEEDS = ("take", "move", "clean", "heat", "cool", "slice", "use", "toggle")
"""Commands that a subgoal ends with; all others search for something."""


def with_subgoals(turns: Sequence[Demonstrated]) -> list[Demonstrated]:
    """Return the turns with their subgoals, such as "take mug" and "move mug to shelf".

    A subgoal names kinds of things, not the one that the expert finds later. Noise ends no subgoal.
    """
    result: list[Demonstrated] = []
    subgoal = "look"
    for turn in reversed(turns):
        if turn.imitate and turn.response.partition(" ")[0] in DEEDS:
            subgoal = _without_places(turn.response)
        result.append(turn._replace(subgoal=subgoal))
    return result[::-1]


def _without_places(command: str) -> str:
    """Return "take mug" for "take mug 1 from desk 2"."""
    words = [word for word in command.split() if not word.isdigit()]
    ends = [words.index(word) for word in ("from", "with") if word in words]
    return " ".join(words[: min(ends, default=len(words))])
