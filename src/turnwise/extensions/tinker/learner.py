"""Update the policy through a server of the Tinker API: we compute the gradient, it runs pass and step.

The server gets one advantage per token. It is minus the derivative of our loss with respect to the token's
log-probability, and includes all weights and denominators. With a loss of the server it is taken where the ratio is 1,
and the server clips; else at the current policy, and the server only multiplies.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from turnwise.base.errors import ConfigError, EngineFault
from turnwise.credit.trace import Trace
from turnwise.extensions.tinker.model import ADAM, Request, TinkerModel, batches, datum, fill, loss_input
from turnwise.objective.gradient import Diverged
from turnwise.objective.objective import StepLoss
from turnwise.objective.policy import OLD
from turnwise.objective.terms import Pass
from turnwise.objective.tokens import Sequences
from turnwise.train.schedule import draws, learning_rate, mini_batches
from turnwise.train.update import METRICS, NORMS, Learner, Measured


@dataclasses.dataclass
class TinkerLearner(Learner):
    """Update a run's policy on a server; see `Learner`.

    Raises:
        ConfigError: The recipe does not sample at temperature 1, at which the server trains.
    """

    def __post_init__(self) -> None:
        if self.temperature != 1.0:
            raise ConfigError(
                f"engine.name='tinker' trains at temperature 1, and rollout.temperature={self.temperature:g} samples "
                "at another; set it to 1"
            )

    def update(
        self,
        model: Any,
        optimizer: Any,
        measured: Measured,
        credit: Trace,
        step: int,
        *,
        before_change: Callable[[], None] = lambda: None,
    ) -> dict[str, float]:
        """Take the optimiser steps of a training step on the server, and return their metrics."""
        settings, named = self.settings, model.settings.loss == "named"
        objective, sequences = self.prepare(measured, credit, step)
        generator = draws(self.seed, step)
        units_N = sequences.whole_trees(objective.unit_N)
        totals: dict[str, float] = dict.fromkeys(METRICS, 0.0)
        given = OLD[settings.old_policy] if named else "logprob_T"
        at_T = np.full(sequences.tokens.num_elements, np.nan)  # log-probabilities at which the gradient is taken
        at_T[: measured.sequences.tokens.num_elements] = measured.batch.column(given, needed_by="policy")
        adam = {"weight_decay": settings.weight_decay, "grad_clip_norm": settings.max_grad_norm, **ADAM}
        adam["learning_rate"] = learning_rate(settings, step, self.steps) * credit.rate
        changed = False
        for _ in range(settings.epochs):
            parts = mini_batches(objective.matters_N, units_N, settings.mini_batches, generator)
            for part in parts:
                if not changed:
                    before_change()
                elif not named:
                    at_T[:] = np.nan
                else:
                    at_T[measured.sequences.tokens.num_elements :] = np.nan
                changed = True
                chosen = np.flatnonzero(np.isin(sequences.trajectory, part))
                share = len(parts) / settings.mini_batches  # there may be fewer units than mini-batches
                sums = self._step(model, objective, sequences, chosen, at_T, len(measured.sequences), adam, share)
                if not math.isfinite(sums["loss"]):
                    raise Diverged(part.tolist(), finite=False)
                for name, value in sums.items():
                    num_parts = len(parts) if name in NORMS else settings.mini_batches
                    totals[name] = totals.get(name, 0.0) + value / (settings.epochs * num_parts)
        return totals | dict(objective.metrics)

    def _step(
        self,
        model: TinkerModel,
        objective: StepLoss,
        sequences: Sequences,
        chosen: np.ndarray,
        at_T: np.ndarray,
        num_own: int,
        adam: dict[str, float],
        share: float,
    ) -> dict[str, float]:
        """Take an optimiser step on `share` of the loss of some sequences; from `num_own` on, demonstrations."""
        where = sequences.token_index(chosen)
        unknown = chosen[[np.isnan(at_T[sequences.token_index(np.array([i]))]).any() for i in chosen]]
        if unknown.size:
            model.pass_over(sequences, unknown, at_T)
        logprob = torch.tensor(at_T[where], dtype=torch.float32, requires_grad=True)
        loss, _ = objective.loss(self._pass(logprob, where))
        (loss * share).backward()
        assert logprob.grad is not None
        advantage_T = np.zeros_like(at_T)
        advantage_T[where] = -logprob.grad.numpy()
        requests, parts = list[Request](), list[np.ndarray]()
        for mine in (chosen[chosen < num_own], chosen[chosen >= num_own]):
            for part in batches(sequences, mine) if mine.size else ():
                data = [self._datum(model, sequences, i, at_T, advantage_T, len(chosen)) for i in part]
                asked = self._loss_input(model, data, own=part[0] < num_own)
                requests.append(("forward_backward", {"forward_backward_input": asked}))
                parts.append(part)
        try:
            *passes, stepped = model.run(*requests, ("optim_step", {"adam_params": adam}))
        except EngineFault as error:
            loss = requests[0][1]["forward_backward_input"]["loss_fn"]
            raise ConfigError(
                f"an update with the server's loss {loss!r} failed: {error}. Where it lacks this loss, set update.clip "
                "to one that it has, or set engine.loss=gradient"
            ) from error
        now_T = np.full_like(at_T, np.nan)
        for part, result in zip(parts, passes, strict=True):
            fill(sequences, part, result, now_T)
        with torch.no_grad():
            _, metrics = objective.loss(self._pass(torch.tensor(now_T[where], dtype=torch.float32), where))
        return metrics | {"grad_norm": stepped.grad_norm}

    @staticmethod
    def _pass(logprob: torch.Tensor, where: np.ndarray) -> Pass:
        return Pass(logprob, torch.full_like(logprob, torch.nan), torch.from_numpy(where))

    def _loss_input(self, model: TinkerModel, data: list[dict[str, Any]], *, own: bool) -> dict[str, Any]:
        settings, server = self.settings, model.settings
        if not own or server.loss == "gradient" or settings.clip == "none":
            return loss_input("importance_sampling", data)
        thresholds = {
            "clip_low_threshold": max(0.0, 1.0 - settings.clip_low),
            "clip_high_threshold": 1.0 + settings.clip_high,
        }
        return loss_input(server.named_losses[settings.clip], data, **thresholds)

    @staticmethod
    def _datum(
        model: TinkerModel, sequences: Sequences, i: int, at_T: np.ndarray, advantage_T: np.ndarray, count: int
    ) -> dict[str, Any]:
        """Convert a sequence; a server that takes means gets advantages that undo them."""
        ids, positions, index = sequences.token_ids[i], sequences.generated[i], sequences.token_index(np.array([i]))
        share = float(count * (len(ids) - 1)) if model.settings.sums == "means" else 1.0
        values = {"logprobs": (positions, at_T[index]), "advantages": (positions, share * advantage_T[index])}
        return datum(ids, values)
