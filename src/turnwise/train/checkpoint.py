"""Checkpoints: everything that a run needs to go on as if it had never stopped.

All draws of a step come from generators seeded by the run's seed and the step, so the step number stands for every random state.
"""

import json
import os
import pickle
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError

from turnwise.errors import RunError
from turnwise.policy import Policy, load_policy
from turnwise.train.folder import RunFolder, by_step, write_json


def save_checkpoint(
    folder: RunFolder,
    step: int,
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    states: Mapping[str, Any],
    *,
    keep: int,
) -> Path:
    """Write `checkpoints/step-NNNNNN` in one move, and remove all but the `keep` latest and the first.

    Args:
        folder: Of the run.
        step: The step that has just been done.
        policy: Weights and tokenizer.
        optimizer: Its state is kept too.
        states: Further states by name, each plain values and arrays: the method's, the task selector's.
        keep: Latest checkpoints kept.

    Raises:
        RunError: It cannot be written, as when the disk is full; those that were there are as before.
    """
    target = folder.checkpoints / f"step-{step:06d}"
    temporary = folder.checkpoints / f".step-{step:06d}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        policy.save(temporary)
        torch.save({"optimizer": optimizer.state_dict(), **_to_torch(dict(states))}, temporary / "state.pt")
        write_json(temporary / "step.json", {"step": step})
    except (
        OSError,
        RuntimeError,
        SafetensorError,
    ) as error:  # torch and safetensors have types of their own for a full disk
        shutil.rmtree(temporary, ignore_errors=True)
        raise RunError(f"cannot write the checkpoint {target}: {' '.join(str(error).split())[:200]}") from error
    shutil.rmtree(target, ignore_errors=True)
    os.replace(temporary, target)
    remove_old(folder, keep=keep)
    return target


def remove_old(folder: RunFolder, *, keep: int) -> None:
    """Remove all checkpoints but the `keep` latest and the first, each in one move, and what kills have left of others."""
    for old in checkpoints(folder)[1:-keep]:
        os.replace(old, old.with_name(f".{old.name}.old"))
    for left in folder.checkpoints.glob(".step-*"):
        shutil.rmtree(left)


def checkpoints(folder: RunFolder) -> list[Path]:
    """Checkpoint folders, oldest first."""
    return list(by_step(folder.checkpoints).values())


def latest_checkpoint(folder: RunFolder) -> Path:
    """The newest checkpoint.

    Raises:
        RunError: There is none.
    """
    found = checkpoints(folder)
    if not found:
        raise RunError(
            f"{folder.path} has no checkpoint to go on from; start it anew under another run.name. Nothing was changed"
        )
    return found[-1]


def checkpoint_at(folder: RunFolder, step: int | None) -> Path:
    """The checkpoint of a step, or the newest.

    Raises:
        RunError: There is none; says which there are.
    """
    if step is None:
        return latest_checkpoint(folder)
    path = folder.checkpoints / f"step-{step:06d}"
    if not path.is_dir():
        known = ", ".join(str(int(found.name.removeprefix("step-"))) for found in checkpoints(folder))
        raise RunError(f"{folder.path} has no checkpoint of step {step}; it has those of step {known or 'none'}")
    return path


def load_checkpoint(path: Path, *, to_play: bool = False) -> tuple[int, Policy, dict[str, Any]]:
    """Read a checkpoint: step, policy, and a dict with the state `optimizer` and those that were saved with it.

    Args:
        path: Its folder.
        to_play: Leave the states out, which playing does not need.

    Raises:
        RunError: It cannot be loaded; says why, and which one to remove if it is damaged.
    """
    try:
        step = json.loads((path / "step.json").read_text(encoding="utf-8"))["step"]
        policy = load_policy(path)
        if to_play:
            return step, policy, {}
        state = torch.load(path / "state.pt", weights_only=True, map_location="cpu")
        optimizer = state.pop("optimizer")
        return step, policy, {"optimizer": optimizer, **_from_torch(state)}
    except Exception as error:  # json, safetensors, pickle and torch each raise types of their own
        unreadable = isinstance(error, pickle.UnpicklingError)  # torch's text is about trusting files
        cause = "state.pt cannot be read" if unreadable else " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise RunError(f"cannot load the checkpoint {path} ({cause}); if its files are damaged, remove it to go on from the one "
                       "before") from None  # fmt: skip


def _to_torch(state: Any) -> Any:
    """Replace arrays by tensors, which torch loads without trusting the file."""
    if isinstance(state, np.ndarray):
        return torch.tensor(state)
    if isinstance(state, np.generic):
        return state.item()
    if isinstance(state, (tuple, list)):
        return type(state)(_to_torch(item) for item in state)
    return {key: _to_torch(item) for key, item in state.items()} if isinstance(state, dict) else state


def _from_torch(state: Any) -> Any:
    if isinstance(state, torch.Tensor):
        return state.numpy()
    if isinstance(state, (tuple, list)):
        return type(state)(_from_torch(item) for item in state)
    return {key: _from_torch(item) for key, item in state.items()} if isinstance(state, dict) else state
