"""Handle out-of-memory errors and non-finite gradients."""

import dataclasses
import gc
import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from turnwise.base.errors import RunError, out_of_memory

T = TypeVar("T")
SUITED = (4096, 16384)
"""Padded tokens per micro-batch on a CPU, whose caches hold what a pass of few tokens computes, and elsewhere."""


@dataclasses.dataclass
class Budget:
    """Limit the padded tokens of a micro-batch; halve the limit for the rest of the run when memory runs out."""

    tokens: int  # padded tokens per micro-batch
    halvings: int = 0  # how often memory ran out

    @classmethod
    def on(cls, device: torch.device, tokens: int | None = None) -> "Budget":
        """Return a budget of some tokens; None: as many as suit the device."""
        return cls(tokens or SUITED[device.type != "cpu"])

    def spend(self, run: Callable[[int], T], *, shortest: int) -> T:
        """Return `run(tokens)`; restart it with half the tokens each time memory runs out.

        `run` must start over on each call, and its result must not depend on the number of tokens.

        Args:
            run: Pass over sequences in micro-batches of the given number of tokens.
            shortest: Tokens of the shortest sequence, the smallest micro-batch.

        Raises:
            RunError: Memory does not suffice for one sequence at a time.
        """
        while True:
            try:
                return run(self.tokens)
            except (RuntimeError, MemoryError) as error:
                if not out_of_memory(error):
                    raise
                if self.tokens <= shortest:
                    cause = " ".join(str(error).split())[:120]
                    raise RunError(
                        f"out of memory with micro-batches of one sequence ({cause}); use a smaller model.max_context, "
                        "model.gradient_checkpointing=true or model.train='top'"
                    ) from error
            # outside the handler, because the error keeps the attempt's memory alive
            self.tokens = max(shortest, self.tokens // 2)
            self.halvings += 1
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()


class Diverged(RunError):
    """The loss or its gradient is not finite. The weights are those before the failed optimiser step."""

    def __init__(self, trajectories: Sequence[int], finite: bool):
        self.trajectories = list(trajectories)  # indices of the trajectories that cause it, among those of the step
        self.finite = finite  # whether the loss is finite, so that only the gradient is not
        what = "the gradient" if finite else "the loss"
        super().__init__(
            f"{what} is not finite for {len(self.trajectories)} trajectories: {abbreviate(self.trajectories)}"
        )


def damp(model: torch.nn.Module, factor: float) -> None:
    """Multiply the gradient of a model by a factor."""
    if factor == 1.0:
        return
    for weight in model.parameters():
        if weight.grad is not None:
            weight.grad.mul_(factor)


def norm_of_gradient(model: torch.nn.Module) -> float:
    """Return the norm of a model's gradient."""
    return float(torch.nn.utils.clip_grad_norm_(model.parameters(), float("inf")))


def clip_groups(optimizer: torch.optim.Optimizer, max_norm: float) -> float:
    """Clip the gradient of each of an optimiser's groups of weights, and return the norm of all before."""
    norms = [torch.nn.utils.clip_grad_norm_(group["params"], max_norm) for group in optimizer.param_groups]
    return math.hypot(*map(float, norms))


def abbreviate(items: Sequence[object], most: int = 8) -> str:
    """List the first few items, for error messages."""
    return ", ".join(map(str, items[:most])) + (", ..." if len(items) > most else "")


def culprits(loss_of: Callable[[int], torch.Tensor], trajectories: Sequence[int], model: torch.nn.Module) -> Diverged:
    """Find the trajectories whose loss or gradient is not finite; all of them if only their sum is not."""
    worst_loss, worst_gradient = [], []
    for trajectory in trajectories:
        model.zero_grad()
        loss = loss_of(trajectory)
        if not torch.isfinite(loss):
            worst_loss.append(trajectory)
            continue
        loss.backward()
        gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
        if not all(torch.isfinite(gradient).all() for gradient in gradients):
            worst_gradient.append(trajectory)
    model.zero_grad()
    return Diverged(worst_loss or worst_gradient or trajectories, finite=not worst_loss)
