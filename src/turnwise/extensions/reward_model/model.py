"""Train an implicit reward model on pairs of trajectories of a group, one of which succeeded."""

import copy
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from turnwise.base.errors import RunError
from turnwise.credit.batch import Batch
from turnwise.engines.models import NamedModel
from turnwise.extensions.preference.term import Pairs, success_pairs
from turnwise.extensions.reward_model.settings import RewardModelConfig
from turnwise.models.critic import as_tensors
from turnwise.models.policy import Policy, autocast
from turnwise.models.settings import ModelConfig
from turnwise.objective.gradient import Budget
from turnwise.objective.tokens import generated_logprobs
from turnwise.train.extension import Extension
from turnwise.train.update import Learner, Measured


class RewardModel:
    """Hold an implicit reward model with its optimiser.

        q_k = log pi_phi(response k) - log pi(response k), summed over its tokens     pi: the policy of the step
        s_i = mean over the responses k of trajectory i of beta * q_k
        loss = mean over the pairs of a success and a failure of one group of -log sigmoid(s_success - s_failure)

    One optimiser step per training step. It follows the measurement of the rewards q, which come from the weights
    before it (order "after" in the authors' code). A step without a pair changes nothing.

    The released pair loss is computed from detached scores, so that its gradient may not reach the model. Here the
    slopes of the loss in the scores are computed first, from the measured q; then each trajectory's score is
    differentiated with its slope. That is the gradient of the loss, and does not depend on micro-batches.

    Reference: iStar, arXiv 2509.19199; Tongyi-ConvAI/Qwen-Character, CharacterRL-iStar.
    """

    def __init__(self, policy: Policy, settings: RewardModelConfig, temperature: float):
        self._settings, self._temperature = settings, temperature
        self.model = copy.deepcopy(policy.model).requires_grad_(True).eval()
        self._optimizer = torch.optim.AdamW(self.model.parameters(), lr=settings.learning_rate, weight_decay=0.0)
        read = Policy(self.model, policy.format, policy.max_context)
        self.named = NamedModel(read, optimizer=self._optimizer)

    def update(self, measured: Measured, precision: ModelConfig, budget: Budget, step: int) -> dict[str, float]:
        """Take the optimiser step of a training step, and return its metrics.

        Raises:
            RunError: The gradient is not finite.
        """
        batch, sequences, settings = measured.batch, measured.sequences, self._settings
        assert batch.tokens is not None
        pairs = success_pairs(batch)
        loss, right, slope_N = pair_slopes(scores(batch, settings.beta), pairs)
        metrics = {"reward_model_pairs": float(len(pairs)), "reward_model_loss": loss, "reward_model_right_frac": right}
        if not len(pairs):
            return {**metrics, "reward_model_grad_norm": 0.0}
        slope_R = batch.trajectories.broadcast(settings.beta * slope_N / batch.trajectories.lengths)
        slope_T = torch.tensor(batch.tokens.broadcast(slope_R), dtype=torch.float32)
        paired = np.flatnonzero(slope_N)

        def accumulate(max_tokens: int) -> None:
            self._optimizer.zero_grad()
            for indices in sequences.micro_batches(max_tokens, only=paired):
                with autocast(self.model, precision):
                    logprob, _ = generated_logprobs(self.model, sequences, indices, temperature=self._temperature)
                where = torch.from_numpy(sequences.token_index(indices))
                (slope_T[where].to(logprob.device) * logprob).sum().backward()

        self.model.train()
        budget.spend(accumulate, shortest=sequences.shortest)
        norm = float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), settings.max_grad_norm))
        if not math.isfinite(norm):
            raise RunError(
                f"step {step}: the gradient of the reward model is not finite; start a new run with a lower "
                "reward_model.learning_rate"
            )
        self._optimizer.step()
        self._optimizer.zero_grad()
        self.model.eval()
        return {**metrics, "reward_model_grad_norm": norm}

    def state_dict(self) -> dict[str, Any]:
        """Return weights and optimiser."""
        return {"model": self.model.state_dict(), "optimizer": self._optimizer.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state_dict` returned."""
        self.model.load_state_dict(as_tensors(state["model"]))
        self._optimizer.load_state_dict(as_tensors(state["optimizer"]))


def scores(batch: Batch, beta: float) -> np.ndarray:
    """Return the score of each trajectory: the mean over its responses of beta times their implicit reward."""
    return beta * batch.trajectories.mean(batch.column("implicit_reward", needed_by="reward_model"))


def pair_slopes(score_N: np.ndarray, pairs: Pairs) -> tuple[float, float, np.ndarray]:
    """Compute the loss of `RewardModel` from the scores of trajectories.

    Returns:
        The loss, the share of pairs whose better trajectory has the higher score, and `[trajectories]` slopes of the
        loss in the scores; zeros without pairs.
    """
    slope_N = np.zeros_like(score_N)
    if not len(pairs):
        return 0.0, 0.0, slope_N
    margin = score_N[pairs.better] - score_N[pairs.worse]
    slope = -np.exp(-np.logaddexp(0.0, margin)) / len(pairs)  # of the loss in the margin
    np.add.at(slope_N, pairs.better, slope)
    np.add.at(slope_N, pairs.worse, -slope)
    return float(np.logaddexp(0.0, -margin).mean()), float((margin > 0).mean()), slope_N


class Implicit(Extension):
    """Let the model of `[reward_model]` reward responses, and learn after the policy."""

    def models(self, policy: Policy) -> Mapping[str, NamedModel]:
        """Return the reward model, a copy of the policy."""
        self.part = self._model = RewardModel(policy, self.settings, self.context.config.rollout.temperature)
        return {self.key: self._model.named}

    def update(self, measured: Measured, learner: Learner, step: int) -> dict[str, float]:
        """Take the optimiser step of a training step, and return its metrics."""
        return self._model.update(measured, learner.precision, learner.budget, step)
