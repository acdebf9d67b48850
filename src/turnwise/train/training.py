"""A run between two steps: what it is made of, and what it remembers."""

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

import torch

from turnwise.config import Config
from turnwise.environments.base import Task
from turnwise.environments.suites import Suite
from turnwise.policy import Policy
from turnwise.rollout.collect import blocking
from turnwise.rollout.engine import Engine
from turnwise.rollout.worlds import Worlds
from turnwise.train.checkpoint import save_checkpoint
from turnwise.train.display import Display
from turnwise.train.evaluate import evaluate
from turnwise.train.folder import RunFolder
from turnwise.train.gradient import Budget
from turnwise.train.objective import State
from turnwise.train.outcomes import write_outcomes
from turnwise.train.selection import TaskSelector
from turnwise.transform import Transform


@dataclasses.dataclass
class Training:
    """A run in progress.

    Attributes:
        config: What to do.
        folder: Where it is written, locked.
        display: Where progress shows.
        device: Where the model is.
        suite: The environment with its tasks.
        tasks: Those to train on.
        worlds: Where episodes are played: in this process or in others.
        policy: Model, tokenizer and format.
        engine: Samples from the policy.
        optimizer: Of its trainable weights.
        budget: Padded tokens a micro-batch may hold.
        credit: From rewards to advantages.
        selector: Chooses the tasks of a step; with a state.
        step: The last step that is done.
        method_state: What the credit remembers from step to step, as running means.
        objective_state: What the objective remembers.
        reference: The model after the warm start, where the run compares with it.
        empty_steps: Steps in a row, up to the last one, that gave no usable trajectory.
    """

    config: Config
    folder: RunFolder
    display: Display
    device: torch.device
    suite: Suite
    tasks: Sequence[Task]
    worlds: Worlds
    policy: Policy
    engine: Engine
    optimizer: torch.optim.Optimizer
    budget: Budget
    credit: Transform
    selector: TaskSelector
    step: int
    method_state: Any
    objective_state: State
    reference: Any = None  # a transformers PreTrainedModel
    empty_steps: int = 0

    def save(self) -> None:
        """Write a checkpoint of the step that is done."""
        states = {"method": self.method_state, "selector": self.selector.state, "objective": self.objective_state}
        save_checkpoint(self.folder, self.step, self.policy, self.optimizer, states, keep=self.config.checkpoint.keep)

    def evaluate(self) -> None:
        """Play the held-out panel, whole before the first step and after the last, and record it."""
        config, whole = self.config, self.step in (0, self.config.run.steps)
        start = time.perf_counter()
        metrics, trajectories = evaluate(
            self.engine,
            self.policy,
            self.suite,
            config,
            episodes=config.evaluate.final_episodes if whole else config.evaluate.episodes,
            worlds=self.worlds,
            on_turn=self.display.turn,
        )
        write_outcomes(self.folder.evaluations / f"step-{self.step:06d}.parquet", trajectories)
        record = {f"eval/{name}": value for name, value in metrics.items()}
        self.folder.log({"step": self.step, **record, "time/eval_s": time.perf_counter() - start})
        self.display.evaluation(self.step, metrics)

    def close(self) -> None:
        """Give back what the run held; what an error leaves open closes with the last reference to it."""
        blocking(self.worlds.aclose())
        for tracker in self.folder.trackers:
            tracker.close()
