"""V_0.5: subtract a baseline between the group's mean and a prior of the prompt."""

from turnwise.credit.card import Gradient
from turnwise.credit.transform import Transform, chain, method
from turnwise.credit.transforms import subtract_shrunk_mean, success_return


@method("V_0.5", arxiv="2603.10848")
def v05(*, unseen: float | None = None, strength: float = 0.0) -> Transform:
    """Subtract a prior of the prompt, or the group's mean where it contradicts the prior.

        A_i = R_i - (w * v + (1 - w) * V)        R_i = 2 * success_i - 1, v = mean(R)
        w = D / (D + 1/K)                        D = max(0, (v - V)^2 - 1/K), the squared bias beyond the variance of v

    A group that always succeeds or fails still has a signal. The paper's prior V comes from a separate model. Here it
    is the mean of R over the trajectories of the same `task` that earlier steps learned from, which the method keeps as
    its state: without replays, and without groups that a filter drops.

    Args:
        unseen: V of a task without history, from -1 to 1. None: w = 1 there, the group's own mean.
        strength: Trajectories that `unseen` counts as once a task has a history: V is the mean of R over them and the
            earlier ones. 2 with unseen = 0 is the mean of a Beta posterior with a uniform prior.

    Expected gradient: biased: the weight of the prior depends on the group's outcomes, and `success` replaces the
    return.
    Use it when: groups are small and tasks repeat. `rollout.collector` has the paper's allocation, the rule `v05`.
    Reference: arXiv 2603.10848. No code is public; the prior from history is ours.
    """
    gradient = Gradient("biased", reason="the prior's weight depends on the group's outcomes, read from success")
    return chain(success_return(low=-1.0), subtract_shrunk_mean(unseen=unseen, strength=strength), gradient=gradient)
