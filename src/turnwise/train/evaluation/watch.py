"""Watch a policy play one task, turn by turn."""

import dataclasses
import threading
from collections.abc import Callable, Generator, Sequence
from queue import SimpleQueue
from typing import Any

import numpy as np

from turnwise.base.errors import EngineFault
from turnwise.engines.base import Engine, Generation, Sampling
from turnwise.engines.models import Models, NamedModel
from turnwise.environments.base import Step, Task
from turnwise.environments.hosts import Environments
from turnwise.models.policy import Policy
from turnwise.rollout.collectors import make_collector
from turnwise.rollout.plays import play_tasks
from turnwise.rollout.settings import RolloutConfig
from turnwise.rollout.trajectory import Trajectory


@dataclasses.dataclass(frozen=True)
class Observed:
    """What the environment answered."""

    step: Step


@dataclasses.dataclass(frozen=True)
class Responded:
    """What the policy responded, and the mean entropy of its tokens (nats), if the engine measures it."""

    response: str
    entropy: float | None


def watch(
    policy: Policy,
    engine: Engine,
    environments: Environments,
    task: Task,
    settings: RolloutConfig,
    *,
    temperature: float,
    seed: int,
) -> Generator[Observed | Responded | Trajectory, None, None]:
    """Play one task and yield every observation and response as it happens, then the trajectory.

    The policy plays in a thread, ahead of the viewer. When the generator is closed, it ends with its next response.
    """
    events: SimpleQueue[Any] = SimpleQueue()
    stopped = threading.Event()

    def report(made: Generation) -> None:
        entropy = float(np.mean(made.entropies)) if made.entropies else None
        events.put(Responded(policy.format.text(made.token_ids), entropy))

    models = Models(policy=NamedModel(policy, _Engine(engine, report, stopped)))
    collector = make_collector(settings, _Environments(environments, lambda step: events.put(Observed(step))), str)

    def play() -> None:
        try:
            models.publish()
            events.put(play_tasks(collector, models, [task], seed=seed, group_size=1, temperature=temperature)[0])
        except BaseException as error:  # raised again in the viewer
            events.put(error)

    thread = threading.Thread(target=play, daemon=True)
    thread.start()
    try:
        while not isinstance(event := events.get(), (Trajectory, BaseException)):
            yield event
        if isinstance(event, BaseException):
            raise event
        yield event
    finally:
        stopped.set()
        thread.join()


class _Engine:
    """Report the responses of an engine."""

    def __init__(self, engine: Engine, report: Callable[[Generation], None], stopped: threading.Event):
        self.engine, self.report, self.stopped = engine, report, stopped
        self.update_weights, self.close, self.aclose = engine.update_weights, engine.close, engine.aclose

    async def generate(self, conversation: int, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        if self.stopped.is_set():
            raise EngineFault("no one is watching any more")
        made = await self.engine.generate(conversation, prompt_ids, sampling)
        self.report(made)
        return made


class _Environments:
    """Report the answers of environments."""

    def __init__(self, environments: Environments, report: Callable[[Step], None]):
        self.environments, self.report = environments, report
        self.close, self.aclose = environments.close, environments.aclose

    async def start(self, key: int, task: Task) -> Step:
        return self._reported(await self.environments.start(key, task))

    async def step(self, key: int, response: str) -> Step:
        return self._reported(await self.environments.step(key, response))

    def _reported(self, step: Step) -> Step:
        self.report(step)
        return step
