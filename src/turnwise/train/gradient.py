"""Bad weather in a pass over tokens: memory that runs out, and numbers that are no longer finite."""

import dataclasses
import gc
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from turnwise.errors import RunError, out_of_memory

T = TypeVar("T")


@dataclasses.dataclass
class Budget:
    """Padded tokens that a micro-batch may hold: fewer, for the rest of the run, once memory has run out.

    Attributes:
        tokens: How many.
        halvings: How often memory ran out.
    """

    tokens: int
    halvings: int = 0

    def spend(self, run: Callable[[int], T], *, shortest: int) -> T:
        """Return `run(tokens)`, begun again with half as many each time that memory runs out.

        `run` must not depend on where an earlier attempt of it stopped, nor its result on the number of tokens.

        Args:
            run: A pass over sequences in micro-batches.
            shortest: Tokens of the shortest sequence; with fewer, micro-batches cannot get smaller.

        Raises:
            RunError: There is not even memory for one sequence at a time.
        """
        while True:
            try:
                return run(self.tokens)
            except (RuntimeError, MemoryError) as error:
                if not out_of_memory(error):
                    raise
                if self.tokens <= shortest:
                    raise RunError(f"out of memory with micro-batches of one sequence ({' '.join(str(error).split())[:120]}); use a smaller "
                                   "model.max_context, model.gradient_checkpointing=true or model.train='top'") from error  # fmt: skip
            # out of the handler, or the error would keep what the attempt had allocated
            self.tokens = max(shortest, self.tokens // 2)
            self.halvings += 1
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()


class Diverged(RunError):
    """The loss or its gradient is not finite. The weights are as they were before the step's latest optimiser step.

    Attributes:
        trajectories: Indices of those that give it, among the trajectories of the step.
    """

    def __init__(self, trajectories: Sequence[int], finite: bool):
        self.trajectories = list(trajectories)
        self.finite = finite
        what = "the gradient" if finite else "the loss"
        super().__init__(f"{what} is not finite for {len(self.trajectories)} trajectories: {some(self.trajectories)}")


def some(items: Sequence[object], most: int = 8) -> str:
    """The first few of them, for a message."""
    return ", ".join(map(str, items[:most])) + (", ..." if len(items) > most else "")


def culprits(loss_of: Callable[[int], torch.Tensor], trajectories: Sequence[int], model: torch.nn.Module) -> Diverged:
    """Find the trajectories whose loss or gradient is not finite, one by one; all of them, if only their sum is not."""
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
