"""Play batches while the trainer learns: engine and environments live on a thread of their own.

Each batch is played by a thread that calls its collector as always. Its calls of engine and environments run on one
further thread, the stage, whose event loop owns both. The places that batches take there keep their numbers apart.
"""

import asyncio
import contextvars
import queue
import threading
from collections import defaultdict
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from turnwise.environments.base import Step, Task
from turnwise.errors import EngineLost
from turnwise.rollout.blocking import LastingLoop
from turnwise.rollout.engine import Engine, Generation, Sampling
from turnwise.rollout.environments import CopyingEnvironments, Environments
from turnwise.rollout.trajectory import Trajectory

T = TypeVar("T")
Play = Callable[[], list[Trajectory]]

_PLACE: contextvars.ContextVar[int] = contextvars.ContextVar("place", default=0)
"""Place of the batch that the current thread plays; 0 is everything else, such as evaluations."""


class Rollouts(Protocol):
    """Decide when and where batches are played."""

    def engine(self, engine: Engine) -> Engine:
        """Return the engine that collectors call."""
        ...

    def environments(self, environments: Environments) -> Environments:
        """Return the environments that collectors call."""
        ...

    def start(self, play: Play) -> Play:
        """Start playing a batch; the returned function waits for its trajectories."""
        ...

    def close(self) -> None:
        """End what is still played."""
        ...


class InStep:
    """Play a batch when its step asks for it, in the trainer's thread."""

    def engine(self, engine: Engine) -> Engine:
        """Return the engine itself."""
        return engine

    def environments(self, environments: Environments) -> Environments:
        """Return the environments themselves."""
        return environments

    def start(self, play: Play) -> Play:
        """Return `play` itself, which begins when it is called."""
        return play

    def close(self) -> None:
        """Do nothing."""


class Lasting(InStep):
    """Play in the step, in the trainer's thread, in one event loop in which trajectories wait from step to step.

    Attributes:
        loop: The event loop.
    """

    def __init__(self) -> None:
        self.loop = LastingLoop()

    def close(self) -> None:
        """End the trajectories that wait."""
        self.loop.close()


class Ahead:
    """Play up to `batches` batches at a time in threads, while the trainer measures and learns."""

    def __init__(self, batches: int):
        self._stage = _Stage()
        self._num_places = batches + 1
        self._threads = ThreadPoolExecutor(batches, thread_name_prefix="turnwise-rollout")
        self._places: queue.SimpleQueue[int] = queue.SimpleQueue()
        for place in range(1, self._num_places):
            self._places.put(place)

    def engine(self, engine: Engine) -> "SharedEngine":
        """Return an engine for all threads. It must not sample from weights that the trainer changes."""
        return SharedEngine(engine, self._stage, self._num_places)

    def environments(self, environments: Environments) -> "SharedEnvironments":
        """Return environments for all threads."""
        return SharedEnvironments(environments, self._stage, self._num_places)

    def start(self, play: Play) -> Play:
        """Start playing a batch in a thread; the returned function waits for it, and raises what it raised."""
        return self._threads.submit(self._play, play).result

    def _play(self, play: Play) -> list[Trajectory]:
        place = self._places.get()
        token = _PLACE.set(place)
        try:
            return play()
        finally:
            _PLACE.reset(token)
            self._places.put(place)

    def close(self) -> None:
        """End the batches that are still played; their trajectories are lost."""
        self._stage.end()
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._stage.close()


def make_rollouts(max_lag: int, *, lasting: bool = False) -> Rollouts:
    """Make the rollouts of a run: in the step that learns from them, lasting over steps, or up to `max_lag` ahead."""
    if lasting:
        return Lasting()
    return Ahead(max_lag + 1) if max_lag else InStep()


class _Stage:
    """An event loop on a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._ended = False
        self._thread = threading.Thread(target=self._loop.run_forever, name="turnwise-stage", daemon=True)
        self._thread.start()

    async def run(self, call: Callable[..., Coroutine[Any, Any, T]], *arguments: Any) -> T:
        """Call a coroutine function on the stage, and wait for it in another event loop.

        Raises:
            EngineLost: The stage has ended.
        """
        work = self._unless_ended(call, *arguments)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def _unless_ended(self, call: Callable[..., Coroutine[Any, Any, T]], *arguments: Any) -> T:
        if self._ended:
            raise EngineLost("the rollouts of this run have ended")
        return await call(*arguments)

    def soon(self, call: Callable[..., Any], *arguments: Any) -> None:
        """Call a function on the stage, after what was asked before."""
        self._loop.call_soon_threadsafe(call, *arguments)

    def end(self) -> None:
        """Cancel what the stage does, and refuse more."""
        self.soon(self._cancel)

    def _cancel(self) -> None:
        self._ended = True
        for task in asyncio.all_tasks(self._loop):
            task.cancel()

    def close(self) -> None:
        """End the thread, and what was asked last and has not begun."""
        self.soon(self._loop.stop)
        self._thread.join()
        if tasks := asyncio.all_tasks(self._loop):
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.wait(tasks))
        self._loop.close()


class SharedEngine:
    """An engine that many threads call. Weights change between responses, never within one.

    An update lets the responses in progress end and holds new ones back. So each response comes from one version of
    the weights, and a trajectory goes on with the next version. See `Engine` for the methods.
    """

    def __init__(self, engine: Engine, stage: _Stage, num_places: int):
        self._engine, self._stage, self._num_places = engine, stage, num_places
        self._known: defaultdict[int, set[int]] = defaultdict(set)  # place -> its conversations
        self._in_progress = 0
        self._open, self._idle = asyncio.Event(), asyncio.Event()
        self._open.set()

    async def generate(self, conversation: int, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        """Continue a conversation."""
        place = _PLACE.get()
        own = conversation * self._num_places + place
        self._known[place].add(own)
        return await self._stage.run(self._generate, own, prompt_ids, sampling)

    async def _generate(self, conversation: int, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        while not self._open.is_set():
            await self._open.wait()
        self._in_progress += 1
        try:
            return await self._engine.generate(conversation, prompt_ids, sampling)
        finally:
            self._in_progress -= 1
            self._idle.set()

    async def update_weights(self, version: int = 0) -> None:
        """Load the trainer's weights, once the responses in progress have ended."""
        await self._stage.run(self._update_weights, version)

    async def _update_weights(self, version: int) -> None:
        self._open.clear()
        try:
            while self._in_progress:
                self._idle.clear()
                await self._idle.wait()
            await self._engine.update_weights(version)
        finally:
            self._open.set()

    def close(self, conversations: Sequence[int] | None = None) -> None:
        """Forget conversations of this thread's batch, by default all of them."""
        place = _PLACE.get()
        known = self._known[place]
        own = set(known) if conversations is None else {each * self._num_places + place for each in conversations}
        known -= own
        self._stage.soon(self._engine.close, sorted(own))

    async def aclose(self) -> None:
        """Forget all conversations of this thread's batch."""
        self.close()


class SharedEnvironments:
    """Environments that many threads call; see `Environments` for the methods."""

    def __init__(self, environments: Environments, stage: _Stage, num_places: int):
        self._environments, self._stage, self._num_places = environments, stage, num_places

    def _own(self, key: int) -> int:
        return key * self._num_places + _PLACE.get()

    async def start(self, key: int, task: Task) -> Step:
        """Make the environment of a task and return its first step."""
        return await self._stage.run(self._environments.start, self._own(key), task)

    async def step(self, key: int, response: str) -> Step:
        """Play one response."""
        return await self._stage.run(self._environments.step, self._own(key), response)

    async def copy(self, key: int, new: int) -> bool:
        """Copy an environment."""
        if not isinstance(self._environments, CopyingEnvironments):
            return False
        return await self._stage.run(self._environments.copy, self._own(key), self._own(new))

    def close(self, key: int) -> None:
        """Release an environment."""
        self._stage.soon(self._environments.close, self._own(key))

    async def aclose(self) -> None:
        """Release all environments."""
        await self._stage.run(self._environments.aclose)
