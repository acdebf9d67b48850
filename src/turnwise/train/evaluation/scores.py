"""Summarise an evaluation as a table by task type, and write it to the run folder."""

import dataclasses
import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from turnwise.base.checksums import RUN_KEY, run_of, sealed
from turnwise.base.errors import RunError
from turnwise.base.files import provenance, write_json, write_text
from turnwise.config import Config
from turnwise.rollout.trajectory import Trajectory
from turnwise.train.evaluation.intervals import share_interval
from turnwise.train.evaluation.play import invalid_frac

ALL = "all"


@dataclasses.dataclass(frozen=True, slots=True)
class ScoreRow:
    """Summarise the episodes of one task type, or of all, without failed episodes.

    Attributes:
        task_type: Task type from the environment; "-" if unknown.
        episodes: Number of episodes over all sampling seeds.
        success: Share of successes, with `low` and `high`, its 95 % Wilson interval over episodes.
        score: Mean of the last step's `score` if the environment has partial success, else None.
        turns: Mean number of responses.
        invalid_frac: Share of responses that the environment did not accept.
    """

    task_type: str
    episodes: int
    success: float
    low: float
    high: float
    score: float | None
    turns: float
    invalid_frac: float

    def texts(self) -> dict[str, str]:
        """Return the cells by column head."""
        return {
            "task type": self.task_type,
            "episodes": str(self.episodes),
            "success": f"{self.success:.3f}",
            "95 % interval": f"{self.low:.3f} to {self.high:.3f}",
            "score": "-" if self.score is None else f"{self.score:.3f}",
            "turns": f"{self.turns:.1f}",
            "invalid": f"{self.invalid_frac:.3f}",
        }


def rows_by_type(trajectories: Sequence[Trajectory]) -> list[ScoreRow]:
    """Return one row per task type, by name, and a last row for all."""
    usable = [trajectory for trajectory in trajectories if trajectory.usable]
    groups: dict[str, list[Trajectory]] = defaultdict(list)
    for trajectory in usable:
        groups[str(trajectory.info.get("task_type", "-"))].append(trajectory)
    named = sorted(groups.items()) if set(groups) - {"-"} else []
    return [_row(name, group) for name, group in [*named, (ALL, usable)]]


def _row(name: str, trajectories: Sequence[Trajectory]) -> ScoreRow:
    wins = [trajectory.success for trajectory in trajectories]
    scores = [float(trajectory.info["score"]) for trajectory in trajectories if "score" in trajectory.info]
    return ScoreRow(
        name,
        len(wins),
        float(np.mean(wins)) if wins else 0.0,
        *share_interval(wins, [trajectory.task for trajectory in trajectories]),
        float(np.mean(scores)) if scores and len(scores) == len(wins) else None,
        float(np.mean([len(trajectory.turns) for trajectory in trajectories])) if wins else 0.0,
        invalid_frac(trajectories),
    )


def evaluation_record(
    name: str,
    config: Config,
    results: Sequence[Mapping[str, Any]],
    trajectories: Sequence[Trajectory],
    *,
    on_panel: bool,
) -> dict[str, Any]:
    """Describe settings and results of an evaluation as JSON.

    Args:
        name: Name of the panel, or of the run's own choice of tasks.
        config: Configuration with the environment that was played.
        results: One record per sampling seed: `step`, `seed`, `tasks` (digest of their names), and the metrics.
        trajectories: Trajectories of all seeds, in order of the seeds.
        on_panel: Whether the tasks are a named panel.
    """
    num_tasks = len(trajectories) // len(results)
    environment = config.environment.identity()
    return {
        "name": name,
        "panel": name if on_panel else None,
        "run": config.run.name,
        "step": results[0]["step"],
        "num_tasks": num_tasks,
        "tasks": results[0]["tasks"],
        "seeds": [result["seed"] for result in results],
        "settings": {
            **environment,
            "temperature": config.evaluate.temperature,
            "max_new_tokens": config.rollout.max_new_tokens,
            "window": config.rollout.remembered,
        },
        "failed": sum(not trajectory.usable for trajectory in trajectories),
        "results": [dict(result) for result in results],
        "episodes": [
            {
                "task": trajectory.task,
                "seed": results[number // num_tasks]["seed"],
                "success": trajectory.success if trajectory.usable else None,
                "turns": len(trajectory.turns),
                "ended": trajectory.ended,
            }
            for number, trajectory in enumerate(trajectories)
        ],
    }


def as_markdown(record: Mapping[str, Any], rows: Sequence[ScoreRow]) -> str:
    """Format an evaluation as a Markdown page."""
    lines = [f"# {record['name']}, step {record['step']}", "", "| | |", "|-|-|"]
    lines += [f"| {what} | {said} |" for what, said in _facts(record)]
    head, *cells = [f"| {' | '.join(row)} |" for row in as_table(rows)]
    return "\n".join([*lines, "", head, "|-" + "|-:" * (head.count("|") - 2) + "|", *cells]) + "\n"


def as_table(rows: Sequence[ScoreRow]) -> list[list[str]]:
    """Tabulate rows below their heads, without empty score columns."""
    table = [row.texts() for row in rows]
    if all(row.score is None for row in rows):
        for texts in table:
            del texts["score"]
    return [list(table[0]), *(list(texts.values()) for texts in table)]


def _facts(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    on = "named: every run on it plays these tasks" if record["panel"] else "none: the run's own choice of tasks"
    settings = ", ".join(f"{name} {value}" for name, value in record["settings"].items())
    return [
        ("run", record["run"]),
        ("panel", on),
        ("tasks", f"{record['num_tasks']}, digest `{record['tasks']}`"),
        ("sampling seeds", ", ".join(map(str, record["seeds"]))),
        ("settings", settings),
        ("failed", str(record["failed"])),
    ]


def write_evaluation(folder: Path, record: Mapping[str, Any], rows: Sequence[ScoreRow]) -> Path:
    """Write NAME-step-N.md and .json to a folder. A different earlier result is kept.

    Args:
        folder: Target folder in a run folder, whose identity the record gets; created if missing.
        record: Record of the evaluation; has `name` and `step`.
        rows: Table of the evaluation.

    Returns:
        The Markdown file: NAME-step-N.md, or NAME-step-N-2.md and so on if the first holds other numbers.

    Raises:
        RunError: The folder cannot be written.
    """
    stem = f"{re.sub(r'[^A-Za-z0-9_.-]+', '_', record['name'])}-step-{record['step']}"
    run = run_of(folder.parent)
    content = {**record, **({RUN_KEY: run} if run else {}), "table": [dataclasses.asdict(row) for row in rows]}
    try:
        folder.mkdir(exist_ok=True)
        number = 1
        while (path := folder / f"{stem}{f'-{number}' * (number > 1)}.json").exists():
            if _same(path, content):
                return path.with_suffix(".md")
            number += 1
        write_text(path.with_suffix(".md"), as_markdown(record, rows))
        write_json(path, sealed({**content, **provenance()}))
    except OSError as error:
        raise RunError(f"cannot write the evaluation to {folder}: {error.strerror or error}") from None
    return path.with_suffix(".md")


def _same(path: Path, content: Mapping[str, Any]) -> bool:
    """Return whether a file holds this result, regardless of time and version."""
    try:
        there = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError:
        return False
    plain = json.loads(json.dumps(content))
    return path.with_suffix(".md").exists() and {name: there.get(name) for name in plain} == plain
