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
        sampled: Responses so far.

    Attributes:
        engine: Generates the responses.
        share: Turns or tokens that the trajectory may still generate.
    """

    def __init__(self, number: int, *, by_turns: bool, sampled: Sequence[Sampled] = ()):
        self.number, self.by_turns, self.sampled = number, by_turns, list(sampled)
        self.engine: Engine | None = None
        self.share = 0
        self._task: asyncio.Task[list[Trajectory]] | None = None
        self._turn = 0
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
        """Continue the conversation; see `Engine.generate`."""
        prompt, turn = zlib.crc32(np.array(prompt_ids, dtype=np.int64).tobytes()), self._turn
        self._turn += 1
        if turn < len(self.sampled):
            if self.sampled[turn].prompt != prompt:
                raise EnvironmentFault(
                    f"the resumed run played the trajectory again, and before turn {turn + 1} its environment answered "
                    "otherwise than before; only environments that repeat can go on after a resume"
                )
            return self.sampled[turn].generation
        while self.share < (1 if self.by_turns else sampling.max_new_tokens):
            self._go.clear()
            self._idle.set()
            await self._go.wait()
        assert self.engine is not None
        generation = await self.engine.generate(conversation, prompt_ids, sampling)
        self.share -= 1 if self.by_turns else len(generation.token_ids)
        self.sampled.append(Sampled(prompt, generation))
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
