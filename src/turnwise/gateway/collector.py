"""Play groups of trajectories through harnesses, concurrently."""

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Sequence

from turnwise.environments.base import Task
from turnwise.environments.settings import EnvironmentConfig
from turnwise.environments.suites import Suite
from turnwise.errors import ConfigError, EnvironmentFault
from turnwise.gateway.harness import Endpoint, Harness, make_harness
from turnwise.gateway.messages import last_message
from turnwise.gateway.server import Gateway
from turnwise.gateway.session import Serving, Session, StateKey
from turnwise.gateway.settings import HarnessConfig
from turnwise.imports import import_named
from turnwise.rollout.blocking import blocking
from turnwise.rollout.collectors import Collector, OnTurn, make_collector, make_sampling
from turnwise.rollout.environments import Environments, InProcessEnvironments
from turnwise.rollout.models import Models
from turnwise.rollout.settings import RolloutConfig
from turnwise.rollout.starts import Start, make_starts
from turnwise.rollout.stores.recall import Memory
from turnwise.rollout.stores.reminded import Reminded, RemindedEnvironments
from turnwise.rollout.stores.store import Store
from turnwise.rollout.tables import check_roles
from turnwise.rollout.tempering import Tempered
from turnwise.rollout.trajectory import Trajectory
from turnwise.rollout.turn_budget import Budgeted, BudgetedEnvironments, TurnBudget
from turnwise.rollout.workers import make_environments


class HarnessCollector:
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
        self._settings, self._rollout, self._task_name = settings, rollout, task_name
        self._harness: Harness = make_harness(settings)
        self._state_key: StateKey = import_named(settings.state_key) if settings.state_key else last_message

    def play(
        self,
        models: Models,
        tasks: Sequence[Task],
        *,
        seed: int,
        group_size: int | None = None,
        temperature: float | None = None,
        on_turn: OnTurn = None,
    ) -> list[Trajectory]:
        """Play each task with a group of trajectories; see `Collector.play`.

        A harness that fails, hangs or gives no reward loses its own trajectory only; `failure` holds the cause.
        """
        starts = make_starts(tasks, group_size or self._rollout.group_size, self._task_name)
        policy = models.policy.policy
        serving = Serving(
            engine=models.policy.sampler,
            fmt=policy.format,
            sampling=make_sampling(self._rollout, policy, seed=seed, temperature=temperature),
            max_context=policy.max_context,
            state_key=self._state_key,
            stride=len(starts),
        )
        return blocking(self._play(serving, starts, on_turn))

    async def _play(self, serving: Serving, starts: Sequence[Start], on_turn: OnTurn) -> list[Trajectory]:
        token = secrets.token_urlsafe(24)
        gateway = Gateway(serving, token=token)
        address = await gateway.start()
        room, live = asyncio.Semaphore(self._settings.concurrent), len(starts)

        async def play_one(number: int, start: Start) -> Trajectory:
            nonlocal live
            async with room:
                session = gateway.open(Session(serving, number, group=start.group, task=start.name))
                endpoint = Endpoint(f"{address}/s/{session.name}/v1", token, gateway.model)
                trajectory = await self._play_session(session, start.task, endpoint)
            live -= 1
            if on_turn:
                on_turn(live, len(starts))
            return trajectory

        players = [asyncio.ensure_future(play_one(*numbered)) for numbered in enumerate(starts)]
        everyone = asyncio.gather(*players)
        try:
            await asyncio.wait({everyone, gateway.lost}, return_when=asyncio.FIRST_COMPLETED)
            if gateway.lost.done():
                await gateway.lost  # raises
            return await everyone
        finally:
            everyone.cancel()
            await asyncio.gather(*players, return_exceptions=True)
            with contextlib.suppress(asyncio.CancelledError):
                await everyone
            await gateway.aclose()
            await serving.engine.aclose()

    async def _play_session(self, session: Session, task: Task, endpoint: Endpoint) -> Trajectory:
        failure = None
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                outcome = await self._harness(task, endpoint)
            if outcome is not None and session.outcome is None:
                session.finish(outcome)
        except TimeoutError:
            failure = f"it took longer than harness.timeout_s={self._settings.timeout_s:g}"
        except EnvironmentFault as fault:
            failure = str(fault)
        finally:
            session.closed = True
        return session.end(failure)


def choose_collector(
    harness: HarnessConfig | None,
    rollout: RolloutConfig,
    environment: EnvironmentConfig,
    suite: Suite,
    shared: Callable[[Environments], Environments] = lambda environments: environments,
    store: Store | None = None,
) -> tuple[Collector, Environments]:
    """Make the collector of a recipe: that of its `[harness]`, else the one that `rollout.collector` names.

    Args:
        harness: The `[harness]` of a recipe, if any.
        rollout: Its `[rollout]`.
        environment: Its `[environment]`.
        suite: Its tasks.
        shared: Makes environments usable from the threads of the rollouts.
        store: The store of the run, whose experiences turns are shown where it is a memory.

    Returns:
        The collector, and the environments where it plays; a harness needs none.

    Raises:
        ConfigError: The collector is unknown, or the harness cannot be imported.
    """
    if rollout.token_temperature:
        plain = rollout.model_copy(update={"token_temperature": None})
        collector, environments = choose_collector(harness, plain, environment, suite, shared, store)
        return Tempered(collector, rollout.token_temperature), environments
    if harness is None:
        if rollout.collector.name == "self_play":
            if "role" not in getattr(suite, "gives", ()):
                raise ConfigError(
                    f"rollout.collector='self_play' needs an environment with seats, and {environment.name!r} has "
                    "none; set environment.name=seats, or remove rollout.collector"
                )
            if roles := getattr(suite, "roles", ()):  # else the first matches tell
                check_roles(roles, (rollout.collector.model_extra or {}).get("train"), rollout.group_size)
        plain = make_environments(suite, environment)
        budget = TurnBudget(rollout.turn_budget) if rollout.turn_budget else None
        limited = BudgetedEnvironments(plain, budget) if budget else None
        environments = shared(limited or plain)
        memory = Memory(store) if store and store.settings.name == "slea_rl" else None
        reminded = RemindedEnvironments(environments, memory) if memory else None
        collector = make_collector(rollout, reminded or environments, suite.task_name)
        if reminded:
            assert store
            collector = Reminded(collector, reminded, bool(store.settings.evaluate))
        if limited and budget:
            collector = Budgeted(collector, limited, budget)
        return collector, environments
    return HarnessCollector(harness, rollout, suite.task_name), InProcessEnvironments(
        lambda task: suite.environment(task)
    )
