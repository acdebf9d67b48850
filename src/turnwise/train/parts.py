"""Make parts of a run from sections of its recipe."""

from collections.abc import Collection, Sequence

import torch

from turnwise.config import EngineConfig
from turnwise.credit.transform import Transform
from turnwise.extensions.judge.settings import JudgeConfig
from turnwise.measures.plan import Plan, plan_measures
from turnwise.models.policy import Policy, slow_precision_note, trainable
from turnwise.models.pretrained import check_smollm2
from turnwise.models.settings import ModelConfig
from turnwise.objective.inert import inert_note
from turnwise.objective.objective import Objective
from turnwise.objective.settings import UpdateConfig
from turnwise.train.lone import lone_note


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
    reports = () if engine.name == "server" else ("entropies",)
    needs = {f"method {label!r}": transform.needs, **objective.needs}
    return plan_measures(needs, scoring=update.scoring, further=further, engine_reports=reports, models=models)


def check_models(model: ModelConfig | None, judge: JudgeConfig | None) -> None:
    """Fail before anything long starts if a model that has to be fetched is missing.

    Args:
        model: Section `[model]` of a new run; None when a run is resumed, whose weights are in its checkpoints.
        judge: Section `[judge]`.

    Raises:
        ConfigError: The model is missing.
    """
    if model and model.name == "smollm2":
        check_smollm2()
    if judge and judge.model == "smollm2":
        check_smollm2("judge.model='smollm2'")


def make_optimizer(policy: Policy, update: UpdateConfig) -> torch.optim.Optimizer:
    """Create AdamW over the trainable weights."""
    on_cuda = policy.model.device.type == "cuda"
    return torch.optim.AdamW(
        trainable(policy.model), lr=update.learning_rate, weight_decay=update.weight_decay, fused=on_cuda
    )


def notes(
    update: UpdateConfig, transform: Transform, group_size: int, precision: str, device: torch.device
) -> list[str]:
    """List effects of settings that a user may not expect."""
    found = (
        inert_note(update),
        lone_note(transform, group_size),
        slow_precision_note(precision, device),
    )
    return [note for note in found if note]
