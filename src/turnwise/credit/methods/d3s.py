"""D3S: select the trajectories with the largest variance of advantages."""

from turnwise.base.errors import ConfigError
from turnwise.credit.card import Gradient
from turnwise.credit.methods.grpo import grpo
from turnwise.credit.transform import Transform, chain, method
from turnwise.credit.transforms import keep_extremes
from turnwise.credit.transforms.asymmetry import KeptOver
from turnwise.credit.transforms.schedule import linear, scheduled


@method(
    "Dynamic Dual-Level Down-Sampling (D3S)",
    arxiv="2509.22115",
    stage="modulation",
    confidence="reconstructed",
    trial={"kept_frac": 0.5},
)
def d3s(
    base: Transform | None = None,
    *,
    kept_frac: float,
    first_frac: float | None = None,
    steps: int = 0,
    over: KeptOver = "trajectories",
    seed: int = 0,
) -> Transform:
    """Keep the trajectories of the batch whose advantages have the largest variance; the others get 0.

        A' = A for the n = round(kept_frac * N) of the batch's N trajectories that maximise Var(A), else 0

    These are some of the largest and some of the smallest. Ties are broken at random. The paper's second level, the
    selection of tokens, is the token rule `d3s_mask` of the loss, whose share is linear in the progress of the run. The
    end points of the paper's schedules are not published. What is dropped has no gradient, but stays in the
    denominators of the loss and its other terms; with `d3s_mask` it does not.

    Args:
        base: Any method or chain; default `grpo()`.
        kept_frac: Fraction of the batch to keep; no value is published.
        first_frac: Fraction to keep in the first step, for the paper's schedule: it rises linearly to `kept_frac` over
            `steps`. None: always `kept_frac`.
        steps: Steps of the schedule, counting those with something to learn from.
        over: Unit of selection: "trajectories" or "responses". The paper has one response per trajectory.
        seed: Seed of the tie breaks.

    Expected gradient: biased: what is left out depends on the advantages of the whole batch. At `kept_frac=1`, the
    base's.
    Use it when: the update costs more than the rollout.
    Reference: arXiv 2509.22115, reconstructed; no code apart from supplementary material.
    """
    if (first_frac is None) != (steps == 0) or steps < 0:
        raise ConfigError(f"d3s: first_frac={first_frac} and steps={steps} make a schedule together; give both or none")

    def kept(step: int) -> Transform:
        now = kept_frac if first_frac is None else linear(step, first_frac, kept_frac, steps)
        return keep_extremes(kept_frac=now, over=over, seed=seed)

    name = f"keep_extremes(kept_frac={first_frac} to {kept_frac} in {steps} steps)"
    selection = kept(0) if first_frac is None else scheduled(kept, name=name, across_groups=True)
    base = base if base is not None else grpo()
    biased = Gradient("biased", reason="what is left out depends on the advantages of the whole batch")
    gradient = (base.gradient if kept_frac == 1 and first_frac is None else None) or biased
    return chain(base, selection, gradient=gradient)
