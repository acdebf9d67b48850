"""Write run folders from trajectories that turnwise did not train on, for `report`, `recredit` and `compare`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from turnwise.config import Config, parse_config
from turnwise.measures.base import Columns, Played, measure
from turnwise.measures.plan import Plan
from turnwise.measures.played import played
from turnwise.measures.scored import engine_scores, entropy, rare_tokens, sampled
from turnwise.rollout.experience import Experience
from turnwise.rollout.metrics import rollout_metrics
from turnwise.rollout.record import write_rollouts
from turnwise.rollout.trajectory import Trajectory
from turnwise.train.credit import Credit, make_transform
from turnwise.train.evaluation.outcomes import write_outcomes
from turnwise.train.evaluation.play import evaluation_metrics
from turnwise.train.folder import RunFolder


@measure(provides=("logprob_T",), needs=("behavior_logprob_T",))
def told_scores(step: Played, columns: Columns) -> Columns:
    """Take the log-probabilities of the engine for those of the policy (nats), where entropies are not known."""
    return {"logprob_T": columns["behavior_logprob_T"]}


@measure(provides=("logprob",), needs=("logprob_T",))
def told_mean(step: Played, columns: Columns) -> Columns:
    """Compute the mean log-probability of each response's tokens (nats)."""
    return {"logprob": step.tokens.mean(columns["logprob_T"])}


class RecordedRun:
    """Write a run folder without weights.

    Its credit is that of GRPO; `turnwise recredit` gives that of other methods.

    Args:
        path: Folder to make.
        config: Configuration of the policy that played.
        facts: Further facts for its config.json, such as the log that it comes from.

    Raises:
        RunError: The folder exists.
    """

    def __init__(self, path: Path, config: Config, facts: Mapping[str, Any] | None = None):
        data = config.model_dump(mode="json")
        given = {"run": {**data.get("run", {}), "folder": str(path.parent), "name": path.name}}
        given["rollout"] = {**data["rollout"], "step_budget": None}  # GRPO may not go with it, and nothing is trained
        config = parse_config({**data, **given, "method": "grpo"})
        self.folder = RunFolder.create(config, facts)
        self._penalty = config.environment.invalid_penalty
        self._credit = Credit(make_transform(config.method))
        self.steps = 0
        self.grouped = False  # whether a trajectory can be compared with another one

    def add(self, trajectories: Sequence[Trajectory]) -> None:
        """Write the next step.

        Args:
            trajectories: Those of a group adjacent, groups numbered from 0. Without entropies, as from vLLM, the record
                has none, and methods that need them cannot be computed later.
        """
        step = self.steps + 1
        used_N = np.array([trajectory.usable for trajectory in trajectories], dtype=bool)
        experience = Experience(list(trajectories), used_N, rollout_metrics(trajectories))
        columns = self._columns(experience.used) if experience.used else {}
        path = self.folder.rollouts / f"step-{step:06d}.parquet"
        write_rollouts(path, trajectories, experience.recorded(columns))
        groups = [trajectory.group for trajectory in experience.used]
        self.grouped = self.grouped or len(groups) > len(set(groups))
        self.steps = step  # not before: a batch that could not be written leaves no gap
        self.folder.log({"step": step, **{f"rollout/{name}": x for name, x in experience.metrics.items()}})

    def evaluate(self, trajectories: Sequence[Trajectory]) -> None:
        """Record how the trajectories of the last step ended, as `turnwise compare` reads it."""
        write_outcomes(self.folder.evaluations / f"step-{self.steps:06d}.parquet", trajectories)
        metrics = evaluation_metrics(trajectories)
        self.folder.log({"step": self.steps, **{f"eval/{name}": value for name, value in metrics.items()}})

    def _columns(self, used: Sequence[Trajectory]) -> dict[str, np.ndarray]:
        """Return the columns that records keep: what is known of log-probabilities and entropies, and credit."""
        turns = [turn for trajectory in used for turn in trajectory.turns]
        known = (played,)
        if all(turn.behavior_entropies for turn in turns):
            known = (sampled, engine_scores, entropy, rare_tokens, played)
        elif all(turn.behavior_logprobs for turn in turns):
            known = (sampled, told_scores, told_mean, rare_tokens, played)
        plan = Plan(known)
        batch, _ = plan.take(Played(used, invalid_penalty=self._penalty))
        return {name: batch.columns[name] for name in plan.recorded} | self._credit.update(batch).columns
