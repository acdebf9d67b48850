"""Scales: bring the values of a group to comparable size."""

from turnwise.batch import Batch
from turnwise.transform import Credit, block
from turnwise.transforms.grouping import Members, Over


@block(needs_option="same")
def scale_by_group_std(
    credit_R: Credit,
    batch: Batch,
    *,
    over: Over = "trajectories",
    same: str | None = None,
    ddof: int = 1,
    eps: float = 1e-6,
) -> Credit:
    """Divide by the group's standard deviation: `A / (std_group(A) + eps)`; a lone member is left as it is.

    Args:
        credit_R: `[responses]` values, usually centred.
        batch: Their batch.
        over: What the standard deviation counts: one value a trajectory or one a response.
        same: Compare only responses of the group that agree in this column.
        ddof: Divisor `n - ddof`: 1 for the sample, 0 for the population.
        eps: Added to the standard deviation.
    """
    members = Members(credit_R, batch, over=over, same=same, needed_by="scale_by_group_std")
    scale = members.partition.std(members.values, ddof=ddof) + eps
    scale[members.partition.lengths == 1] = 1.0
    return members.broadcast(members.values / members.partition.broadcast(scale))
