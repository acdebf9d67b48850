"""Show how a run's steps share their time between the stages, and the shares of AEM's paper.

    python -m benchmarks.step_share runs/household-tiny-aem [RUN...]

Seconds are those of metrics.jsonl, summed over the steps without the first, which includes setup.
"""

import argparse
import json
from pathlib import Path

from benchmarks.tables import table

STAGES = ("rollout", "measure", "credit", "update", "weights")
PAPER = ("the paper, figure 6 (1)", "", "500.7", "45.9 %", "8.2 + 8.6 %", "1.3 %", "36.0 %", "")


def seconds(run: Path) -> dict[str, list[float]]:
    """Read the seconds of each stage in each step but the first; a step without training has only a rollout."""
    path = run / "metrics.jsonl"
    if not path.is_file():
        raise SystemExit(f"{run} is not a run: {path.name} is missing")
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    steps = [record for record in records if "time/rollout_s" in record][1:]
    if not steps:
        raise SystemExit(f"{path} has fewer than two steps; expected at least two, since the first is left out")
    for step in steps:
        step.setdefault("time/measure_s", step.get("time/score_s", 0.0))  # its name in version 0.1
    return {stage: [step.get(f"time/{stage}_s", 0.0) for step in steps] for stage in STAGES}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    rows = [PAPER]
    for run in parser.parse_args().runs:
        measured = seconds(run)
        sums = {stage: sum(each) for stage, each in measured.items()}
        total, count = sum(sums.values()), len(measured["rollout"])
        shares = (f"{100 * own / total:.{3 if stage == 'credit' else 1}f} %" for stage, own in sums.items())
        rows.append((run.name, f"{count}", f"{total / count:.2f}", *shares))
    table("Share of a step's time", ("", "steps", "seconds per step", *STAGES), rows)
    print(
        "\n(1) arXiv 2605.00425; its measures are old and reference log-probabilities, its credit AEM (1.1 %) and "
        "the base advantage (0.2 %)."
    )


if __name__ == "__main__":
    main()
