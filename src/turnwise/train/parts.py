"""Make parts of a run from sections of its recipe."""

from collections.abc import Collection, Sequence
from typing import Any

import torch

from turnwise.config import Config
from turnwise.credit.transform import Transform
from turnwise.engines.settings import EngineConfig
from turnwise.measures.plan import Plan, plan_measures
from turnwise.models.adapters import adapter_weights, roles_of
from turnwise.models.policy import Policy, slow_precision_note, trainable
from turnwise.models.pretrained import check_smollm2
from turnwise.models.remote import RemoteModel, RemoteOptimizer
from turnwise.models.settings import ModelConfig
from turnwise.objective.gradient import Budget
from turnwise.objective.inert import inert_note
from turnwise.objective.objective import Objective
from turnwise.objective.settings import UpdateConfig
from turnwise.objective.values import ValueTerm
from turnwise.train.extension import Context, Extension
from turnwise.train.lone import lone_note
from turnwise.train.update import Learner


def make_plan(
    transform: Transform,
    objective: Objective,
    update: UpdateConfig,
    engine: EngineConfig,
    label: str,
    further: Sequence[str] = (),
    models: Collection[str] = (),
) -> Plan:
    """Plan the measures that the method and the loss terms of a recipe need.

    Raises:
        ConfigError: No measure provides a required column.
    """
    needs = {f"method {label!r}": transform.needs, **objective.needs}
    return plan_measures(needs, scoring=update.scoring, further=further, engine_reports=engine.reports, models=models)


def check_model(model: ModelConfig) -> None:
    """Fail before anything slow starts if the run's initial model is missing.

    Raises:
        ConfigError: The model has to be fetched.
    """
    if model.name == "smollm2":
        check_smollm2()


def make_optimizer(policy: Policy, update: UpdateConfig) -> Any:
    """Create AdamW over the trainable weights; each role's adapter is a separate group.

    For weights on a server it represents the server's optimiser.
    """
    if isinstance(policy.model, RemoteModel):
        return RemoteOptimizer()
    on_cuda, roles = policy.model.device.type == "cuda", roles_of(policy.model)
    weights = [{"params": adapter_weights(policy.model, role)} for role in roles] or trainable(policy.model)
    return torch.optim.AdamW(weights, lr=update.learning_rate, weight_decay=update.weight_decay, fused=on_cuda)


def make_learner(
    extensions: Sequence[Extension], objective: Objective, context: Context, value: ValueTerm | None = None
) -> Learner:
    """Make what learns in a run.

    Args:
        extensions: Extensions of the recipe, one of which may bring its own learner.
        objective: Loss to minimise.
        context: The run.
        value: Loss term of the critic, if there is one.
    """
    config = context.config
    own = next((make for each in extensions if (make := each.learner())), config.engine.learner() or Learner)
    return own(
        objective,
        config.update,
        config.model,
        Budget.on(context.device or torch.device("cpu"), config.update.max_tokens),
        temperature=config.rollout.temperature,
        seed=config.run.seed,
        steps=config.run.steps,
        max_new_tokens=config.rollout.max_new_tokens,
        value=value,
        lessons=next((found for each in extensions if (found := each.lessons())), None),
    )


def notes(config: Config, transform: Transform, device: torch.device) -> list[str]:
    """List effects of settings that a user may not expect."""
    idle = ", ".join(config.idle())
    found = (
        f"without effect: {idle}" if idle else "",
        inert_note(config.update),
        lone_note(transform, config.rollout.group_size),
        slow_precision_note(config.model.precision, device),
    )
    return [note for note in found if note]
