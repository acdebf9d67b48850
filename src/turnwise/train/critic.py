"""Make the critic of a run, and teach it alone: in a warm-up, and in further passes over the trajectories of a step."""

import math
from collections.abc import Callable

import numpy as np
import torch
from transformers import PreTrainedModel

from turnwise.errors import ConfigError, RunError
from turnwise.measures.plan import Plan
from turnwise.models.critic import Critic
from turnwise.models.policy import Policy, autocast
from turnwise.models.settings import CriticConfig, ModelConfig
from turnwise.objective.gradient import Budget
from turnwise.objective.settings import UpdateConfig
from turnwise.objective.terms import Pass, TermLoss
from turnwise.objective.tokens import Sequences, States, generated_states
from turnwise.objective.values import CRITIC_COLUMNS
from turnwise.rollout.models import NamedModel
from turnwise.train.schedule import mini_batches

NO_TOKENS = torch.zeros(0)


def critic_columns(settings: CriticConfig | None, plan: Plan) -> tuple[str, ...]:
    """Return the columns that the critic of a run estimates; none without a critic.

    Raises:
        ConfigError: There is a critic, but nobody reads a column of its.
    """
    if settings is None:
        return ()
    provided = {column for each in plan.measures if each.model == "critic" for column in each.provides}
    columns = tuple(column for column in CRITIC_COLUMNS if column in provided)
    if not columns:
        raise ConfigError(
            f"critic has no effect: neither method nor measures read {', '.join(CRITIC_COLUMNS)}; choose a method that "
            "needs one (`turnwise methods`), add measures=['value'], or remove critic"
        )
    return columns


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
    """Return the function `Pass.states`: the hidden states `seen` in the policy's pass, or those of another model."""

    def states(model: PreTrainedModel | None) -> States:
        if model is None:
            return seen[-1]
        with autocast(model, precision):
            return generated_states(model, sequences, indices)[0]

    return states


def teach_alone(
    critic: Critic,
    term: TermLoss,
    sequences: Sequences,
    settings: UpdateConfig,
    precision: ModelConfig,
    budget: Budget,
    generator: np.random.Generator,
    step: int,
) -> dict[str, float]:
    """Take the optimiser steps of passes without the policy's loss, and return the metrics of the last pass.

    There are `extra_epochs` of them. During the warm-up, `update.epochs` more replace the policy's passes.

    Raises:
        RunError: The gradient is not finite.
    """
    optimizer = critic.optimizer
    passes = critic.settings.extra_epochs + settings.epochs * (step <= critic.settings.warmup_steps)
    if optimizer is None:
        return {}

    def accumulate(part: np.ndarray, max_tokens: int) -> float:
        optimizer.zero_grad()
        total = 0.0
        for indices in sequences.micro_batches(max_tokens, only=part):
            seen: list[States] = []
            if critic.own is None:
                with torch.no_grad(), autocast(critic.policy, precision):
                    seen.append(generated_states(critic.policy, sequences, indices)[0])
            where = torch.from_numpy(sequences.token_index(indices))
            loss, _ = term.loss(Pass(NO_TOKENS, NO_TOKENS, where, states_of(sequences, indices, precision, seen)))
            loss.backward()
            total += loss.item()
        return total

    told: dict[str, float] = {}
    for _ in range(passes):
        losses, norms = [], []
        for part in mini_batches(term.matters_N, sequences.whole_trees(None), settings.mini_batches, generator):
            losses.append(budget.spend(lambda most, part=part: accumulate(part, most), shortest=sequences.shortest))
            norms.append(critic.step())
            if not math.isfinite(norms[-1]):
                raise RunError(
                    f"step {step}: the gradient of the critic is not finite; start a new run with a lower "
                    "critic.learning_rate"
                )
        told = {"value_loss": float(np.mean(losses)), "critic_grad_norm": float(np.mean(norms))}
    return told
