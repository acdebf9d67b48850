"""Scale values by the standard deviation of their group."""

from typing import Literal

import numpy as np

from turnwise.credit.batch import Batch
from turnwise.credit.transform import Credit, block
from turnwise.credit.transforms.grouping import Members, Over, Same, Scope, needs_length

Convention = Literal["turnwise", "release"]


@block(needs=needs_length, needs_option="same")
def scale_by_group_std(
    credit_R: Credit,
    batch: Batch,
    *,
    over: Over = "trajectories",
    same: Same = None,
    scope: Scope = "group",
    ddof: int = 1,
    eps: float = 1e-6,
    floor: float = 0.0,
) -> Credit:
    """Divide by the group's standard deviation: `A / (sqrt(var_group(A) + floor) + eps)`; leave single members.

    Args:
        credit_R: `[responses]` values, usually centred.
        batch: Their batch.
        over: What the standard deviation counts: one value per trajectory, response or token.
        same: Compare only responses that agree in this column, or in all of these.
        scope: Within the prompt's group, or over the whole batch.
        ddof: Divisor `n - ddof`: 1 for the sample, 0 for the population.
        eps: Added to the standard deviation.
        floor: Added to the variance, as functions named "whiten" do.
    """
    members = Members(credit_R, batch, over=over, same=same, scope=scope, needed_by="scale_by_group_std")
    std = members.std(ddof=ddof)
    scale = np.where(members.is_lone(), 1.0, (np.sqrt(std**2 + floor) if floor else std) + eps)
    return members.broadcast(members.values / scale)


@block(across_groups=lambda options: True)
def scale_by_largest(credit_R: Credit, batch: Batch, *, convention: Convention = "turnwise") -> Credit:
    """Divide by the largest absolute value of the batch; values that are all 0 stay 0.

    Args:
        credit_R: `[responses]` values.
        batch: Their batch.
        convention: "release": by the largest value + 1e-6, as the code of PRIME and iStar.
    """
    largest = np.abs(credit_R).max() + (1e-6 if convention == "release" else 0.0)
    return credit_R / largest if largest > 0 else credit_R.copy()
