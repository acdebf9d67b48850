"""TP-GRPO: reward changes in value, and turning points with the remaining gain."""

from turnwise.credit.card import Gradient
from turnwise.credit.transform import Transform, chain, method
from turnwise.credit.transforms import center_by_group, reward_turning_points, scale_by_group_std
from turnwise.credit.transforms.shaping import Convention


@method("TurningPoint-GRPO (TP-GRPO)", arxiv="2602.06422", stage="shaping", confidence="near-exact")
def tp_grpo(*, convention: Convention = "paper") -> Transform:
    """Standardise per turn the change in expected outcome; a turning point gets the whole remaining gain.

        A_t = (r_t - mean(r)) / (std(r) + 1e-6)           over the responses of the group with the same turn
        r_t = R - V_{t-1} at a turning point, V_t - V_{t-1} elsewhere

    `reward_turning_points` defines turning points. `V_t` is the expected outcome after response t, from the column
    `value`: of continuations, or a critic's. The paper, about images, completes every step deterministically. A
    response whose turn no other trajectory of the group reached gets 0.

    The method is untested on agents.

    Args:
        convention: "paper": every turning point counts, and the standard deviation is the sample's. "release": equal
            numbers of positive and negative turning points count over the batch (see `reward_turning_points`), and the
            standard deviation is the population's + 1e-4. (The release balances on each device separately, and clips
            the advantages in its loss.)

    Expected gradient: biased: which trajectories reach a turn depends on the actions, and turning points depend on what
        follows.
    Use it when: values are noisy, and single responses decide a trajectory.
    Reference: Tong et al., arXiv 2602.06422; released code YunzeTong/TurningPoint-GRPO, `common_op3.sh`. The formulas
        come from secondary sources and the code, not from the paper's text.
    """
    release = convention == "release"
    return chain(
        reward_turning_points(balance=release),
        center_by_group(over="responses", same="turn"),
        scale_by_group_std(over="responses", same="turn", ddof=0 if release else 1, eps=1e-4 if release else 1e-6),
        gradient=Gradient(
            "biased", reason="reaching a turn depends on the actions, and turning points on what follows"
        ),
    )
