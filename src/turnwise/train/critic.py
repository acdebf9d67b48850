"""Make the critic of a run, and train it alone: in a warm-up, and in extra passes over a step's trajectories."""

import functools
import math
from collections.abc import Callable

import numpy as np
import torch
from transformers import PreTrainedModel

from turnwise.base.errors import ConfigError, RunError
from turnwise.credit.batch import Batch
from turnwise.engines.models import NamedModel
from turnwise.measures.plan import Plan
from turnwise.models.critic import Critic, bootstraps
from turnwise.models.policy import Policy, autocast
from turnwise.models.settings import (
    CriticConfig,
    HeadCriticConfig,
    LearnedCriticConfig,
    ModelConfig,
    ModelCriticConfig,
    is_missing_folder,
)
from turnwise.objective.differences import action_error, state_error
from turnwise.objective.gradient import Budget
from turnwise.objective.settings import UpdateConfig
from turnwise.objective.terms import Pass, TermLoss
from turnwise.objective.tokens import Sequences, States, generated_states
from turnwise.objective.transitions import Turns
from turnwise.objective.values import CRITIC_COLUMNS, ValueTerm
from turnwise.train.schedule import mini_batches

NO_TOKENS = torch.zeros(0)


def critic_columns(settings: CriticConfig | None, plan: Plan) -> tuple[str, ...]:
    """Return the columns that the critic of a run estimates; none without a critic.

    Raises:
        ConfigError: There is a critic, but no method or measure reads its columns, or the folder of its model is
            missing.
    """
    if settings is None:
        return ()
    if isinstance(settings, ModelCriticConfig) and is_missing_folder(settings.name):  # else only after the warm start
        raise ConfigError(
            f"critic.name={settings.name!r}: there is no such folder; expected 'policy', 'tiny', the folder of a "
            "model, or a name on the hub"
        )
    provided = {column for each in plan.measures if each.model == "critic" for column in each.provides}
    columns = tuple(column for column in CRITIC_COLUMNS if column in provided)
    if not columns:
        raise ConfigError(
            f"critic has no effect: neither method nor measures read {', '.join(CRITIC_COLUMNS)}; choose a method that "
            "needs one (`turnwise methods`), add measures=['value'], or remove critic"
        )
    if bootstraps(settings, columns):
        _refuse_what_does_not_bootstrap(settings, columns)
    elif isinstance(settings, LearnedCriticConfig) and settings.transitions != HeadCriticConfig().transitions:
        raise ConfigError(
            f"critic.transitions={settings.transitions} has no effect: earlier turns are learned from only with "
            "method='archer' and critic.target='method'; remove it"
        )
    return columns


def _refuse_what_does_not_bootstrap(settings: CriticConfig, columns: tuple[str, ...]) -> None:
    """Raise a ConfigError if Q and V cannot learn from each other under a recipe."""
    if set(columns) != {"value", "value_action"}:
        others = sorted({"value", "value_action"} ^ set(columns))
        raise ConfigError(
            f"the critic's value_action and value learn from each other alone, but its columns differ by "
            f"{', '.join(others)}; remove what reads or fills these differently, or set critic.target=return"
        )
    default = HeadCriticConfig()
    for field in ("kind", "clip", "read", "trunk_gradient"):
        wished = getattr(default, field)
        given = getattr(settings, field, wished)
        if given != wished and given != "model":
            raise ConfigError(
                f"critic.{field}={given!r} does not work with temporal differences (value_action); expected "
                f"{wished!r}, or critic.target=return"
            )


def make_critic(
    policy: Policy, settings: CriticConfig, columns: tuple[str, ...], seed: int
) -> tuple[NamedModel, Critic]:
    """Make the model named `critic`."""
    critic = Critic(policy, settings, columns, seed=seed)
    read = Policy(critic.model, policy.format, policy.max_context)
    return NamedModel(read, optimizer=critic.optimizer, critic=critic), critic


def states_of(
    sequences: Sequences, indices: np.ndarray, precision: ModelConfig, seen: list[States]
) -> Callable[[PreTrainedModel | None], States]:
    """Return the function `Pass.states`: hidden states `seen` in the policy's pass, or those of another model."""

    def states(model: PreTrainedModel | None) -> States:
        if model is None:
            return seen[-1]
        with autocast(model, precision):
            return generated_states(model, sequences, indices)[0]

    return states


def teach_alone(
    value: ValueTerm,
    term: TermLoss,
    batch: Batch,
    sequences: Sequences,
    settings: UpdateConfig,
    precision: ModelConfig,
    budget: Budget,
    generator: np.random.Generator,
    step: int,
) -> dict[str, float]:
    """Take the optimiser steps of passes without the policy's loss, and return the metrics of the last pass.

    There are `extra_epochs` of them. During the warm-up, and always if the critic learns by temporal differences,
    `update.epochs` more replace the policy's passes.

    Raises:
        RunError: The gradient is not finite.
    """
    critic, old = value.critic, value.transitions
    metrics: dict[str, float] = {}
    if critic.learned is None:
        return metrics
    fresh, shortest, matters_N = Turns.of_step(sequences, batch), sequences.shortest, term.matters_N
    drawing = generator
    if old is not None:
        old.add(fresh)
        drawing, matters_N = old.generator(step), np.ones(batch.num_trajectories, dtype=bool)
        metrics["transitions"] = float(len(old))
    instead = critic.bootstraps or step <= critic.settings.warmup_steps
    for _ in range(critic.learned.extra_epochs + settings.epochs * instead):
        losses, norms = [], []
        parts = mini_batches(matters_N, sequences.whole_trees(None), settings.mini_batches, generator)
        scale = len(parts) / settings.mini_batches  # there may be fewer, as in `Learner.accumulate`
        for part in parts:
            learn = functools.partial(_from_targets, critic, term, sequences, precision, part, scale)
            if old is not None:
                drawn = old.draw(len(part), drawing)
                shortest = min(sequences.shortest, drawn.sequences.shortest)
                learn = functools.partial(from_differences, critic, fresh, drawn, precision, part)
            losses.append(budget.spend(learn, shortest=shortest))
            norms.append(critic.step())
            if not math.isfinite(norms[-1]):
                raise RunError(
                    f"step {step}: the gradient of the critic is not finite; start a new run with a lower "
                    "critic.learning_rate"
                )
        metrics |= {"value_loss": float(np.mean(losses)), "critic_grad_norm": float(np.mean(norms))}
    return metrics


def _from_targets(
    critic: Critic,
    term: TermLoss,
    sequences: Sequences,
    precision: ModelConfig,
    part: np.ndarray,
    scale: float,
    max_tokens: int,
) -> float:
    """Compute the gradient of the value loss on a mini-batch, times `scale`, and return that loss."""
    critic.network.zero_grad()
    total = 0.0
    for indices in sequences.micro_batches(max_tokens, only=part):
        seen: list[States] = []
        if critic.own is None:
            with torch.no_grad(), autocast(critic.policy, precision):
                seen.append(generated_states(critic.policy, sequences, indices)[0])
        where = torch.from_numpy(sequences.token_index(indices))
        loss, _ = term.loss(Pass(NO_TOKENS, NO_TOKENS, where, states_of(sequences, indices, precision, seen)))
        loss = loss * scale
        loss.backward()
        total += loss.item()
    return total


def from_differences(
    critic: Critic, fresh: Turns, drawn: Turns, precision: ModelConfig, part: np.ndarray, max_tokens: int
) -> float:
    """Compute the gradient of the losses of Q on drawn turns and of V on the step's, and return their sum."""
    critic.network.zero_grad()
    total, num_responses = 0.0, int(fresh.trajectories.lengths[part].sum())
    whole_N = np.arange(len(drawn.trajectories.lengths))
    for indices in drawn.sequences.micro_batches(max_tokens, unit_N=whole_N):
        loss = action_error(critic, drawn, indices, precision)
        loss.backward()
        total += loss.item()
    for indices in fresh.sequences.micro_batches(max_tokens, only=part):
        loss = state_error(critic, fresh, indices, precision, num_responses)
        loss.backward()
        total += loss.item()
    return total
