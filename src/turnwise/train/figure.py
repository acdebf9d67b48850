"""Draw the learning curve of a run."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from turnwise.base.figures import LIGHT, Theme, save, whole_numbers
from turnwise.train.folder import RunFolder


def plot_run(folder: RunFolder, label: str) -> None:
    """Save the learning curve of a run as figure.png in its folder."""
    save(run_figure(folder.metrics(), label), folder.figure)


def run_figure(records: Sequence[Mapping[str, Any]], label: str, theme: Theme = LIGHT) -> Figure:
    """Plot held-out success with its interval, success in training, and entropy by step."""
    evaluations = [record for record in records if "eval/success" in record]
    steps = [record for record in records if "rollout/success" in record]
    scored = [record for record in steps if "credit/entropy" in record]
    with theme.applied():
        figure = Figure(figsize=(10, 3.6), layout="constrained")
        left, right = figure.subplots(1, 2)
        left.plot(
            [r["step"] for r in steps], [r["rollout/success"] for r in steps], color=theme.pale, label="training tasks"
        )
        at, success = [r["step"] for r in evaluations], [r["eval/success"] for r in evaluations]
        below = [r["eval/success"] - r["eval/success_low"] for r in evaluations]
        above = [r["eval/success_high"] - r["eval/success"] for r in evaluations]
        left.errorbar(
            at, success, yerr=[below, above], color=theme.main, marker="o", capsize=3, label="held-out tasks, 95 %"
        )
        left.set(xlabel="step", ylabel="success", ylim=(0, 1), title=label)
        left.legend(loc="lower right")
        right.plot([r["step"] for r in scored], [r["credit/entropy"] for r in scored], color=theme.other)
        right.set(xlabel="step", ylabel="mean token entropy (nats)", title="entropy of the policy")
        right.set_ylim(bottom=0)
        for axes in (left, right):
            whole_numbers(axes)
    return figure
