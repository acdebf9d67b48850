"""Use turnwise methods in slime, through two of its function paths.

    --custom-reward-post-process-path my_credit.rewards --custom-advantage-function-path my_credit.advantages

with `my_credit.py`:

    rewards, advantages = paths(tw.trloo())

`rewards` runs in the rollout manager, where groups are whole, and leaves the advantages of tokens in each sample's
`train_metadata`; `advantages` runs on every rank and takes them from there.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from turnwise.errors import IntegrationError
from turnwise.integrations.padded import padded_batch
from turnwise.integrations.trainers import TRAINERS
from turnwise.transform import Transform

KEY = "turnwise"
"""Key of a sample's `train_metadata` that holds the advantages of its response's tokens."""


def paths(method: Transform, *, return_is_success: bool = False) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return the functions for `--custom-reward-post-process-path` and `--custom-advantage-function-path`.

    Args:
        method: Stateless method.
        return_is_success: Let the reward of a trajectory, 0 to 1, be its column `success`.

    Raises:
        IntegrationError: slime does not have a column that the method needs.
        ConfigError: The method keeps state.
    """
    TRAINERS["slime"].check(method)

    def rewards(args: Any, samples: Sequence[Any]) -> tuple[list[float], list[float]]:
        raw = [float(sample.get_reward_value(args)) for sample in samples]
        width = max(sample.response_length for sample in samples)
        mask = _table([sample.loss_mask or [1] * sample.response_length for sample in samples], width)
        mask[[bool(sample.remove_sample) for sample in samples]] = 0
        tables = {}
        if all(sample.rollout_log_probs is not None for sample in samples):
            tables["logprob_T"] = _table([sample.rollout_log_probs for sample in samples], width)
        padded = padded_batch(
            row="trajectory",
            rewards=np.where(mask.any(axis=1), raw, 0.0),
            response_mask=mask,
            group=[sample.group_index for sample in samples],
            token_tables=tables,
            needs=method.needs,
            return_is_success=return_is_success,
        )
        credit, _ = padded.credit(method)
        for sample, row in zip(samples, credit.tokens, strict=True):
            own = row[: sample.response_length].tolist()
            sample.train_metadata = {**(sample.train_metadata or {}), KEY: own}
        return raw, credit.rows.tolist()

    return rewards, _advantages


def _advantages(args: Any, rollout_data: dict[str, Any]) -> None:
    """Write `advantages` and `returns`, a tensor per sample, from the samples' metadata."""
    if "metadata" not in rollout_data:
        raise IntegrationError(
            "slime's batch has no 'metadata': set --custom-reward-post-process-path too, in a version of slime whose "
            "rollout manager deals out `train_metadata`"
        )
    like = rollout_data["loss_masks"]
    pairs = zip(like, rollout_data["metadata"], strict=True)
    own = [mask.float().new_tensor(metadata[KEY]) for mask, metadata in pairs]  # a mask of whole numbers would round
    rollout_data["advantages"], rollout_data["returns"] = own, own


def _table(rows: Sequence[Sequence[float]], width: int) -> np.ndarray:
    table = np.zeros((len(rows), width))
    for number, row in enumerate(rows):
        table[number, : len(row)] = row
    return table
