"""Play one trajectory in pieces: it generates while its share of a budget lasts, then waits for another share."""

import asyncio
import dataclasses
import zlib
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

import numpy as np

from turnwise.errors import EnvironmentFault
from turnwise.rollout.engine import Engine, Generation, Sampling
from turnwise.rollout.trajectory import Trajectory


@dataclasses.dataclass(frozen=True, slots=True)
class Sampled:
    """A response with a checksum of its prompt."""

    prompt: int
    generation: Generation

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> "Sampled":
        """Restore an element of `Half.state`."""
        return cls(state["prompt"], Generation(**{name: each for name, each in state.items() if name != "prompt"}))


class Half:
    """A trajectory in progress, and the engine that it plays with.

    It generates while its share of the budget lasts, then waits. What a resumed run had sampled before is answered from
    memory, so that the trajectory gets to where it was.

    Args:
        number: Number of its conversation and environment, unique among the trajectories in progress.
        by_turns: Whether the budget counts turns rather than tokens.
        sampled: Responses so far; of a response that waits inside, its pieces.
        cuts: Whether a budget of tokens may end inside a response, which goes on from there.

    Attributes:
        engine: Generates the responses.
        share: Turns or tokens that the trajectory may still generate.
        open: First tokens of a response that waits inside; None: it waits between two responses, or has ended.
    """

    def __init__(self, number: int, *, by_turns: bool, sampled: Sequence[Sampled] = (), cuts: bool = False):
        self.number, self.by_turns, self.sampled = number, by_turns, list(sampled)
        self.cuts = cuts and not by_turns
        self.open: Generation | None = None
        self.engine: Engine | None = None
        self.share = 0
        self._task: asyncio.Task[list[Trajectory]] | None = None
        self._turn, self._piece = 0, 0
        self._idle, self._go = asyncio.Event(), asyncio.Event()

    @property
    def begun(self) -> bool:
        """Whether a task plays the trajectory."""
        return self._task is not None

    @property
    def ended(self) -> bool:
        """Whether the trajectory is complete."""
        return self._task is not None and self._task.done()

    @property
    def trajectory(self) -> Trajectory:
        """The complete trajectory.

        Raises:
            EngineLost: The engine was lost.
        """
        assert self._task is not None
        (played,) = self._task.result()
        return played

    def begin(self, playing: Coroutine[Any, Any, list[Trajectory]]) -> None:
        """Start to play the trajectory."""
        self._task = asyncio.ensure_future(playing)
        self._task.add_done_callback(lambda _: self._idle.set())

    def grant(self, share: int) -> None:
        """Let the trajectory go on until its share is used up."""
        self.share = share
        self._idle.clear()
        self._go.set()

    async def idle(self) -> None:
        """Wait until the trajectory waits for a share, or has ended.

        Raises:
            EngineLost: The engine is lost.
        """
        await self._idle.wait()
        if self.ended:
            _ = self.trajectory

    async def generate(self, conversation: int, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        """Continue the conversation; see `Engine.generate`. With `cuts`, in pieces that the shares hold."""
        prompt, self.open = zlib.crc32(np.array(prompt_ids, dtype=np.int64).tobytes()), None
        self._turn += 1
        while True:
            if self._piece == len(self.sampled):
                self.sampled.append(Sampled(prompt, await self._sample(conversation, prompt_ids, sampling)))
            each = self.sampled[self._piece]
            self._piece += 1
            if each.prompt != prompt:
                raise EnvironmentFault(
                    f"the resumed run played the trajectory again, and before turn {self._turn} its environment "
                    "answered otherwise than before; only environments that repeat can go on after a resume"
                )
            made = each.generation if self.open is None else self.open.joined(each.generation)
            if not self.cuts or not made.truncated or len(made.token_ids) >= sampling.max_new_tokens:
                self.open = None
                return made
            self.open = made

    async def _sample(self, conversation: int, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        """Sample a response or, with `cuts`, the piece of it that the share holds."""
        begun = self.open.token_ids if self.open else []
        while self.share < (1 if self.by_turns or self.cuts else sampling.max_new_tokens):
            self._go.clear()
            self._idle.set()
            await self._go.wait()
        if self.cuts:
            most = min(sampling.max_new_tokens, len(begun) + self.share)
            sampling = dataclasses.replace(sampling, begun=len(begun), max_new_tokens=most)
        assert self.engine is not None
        generation = await self.engine.generate(conversation, [*prompt_ids, *begun], sampling)
        self.share -= 1 if self.by_turns else len(generation.token_ids)
        return generation

    def state(self) -> list[dict[str, Any]]:
        """Return the responses so far as plain data, for checkpoints."""
        return [{"prompt": each.prompt, **dataclasses.asdict(each.generation)} for each in self.sampled]

    async def update_weights(self, version: int = 0) -> None:
        """Do nothing: the trainer updates the engine itself."""

    def close(self, conversations: Sequence[int] | None = None) -> None:
        """Forget conversations."""
        assert self.engine is not None
        self.engine.close(conversations)

    async def aclose(self) -> None:
        """Do nothing: the engine has other conversations."""
