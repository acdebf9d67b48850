"""Play groups of trajectories through harnesses, concurrently."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

from turnwise.environments.base import Task
from turnwise.errors import EnvironmentFault
from turnwise.gateway.harness import Endpoint, Harness, make_harness
from turnwise.gateway.messages import last_message
from turnwise.gateway.rows import Ledger
from turnwise.gateway.server import Gateway
from turnwise.gateway.session import Serving, Session, StateKey
from turnwise.gateway.settings import HarnessConfig
from turnwise.imports import import_named
from turnwise.models.format import Format
from turnwise.rollout.collectors import Group, Independent, all_of, make_sampling
from turnwise.rollout.environments import Environments, InProcessEnvironments
from turnwise.rollout.settings import RolloutConfig
from turnwise.rollout.starts import Start
from turnwise.rollout.trajectory import Trajectory

T = TypeVar("T")
_NONE: Environments = InProcessEnvironments(lambda task: task)
"""A harness has its own environment."""


class HarnessCollector(Independent):
    """Play each trajectory by a run of the harness, which finds the policy at an address of its own.

    Args:
        settings: The `[harness]` of a recipe.
        rollout: The `[rollout]` of a recipe. Its sampling settings hold whatever a request says, but a request may ask
            for shorter responses and further stop texts.
        task_name: Names a task in records.

    Raises:
        ConfigError: A function cannot be imported.
    """

    def __init__(self, settings: HarnessConfig, rollout: RolloutConfig, task_name: Callable[[Task], str] = str):
        super().__init__(_NONE, rollout, task_name)
        self._harness_settings = settings
        self._harness: Harness = make_harness(settings)
        self._state_key: StateKey = import_named(settings.state_key) if settings.state_key else last_message
        self._desks: dict[asyncio.AbstractEventLoop, _Desk] = {}

    async def play(self, group: Group) -> list[Trajectory]:
        """Play a group; see `Collector.play`.

        A harness that fails, hangs or gives no reward loses its own trajectory only; `failure` holds the cause.
        """
        starts, policy = group.starts(), group.models.policy.policy
        async with self._desk(policy.format) as desk:
            serving = Serving(
                engine=group.engine,
                fmt=policy.format,
                sampling=make_sampling(self._settings, policy, seed=group.seed, temperature=group.temperature),
                max_context=policy.max_context,
                state_key=self._state_key,
                stride=group.stride,
                ledger=desk.ledger,
            )
            live = 0

            def tell(change: int) -> None:
                nonlocal live
                live += change
                if group.on_turn:
                    group.on_turn(live, len(starts))

            async def play_one(start: Start) -> Trajectory:
                assert start.conversation is not None
                tell(1)
                async with desk.room:
                    session = Session(serving, start.conversation, group=start.group, task=start.name)
                    trajectory = await self._play_session(desk, session, start.task)
                tell(-1)
                return trajectory

            return await desk.unless_lost(all_of([play_one(start) for start in starts]))

    @contextlib.asynccontextmanager
    async def _desk(self, fmt: Format) -> AsyncIterator["_Desk"]:
        """Yield the desk of the running event loop, which opens with its first group and closes with its last."""
        loop = asyncio.get_running_loop()
        if loop not in self._desks:
            self._desks[loop] = _Desk(fmt, self._harness_settings.concurrent)
        desk = self._desks[loop]
        desk.groups += 1
        try:
            await desk.open()
            yield desk
        finally:
            desk.groups -= 1
            if not desk.groups:
                self._desks.pop(loop, None)
                await desk.gateway.aclose()

    async def _play_session(self, desk: "_Desk", session: Session, task: Task) -> Trajectory:
        settings, failure = self._harness_settings, None
        desk.gateway.open(session)
        endpoint = Endpoint(f"{desk.address}/s/{session.name}/v1", desk.token, desk.gateway.model)
        try:
            async with asyncio.timeout(settings.timeout_s):
                outcome = await self._harness(task, endpoint)
            if outcome is not None and session.outcome is None:
                session.finish(outcome)
        except TimeoutError:
            failure = f"it took longer than harness.timeout_s={settings.timeout_s:g}"
        except EnvironmentFault as fault:
            failure = str(fault)
        finally:
            session.closed = True
        desk.gateway.forget(session)
        return session.end(failure)


class _Desk:
    """Where the harnesses of one event loop find the policy.

    Args:
        fmt: Conversation format of the policy.
        concurrent: Harnesses at a time.

    Attributes:
        gateway: Serves them.
        address: Its address, once it is open.
        token: What callers send.
        room: Room for harnesses.
        ledger: Rows of the engine that their sessions hold.
        groups: Groups that are played.
    """

    def __init__(self, fmt: Format, concurrent: int):
        self.token = secrets.token_urlsafe(24)
        self.gateway = Gateway(fmt, token=self.token)
        self.room, self.ledger = asyncio.Semaphore(concurrent), Ledger()
        self.address, self.groups = "", 0
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
