"""VERL: add a rank bonus (the method Velocity-Exploiting Rank Learning, not the trainer verl)."""

from turnwise.credit.card import Gradient
from turnwise.credit.methods.grpo import grpo
from turnwise.credit.transform import Transform, chain, method
from turnwise.credit.transforms import add_rank_bonus
from turnwise.credit.transforms.asymmetry import Averages


@method("VERL: Velocity-Exploiting Rank Learning", arxiv="2509.23808", stage="modulation")
def verl_er(
    base: Transform | None = None,
    *,
    kappa: float = 2.0,
    gain: float = 2.0,
    rate: float = 0.3,
    convention: Averages = "turnwise",
) -> Transform:
    """Add a bounded bonus where the effective rank of hidden states is unusually high, or grows.

        A'  = A + min(max(0, Phi), |A| / kappa)
        Phi = beta * tanh(dev(ER)) + (1 - beta) * tanh(dev(ERV))
        beta = sigmoid(gain * dev(ERA))        dev(m) = clip((m - usual) / (|usual| + 1e-8), -5, 5)

    ER, ERV and ERA are the columns `effective_rank`, `rank_velocity` and `rank_acceleration`
    (`turnwise.measures.hidden_rank`; velocity is 0 below 81 tokens, acceleration below 121); `usual` is a moving
    average of a metric's batch means, kept as state. The bonus never changes a sign and is 0 where A is.

    In the released code the bonus applies to the last token only, and the released script switches it off.

    Args:
        base: Any method or chain; default `grpo()`.
        kappa: Bound: the bonus is at most |A| / kappa.
        gain: Slope of the sigmoid that selects between rank and velocity by acceleration.
        rate: Weight of a new batch in the moving averages.
        convention: "turnwise": the averages start at the first batch's means and include all previous batches.
            "release": they start at 0, so that the first bonus saturates, and lag one batch more; the first batch gets
            no bonus.

    Expected gradient: biased: the bonus depends on the response's own hidden states.
    Use it when: you can read hidden states and want to test their rank as a sign of exploration.
    Reference: arXiv 2509.23808; released code hf618/VERL. The submission was withdrawn.
    """
    base = base if base is not None else grpo()
    gradient = Gradient("biased", reason="the bonus depends on the response's own hidden states")
    return chain(base, add_rank_bonus(kappa=kappa, gain=gain, rate=rate, convention=convention), gradient=gradient)
