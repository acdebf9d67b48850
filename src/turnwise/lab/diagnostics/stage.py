"""Open a checkpoint's policy with its environments, to play and measure without training."""

import dataclasses
import functools
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from turnwise.base.blocking import blocking
from turnwise.base.streams import Stream
from turnwise.base.terminal import say
from turnwise.config import Config
from turnwise.credit.batch import Batch
from turnwise.engines.build import make_engine
from turnwise.engines.models import Models, NamedModel
from turnwise.environments.base import Task
from turnwise.environments.hosts import Environments, agents_of
from turnwise.environments.suites import Suite, make_suite, refuse_unrepeatable
from turnwise.extensions.continuations.play import Continuations
from turnwise.extensions.judge.judge import Judge, make_judge
from turnwise.extensions.judge.settings import JudgeConfig
from turnwise.extensions.turn_budget.budget import TurnBudgetExtension, limit_of
from turnwise.measures.base import Played
from turnwise.measures.plan import Plan, plan_measures
from turnwise.measures.verdict import check_environment
from turnwise.models.policy import Policy, choose_trainable, freeze_but_norms
from turnwise.objective.contexts import Contexts
from turnwise.objective.gradient import Budget
from turnwise.objective.prober import Prober
from turnwise.objective.scorer import Scorer
from turnwise.objective.tokens import Sequences
from turnwise.objective.values import ValueTerm
from turnwise.rollout.around import Around
from turnwise.rollout.collectors import Independent, make_collector, make_request
from turnwise.rollout.groups import Collector, OnTurn, TaskBatch
from turnwise.rollout.plays import play_starts, play_tasks
from turnwise.rollout.replays import refuse_varying
from turnwise.rollout.starts import Start
from turnwise.rollout.trajectory import Trajectory
from turnwise.train.checkpoint import checkpoint_at, load_checkpoint
from turnwise.train.evaluation.play import panel
from turnwise.train.extension import Context, make_extensions, make_players
from turnwise.train.folder import RunFolder
from turnwise.train.resume import first_policy


class WithinLimits(Around):
    """Play all trajectories within the run's limits; none is free, as some are in training."""

    def __init__(self, collector: Collector, limits: Sequence[TurnBudgetExtension]):
        super().__init__(collector)
        self._limits: list[Any] = [each.collector(collector) for each in limits]

    def put(self, batch: TaskBatch) -> Callable[[Start], Start]:
        """Return the wrapper of a batch's trajectories."""
        return self.put_given

    def put_given(self, start: Start) -> Start:
        """Wrap one trajectory, unless it forks from one that was played within its limit, which it keeps."""
        if limit_of(start.task) is not None:
            return start
        return functools.reduce(lambda found, each: each.put_given(found), self._limits, start)


@dataclasses.dataclass(frozen=True)
class Stage:
    """A policy as it was after a step, and where it plays."""

    config: Config  # configuration of the run
    step: int  # step of the checkpoint
    policy: Policy
    models: Models  # the policy with its engine
    suite: Suite  # tasks
    environments: Environments  # where tasks are played
    folder: RunFolder
    on_turn: OnTurn = None  # called after every turn of the played groups, with the number of live episodes and of all
    limits: Sequence[TurnBudgetExtension] = ()  # what ends trajectories earlier

    @classmethod
    def open(
        cls,
        folder: RunFolder,
        step: int | None,
        device: torch.device | None = None,
        *,
        limited: bool = True,
        on_turn: OnTurn = None,
    ) -> "Stage":
        """Load the checkpoint of a step, by default the last.

        Args:
            folder: Folder of the run.
            step: The step.
            device: Device of the policy.
            limited: Whether `rollout.turn_budget` ends trajectories, as it does in an evaluation.
            on_turn: Called after every turn of the played groups.

        Raises:
            RunError: There is no such checkpoint.
            ConfigError: The limit of the trajectories is not known, or the harness cannot be imported.
        """
        _, config = RunFolder.open(folder.path)
        suite, checkpoint = make_suite(config.environment), checkpoint_at(folder, step)
        context = Context(config, suite, suite.tasks(config.environment.train_split), device)
        extensions = make_extensions(context)
        limits = [each for each in extensions if limited and isinstance(each, TurnBudgetExtension)]
        to_play = not any(each.evaluates_with_state for each in limits)
        done, policy, states = load_checkpoint(checkpoint, to_play=to_play)
        for each in limits:
            each.restore(checkpoint, states, folder.path)
        for key in (each.key for each in extensions if each.evaluates_with_state and each not in limits):
            if limited or not key.endswith("turn_budget"):
                say(f"note: the policy plays without what [{key}] shows it in an evaluation", file=sys.stderr)
        policy.model.to(device)  # pyright: ignore[reportArgumentType]
        choose_trainable(policy.model, config.model)
        if config.update.only_norms:
            freeze_but_norms(policy.model)
        environments = make_players(extensions, context)
        models = Models(policy=NamedModel(policy, make_engine(config.engine, config.model.precision, policy)))
        models.publish()
        return cls(config, done, policy, models, suite, environments, folder, on_turn, limits)

    def refuse_unrepeatable(self, wanted: str) -> None:
        """Raise a ConfigError if the environment declares that it does not repeat, or an agent does not.

        Args:
            wanted: What needs replays, for the error.
        """
        environment = self.config.environment
        tasks = self.suite.tasks(environment.train_split)
        if not agents_of(self.environments):
            refuse_unrepeatable(self.suite, tasks[:1], environment.name, wanted)
            return
        how: Any = {"seed": self.config.run.seed, "on_turn": self.on_turn}
        request = make_request(self.models, self.environments, self.config.rollout, **how)
        refuse_varying(wanted, tasks, self.suite.task_name, request)

    def plan(self, needs: Mapping[str, Sequence[str]], *, models: Collection[str] = ()) -> Plan:
        """Plan the measures that fill the needed columns.

        Args:
            needs: Columns by what needs them.
            models: Models that the caller has, such as "critic", in addition to the policy, the first one, and probes;
                "judge" counts only if the run has one.

        Raises:
            ConfigError: A column cannot be measured without training, or the environment does not provide it.
            RunError: A column needs the first policy, whose checkpoint is gone.
        """
        scoring = self.config.update.scoring
        models = [name for name in models if name != "judge" or self.config.section(JudgeConfig)]
        plan = plan_measures(needs, scoring=scoring, models=models)
        check_environment(plan, self.suite, self.config.environment.name)
        if "reference" in plan.models:
            checkpoint_at(self.folder, 0)  # raises if it is gone
        return plan

    def play_groups(self, groups: int, seed: int, *, after: int = 0) -> tuple[list[Trajectory], list[Task]]:
        """Play groups of training tasks, one per task; returns usable trajectories, and the task of each group.

        Args:
            groups: Number of groups; fewer are played if there are fewer tasks.
            seed: Seed of tasks and draws.
            after: Tasks to leave out: those of a call with this many groups and the same seed.
        """
        tasks = self.suite.tasks(self.config.environment.train_split)
        order = np.random.default_rng([seed, Stream.STUDIED_TASKS]).permutation(len(tasks))
        chosen_tasks = [tasks[number] for number in order[after : after + groups].tolist()]
        collector = make_collector(self.config.rollout, self.environments, self.suite.task_name)
        collector = WithinLimits(collector, self.limits)
        if after:  # other tasks, and other draws too
            seed = int(np.random.default_rng([seed, Stream.STUDIED_TASKS, after]).integers(2**62))
        played = play_tasks(collector, self.models, chosen_tasks, seed=seed, on_turn=self.on_turn)
        return [trajectory for trajectory in played if trajectory.usable], chosen_tasks

    def held_out(self, num_tasks: int, split: str | None = None) -> list[Task]:
        """Choose tasks, evenly spaced over a split, by default the held-out one; all of them if there are fewer."""
        tasks = self.suite.tasks(split or self.config.environment.eval_split)
        return panel(tasks, min(num_tasks, len(tasks)))

    def play_tasks(self, tasks: Sequence[Task], *, seed: int, group_size: int, temperature: float) -> list[Trajectory]:
        """Play each task with independent trajectories."""
        collector = WithinLimits(Independent(self.environments, self.config.rollout, self.suite.task_name), self.limits)
        return play_tasks(collector, self.models, tasks, seed=seed, group_size=group_size, temperature=temperature)

    def play(self, starts: Sequence[Start], *, seed: int) -> list[Trajectory]:
        """Play one trajectory per start."""
        collector = WithinLimits(Independent(self.environments, self.config.rollout), self.limits)
        return play_starts(
            starts, make_request(self.models, self.environments, self.config.rollout, seed=seed), collector
        )

    def measure(
        self,
        plan: Plan,
        trajectories: Sequence[Trajectory],
        tasks: Sequence[Task] = (),
        continuations: Continuations | None = None,
    ) -> tuple[Batch, Sequences, dict[str, float]]:
        """Take the measures of trajectories, without a critic.

        Returns:
            The batch, the tokens that were scored, and metrics of the measures.
        """
        sequences = Sequences.from_trajectories(trajectories)
        budget = Budget.on(self.policy.model.device, self.config.update.max_tokens)
        temperature = self.config.rollout.temperature
        contexts = Contexts(self.policy.model) if "probe" in plan.models else None
        of_probes = (self.config.model, temperature, budget, self.models.policy.sampler, contexts)
        score = Scorer(sequences, self.config.model, temperature, budget, contexts=contexts)
        probe = Prober(self.policy, sequences, *of_probes) if contexts else None
        played = self._played(trajectories, score, plan)
        batch, metrics = plan.take(dataclasses.replace(played, probe=probe, tasks=tasks, continuations=continuations))
        return batch, sequences, metrics

    def measure_with(
        self, plan: Plan, trajectories: Sequence[Trajectory], critics: Mapping[str, ValueTerm | None]
    ) -> tuple[dict[str, Batch], Sequences]:
        """Take the measures of trajectories with the values of each critic. Tokens are scored once for all.

        Returns:
            The batch of each critic, and the tokens that were scored.
        """
        config, sequences = self.config, Sequences.from_trajectories(trajectories)
        budget = Budget.on(self.policy.model.device, config.update.max_tokens)
        score = functools.cache(Scorer(sequences, config.model, config.rollout.temperature, budget))
        played = self._played(trajectories, score, plan)
        batches = {}
        for name, critic in critics.items():
            values = critic and critic.begin(sequences, trajectories, config.model, budget)
            batches[name] = plan.take(dataclasses.replace(played, estimate=values and values.column))[0]
        return batches, sequences

    def _played(self, trajectories: Sequence[Trajectory], score: Any, plan: Plan) -> Played:
        models: dict[str, Any] = {"policy": self.policy.model}
        if "reference" in plan.models:
            models["reference"] = self._first.model
        penalty = self.config.environment.invalid_penalty
        judge = self._judge if "judge" in plan.models else None
        return Played(list(trajectories), invalid_penalty=penalty, models=models, score=score, judge=judge)

    @functools.cached_property
    def _judge(self) -> Judge:
        settings, own = self.config.section(JudgeConfig), self.models.policy
        assert settings is not None, "plans without a judge need none"
        return make_judge(settings, own.policy, own.sampler, self.config.model.precision, self.policy.model.device)

    @functools.cached_property
    def _first(self) -> Policy:
        return first_policy(self.folder, self.policy.model.device, self.config.engine)

    def close(self) -> None:
        """Release the environments."""
        blocking(self.environments.aclose())
