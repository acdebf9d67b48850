"""Use turnwise methods in AReaL 1.0: replace the advantages of its actor.

    class CreditActor(FSDPPPOActor):
        def __init__(self, config):
            super().__init__(config)
            assign_credit(self.actor, tw.trloo())

    areal.engine.FSDPPPOActor = CreditActor    # before PPOTrainer is made

Rewards, log-probabilities, masks and the loss stay AReaL's.
"""

from typing import Any

import numpy as np

from turnwise.base.errors import IntegrationError
from turnwise.credit.transform import Transform
from turnwise.integrations.padded import padded_batch
from turnwise.integrations.trainers import TRAINERS


def assign_credit(actor: Any, method: Transform, *, return_is_success: bool = False) -> None:
    """Replace the advantages of an AReaL actor by those of a method.

    An item of AReaL's list is the group of a prompt, its rows are trajectories, and each run of ones in `loss_mask` is
    a response. Agents must export whole conversations (`export_style="concat"`): single interactions do not say which
    trajectory they belong to.

    Args:
        actor: `PPOActor` of an engine.
        method: Stateless method.
        return_is_success: Let the reward of a trajectory, 0 to 1, be its column `success`.

    Raises:
        IntegrationError: AReaL does not have a column that the method needs, or would change the advantages.
        ConfigError: The method keeps state.
    """
    TRAINERS["AReaL"].check(method)
    for name in ("reward_norm", "adv_norm"):
        if getattr(actor, name) is not None:
            raise IntegrationError(
                f"actor.{name} changes what {method} assigns; set it to null in AReaL's configuration"
            )
    if actor.kl_ctl:
        raise IntegrationError(f"actor.kl_ctl={actor.kl_ctl} puts a KL penalty into the reward; set it to 0")
    theirs = actor.compute_advantages

    def compute_advantages(data: list[dict[str, Any]]) -> list[dict[str, Any]]:
        made = theirs(data)
        credit(made, method, return_is_success=return_is_success)
        return made

    actor.compute_advantages = compute_advantages


def credit(groups: list[dict[str, Any]], method: Transform, *, return_is_success: bool = False) -> None:
    """Write `advantages` and `returns` of groups that AReaL's `compute_advantages` has prepared.

    AReaL's masks, log-probabilities and values are shifted by one position there: place t is about token t + 1.
    """
    import torch

    width = max(group["loss_mask"].shape[1] for group in groups)

    def joined(name: str) -> Any:
        parts = [torch.nn.functional.pad(group[name].float(), (0, width - group[name].shape[1])) for group in groups]
        return torch.cat(parts)

    first = groups[0]
    prox = "prox_logp" if first.get("prox_logp") is not None else "logprobs"
    names = {"logprob_T": prox, "behavior_logprob_T": "logprobs", "ref_logprob_T": "ref_logp", "value_T": "values"}
    if prox == "logprobs" or first["prox_logp"] is first["logprobs"]:
        del names["behavior_logprob_T"]
    sizes = [len(group["loss_mask"]) for group in groups]
    padded = padded_batch(
        row="trajectory",
        rewards=np.concatenate([group["tot_rewards"].sum(1).double().cpu().numpy() for group in groups]),
        response_mask=joined("loss_mask"),
        group=np.repeat(np.arange(len(groups)), sizes),
        token_tables={ours: joined(theirs) for ours, theirs in names.items() if first.get(theirs) is not None},
        needs=method.needs,
        return_is_success=return_is_success,
    )
    advantages, returns = padded.credit(method)
    for name, table in (("advantages", advantages.tokens), ("returns", returns)):
        for group, rows in zip(groups, table.split(sizes), strict=True):
            group[name] = rows[:, : group["loss_mask"].shape[1]].to(group["loss_mask"].device)
