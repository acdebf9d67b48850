"""Let a harness play trajectories: an agent with its own loop, which asks the policy through the gateway."""

import asyncio
import contextlib
import dataclasses
import secrets
import time
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

from turnwise.base.errors import EnvironmentFault
from turnwise.base.imports import import_named
from turnwise.environments.base import Step, Task
from turnwise.environments.hosts import Environments
from turnwise.extensions.gateway.call import Call
from turnwise.extensions.gateway.harness import Endpoint, Harness, make_harness
from turnwise.extensions.gateway.messages import last_message
from turnwise.extensions.gateway.rows import Ledger
from turnwise.extensions.gateway.server import Gateway
from turnwise.extensions.gateway.session import Serving, Session, StateKey
from turnwise.extensions.gateway.settings import HarnessConfig
from turnwise.models.format import Format
from turnwise.rollout.agents import Request
from turnwise.rollout.starts import Start, inside
from turnwise.rollout.trajectory import Trajectory
from turnwise.train.extension import Extension

T = TypeVar("T")


@dataclasses.dataclass
class Witness:
    """Keeps what each trajectory's harness asked, and how long it took, by the number of the trajectory.

    Given turns answer its requests whatever they ask, so that all differences between two plays show.
    """

    calls: dict[int, list[Call]] = dataclasses.field(default_factory=dict)
    seconds: dict[int, float] = dataclasses.field(default_factory=dict)


class Harnesses:
    """Environments in which a harness plays; each trajectory has its own address for the policy.

    Sampling settings override those of a request, but a request may ask for shorter responses and further stop texts.

    Args:
        settings: The `[harness]` of a recipe.
        witness: Keeps what the harnesses ask; default: nothing is kept, and given turns must be asked for as before.

    Attributes:
        agents: This object, since it plays the trajectories; see `Agents`.

    Raises:
        ConfigError: A function cannot be imported.
    """

    def __init__(self, settings: HarnessConfig, witness: Witness | None = None):
        self._settings, self._witness = settings, witness
        self._harness: Harness = make_harness(settings)
        self._state_key: StateKey = import_named(settings.state_key) if settings.state_key else last_message
        self._desks: dict[asyncio.AbstractEventLoop, _Desk] = {}
        self.agents = self

    async def play(self, start: Start, number: int, trajectory: Trajectory, request: Request) -> None:
        """Play a trajectory; see `Agents.play`.

        A harness that fails, hangs or gives no reward loses only its own trajectory; `failure` holds the cause.
        """
        async with self._desk(request.fmt) as desk:
            serving = Serving(
                engine=request.engine,
                fmt=request.fmt,
                sampling=request.sampling,
                max_context=request.max_context,
                state_key=self._state_key,
                stride=request.stride or 1,
                ledger=desk.ledger,
            )
            async with desk.room:
                witness, began = self._witness, time.monotonic()
                heard = None if witness is None else witness.calls.setdefault(number, [])
                session = Session(
                    serving, number, trajectory=trajectory, start=start, exact=witness is None, heard=heard
                )
                await desk.unless_lost(self._play_session(desk, session, inside(self, start.task)[1]))
                if witness is not None:
                    witness.seconds[number] = time.monotonic() - began

    @contextlib.asynccontextmanager
    async def _desk(self, fmt: Format) -> AsyncIterator["_Desk"]:
        """Yield the desk of the running event loop, which opens for the first trajectory and closes with the last."""
        loop = asyncio.get_running_loop()
        if loop not in self._desks:
            self._desks[loop] = _Desk(fmt, self._settings)
        desk = self._desks[loop]
        desk.trajectories += 1
        try:
            await desk.open()
            yield desk
        finally:
            desk.trajectories -= 1
            if not desk.trajectories:
                self._desks.pop(loop, None)
                await desk.gateway.aclose()

    async def _play_session(self, desk: "_Desk", session: Session, task: Task) -> None:
        settings, failure = self._settings, None
        desk.gateway.open(session)
        endpoint = Endpoint(f"{desk.address}/s/{session.name}/v1", desk.token, desk.gateway.model)
        try:
            async with asyncio.timeout(settings.timeout_s):
                outcome = await self._harness(task, endpoint)
            if outcome is not None and settings.reward == "returned":
                session.finish(outcome)
        except TimeoutError:
            failure = f"it took longer than harness.timeout_s={settings.timeout_s:g}"
        except EnvironmentFault as fault:
            failure = str(fault)
        finally:
            session.closed = True
        desk.gateway.forget(session)
        session.end(failure)

    async def start(self, key: int, task: Task) -> Step:
        """Refuse: a harness takes its steps itself."""
        raise EnvironmentFault("a harness plays by itself; it has no single steps")

    async def step(self, key: int, response: str) -> Step:
        """Refuse: a harness takes its steps itself."""
        raise EnvironmentFault("a harness plays by itself; it has no single steps")

    def close(self, key: int) -> None:
        """Do nothing: a harness ends with its trajectory."""

    async def aclose(self) -> None:
        """Do nothing: harnesses end with their trajectories."""


class _Desk:
    """Where the harnesses of one event loop find the policy.

    Args:
        fmt: Conversation format of the policy.
        settings: The `[harness]` of a recipe.

    Attributes:
        gateway: Serves them.
        address: Its address, once it is open.
        token: What callers send.
        room: Room for harnesses.
        ledger: Rows of the engine that their sessions hold.
        trajectories: Trajectories in progress.
    """

    def __init__(self, fmt: Format, settings: HarnessConfig):
        self.token = secrets.token_urlsafe(24)
        self.gateway = Gateway(fmt, token=self.token, takes_rewards=settings.reward == "posted")
        self.room, self.ledger = asyncio.Semaphore(settings.concurrent), Ledger()
        self.address, self.trajectories = "", 0
        self._opening: asyncio.Task[str] | None = None

    async def open(self) -> None:
        """Listen, unless it does."""
        if self._opening is None:
            self._opening = asyncio.ensure_future(self.gateway.start())
        self.address = await asyncio.shield(self._opening)

    async def unless_lost(self, work: Coroutine[Any, Any, T]) -> T:
        """Await a coroutine, unless the engine is lost first.

        Raises:
            EngineLost: The engine is lost.
        """
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait({task, self.gateway.lost}, return_when=asyncio.FIRST_COMPLETED)
            if self.gateway.lost.done():
                await self.gateway.lost  # raises
            return await task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


class PlayedByAgents(Extension):
    """Play through the agent of `[harness]`."""

    plays = True

    def environments(self) -> Environments:
        """Return what plays the trajectories instead of the suite's environments."""
        return Harnesses(self.settings)
