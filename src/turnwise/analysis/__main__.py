"""Write the reference page of biases: `python -m turnwise.analysis > docs/reference/bias.md`."""

import sys

from turnwise.analysis.bias import HISTORY, rows
from turnwise.analysis.drift import measure_drift
from turnwise.analysis.tables import across_worlds, drifts, summary
from turnwise.analysis.worlds import WORLDS
from turnwise.tables import as_markdown

GUIDE = f"""<!-- Made by `python -m turnwise.analysis > docs/reference/bias.md`. Edit src/turnwise/analysis. -->

# What each method does to the gradient

Exact, not estimated: in small worlds every group of K trajectories can be written down with its probability, so that the expectation and
the variance of an update are finite sums. `turnwise methods --bias` prints the first table, `turnwise methods --bias --world NAME` one world.

* **cosine** between the expected update and the true gradient of the expected return, in the world where it is worst. 1 is the right way.
* **bias** is what is left of the difference, relative to the gradient, after the best learning rate has been chosen; **raw bias** at the same
  learning rate. A method that is merely scaled has raw bias, but no bias. Both from the worst world.
* **variance** a trajectory, once every method's step along the gradient is brought to the same length, as a multiple of RLOO's: 2 takes
  twice as many trajectories for an update as good. From the kindest world to the worst; `inf` where the expected update does not go along
  the gradient at all.
* **K** is the size of the groups. A method that compares groups with each other, or keeps state, must see each group in a batch of its own,
  and one that reads ranks every order of a group; for those K = 2. Methods with state have seen {HISTORY} groups before.

Read the numbers as directions, not as forecasts. The worlds are tiny, values and probes are exact
([how every column is filled](../../src/turnwise/analysis/filling.py)), required options have the trial values of `turnwise methods`, and a bias
can be worth its price (AEM's is the point: it is there to steer entropy). A method that reads `success` is measured only where success is
the return.
"""

DRIFT_GUIDE = """## Drift of entropy

To first order along the natural gradient, a response moves the entropy of its state by `A (S - H)`: S is its surprisal, H the mean surprisal. Below
(`turnwise methods --drift`): one state with six responses, groups of eight, every set of responses that may succeed; nats a unit step, means over
the sets of a regime.

* **predicted** is the expectation of `A (S - H)`; **natural step** and **plain step** are what a step of 0.1 along the natural gradient and along the gradient
  in the logits really does, divided by 0.1. Where 0 is predicted a step still costs entropy: that is the noise of the update.
* **AEM** is what the coefficient adds: to the prediction through responses with A < 0 (meant to be positive), through those with A > 0 (meant to be
  negative) and in all; then to both steps. **as meant**: share of success sets in which it adds to the prediction while failures dominate, or takes from it
  once successes do.
* Policy `shown`: hesitant responses are the surprising ones, as AEM supposes. `hidden`: they are not.
* Advantage `raw` is the reward itself, +1 or -1; `grpo` is centred and scaled within the group.

What it says. Taken by the sign of A, AEM does what it promises where mean token entropy shows how surprising a response is, and the reverse where
it hides it. In all, it keeps the promise for raw rewards (and entropy that shows). For centred advantages it does not: while failures dominate, the rare
success is surprising and carries the large advantage, and damping it costs about as much entropy as AEM gains from the failures. In training the
coefficient also compares responses of different states, which one state cannot show.
"""


def page() -> str:
    """The whole page."""
    measured = list(rows())
    worlds = [("world", "what it is", "success", "trajectories a prompt", "K")]
    for world in WORLDS.values():
        success = f"{world.expectation(lambda t: t.success):.0%}"
        worlds.append((world.name, world.about, success, str(len(world.trajectories[0])), str(world.size)))
    return "\n".join([
        GUIDE,
        as_markdown(summary(measured)),
        "\n## The worlds\n",
        as_markdown(worlds),
        "\n## Cosine by world\n",
        as_markdown(across_worlds(measured, "cosine")),
        "\n## Variance by world, RLOO = 1\n",
        as_markdown(across_worlds(measured, "noise_vs_rloo")),
        f"\n{DRIFT_GUIDE}",
        as_markdown(drifts(measure_drift())),
    ])  # fmt: skip


if __name__ == "__main__":
    sys.stdout.write(page() + "\n")
