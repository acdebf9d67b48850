"""Write the reference page of biases: `python -m turnwise.credit.analysis > docs/reference/bias.md`."""

from turnwise.base.tables import as_markdown, as_text
from turnwise.base.terminal import say
from turnwise.credit.analysis.bias import HISTORY, rows
from turnwise.credit.analysis.decisions import PROBLEMS
from turnwise.credit.analysis.drift import measure_drift
from turnwise.credit.analysis.tables import across_problems, drifts, summary

GUIDE = f"""<!-- Made by `python -m turnwise.credit.analysis > docs/reference/bias.md`. Edit that package instead. -->

# What each method does to the gradient

All numbers are exact. In small problems every group of K trajectories can be enumerated with its probability, so that
expectation and variance of an update are finite sums. `turnwise methods --bias` prints the first table,
`turnwise methods --bias --problem NAME` one problem.

* **cosine** between the expected update and the true gradient of the expected return, in the worst problem. 1 is the
  direction of the gradient.
* **bias** is the difference from the gradient, relative to it, at the best learning rate; **raw bias** at the same
  learning rate. A method that is only scaled has raw bias, but no bias. Both are from the worst problem.
* **variance** per trajectory, after scaling every method to the same progress along the gradient, as a multiple of
  RLOO's: 2 needs twice as many trajectories for an equally good update. The range is from the best problem to the
  worst; `inf` if the expected update makes no progress along the gradient.
* **K** is the size of the groups. K = 2 for methods that compare groups or keep state, which need one batch per group,
  and for methods that read ranks, which need every order of a group. Methods with state have seen {HISTORY} groups
  before.

Read the numbers as directions, not as forecasts. The problems are tiny, and values and probes are exact
([how every column is filled](../../src/turnwise/credit/analysis/filling.py)). Required options have the trial values of
`turnwise methods`. A bias can be useful: AEM's steers entropy. A method that reads `success` is measured only where
success is the return.
"""

DRIFT_GUIDE = """## Drift of entropy

To first order along the natural gradient, a response changes the entropy of its state by `A (S - H)`, where S is its
surprisal and H the mean surprisal. The table (`turnwise methods --drift`) covers one state with six responses, groups
of eight, and every possible set of successful responses. Values are nats per unit step, averaged over the sets of a
regime.

* **predicted** is the expectation of `A (S - H)`. **natural step** and **plain step** are the exact effects of a step
  of 0.1 along the natural gradient and along the gradient in the logits, divided by 0.1. Where the prediction is 0, a
  step still costs entropy, due to the noise of the update.
* **AEM** is the effect of the coefficient: on the prediction through responses with A < 0 (intended to be positive),
  through those with A > 0 (intended to be negative) and in total; then on both steps. **as meant**: share of success
  sets in which it raises the prediction while failures dominate, or lowers it once successes dominate.
* Policy `shown`: uncertain responses are the surprising ones, as AEM assumes. `hidden`: they are not.
* Advantage `raw` is the reward itself, +1 or -1; `grpo` is centred and scaled within the group.

Result: for each sign of A, AEM works as intended if mean token entropy reflects surprisal (`shown`), and in reverse if
not (`hidden`). In total, it works for raw rewards with `shown`. With centred advantages it does not: while failures
dominate, the rare success is surprising and has the large advantage. Damping it costs about as much entropy as AEM
gains from the failures. In training, the coefficient also compares responses of different states, which this analysis
of one state does not cover.
"""


def page() -> str:
    """Write the whole page."""
    measured = list(rows())
    problems = [("problem", "what it is", "success", "trajectories per prompt", "K")]
    for problem in PROBLEMS.values():
        success = f"{problem.expectation(lambda t: t.success):.0%}"
        problems.append((problem.name, problem.about, success, str(len(problem.trajectories[0])), str(problem.size)))
    return "\n".join(
        [
            GUIDE,
            as_markdown(summary(measured)),
            "\n## The problems\n",
            as_markdown(problems),
            "\n## Cosine by problem\n",
            f"```text\n{as_text(across_problems(measured, 'cosine'))}\n```",
            "\n## Variance by problem, RLOO = 1\n",
            f"```text\n{as_text(across_problems(measured, 'noise_vs_rloo'))}\n```",
            f"\n{DRIFT_GUIDE}",
            as_markdown(drifts(measure_drift())),
        ]
    )


if __name__ == "__main__":
    say(page())
