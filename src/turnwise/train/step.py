"""One training step after the rollout: trajectories to a batch, a batch to advantages, advantages to new weights."""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from turnwise.batch import Batch
from turnwise.config import Config
from turnwise.errors import ConfigError
from turnwise.policy import autocast, trainable
from turnwise.rollout.record import Trajectory, Turn
from turnwise.segments import Segments
from turnwise.tokens import Sequences, generated_logprobs, score
from turnwise.train.columns import response_columns
from turnwise.train.gradient import Budget, culprits
from turnwise.train.objective import State, make_objective

Model = Any  # a transformers PreTrainedModel


@dataclasses.dataclass(frozen=True)
class Scored:
    """Trajectories with what the policy at the start of the step thinks of their tokens.

    Attributes:
        batch: Their responses, with all columns that the trainer fills.
        sequences: Their tokens.
        old_logprob_T: Log-probabilities at the start of the step (nats).
        entropy_T: Token entropies (nats).
        behavior_logprob_T: Log-probabilities that the engine reported when it sampled.
        reference_T: Log-probabilities under the reference policy, or None.
    """

    batch: Batch
    sequences: Sequences
    old_logprob_T: np.ndarray
    entropy_T: np.ndarray
    behavior_logprob_T: np.ndarray
    reference_T: np.ndarray | None = None


def score_trajectories(
    model: Model,
    trajectories: Sequence[Trajectory],
    config: Config,
    *,
    reference: Model | None = None,
    budget: Budget | None = None,
) -> Scored:
    """Score usable trajectories (groups adjacent), under the reference too if there is one, and build their batch."""
    budget = budget or Budget(config.update.max_tokens)
    sequences = Sequences.from_trajectories(trajectories)
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    tokens = Segments.from_lengths([len(turn.response_ids) for turn in turns])
    behavior_logprob_T = np.concatenate([turn.behavior_logprobs for turn in turns])
    if config.update.scoring == "engine":
        old_logprob_T, entropy_T = behavior_logprob_T, _sampled_entropies(turns)
    else:
        old_logprob_T, entropy_T = _score(model, sequences, config, budget)
    columns = response_columns(
        trajectories,
        tokens,
        logprob_T=old_logprob_T,
        entropy_T=entropy_T,
        behavior_logprob_T=behavior_logprob_T,
        invalid_penalty=config.environment.invalid_penalty,
    )
    reference_T = None
    if reference is not None:
        reference_T, _ = _score(reference, sequences, config, budget)
        columns["ref_logprob"] = tokens.mean(reference_T)
    batch = Batch(
        Segments.from_sorted_ids(np.array([trajectory.group for trajectory in trajectories])),
        Segments.from_lengths([len(trajectory.turns) for trajectory in trajectories]),
        [turn.reward for turn in turns],
        columns,
        tokens,
    )
    return Scored(batch, sequences, old_logprob_T, entropy_T, behavior_logprob_T, reference_T)


def _score(model: Model, sequences: Sequences, config: Config, budget: Budget) -> tuple[np.ndarray, np.ndarray]:
    def run(max_tokens: int) -> tuple[np.ndarray, np.ndarray]:
        with autocast(model, config.model):
            return score(model, sequences, temperature=config.rollout.temperature, max_tokens=max_tokens)

    return budget.spend(run, shortest=sequences.shortest)


def _sampled_entropies(turns: Sequence[Turn]) -> np.ndarray:
    """`entropy_T` as the engine measured it."""
    known = [turn.behavior_entropies for turn in turns if turn.behavior_entropies is not None]
    if len(known) < len(turns):
        raise ConfigError("update.scoring='engine' needs an engine that measures entropies; engine.name='local' does")
    return np.concatenate(known)


def update_policy(
    model: Model,
    optimizer: torch.optim.Optimizer,
    scored: Scored,
    advantage_R: np.ndarray,
    config: Config,
    *,
    step: int,
    state: State = None,
    budget: Budget | None = None,
) -> tuple[dict[str, float], State]:
    """Take the step's optimiser steps; report what they did, and the objective's state for the next step.

    Trajectories that the objective does not depend on, such as those whose advantage is 0 throughout, are left out of the passes.

    Raises:
        Diverged: The loss or its gradient is not finite.
    """
    budget = budget or Budget(config.update.max_tokens)
    settings, sequences, temperature = config.update, scored.sequences, config.rollout.temperature
    reference_T = scored.reference_T if settings.kl else None
    objective, state = make_objective(
        scored.batch, advantage_R, scored.old_logprob_T, scored.entropy_T, config,
        step=step, behavior_logprob_T=scored.behavior_logprob_T, reference_T=reference_T, state=state,
    )  # fmt: skip
    names = ("grad_norm", "clipped_frac", "kl_old", "log_ratio_abs", "kl_reference", "loss")
    totals: dict[str, float] = dict.fromkeys(names, 0.0)
    generator = np.random.default_rng([config.run.seed, 3, step])
    num_steps = settings.epochs * settings.mini_batches
    whole = settings.importance == "trajectory"  # a ratio over a trajectory needs all of it in one pass
    for group in optimizer.param_groups:
        group["lr"] = learning_rate(config, step)

    def loss_of(sequence_indices: np.ndarray) -> tuple[torch.Tensor, dict[str, float]]:
        where = torch.from_numpy(sequences.token_index(sequence_indices))
        with autocast(model, config.model):
            logprob, entropy = generated_logprobs(model, sequences, sequence_indices, temperature=temperature)
        return objective.loss(logprob, entropy, where)

    def accumulate(part: np.ndarray, max_tokens: int) -> dict[str, float]:
        """The gradient of a mini-batch, from nothing."""
        optimizer.zero_grad()
        sums = dict.fromkeys(totals, 0.0)
        for indices in sequences.micro_batches(max_tokens, only=part, whole=whole):
            loss, metrics = loss_of(indices)
            loss.backward()
            for name, value in metrics.items():
                sums[name] += value
        return sums

    model.train()
    for _ in range(settings.epochs):
        order = generator.permutation(np.flatnonzero(objective.matters_N))
        for part in np.array_split(order, settings.mini_batches):
            if not len(part):
                continue
            sums = budget.spend(functools.partial(accumulate, part), shortest=sequences.shortest)
            norm = torch.nn.utils.clip_grad_norm_(trainable(model), settings.max_grad_norm)
            if not (math.isfinite(sums["loss"]) and math.isfinite(norm)):
                raise culprits(lambda n: loss_of(np.flatnonzero(sequences.trajectory == n))[0], part.tolist(), model)
            optimizer.step()
            for name, value in (sums | {"grad_norm": float(norm)}).items():
                totals[name] += value / num_steps
    model.eval()
    return totals | dict(objective.metrics), state


def learning_rate(config: Config, step: int) -> float:
    """Learning rate of a step (from 1). A function of the step, so it resumes by itself."""
    settings = config.update
    rise = min(1.0, step / max(1, settings.warmup_steps))
    fall = 1.0 - (step - 1) / config.run.steps if settings.decay else 1.0
    return settings.learning_rate * rise * fall


def rollout_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """What the rollout shows: success, reward, turns, and how episodes went wrong."""
    usable = [trajectory for trajectory in trajectories if trajectory.usable]
    turns = [turn for trajectory in usable for turn in trajectory.turns]
    mean = lambda values: float(np.mean(values)) if len(values) else 0.0  # noqa: E731
    return {
        "success": mean([trajectory.success for trajectory in usable]),
        "reward": mean([trajectory.reward for trajectory in usable]),
        "turns": mean([len(trajectory.turns) for trajectory in usable]),
        "invalid_frac": mean([not turn.valid for turn in turns]),
        "cut_frac": mean([turn.truncated for turn in turns]),
        "context_frac": mean([trajectory.ended == "context" for trajectory in usable]),
        "failed_frac": 1 - len(usable) / len(trajectories),
        "tokens": float(sum(len(turn.response_ids) for trajectory in trajectories for turn in trajectory.turns)),
    }


def credit_metrics(scored: Scored, advantage_R: np.ndarray, alpha_R: np.ndarray) -> dict[str, float]:
    """What the credit shows: entropy, coefficients, and how many groups carry a signal."""
    batch = scored.batch
    return_N = batch.trajectories.sum(batch.reward_R)
    signal_G = batch.groups.max(return_N) > batch.groups.min(return_N)
    mismatch_T = np.abs(scored.behavior_logprob_T - scored.old_logprob_T)
    return {
        "entropy": float(scored.entropy_T.mean()),
        "alpha_min": float(alpha_R.min()),
        "alpha_max": float(alpha_R.max()),
        "signal_frac": float(signal_G.mean()),
        "positive_frac": float((advantage_R > 0).mean()),
        "advantage_abs": float(np.abs(advantage_R).mean()),
        "mismatch_mean": float(mismatch_T.mean()),
        "mismatch_max": float(mismatch_T.max()),
    }
