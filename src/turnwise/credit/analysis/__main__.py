"""Write the reference page of biases: `python -m turnwise.credit.analysis > docs/reference/bias.md`.

With `--by-problem`, its data: `python -m turnwise.credit.analysis --by-problem > docs/reference/bias-by-problem.csv`.
"""

import csv
import io
import sys
from importlib.resources import files

from turnwise.base.tables import as_markdown, as_text
from turnwise.base.terminal import say
from turnwise.credit.analysis.bias import HISTORY, rows
from turnwise.credit.analysis.decisions import PROBLEMS
from turnwise.credit.analysis.drift import measure_drift
from turnwise.credit.analysis.tables import across_problems, drifts, summary

BY_PROBLEM = {"cosine": "cosine", "variance, RLOO = 1": "noise_vs_rloo"}
"""What the data has of every problem, to its attribute."""
MARK = "## Drift of entropy"
GUIDE, _, DRIFT = (files("turnwise.credit.analysis") / "guide.txt").read_text(encoding="utf-8").partition(MARK)


def page() -> str:
    """Write the whole page."""
    measured = list(rows())
    problems = [("problem", "what it is", "success", "trajectories per prompt", "K")]
    for problem in PROBLEMS.values():
        success = f"{problem.expectation(lambda t: t.success):.0%}"
        problems.append((problem.name, problem.about, success, str(len(problem.trajectories[0])), str(problem.size)))
    head, *lines = summary(measured)
    shown = [head, *((name, gradient.split()[0], *rest) for name, gradient, *rest in lines)]  # methods.md has all of it
    return "\n".join(
        [
            GUIDE.format(HISTORY=HISTORY),
            f"```text\n{as_text(shown)}\n```",
            "\n## The problems\n",
            as_markdown(problems),
            "\n[Cosine and variance of every method in every problem](bias-by-problem.csv).",
            f"\n{MARK}{DRIFT}",
            as_markdown(drifts(measure_drift())),
        ]
    )


def by_problem() -> str:
    """Write cosine and variance of every method in every problem as CSV."""
    measured, text = list(rows()), io.StringIO()
    for number, (name, key) in enumerate(BY_PROBLEM.items()):
        head, *lines = across_problems(measured, key)
        csv.writer(text, lineterminator="\n").writerows(
            [*([] if number else [("measure", *head)]), *((name, *line) for line in lines)]
        )
    return text.getvalue().rstrip()


if __name__ == "__main__":
    if {"-h", "--help"} & {*sys.argv[1:]}:
        say(__doc__)
    else:
        say(by_problem() if "--by-problem" in sys.argv[1:] else page())
