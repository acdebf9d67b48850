"""SPAE: probe the answer after every response, to credit the response that found it."""

from turnwise.credit.card import Gradient
from turnwise.credit.methods.grpo import dr_grpo
from turnwise.credit.transform import Transform, chain, method
from turnwise.credit.transforms import add_potential_gain, center_by_group, damp_after_saturation, scale_by_group_std


@method(
    "Step Potential Advantage Estimation (SPAE)", arxiv="2601.03823", stage="modulation", confidence="reconstructed"
)
def spae(
    base: Transform | None = None, *, strength: float = 0.5, threshold: float = 0.9, weight: float = 0.5
) -> Transform:
    """Damp a base advantage after the answer is found, add each response's gain in potential, standardise over tokens.

        A_t = z(A_base_t * (1 - strength * (1 - exp(-C_t))) + weight * (exp(u_t) - mean(exp(u))))
        C_t = number of earlier responses of the trajectory with potential > threshold
        u_t = gain in potential since the previous response (0 at turn 0), min-max normalised over the batch
        potential = 1.5 * accuracy * confidence + 0.5 * accuracy - confidence

    z subtracts the mean over the tokens of the batch (column `length`) and divides by their standard deviation. Every
    response needs a probe; if one is missing, repeat the previous one. The damping shrinks both signs.

    Args:
        base: Any method or chain; default `dr_grpo()`, the paper's group mean without deviation.
        strength: alpha in the paper; 0 switches the damping off.
        threshold: Potential from which an answer counts as found.
        weight: xi in the paper; 0 switches the gain off.

    Expected gradient: biased: damping and gain depend on the effect of the response itself, and z divides by a
        deviation.
    Use it when: the answer can be probed after every response, and trajectories continue after it is found.
    Reference: Wu et al., arXiv 2601.03823. Reconstructed: only the probe of the official code is public.
    """
    return chain(
        base if base is not None else dr_grpo(),
        damp_after_saturation(strength=strength, threshold=threshold),
        add_potential_gain(weight=weight),
        center_by_group(over="tokens", scope="batch"),
        scale_by_group_std(over="tokens", scope="batch"),
        gradient=Gradient("biased", reason="the gain depends on the effect of the response; divides by a deviation"),
    )
