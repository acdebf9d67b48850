"""Use turnwise methods in ROLL's agentic pipeline: replace the function that computes its advantages.

    from turnwise.integrations.roll import install

    install(tw.gigpo())    # before AgenticPipeline runs

Token rewards, KL penalties in them, masks and the loss stay ROLL's.
"""

from typing import Any

import numpy as np

from turnwise.errors import IntegrationError
from turnwise.integrations.padded import padded_batch
from turnwise.integrations.trainers import TRAINERS
from turnwise.transform import Transform

TABLES = {"old_log_probs": "logprob_T", "ref_log_probs": "ref_logprob_T", "values": "value_T"}
"""ROLL's tables of tokens, and our names."""


def install(method: Transform, *, return_is_success: bool = False) -> None:
    """Make ROLL's agentic pipeline use a method; call it in the driver, before the pipeline runs.

    Raises:
        IntegrationError: ROLL does not have a column that the method needs.
        ConfigError: The method keeps state.
    """
    from roll.pipeline.agentic import agentic_pipeline  # pyright: ignore[reportMissingImports]

    TRAINERS["ROLL"].check(method)

    def compute(data: Any, **_: Any) -> Any:
        return credit(data, method, return_is_success=return_is_success)

    agentic_pipeline.agentic_compute_advantage = compute


def credit(data: Any, method: Transform, *, return_is_success: bool = False) -> Any:
    """Write `advantages`, `returns` and `raw_advantages` into a batch of ROLL.

    Rows of a step environment (with `step` in `non_tensor_batch`) are responses with the environment's `step_scores`;
    other rows are trajectories, paid by the sum of `scores`, and each run of ones in their mask is a response.

    Args:
        data: `DataProto` with `batch` and `non_tensor_batch`.
        method: Stateless method.
        return_is_success: Let the reward of a trajectory, 0 to 1, be its column `success`.

    Raises:
        IntegrationError: The batch lacks what the method needs.
    """
    tensors, labels = data.batch, data.non_tensor_batch
    mask = tensors["response_mask"][:, 1:].long()  # ROLL's log-probabilities and advantages begin at token 1
    tables = {ours: tensors[theirs] for theirs, ours in TABLES.items() if theirs in tensors.keys()}  # noqa: SIM118
    given: dict[str, Any] = {"response_mask": mask, "group": labels["traj_group_id"], "trajectory": labels["traj_id"]}
    if "step" in labels:
        given |= {"row": "turn", "turn": labels["step"], "rewards": labels["step_scores"].astype(np.float64)}
        given["columns"] = {"state_key": labels["state_hash"]} if "state_hash" in labels else {}
    else:
        given |= {"row": "trajectory", "rewards": tensors["scores"].sum(dim=-1).double()}
        if "state_key" in method.needs:
            raise IntegrationError(f"{method} needs states: use ROLL's StepEnvManager, whose rows are responses")
    padded = padded_batch(**given, token_tables=tables, needs=method.needs, return_is_success=return_is_success)
    advantages, returns = padded.credit(method)
    tensors["advantages"] = tensors["raw_advantages"] = advantages.tokens.float()
    tensors["returns"] = returns.float()
    return data
