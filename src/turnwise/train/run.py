"""Hold a run between two steps: its parts and their state."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from turnwise.base.blocking import blocking
from turnwise.base.stopping import Stop
from turnwise.config import Config
from turnwise.engines.models import Models
from turnwise.environments.base import Task
from turnwise.environments.hosts import Environments
from turnwise.environments.suites import Suite
from turnwise.measures.base import Played
from turnwise.measures.plan import Plan
from turnwise.objective.contexts import Contexts
from turnwise.objective.prober import Prober
from turnwise.objective.scorer import Scorer
from turnwise.objective.tokens import Sequences
from turnwise.rollout.experience import Steps
from turnwise.rollout.gate import VisitedEngine
from turnwise.rollout.groups import Collector
from turnwise.rollout.trajectory import Trajectory
from turnwise.train.checkpoint import Stateful, save_checkpoint
from turnwise.train.credit import Credit
from turnwise.train.display import Display
from turnwise.train.extension import Extension
from turnwise.train.folder import RunFolder, by_step
from turnwise.train.last_step import LastStep
from turnwise.train.update import Learner, Measured


@dataclasses.dataclass
class Run:
    """Hold a run in progress.

    Attributes:
        config: Configuration of the run.
        folder: Folder of the run, locked.
        display: Display that shows progress.
        device: Device of the models.
        suite: Environment with its tasks.
        environments: Environments that play the trajectories, in this process or in others.
        collector: Plays groups.
        source: Selects tasks and the groups to learn from.
        measures: Measures taken in each step.
        method: Turns rewards into advantages.
        learner: Turns advantages into new weights.
        models: Policy and reference models.
        services: What measures ask, such as a judge of trajectories, by the key of its extension.
        extensions: What the recipe adds.
        step: Last completed step.
        stop: Signals that ask for the end of the run.
        empty_steps: Consecutive steps up to the last one without a usable trajectory.
        unevaluated: Why no episode of the last evaluation could be played; empty if any was.
    """

    config: Config
    folder: RunFolder
    display: Display
    device: torch.device
    suite: Suite
    environments: Environments
    collector: Collector
    source: Steps
    measures: Plan
    method: Credit
    learner: Learner
    models: Models
    services: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    extensions: Sequence[Extension] = ()
    step: int = 0
    stop: Stop = dataclasses.field(default_factory=Stop)
    empty_steps: int = 0
    unevaluated: str = ""

    @property
    def parts(self) -> dict[str, Stateful]:
        """Parts with a state, by their names in checkpoints."""
        parts: dict[str, Stateful] = {
            "optimizer": self.models.policy.optimizer,
            "method": self.method,
            "selector": self.source,
            "objective": self.learner.objective,
        }
        optional = {"collector": self.collector, **{each.key: each.part for each in self.extensions}}
        optional["critic"] = self.learner.value and self.learner.value.critic
        return parts | {name: part for name, part in optional.items() if isinstance(part, Stateful)}

    def measure(self, trajectories: Sequence[Trajectory], tasks: Sequence[Task]) -> Measured:
        """Take the measures of the trajectories that a step learns from, given the task of each group."""
        sequences, learner = Sequences.from_trajectories(trajectories), self.learner
        policy, precision, budget = self.models.policy, learner.precision, learner.budget
        values = learner.value and learner.value.begin(sequences, trajectories, precision, budget)
        contexts = Contexts(policy.policy.model) if "probe" in self.measures.models else None
        probe = Prober(policy.policy, sequences, precision, learner.temperature, budget, policy.engine, contexts)
        played = Played(
            trajectories,
            invalid_penalty=self.config.environment.invalid_penalty,
            models=self.models.weights,
            score=Scorer(sequences, precision, learner.temperature, budget, values, contexts),
            estimate=values and values.column,
            along=frozenset({"plan", "critic"} if values and values.needs_no_pass(self.measures.models) else {"plan"}),
            probe=probe,
            tasks=tasks,
            **self.services,
        )
        batch, metrics = self.measures.take(played)
        for each in self.extensions:
            metrics |= each.watch(played, self.step + 1)
        for service in self.services.values():
            metrics |= service.finish(self.folder.table(service.folder, self.step + 1))
        return Measured(batch, sequences, metrics)

    @functools.cached_property
    def last_step(self) -> LastStep:
        """State of the last completed step, made at first use."""
        return LastStep(self.models.policy.policy.model, self.parts, self.stop)

    def complete(self, step: int) -> None:
        """Declare a step completed."""
        self.step = step
        self.last_step.mark()

    def save(self) -> None:
        """Save a checkpoint of the last completed step, even while the next one is in progress."""
        states, keep = self.last_step.restore(), self.config.checkpoint.keep
        save_checkpoint(self.folder, self.step, self.models.policy.policy, states, keep=keep)

    def save_at_signal(self) -> None:
        """Save the last completed step unless its checkpoint exists."""
        if self.step not in by_step(self.folder.checkpoints):
            self.save()

    @property
    def evaluation_is_due(self) -> bool:
        """Whether to evaluate the last completed step."""
        return self.config.evaluate.episodes_after(self.step, self.config.run.steps) > 0

    def release(self) -> None:
        """Release the environments and the engine, however the run ends."""
        blocking(self.environments.aclose())
        if isinstance(engine := self.models.policy.engine, VisitedEngine):
            blocking(engine.release())
