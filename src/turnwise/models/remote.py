"""Define a policy whose weights are on a server, which scores and trains it. The trainer has its tokenizer and format.

Checkpoints have the name of a state on the server instead of weights.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from turnwise.base.register import ENGINES

FILE = "remote.json"
"""File of a checkpoint that names a state on a server and the kind of server."""


class RemoteModel(torch.nn.Module):
    """Represent a model whose weights are on a server; it has no weights."""

    kind: ClassVar[str]  # name of the engine that reaches the server
    device = torch.device("cpu")
    dtype = torch.float32

    def connect(self, settings: Any, max_context: int) -> None:
        """Connect to the server that the settings of an engine name, unless it is connected."""
        raise NotImplementedError

    def to_save(self) -> dict[str, Any]:
        """Return what a checkpoint keeps to find the weights again."""
        raise NotImplementedError

    def score(self, sequences: Any, temperature: float) -> tuple[np.ndarray, np.ndarray]:
        """Return `[tokens]` log-probabilities and estimated entropies of all generated tokens (nats)."""
        raise NotImplementedError

    def imitate(self, demonstrations: Sequence[tuple[np.ndarray, np.ndarray]], learning_rate: float) -> float:
        """Take an optimiser step on demonstrations, token ids and their weights, and return the loss."""
        raise NotImplementedError

    def save_pretrained(self, folder: Path) -> None:
        """Save what is needed to find the weights again."""
        saved = {"engine": self.kind, **self.to_save()}
        (Path(folder) / FILE).write_text(json.dumps(saved, indent=2) + "\n", encoding="utf-8")


class RemoteOptimizer:
    """Represent the optimiser of a remote model, whose state is stored with the weights."""

    def zero_grad(self) -> None:
        """Do nothing."""

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: the state on the server has it."""
        return {}

    def load_state_dict(self, state: Any) -> None:
        """Do nothing."""


def load_remote(folder: Path) -> RemoteModel | None:
    """Load the remote model of a checkpoint, not connected yet; None if the checkpoint has weights."""
    if not (folder / FILE).is_file():
        return None
    saved = json.loads((folder / FILE).read_text(encoding="utf-8"))
    return ENGINES[saved["engine"]].remote(saved)
