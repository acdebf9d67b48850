"""Collect who gave each response: a seat of a game, or an actor of an agent."""

from collections.abc import Iterable, Mapping
from typing import Any

from turnwise.base.errors import ConfigError
from turnwise.measures.base import Columns, Played, measure


def roles_of(turns: Iterable[tuple[Mapping[str, Any], str | None]]) -> dict[str, list[str]]:
    """Return the role of each response, its actor if it has one or else its seat, and a lasting name."""
    seats = [(actor or str(info["role"]), str(info.get("game", ""))) for info, actor in turns]
    return {"role": [role for role, _ in seats], "player": [f"{game} {role}".strip() for role, game in seats]}


@measure(provides=("role", "player"), reads=("role",), recorded=False)
def roles(step: Played, columns: Columns) -> Columns:
    """Collect the actor that an agent's call names, or the seat from `info["role"]`.

    With `info["game"]` this also makes a name for it that is valid across steps.

    Raises:
        ConfigError: A response has neither.
    """
    turns = [(each.info, turn.extras.get("actor")) for each in step.trajectories for turn in each.turns]
    if not all(actor or "role" in info for info, actor in turns):
        raise ConfigError(
            "a response has no role, which the run compares: expected info['role'] of the environment, or the header "
            "X-Turnwise-Actor in each call of an agent; add it, or choose another method"
        )
    return roles_of(turns)
