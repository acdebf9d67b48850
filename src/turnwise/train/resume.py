"""Find what a run continues from: its last checkpoint, its first policy, and a device."""

from typing import Any

import torch

from turnwise.base.allocator import keep_freed_memory
from turnwise.base.errors import ConfigError, RunError
from turnwise.config import ModelConfig, RunConfig
from turnwise.engines.settings import EngineConfig
from turnwise.models.policy import Policy, choose_trainable
from turnwise.models.remote import RemoteModel
from turnwise.train.checkpoint import checkpoint_at, checkpoints, latest_checkpoint, load_checkpoint, remove_old
from turnwise.train.folder import RunFolder, by_step


def refuse_what_would_lose(folder: RunFolder, steps: int) -> None:
    """Raise if resuming would discard results, since it drops records after the last checkpoint, or change the loss."""
    folder.refuse_removed()
    if (done := max(by_step(folder.checkpoints), default=0)) > steps:
        raise RunError(
            f"{folder.path} has done {done} steps, but run.steps={steps}; set run.steps to {done} or more. "
            "Nothing was changed"
        )
    recorded = {record["step"] for record in folder.metrics() if "rollout/success" in record}
    if recorded or by_step(folder.rollouts, ".parquet"):
        latest_checkpoint(folder)  # raises if there is none
    if lost := sorted(set(range(1, done + 1)) - recorded):
        raise RunError(
            f"{folder.metrics_path} lacks {len(lost)} of the {done} steps before the last checkpoint, such as step "
            f"{lost[0]}; restore the file, or start a new run with another run.name. Nothing was changed"
        )


def last_state(folder: RunFolder, model: ModelConfig, *, keep: int) -> tuple[int, Policy, dict[str, Any]] | None:
    """Rewind the folder to its last checkpoint and load it.

    Returns:
        Step, policy and states; None for a run that was killed before its first checkpoint.
    """
    if not checkpoints(folder):
        return None
    step, policy, states = load_checkpoint(latest_checkpoint(folder))
    folder.rewind(step)
    remove_old(folder, keep=keep)
    choose_trainable(policy.model, model)
    return step, policy, states


def first_policy(folder: RunFolder, device: torch.device, engine: EngineConfig) -> Policy:
    """Load the policy after the warm start, the reference of the KL term and of methods."""
    policy = load_checkpoint(checkpoint_at(folder, 0), to_play=True)[1]
    if isinstance(policy.model, RemoteModel):
        policy.model.connect(engine, policy.max_context)
    policy.model.to(device).requires_grad_(False)  # pyright: ignore[reportArgumentType]
    return policy


def use_device(run: RunConfig) -> torch.device:
    """Configure the process for the recipe and return the device."""
    keep_freed_memory()
    if run.threads:
        torch.set_num_threads(run.threads)
    name = run.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        return torch.zeros(0, device=name).device
    except (RuntimeError, AssertionError) as error:  # torch without CUDA raises AssertionError
        cause = "expected auto, cpu, cuda or mps" if "Expected one of" in str(error) else str(error).splitlines()[0]
        raise ConfigError(f"run.device={name!r} cannot be used: {cause}") from None
