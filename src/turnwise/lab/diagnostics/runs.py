"""Find runs on disk and read what comparisons need."""

import dataclasses
import glob
import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from turnwise.base.checksums import RUN_KEY, refuse_other_run, unsealed
from turnwise.base.errors import DamagedError, RunError
from turnwise.base.run_paths import runs_inside
from turnwise.config import Config
from turnwise.train.evaluation.outcomes import Episode, by_episode, read_outcomes
from turnwise.train.folder import RunFolder


@dataclasses.dataclass(frozen=True)
class RunLog:
    """Hold a run folder with its configuration and records."""

    folder: RunFolder
    config: Config

    @cached_property
    def records(self) -> list[dict[str, Any]]:
        """Records of metrics.jsonl."""
        return self.folder.metrics()

    @property
    def label(self) -> str:
        """Method of the run, with options that differ from the defaults."""
        options = self.config.method.options
        return self.config.label + "".join(f" {name}={value}" for name, value in options.items())

    @property
    def environment(self) -> str:
        """Environment that the run was evaluated in; runs are compared within one environment."""
        identity = self.config.environment.identity()
        return json.dumps({**identity, "temperature": self.config.evaluate.temperature}, sort_keys=True)

    @property
    def finished(self) -> bool:
        """Whether the run was evaluated after its last step; an evaluation whose episodes all failed is none."""
        return any(record["step"] == self.config.run.steps and _evaluated(record) for record in self.records)

    @property
    def evaluated(self) -> bool:
        """Whether the run was evaluated at all."""
        return any(map(_evaluated, self.records))

    def curve(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the learning curve: `[evaluations]` step, training trajectories so far, held-out success.

        Trajectories count in the step where they end. Earlier versions did not count them; for their records, batches
        times their size are used.
        """
        size = self.config.rollout.groups * self.config.rollout.group_size
        played, curve = 0.0, []
        for record in self.records:
            played += record.get("rollout/trajectories", size * record.get("rollout/batches", 0.0))
            if _evaluated(record):
                curve.append((record["step"], played, record["eval/success"]))
        steps, rollouts, success = (np.array(column, dtype=np.float64) for column in zip(*curve, strict=True))
        return steps, rollouts, success

    def episodes_path(self, step: int) -> Path:
        """Return the path of the episodes of the evaluation after a step."""
        return self.folder.evaluations / f"step-{step:06d}.parquet"

    def episodes(self, step: int, panel: str | None = None) -> dict[Episode, Mapping[str, Any]]:
        """Load the episodes at a step, of the evaluation during training or of `turnwise eval --panel`.

        Raises:
            RunError: There was no such evaluation.
        """
        if panel is None:
            return by_episode(read_outcomes(self.episodes_path(step)))
        return by_episode(self._on_panel(panel, step)["episodes"])

    def environment_on(self, panel: str, step: int) -> str:
        """Describe the environment of an evaluation on a panel: tasks and temperature.

        Raises:
            RunError: The run was not evaluated on the panel, or more than once with different results.
        """
        record = self._on_panel(panel, step)
        temperature = record["settings"]["temperature"]
        return json.dumps({"panel": panel, "tasks": record["tasks"], "temperature": temperature}, sort_keys=True)

    def _on_panel(self, panel: str, step: int) -> dict[str, Any]:
        """Load the record of `turnwise eval --panel`."""
        path = self.folder.evaluations / f"{panel}-step-{step}.json"
        if further := sorted(path.parent.glob(f"{glob.escape(path.stem)}-*.json")):
            raise RunError(
                f"{path} is ambiguous, since {further[0].name} exists too; move all but one out of {path.parent}"
            )
        try:
            record = unsealed(json.loads(path.read_text(encoding="utf-8")), str(path), required=False)
            refuse_other_run(str(path), self.folder.path, record.get(RUN_KEY))
            if (found := (record.get("name", panel), record.get("step", step))) != (panel, step):
                raise DamagedError(f"{path} is a copy of {found[0]}-step-{found[1]}.json, expected another evaluation")
            _ = record["episodes"], record["tasks"], record["settings"]["temperature"]
            return record
        except DamagedError as error:
            raise RunError(f"{error}; restore it from a copy, or delete it and evaluate again") from None
        except (OSError, ValueError, AttributeError, KeyError, TypeError):
            raise RunError(
                f"{self.folder.path} has no readable {path.name}; make it with "
                f"`turnwise eval {shlex.quote(str(self.folder.path))} --panel {panel} --step {step}`"
            ) from None

    def success(self, step: int) -> float:
        """Return held-out success at a step, for runs without recorded episodes."""
        found = [
            record["eval/success"] for record in self.records if record["step"] == step and "eval/success" in record
        ]
        if not found:
            raise RunError(
                f"{self.folder.path} was not evaluated at step {step}; choose one of the steps {self._evaluated()}"
            )
        return found[-1]

    def _evaluated(self) -> str:
        return ", ".join(str(record["step"]) for record in self.records if "eval/success" in record) or "none"


def find_runs(paths: Iterable[Path]) -> list[RunLog]:
    """Find the runs in folders, each a run or a folder of runs, in order.

    Raises:
        RunError: A path contains no run, or a run is given twice.
    """
    found = [RunLog(*RunFolder.open(one)) for one in runs_inside(paths)]
    places = [run.folder.path.resolve() for run in found]
    twice = [place for place in places if places.count(place) > 1]
    if twice:
        raise RunError(f"{twice[0]} is given twice; name each run once")
    return found


MEAN: Episode = ("", 0, 0)
"""A pseudo-episode, with the mean of those that are not recorded."""


def outcomes(run: RunLog, step: int, panel: str | None) -> dict[Episode, Mapping[str, Any]]:
    """Load the episodes of a run, or one pseudo-episode with their mean if only this was recorded."""
    if panel is None and not run.episodes_path(step).exists():
        return {MEAN: {"success": run.success(step), "task_type": None}}
    return run.episodes(step, panel)


def last_step(run: RunLog, step: int | None) -> int:
    """Return the given step, or the run's last."""
    return run.config.run.steps if step is None else step


def _evaluated(record: Mapping[str, float]) -> bool:
    return "eval/success" in record and record.get("eval/episodes", 1) > 0


def split_finished(runs: Sequence[RunLog]) -> tuple[list[RunLog], list[RunLog]]:
    """Split runs into finished and unfinished ones."""
    return [run for run in runs if run.finished], [run for run in runs if not run.finished]
