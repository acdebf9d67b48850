"""Play one match as an environment: it asks the seats that the policy holds, and plays all others itself."""

import dataclasses
from typing import Any

from turnwise.base.errors import EnvironmentFault
from turnwise.environments.base import SeatStep, Step
from turnwise.worlds.seats.base import CHANCE, ENDED, POLICY, Deal, Game, History, generator

OPPONENTS = ("expert", "random")
"""Players inside the environment: the game's expert, and one that draws an admissible action."""


class MatchEnvironment:
    """One match.

    Each step is a `SeatStep`, addressed to the seat that acts next. So it is an ordinary environment of the seats that
    the policy holds; if it holds several, the last step has the mean of their rewards. A response is an action; any
    other is invalid, and an admissible action drawn from the seed is played instead. The same task and responses repeat
    the same match.

    `info` has `role` and `game`; at the end also `success`, `result`, `score` and `objectives` from the game's
    `Outcome`, and `moves`, everything played.

    Args:
        game: The rules.
        task: Who plays, and the seed.
        reward: Factor from what a seat wins to its reward.
        rules: Whether the first observation of a seat begins with the rules.
    """

    def __init__(self, game: Game, task: Deal, *, reward: float, rules: bool = False):
        self._game, self._task, self._reward, self._rules = game, task, reward, rules
        self._history = task.opening
        self._rules_shown = [not rules] * len(game.roles)
        self._started = False

    @property
    def history(self) -> History:
        """Everything played so far."""
        return self._history

    def start(self) -> SeatStep:
        """Start the match."""
        self._started = True
        return self._continue(valid=True)

    def step(self, response: str) -> SeatStep:
        """Play an action of the seat that was asked; before `start` and after the end, raise an `EnvironmentFault`."""
        if not self._started or self._game.actor(self._history) == ENDED:
            raise EnvironmentFault(f"step() {'after the end' if self._started else 'before start()'} of a match.")
        action, admissible = response.strip(), self._game.actions(self._history)
        valid = action in admissible
        if not valid:
            action = generator(self._task.seed, self._history, "invalid").choice(list(admissible))
        self._history = (*self._history, action)
        return self._continue(valid=valid)

    def _continue(self, *, valid: bool) -> SeatStep:
        """Play until the policy must act, or the match ends."""
        game, seed = self._game, self._task.seed
        while (seat := game.actor(self._history)) != ENDED:
            if seat == CHANCE:
                outcomes = game.chances(self._history)
                drawn = generator(seed, self._history, "chance").choices(list(outcomes), list(outcomes.values()))[0]
            elif self._task.players[seat] == POLICY:
                return SeatStep(
                    **self._seen(seat), seat=seat, valid=valid, admissible=tuple(game.actions(self._history))
                )
            elif self._task.players[seat] == "random":
                drawn = generator(seed, self._history, "player").choice(list(game.actions(self._history)))
            else:
                drawn = game.expert(self._history, generator(seed, self._history, "player"))
            self._history = (*self._history, drawn)
        ends = tuple(self._end(seat) for seat in range(len(game.roles)))
        own = [seat for seat, player in enumerate(self._task.players) if player == POLICY]
        seat = own[0]
        last: dict[str, Any] = {field.name: getattr(ends[seat], field.name) for field in dataclasses.fields(Step)}
        last |= {"valid": valid, "reward": sum(ends[each].reward for each in own) / len(own)}
        return SeatStep(**last, seat=seat, ends=ends)

    def _seen(self, seat: int) -> dict[str, Any]:
        """Return what a seat reads: the fields of its step."""
        observation = self._game.view(self._history, seat)
        rules = "" if self._rules_shown[seat] else self._game.rules
        self._rules_shown[seat] = True
        info = {"role": self._game.roles[seat], "game": self._game.name}
        return {"observation": rules + observation, "state_key": self._game.key(self._history, seat), "info": info}

    def _end(self, seat: int) -> Step:
        """Return the last step of a seat."""
        seen, outcome = self._seen(seat), self._game.outcome(self._history, seat)
        values = {name: value for name, value in outcome._asdict().items() if name != "objectives" or value}
        seen["info"] |= {**values, "task_type": self._game.roles[seat], "moves": list(self._history)}
        won = self._game.returns(self._history)[seat]
        return Step(**seen, reward=self._reward * won, terminated=True)
