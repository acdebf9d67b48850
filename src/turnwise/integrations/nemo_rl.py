"""Use turnwise methods in NeMo-RL, as its advantage estimator.

    from turnwise.integrations.nemo_rl import install

    install(tw.trloo())    # before grpo_train

It replaces the estimator that `nemo_rl.algorithms.grpo` (or `ppo`) makes from the configuration.
"""

from typing import Any

import numpy as np

from turnwise.integrations.padded import padded_batch
from turnwise.integrations.trainers import TRAINERS
from turnwise.transform import Transform

FACTORY = "_create_advantage_estimator"
"""Function of NeMo-RL's algorithms that makes the estimator."""


class TurnwiseAdvantageEstimator:
    """Compute advantages in the form of NeMo-RL's estimators.

    Args:
        method: Stateless method.
        return_is_success: Let the reward of a trajectory, 0 to 1, be its column `success`.
        with_returns: Return advantages and returns, as `ppo` expects; else advantages alone.

    Raises:
        IntegrationError: NeMo-RL does not have a column that the method needs.
        ConfigError: The method keeps state.
    """

    def __init__(self, method: Transform, *, return_is_success: bool = False, with_returns: bool = False):
        TRAINERS["NeMo-RL"].check(method)
        self.method, self.return_is_success, self.with_returns = method, return_is_success, with_returns

    def compute_advantage(
        self,
        prompt_ids: Any,
        rewards: Any,
        mask: Any,
        valid_mask: Any = None,
        logprobs_policy: Any = None,
        logprobs_reference: Any = None,
        values: Any = None,
        **named: Any,
    ) -> Any:
        """Return advantages `[rows, length]`, 0 outside the mask.

        Args:
            prompt_ids: `[rows]` numbers or `[rows, prompt length]` token ids of prompts; equal prompts are a group.
            rewards: `[rows]` reward of each trajectory.
            mask: `[rows, length]`, 1 at generated tokens; each run of ones is a response.
            valid_mask: `[rows]`, 0 for rows that must not count; None: all count.
            logprobs_policy: `[rows, length]` log-probabilities under the policy (nats).
            logprobs_reference: `[rows, length]` log-probabilities under the reference model (nats).
            values: `[rows, length]` values of PPO's critic.
            named: Further arguments: PPO's `logprobs` and `reference_logprobs`; others have no effect.
        """
        if valid_mask is not None:
            mask = mask * valid_mask.to(mask.dtype).unsqueeze(-1)
        ids = np.asarray(prompt_ids.cpu())
        group = np.unique(ids.reshape(len(ids), -1), axis=0, return_inverse=True)[1].reshape(-1)
        tables = {
            "logprob_T": named.get("logprobs") if logprobs_policy is None else logprobs_policy,
            "ref_logprob_T": named.get("reference_logprobs") if logprobs_reference is None else logprobs_reference,
            "value_T": values,
        }
        padded = padded_batch(
            row="trajectory",
            rewards=rewards * mask.bool().any(dim=-1),  # a row without tokens has no response to pay
            response_mask=mask,
            group=group,
            token_tables={name: table for name, table in tables.items() if table is not None},
            needs=self.method.needs,
            return_is_success=self.return_is_success,
        )
        advantages, returns = padded.credit(self.method)
        return (advantages.tokens, returns) if self.with_returns else advantages.tokens


def install(method: Transform, *, algorithm: str = "grpo", return_is_success: bool = False) -> None:
    """Make NeMo-RL's `grpo` or `ppo` use a method; call it in the driver, before training starts."""
    import importlib

    module = importlib.import_module(f"nemo_rl.algorithms.{algorithm}")
    getattr(module, FACTORY)  # raises where NeMo-RL has renamed it
    estimator = TurnwiseAdvantageEstimator(method, return_is_success=return_is_success, with_returns=algorithm == "ppo")
    setattr(module, FACTORY, lambda *_: estimator)
