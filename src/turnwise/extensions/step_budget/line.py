"""Meter a trajectory's generation: it continues while its share of a budget lasts, then waits for another."""

import asyncio
import dataclasses
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from turnwise.base.errors import EnvironmentFault
from turnwise.engines.base import Engine, Generation, Sampling, give_back
from turnwise.rollout.groups import Group
from turnwise.rollout.settings import RolloutConfig


@dataclasses.dataclass(frozen=True, slots=True)
class Sampled:
    """A response, or a piece of one, with a checksum of its prompt."""

    prompt: int
    generation: Generation

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> "Sampled":
        """Restore an element of `Line.state`."""
        return cls(state["prompt"], Generation(**{name: each for name, each in state.items() if name != "prompt"}))

    def state(self) -> dict[str, Any]:
        """Return plain data, for checkpoints."""
        return {"prompt": self.prompt, **dataclasses.asdict(self.generation)}


class Line:
    """The responses of one trajectory.

    A resumed run answers from memory what it had sampled before, so that the trajectory returns to where it was.

    Args:
        by_turns: Whether the budget counts turns rather than tokens.
        cuts: Whether a budget of tokens may end inside a response, which later continues from there.
        sampled: Responses so far; of a response that waits inside, its pieces.
        on_change: Called when the trajectory begins to wait.

    Attributes:
        share: Turns or tokens that the trajectory may still generate.
        settled: Number of responses that a checkpoint keeps; None: all.
        open: First tokens of a response that waits inside; None: it waits between two responses, or has ended.
    """

    def __init__(self, *, by_turns: bool, cuts: bool, sampled: Sequence[Sampled] = (), on_change: Callable[[], None]):
        self.by_turns, self.cuts, self.sampled = by_turns, cuts and not by_turns, list(sampled)
        self.open: Generation | None = None
        self.share = 0
        self.settled: int | None = None
        self._on_change = on_change
        self._turn, self._piece, self._paused = 0, 0, (-1, 0)
        self._go: asyncio.Future[None] | None = None
        self._one_by_one = asyncio.Lock()

    @property
    def waits(self) -> bool:
        """Whether the trajectory waits for a share."""
        return self._go is not None

    def grant(self, share: int) -> None:
        """Let the trajectory continue until its share is used up."""
        self.share = share
        assert self._go is not None
        if not self._go.done():
            self._go.set_result(None)
        self._go = None

    async def generate(
        self, engine: Engine, conversation: int, prompt_ids: Sequence[int], sampling: Sampling
    ) -> Generation:
        """Continue a conversation of the trajectory; see `Engine.generate`. With `cuts`, in pieces."""
        async with self._one_by_one:
            prompt, self.open = zlib.crc32(np.array(prompt_ids, dtype=np.int64).tobytes()), None
            self._turn += 1
            while True:
                if self._piece == len(self.sampled):
                    made = await self._sample(engine, conversation, prompt_ids, sampling)
                    self.sampled.append(Sampled(prompt, made))
                each = self.sampled[self._piece]
                self._piece += 1
                if each.prompt != prompt:
                    raise EnvironmentFault(
                        f"the resumed run played the trajectory again, and before turn {self._turn} its environment "
                        "answered differently than before; only environments that repeat can continue after a resume"
                    )
                made = each.generation if self.open is None else self.open.joined(each.generation)
                if not self.cuts or not made.truncated or len(made.token_ids) >= sampling.max_new_tokens:
                    self.open = None
                    return made
                self.open = made

    async def _sample(
        self, engine: Engine, conversation: int, prompt_ids: Sequence[int], sampling: Sampling
    ) -> Generation:
        """Sample a response or, with `cuts`, the piece of it that the share holds."""
        begun = self.open.token_ids if self.open else []
        goes_on = sampling.begun > 0 and self._paused == (conversation, sampling.begun)  # of the same turn
        cost = int(not goes_on) if self.by_turns else 1 if self.cuts else sampling.max_new_tokens
        while self.share < cost:
            give_back(engine, conversation)
            self._go = go = asyncio.get_running_loop().create_future()
            self._on_change()
            try:
                await go
            finally:
                self._go = None if self._go is go else self._go
        if self.cuts:
            most = min(sampling.max_new_tokens, len(begun) + self.share)
            sampling = dataclasses.replace(sampling, begun=len(begun), max_new_tokens=most)
        generation = await engine.generate(conversation, [*prompt_ids, *begun], sampling)
        self._paused = conversation, sampling.begun + len(generation.token_ids)
        self.share -= cost if self.by_turns else len(generation.token_ids)
        return generation


class MeteredEngine:
    """The engine of a group whose trajectories wait for shares of a budget; see `Engine` for the methods.

    Args:
        engine: Generates.
        lines: The responses of each trajectory, by its number.
        stride: Above these numbers; conversation c belongs to trajectory `c % stride`.
    """

    def __init__(self, engine: Engine, lines: Mapping[int, Line], stride: int):
        self._engine, self._lines, self._stride = engine, lines, stride
        self.close, self.aclose, self.update_weights = engine.close, engine.aclose, engine.update_weights
        self.max_rows: int | None = getattr(engine, "max_rows", None)

    async def generate(self, conversation: int, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        """Continue a conversation, within the trajectory's share."""
        line = self._lines[conversation % self._stride]
        return await line.generate(self._engine, conversation, prompt_ids, sampling)


class StepBudget:
    """Divide the budget of a step among the trajectories in progress.

    Args:
        amount: Turns or tokens.
        least: Those of the longest response.
    """

    def __init__(self, amount: int, least: int):
        self._amount, self._least = amount, least
        self._changed = asyncio.Event()

    def changed(self) -> None:
        """Report that a trajectory waits, or has ended."""
        self._changed.set()

    async def spend(self, playing: Sequence["Metered"]) -> int:
        """Let trajectories share the budget until it does not hold another response; returns what was spent.

        Args:
            playing: Groups in progress, in the order in which a small budget serves them.
        """
        left = self._amount
        while True:
            await self._rest(playing)
            live = [line for group in playing for line in group.lines.values() if line.waits][: left // self._least]
            if not live:
                return self._amount - left
            share = max(self._least, left // len(live))
            for line in live:
                line.grant(share)
            await self._rest(playing)
            left -= sum(share - line.share for line in live)

    async def _rest(self, playing: Sequence["Metered"]) -> None:
        """Wait until every group waits for shares, or has ended."""
        while not all(group.rests for group in playing):
            self._changed.clear()
            await self._changed.wait()


class Metered:
    """A group in progress under a budget.

    Args:
        group: The group.
        sampled: Per trajectory, what it had sampled in an earlier process.
        budget: The budget.
        settings: The `[rollout]` of a recipe.

    Attributes:
        group: The group, whose engine waits for shares.
        lines: The responses of each trajectory, by its number.
        live: Trajectories that have not ended.
        playing: Plays the group.
    """

    def __init__(self, group: Group, sampled: Sequence[Any], budget: StepBudget, settings: RolloutConfig):
        assert settings.step_budget is not None
        how: Any = {"by_turns": settings.step_budget.turns is not None, "cuts": settings.learns_played}
        self.lines: dict[int, Line] = {}
        for place in range(group.size):
            past = [Sampled.of(each) for each in sampled[place]] if place < len(sampled) else ()
            self.lines[group.first + place] = Line(sampled=past, on_change=budget.changed, **how)
        self.live, self._waits, self._budget = 0, group.waits, budget
        self.playing: asyncio.Future[Any] | None = None
        group.waits.changed = budget.changed
        engine = MeteredEngine(group.engine, self.lines, group.stride)
        self.group = dataclasses.replace(group, engine=engine, watched={} if settings.learns_played else None)

    def tell(self, live: int) -> None:
        """Note how many trajectories have not ended."""
        self.live = live
        self._budget.changed()

    def settle(self, *, ahead: bool) -> None:
        """Let checkpoints keep only the responses so far, while the budget of the next step is spent ahead, or all."""
        for line in self.lines.values():
            line.settled = len(line.sampled) if ahead else None

    def state(self) -> list[list[dict[str, Any]]]:
        """Return what its trajectories have sampled, for checkpoints."""
        return [[each.state() for each in line.sampled[: line.settled]] for line in self.lines.values()]

    @property
    def rests(self) -> bool:
        """Whether all its trajectories wait for shares or for each other, or have ended."""
        assert self.playing is not None
        if self.playing.done():
            return True
        return 0 < self.live == sum(line.waits for line in self.lines.values()) + self._waits.count()


class Meter(StepBudget):
    """The budget of each step of a run."""

    def __init__(self, settings: RolloutConfig):
        assert settings.step_budget is not None
        by_tokens = settings.step_budget.tokens and not settings.learns_played
        super().__init__(settings.step_budget.amount, settings.max_new_tokens if by_tokens else 1)
        self._settings = settings

    def around(self, group: Group, sampled: Sequence[Any]) -> Metered:
        """Let the trajectories of a group wait for shares."""
        return Metered(group, sampled, self, self._settings)
