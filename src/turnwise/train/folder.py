"""The run folder: what is in it, and that nothing in it is ever lost.

runs/NAME/config.json          resolved configuration, versions, commit
          metrics.jsonl        one record a step or evaluation: the truth about the run
          rollouts/            one Parquet file a step, one row a response
          evaluations/         one Parquet file an evaluation, one row an episode; tables of `turnwise eval`
          checkpoints/         step-000020/: model, tokenizer, optimiser, method state
          figure.png           learning curve
"""

import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from turnwise.cache import held
from turnwise.config import Config, parse_config
from turnwise.errors import ConfigError, RunError, did_you_mean
from turnwise.rollout.record import FORMAT, check_format
from turnwise.train.trackers import Tracker


class RunFolder:
    """A folder on disk. `create` makes a new one, `open` takes an existing one."""

    def __init__(self, path: Path):
        self.path = path
        self.metrics_path = path / "metrics.jsonl"
        self.checkpoints = path / "checkpoints"
        self.rollouts = path / "rollouts"
        self.evaluations = path / "evaluations"
        self.figure = path / "figure.png"
        self.trackers: list[Tracker] = []

    @classmethod
    def create(cls, config: Config) -> "RunFolder":
        """Make the folder of a new run.

        Raises:
            RunError: It exists: a run is never overwritten.
        """
        path = config.run_folder
        cls.refuse_existing(path)
        record = {"format": FORMAT, "config": config.model_dump(mode="json"), **provenance()}
        temporary = path.with_name(
            f".{path.name}.{os.getpid()}.tmp"
        )  # a kill leaves the whole folder, or nothing by this name
        try:
            temporary.mkdir(parents=True, exist_ok=True)
            write_json(temporary / "config.json", record)
            temporary.rename(path)
        except OSError as error:
            shutil.rmtree(temporary, ignore_errors=True)
            raise RunError(f"cannot create {path}: {error.strerror}") from None
        return cls(path)

    @contextmanager
    def locked(self) -> Iterator["RunFolder"]:
        """Keep other trainings out of this run.

        Raises:
            RunError: One is there.
        """
        with held(self.path, f"another process is training in {self.path}"):
            yield self

    @staticmethod
    def refuse_existing(path: Path) -> None:
        """Raise when there is something at `path`: a run is never overwritten."""
        if path.exists():
            raise RunError(f"{path} exists and is never overwritten; continue it with `turnwise train --resume {path}`, or "
                           f"choose another name with run.name={path.name}-2")  # fmt: skip

    @classmethod
    def open(cls, path: Path) -> tuple["RunFolder", Config]:
        """Take an existing run and its configuration.

        Raises:
            RunError: There is no run, or its configuration cannot be read.
        """
        try:
            data = json.loads((path / "config.json").read_text(encoding="utf-8"))
            check_format(path, data.get("format", 1))
            return cls(path), parse_config(data["config"])
        except OSError as error:
            beside = [other.parent.name for other in path.absolute().parent.glob("*/config.json")]
            near = did_you_mean(path.name, beside) if path.name not in ("", *beside) else ""
            raise RunError(f"{path} is no run folder: cannot read config.json ({error.strerror}).{near}") from None
        except (ValueError, KeyError, TypeError, AttributeError, ConfigError) as error:
            if (path / "step.json").is_file():
                run, step = path.parent.parent, path.name.removeprefix("step-").lstrip("0") or "0"
                raise RunError(
                    f"{path} is a checkpoint of the run {run}; name the run, with --step {step} where the command takes one"
                ) from None
            if isinstance(error, ConfigError) and "cannot import" in str(error):
                raise RunError(f"{path} needs code of yours: {error}") from None
            cause = f"it has no {error}, so that it is none of a run" if isinstance(error, KeyError) else error
            raise RunError(f"{path / 'config.json'} is damaged: {cause}") from None

    def set_config(self, config: Config) -> None:
        """Write down what a run goes on with; where it began (versions, commit, machine) stays."""
        path = self.path / "config.json"
        record = json.loads(path.read_text(encoding="utf-8"))
        told = config.model_dump(mode="json")
        if record["config"] != told:
            write_json(path, {**record, "config": told})

    def log(self, record: Mapping[str, Any]) -> None:
        """Append a record to metrics.jsonl, on disk before this returns."""
        with self.metrics_path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
            file.flush()
            os.fsync(file.fileno())
        for tracker in self.trackers:
            tracker.log(record["step"], {name: value for name, value in record.items() if name != "step"})

    def metrics(self) -> list[dict[str, Any]]:
        """Read metrics.jsonl; a last line that was cut off by a kill is left out.

        Raises:
            RunError: Another line is damaged.
        """
        if not self.metrics_path.exists():
            return []
        records, lines = [], self.metrics_path.read_bytes().splitlines()
        for number, line in enumerate(lines, start=1):
            try:
                record = json.loads(line)
                _ = record["step"]
                records.append(record)
            except (ValueError, TypeError, LookupError):  # no UTF-8, no JSON, no record
                if number < len(lines):
                    raise RunError(f"{self.metrics_path}, line {number}, is damaged: {line[:60]!r}; mend it or take it out. "
                                   "Nothing was changed") from None  # fmt: skip
        return records

    def rewind(self, step: int) -> None:
        """Drop what was recorded after a checkpoint, so that resuming records it again."""
        kept = [json.dumps(record) + "\n" for record in self.metrics() if record["step"] <= step]
        write_text(self.metrics_path, "".join(kept))
        for folder in (self.rollouts, self.evaluations):
            for number, path in by_step(folder, ".parquet").items():
                if number > step:
                    path.unlink()


def by_step(folder: Path, suffix: str = "") -> dict[int, Path]:
    """What a folder holds by the name step-N, in order of the steps; a copy under another name is none of it."""
    named = {
        path: re.fullmatch(rf"step-(\d+){re.escape(suffix)}", path.name) for path in folder.glob(f"step-*{suffix}")
    }
    return dict(sorted((int(name[1]), path) for path, name in named.items() if name))


def write_text(path: Path, text: str) -> None:
    """Replace a file's content in one move."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Replace a JSON file in one move."""
    write_text(path, json.dumps(data, indent=2) + "\n")


def provenance() -> dict[str, Any]:
    """Versions, commit and machine."""
    try:
        commit = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True, cwd=Path(__file__).parent
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        commit = None
    return {
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "versions": {name: importlib.metadata.version(name) for name in ("turnwise", "torch", "transformers", "numpy")},
        "commit": commit,
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
    }
