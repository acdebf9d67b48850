"""Read a run with pandas: its metrics, its trajectories, and the credit of every response.

    python examples/read_a_run_with_pandas.py runs/household-tiny-aem

A run folder is plain files: `metrics.jsonl`, and one Parquet file per step in `rollouts/`, one row per response.
"""

import sys
from pathlib import Path

import pandas as pd


def read_metrics(run: Path) -> pd.DataFrame:
    """Load one row per record: a training step, or an evaluation."""
    return pd.read_json(run / "metrics.jsonl", lines=True)


def read_responses(run: Path) -> pd.DataFrame:
    """Load one row per response of all recorded steps; groups that were not learned from have no advantage."""
    files = sorted((run / "rollouts").glob("step-*.parquet"))
    return pd.concat([pd.read_parquet(file).assign(step=int(file.stem.split("-")[1])) for file in files])


def main(run: Path) -> None:
    """Print what the run learned, and which responses got the credit."""
    metrics, responses = read_metrics(run), read_responses(run)

    evaluations = metrics.dropna(subset=["eval/success"])
    print("held-out success with its 95 % interval")
    print(evaluations[["step", "eval/success_low", "eval/success", "eval/success_high"]].to_string(index=False))

    trajectories = responses.groupby(["step", "group", "trajectory"])
    outcome = trajectories.agg(success=("success", "first"), turns=("turn", "size"), reward=("reward", "sum"))
    print("\ntrajectories, first and last step")
    print(outcome.groupby("step").mean().iloc[[0, -1]].round(2).to_string())

    contrast = outcome.groupby(["step", "group"])["reward"].nunique() > 1
    print(f"\ngroups with contrast: {contrast.mean():.0%} of {len(contrast)}")

    print("\ncredit by turn: mean entropy (nats), coefficient and size of the advantage")
    by_turn = responses.assign(size=responses["advantage"].abs()).groupby("turn")
    print(by_turn[["entropy", "alpha", "size"]].mean().head(8).round(3).to_string())

    print("\nthe responses with the largest advantages of the last step")
    last = responses[responses["step"] == responses["step"].max()]
    print(last.nlargest(5, "advantage")[["task", "turn", "response", "advantage"]].to_string(index=False))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
