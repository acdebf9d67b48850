"""Write the reference page of biases: `python -m turnwise.credit.analysis > docs/reference/bias.md`."""

from importlib.resources import files

from turnwise.base.tables import as_markdown, as_text
from turnwise.base.terminal import say
from turnwise.credit.analysis.bias import HISTORY, rows
from turnwise.credit.analysis.decisions import PROBLEMS
from turnwise.credit.analysis.drift import measure_drift
from turnwise.credit.analysis.tables import across_problems, drifts, summary

_MARK = "## Drift of entropy"
GUIDE, _, _DRIFT = (files("turnwise.credit.analysis") / "guide.txt").read_text(encoding="utf-8").partition(_MARK)


def page() -> str:
    """Write the whole page."""
    measured = list(rows())
    problems = [("problem", "what it is", "success", "trajectories per prompt", "K")]
    for problem in PROBLEMS.values():
        success = f"{problem.expectation(lambda t: t.success):.0%}"
        problems.append((problem.name, problem.about, success, str(len(problem.trajectories[0])), str(problem.size)))
    return "\n".join(
        [
            GUIDE.format(HISTORY=HISTORY),
            as_markdown(summary(measured)),
            "\n## The problems\n",
            as_markdown(problems),
            "\n## Cosine by problem\n",
            f"```text\n{as_text(across_problems(measured, 'cosine'))}\n```",
            "\n## Variance by problem, RLOO = 1\n",
            f"```text\n{as_text(across_problems(measured, 'noise_vs_rloo'))}\n```",
            f"\n{_MARK}{_DRIFT}",
            as_markdown(drifts(measure_drift())),
        ]
    )


if __name__ == "__main__":
    say(page())
