"""Use turnwise methods in SkyRL 0.3.

    from skyrl.train.trainer import RayPPOTrainer
    from turnwise.integrations.skyrl import with_credit

    class Experiment(BasePPOExp):
        def get_trainer(self, *args, **kwargs):
            return with_credit(RayPPOTrainer, tw.trloo())(*args, **kwargs)

SkyRL's own estimator runs first, for its metrics; then the method's advantages replace its advantages.
"""

from typing import Any

import numpy as np

from turnwise.credit.transform import Transform
from turnwise.integrations.padded import padded_batch
from turnwise.integrations.trainers import TRAINERS

TABLES = {
    "action_log_probs": "logprob_T",
    "rollout_logprobs": "behavior_logprob_T",
    "base_action_log_probs": "ref_logprob_T",
    "values": "value_T",
}
"""SkyRL's tables of tokens, and our names."""


def with_credit(trainer: type, method: Transform, *, return_is_success: bool = False) -> type:
    """Return a subclass of a SkyRL trainer that assigns credit with a method.

    Args:
        trainer: `RayPPOTrainer`, or a subclass such as the fully asynchronous one.
        method: Stateless method.
        return_is_success: Let the reward of a trajectory, 0 to 1, be its column `success`.

    Raises:
        IntegrationError: SkyRL does not have a column that the method needs.
        ConfigError: The method keeps state.
    """
    TRAINERS["SkyRL"].check(method)

    class CreditTrainer(trainer):
        def compute_advantages_and_returns(self, data: Any) -> Any:
            data = super().compute_advantages_and_returns(data)
            credit(data, method, return_is_success=return_is_success)
            return data

    return CreditTrainer


def credit(data: Any, method: Transform, *, return_is_success: bool = False) -> None:
    """Write `advantages` and `returns` of a training batch.

    A row is a trajectory, and each run of ones in its `loss_mask` is a response. With
    `generator.step_wise_trajectories` a row is a response, and the rewards of all steps count, not only the last.

    Args:
        data: `TrainingInputBatch` with `uids` in its metadata, and `is_last_step` for steps.
        method: Stateless method.
        return_is_success: Let the reward of a trajectory, 0 to 1, be its column `success`.

    Raises:
        IntegrationError: The batch lacks what the method needs.
    """
    mask, rewards = data["loss_mask"], data["rewards"]
    given: dict[str, Any] = {"row": "trajectory"}
    if data.metadata.get("is_last_step") is not None:
        last = np.asarray(data.metadata["is_last_step"], dtype=bool)
        given = {"row": "turn", "trajectory": np.cumsum(last) - last}
        rewards = _to_trained_rows(rewards, mask, given["trajectory"])
    tables = {ours: data[theirs] for theirs, ours in TABLES.items() if data.get(theirs) is not None}
    padded = padded_batch(
        rewards=rewards * mask.bool().any(dim=-1, keepdim=True),  # rows without tokens are padding
        response_mask=mask,
        group=list(data.metadata["uids"]),
        token_tables=tables,
        needs=method.needs,
        return_is_success=return_is_success,
        strays_to_last=True,  # a reward may stand on an observation after the last response
        **given,
    )
    advantages, returns = padded.credit(method)
    data["advantages"], data["returns"] = advantages.tokens, returns


def _to_trained_rows(rewards: Any, mask: Any, trajectory_N: np.ndarray) -> Any:
    """Move the rewards of a step without tokens, such as a last one that was too long, to the one before it.

    Args:
        rewards: `[rows, tokens]` rewards.
        mask: `[rows, tokens]` 1 for tokens that are trained on.
        trajectory_N: `[rows]` number of the trajectory of each row.
    """
    trained_N = mask.bool().any(dim=-1).cpu().numpy()
    before_N = np.maximum.accumulate(np.where(trained_N, np.arange(len(trained_N)), -1))
    moved_N = ~trained_N & (before_N >= 0) & (trajectory_N[before_N] == trajectory_N)
    moved, rewards = rewards.new_tensor(moved_N), rewards.clone()
    to = mask.long().new_tensor(np.maximum(before_N, 0))  # of row numbers, whatever the type of the mask
    rewards[:, -1].index_add_(0, to, rewards.sum(dim=-1) * moved)
    return rewards
