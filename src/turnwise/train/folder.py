"""Read and write run folders.

Every file has a checksum, which is compared when it is read; `turnwise.base.checksums` says how.

runs/NAME/config.json          resolved configuration, versions, commit
          metrics.jsonl        one record per step or evaluation: the reference for the run
          rollouts/            one Parquet file per step, one row per response
          evaluations/         one Parquet file per evaluation, one row per episode; tables of `turnwise eval`
          judgements/          one Parquet file per step with a judge, one row per case
          continuations/       one Parquet file per step with continuations, one row each
          checkpoints/         step-000020/: model, tokenizer, optimiser, method state, store
          figure.png           learning curve
"""

import json
import os
import re
import secrets
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from turnwise.base.cache import held
from turnwise.base.checksums import KEY, RUN_KEY, refuse_other_run, run_of, sealed, unsealed
from turnwise.base.errors import ConfigError, DamagedError, DataError, RunError
from turnwise.base.files import aside, provenance, remove_remains, write_json, write_text
from turnwise.base.imports import as_data
from turnwise.base.register import EXTENSIONS, find
from turnwise.base.run_paths import read_settings
from turnwise.config import Config, parse_config
from turnwise.credit.methods.former import read_former
from turnwise.credit.options import REMOVED
from turnwise.rollout.record import FORMAT, check_format, read_table
from turnwise.rollout.trajectory import Trajectory
from turnwise.train.traces import as_messages, facts_of, shown
from turnwise.train.trackers import Tracker

MEND_LINE = "repair or delete it"
UNCHANGED = "Nothing was changed"
KINDS = ("rollout/success", "eval/success")
"""Keys that distinguish records of steps from those of evaluations; a step has at most one of each."""


class RunFolder:
    """Represent a run folder. `create` makes a new one, `open` opens an existing one."""

    def __init__(self, path: Path):
        self.path = path
        self.metrics_path = path / "metrics.jsonl"
        self.checkpoints = path / "checkpoints"
        self.rollouts = path / "rollouts"
        self.evaluations = path / "evaluations"
        self.judgements = path / "judgements"
        self.continuations = path / "continuations"
        self.tables = (self.rollouts, self.evaluations, self.judgements, self.continuations)
        self.figure = path / "figure.png"
        self.trackers: list[Tracker] = []
        self._place: tuple[int, int] | None = None

    @classmethod
    def create(cls, config: Config, facts: Mapping[str, Any] | None = None) -> "RunFolder":
        """Create the folder of a new run.

        Args:
            config: Its configuration.
            facts: Additional facts for config.json.

        Raises:
            RunError: The folder exists; a run is never overwritten.
        """
        path = config.run_folder
        cls.refuse_existing(path)
        record = {
            "format": FORMAT,
            RUN_KEY: secrets.token_hex(8),
            "config": config.model_dump(mode="json"),
            **provenance(),
            **(facts or {}),
        }
        temporary = aside(path)  # after a kill the folder is complete, or does not exist
        try:
            temporary.mkdir(parents=True, exist_ok=True)
            write_json(temporary / "config.json", sealed(record))
            temporary.rename(path)
        except OSError as error:
            shutil.rmtree(temporary, ignore_errors=True)
            raise RunError(f"cannot create {path}: {error.strerror or error}") from None
        return cls(path)

    @contextmanager
    def locked(self) -> Iterator["RunFolder"]:
        """Lock the run against other training processes.

        Raises:
            RunError: Another process is training in the folder.
        """
        with held(self.path, f"another process is training in {self.path}"):
            remove_remains(self.path)
            self._place, self._worked_in = _place_of(self.path), os.getcwd()
            yield self

    def refuse_moved(self) -> None:
        """Raise if the folder that this process has locked is no longer there.

        Raises:
            RunError: It was moved or deleted, and another one may have replaced it, or its path means another one.
        """
        if self._place and not self.path.is_absolute() and os.getcwd() != self._worked_in:
            raise RunError(
                f"the working directory changed from {self._worked_in} to {os.getcwd()}, where {self.path} is another "
                'folder: let an agent that changes it run by itself (harness.isolation = "process"), or set '
                f"run.folder={shlex.quote(str(Path(self._worked_in) / self.path.parent))}"
            )
        if self._place and _place_of(self.path) != self._place:
            raise RunError(
                f"{self.path} was moved or deleted while the run trained; nothing was written there since. Resume "
                "the run where its folder is now, with `turnwise train --resume` and that folder"
            )

    def table(self, name: str, step: int) -> Path:
        """Return where to write a table of a step: `name` is its folder, such as "rollouts".

        Raises:
            RunError: The folder was moved or deleted.
        """
        self.refuse_moved()
        return self.path / name / f"step-{step:06d}.parquet"

    @contextmanager
    def begun(self) -> Iterator["RunFolder"]:
        """Lock a new run; remove its folder if its recipe is wrong, to free the name for the corrected one."""
        try:
            with self.locked():
                yield self
        except ConfigError:
            if not by_step(self.checkpoints):
                shutil.rmtree(self.path, ignore_errors=True)
            raise

    @staticmethod
    def refuse_existing(path: Path, another: str = "") -> None:
        """Raise if `path` exists; a run is never overwritten. `another` says how to name another."""
        if path.exists():
            can_resume = (path / "config.json").is_file() and not RunFolder(path).without_weights
            resume = f"resume it with `{RunFolder(path).resuming}`, or " * can_resume
            other = another or f"run.name={shlex.quote(f'{path.name}-2')}"
            raise RunError(f"{path} exists and is never overwritten; {resume}choose another name with {other}")

    @property
    def resuming(self) -> str:
        """The command that resumes the run, to be copied into a shell."""
        return f"turnwise train --resume {shlex.quote(str(self.path))}"

    @property
    def without_weights(self) -> bool:
        """Whether there are recorded steps but no checkpoint, as after `turnwise import`."""
        return not by_step(self.checkpoints) and bool(by_step(self.rollouts, ".parquet"))

    @classmethod
    def open(cls, path: Path) -> tuple["RunFolder", Config]:
        """Open an existing run and load its configuration, without the code that it names.

        Raises:
            RunError: The run does not exist, or its configuration cannot be read.
        """
        data: Any = {}
        try:
            data = json.loads(read_settings(path).decode())
            check_format(path, data.get("format", 1))
            mend = f"; restore it from a copy, or remove {KEY!r} from it if you changed it yourself"
            data = unsealed(data, str(path / "config.json"), mend=mend, required=False)
            with as_data():
                return cls(path), parse_config(_as_now(data["config"]))
        except (DamagedError, RunError):
            raise
        except (ValueError, KeyError, TypeError, AttributeError, ConfigError) as error:
            if (path / "step.json").is_file():
                run, step = path.parent.parent, path.name.removeprefix("step-").lstrip("0") or "0"
                raise RunError(
                    f"{path} is a checkpoint of the run {run}; name the run instead, with --step {step} if the command "
                    "has it"
                ) from None
            if isinstance(error, ConfigError):
                raise RunError(
                    f"{path} has settings that this version of turnwise refuses (open it with the version that made "
                    f"it{_made_by(data)}): {error}"
                ) from None
            cause = f"the key {error} is missing" if isinstance(error, KeyError) else error
            raise RunError(f"{path / 'config.json'} is damaged: {cause}") from None

    def set_config(self, config: Config) -> None:
        """Save the configuration that a run resumes with. Versions, commit and machine of the start remain."""
        path = self.path / "config.json"
        record = json.loads(path.read_text(encoding="utf-8"))
        settings = config.model_dump(mode="json")
        if record["config"] != settings:
            changed = {**record, "config": settings}
            write_json(path, sealed({k: v for k, v in changed.items() if k != KEY}) if KEY in record else changed)

    def log(self, record: Mapping[str, Any]) -> None:
        """Append a record to metrics.jsonl and flush it to disk."""
        self.refuse_moved()
        with self.metrics_path.open("a", encoding="utf-8") as file:
            file.write(self._line(record))
            file.flush()
            os.fsync(file.fileno())
        for tracker in self.trackers:
            tracker.log(record["step"], {name: value for name, value in record.items() if name != "step"})

    def show(self, step: int, trajectories: Sequence[Trajectory]) -> None:
        """Show trajectories of a step in the trackers."""
        for name, one in shown(trajectories).items():
            for tracker in self.trackers:
                tracker.trace(step, name, as_messages(one), facts_of(one, step))

    def close_trackers(self) -> None:
        """Declare the run ended in the trackers."""
        self.refuse_moved()  # otherwise a tracker could make a new folder there
        for tracker in self.trackers:
            tracker.close()

    def _line(self, record: Mapping[str, Any]) -> str:
        record = {**record, RUN_KEY: run} if (run := run_of(self.path)) else record
        return json.dumps(sealed(record) if self.verified else record) + "\n"

    def refuse_removed(self) -> None:
        """Raise if the run trained with a part that this version lacks, so that it can be read but not resumed."""
        data = json.loads((self.path / "config.json").read_text(encoding="utf-8"))
        for setting, name in _removed(data["config"]).items():
            raise RunError(
                f"{self.path} was trained with {setting}={name!r}, which this version of turnwise lacks; resume it "
                f"with the version that made it{_made_by(data)}. {UNCHANGED}"
            )

    @cached_property
    def verified(self) -> bool:
        """Whether the run's files have checksums; versions up to 0.1 wrote none."""
        try:
            return KEY in json.loads((self.path / "config.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return False

    @property
    def unverified(self) -> str:
        """Return a note that the run's files have no checksums."""
        return f"{self.path} was written without checksums: its files are unverified"

    def problems(self) -> list[str]:
        """Describe files of recorded steps that are damaged, duplicate or without checksums, one line each.

        Reads every file, at over 1 GB/s.
        """
        found = [] if self.verified else [self.unverified]
        for folder in self.tables:
            found += doubles(folder, ".parquet")
            for path in by_step(folder, ".parquet").values():
                try:
                    read_table(path, (), only=())
                except DataError as error:
                    found.append(str(error))
        return found

    def metrics(self) -> list[dict[str, Any]]:
        """Load metrics.jsonl without a last line truncated by a kill.

        Raises:
            RunError: Another line is damaged, or a line repeats a step.
        """
        if not self.metrics_path.exists():
            return []
        text = self.metrics_path.read_bytes()
        records, lines, cut = [], text.splitlines(), not text.endswith(b"\n")
        seen: dict[tuple[int, str], int] = {}
        for number, line in enumerate(lines, start=1):
            try:
                record = json.loads(line)
                if not isinstance(record["step"], int) or any(
                    "/" in name and isinstance(value, str) for name, value in record.items()
                ):
                    raise ValueError
                kinds = [(record["step"], kind) for kind in KINDS if kind in record]
                where = f"{self.metrics_path}, line {number},"
                record = unsealed(record, where, mend=f"; {MEND_LINE}. {UNCHANGED}", required=self.verified)
                refuse_other_run(where, self.path, record.pop(RUN_KEY, None))
                records.append(record)
                if (first := min((seen.setdefault(kind, number) for kind in kinds), default=number)) != number:
                    raise DamagedError(
                        f"{where} repeats step {record['step']} of line {first}; delete one. {UNCHANGED}"
                    )
            except DamagedError as error:
                raise RunError(str(error)) from None
            except (ValueError, TypeError, LookupError):  # not UTF-8, not JSON, or not a record
                if number < len(lines) or not cut:  # a kill truncates the last line
                    raise RunError(
                        f"{self.metrics_path}, line {number}, is damaged: {line[:60]!r}; {MEND_LINE}. {UNCHANGED}"
                    ) from None
        return records

    def only_failures(self) -> bool:
        """Return whether no step of the run had a usable trajectory."""
        return all(record.get("rollout/failed_frac", 1.0) == 1.0 for record in self.metrics())

    def check_evaluated(self, step: int, cause: str) -> None:
        """Raise if there is a cause why no episode of the last evaluation could be played."""
        if cause:
            raise RunError(
                f"no episode of the evaluation after step {step} could be played: {cause}. Fix this, then "
                f"evaluate with `turnwise eval {shlex.quote(str(self.path))}`"
            )

    def rewind(self, step: int) -> None:
        """Drop records after a checkpoint; resuming records them again."""
        kept = [self._line(record) for record in self.metrics() if record["step"] <= step]
        write_text(self.metrics_path, "".join(kept))
        for folder in self.tables:
            for number, path in by_step(folder, ".parquet").items():
                if number > step:
                    path.unlink()


def by_step(folder: Path, suffix: str = "") -> dict[int, Path]:
    """List the entries named step-NNNNNN, in order of the steps. Entries with other names are ignored."""
    return dict(sorted((number, path) for path, number, ours in _named(folder, suffix) if ours))


def _place_of(path: Path) -> tuple[int, int] | None:
    """Return device and number of a folder, which it keeps when it is moved; None if there is none."""
    try:
        there = path.stat()
    except OSError:
        return None
    return there.st_dev, there.st_ino


def doubles(folder: Path, suffix: str = "") -> list[str]:
    """Describe entries whose names mean a step but differ from the name that turnwise gives it."""
    return sorted(
        f"{path} looks like a second {f'step-{number:06d}{suffix}'}, and is ignored; move it away"
        for path, number, ours in _named(folder, suffix)
        if not ours
    )


def _named(folder: Path, suffix: str) -> Iterator[tuple[Path, int, bool]]:
    """Yield entries named step-N..., their steps, and whether turnwise wrote the name."""
    for path in folder.glob(f"step-*{suffix}"):
        if name := re.match(r"step-(\d+)", path.name):
            yield path, int(name[1]), path.name == f"step-{int(name[1]):06d}{suffix}"


def _made_by(record: Mapping[str, Any]) -> str:
    """Name the version of turnwise that made a run, for a message; empty if it is not recorded."""
    versions = record.get("versions")
    return f", turnwise {versions['turnwise']}" if isinstance(versions, dict) and "turnwise" in versions else ""


def _removed(config: Any) -> dict[str, str]:
    """Return the settings of a configuration that name a removed part, with the names."""
    settings = {"update.tokens": "update", "rollout.collector": "rollout"}
    given = {each: (config.get(section) or {}).get(each.split(".")[1]) for each, section in settings.items()}
    names = {each: named.get("name") for each, named in given.items() if isinstance(named, Mapping)}
    return {each: name for each, name in names.items() if name in REMOVED}


def _as_now(config: Any) -> Any:
    """Restore an earlier version's meaning of a configuration, without what is now refused and had no effect."""
    config = read_former(config, quietly=True)
    given = {name: dict(config.get(name) or {}) for name in ("environment", "update", "warmstart")}
    environment, update, warm_start = given.values()
    if not ("image" in environment or environment.get("workers")) and environment.get("isolation") == "worker":
        del environment["isolation"]
    run = dict(config.get("run") or {})
    if isinstance(name := run.get("name"), str) and {"/", "\\"} & set(name):  # once a path below `folder`
        run |= {"folder": str((Path(run.get("folder", "runs")) / name).parent), "name": Path(name).name}
    idle = ["tokens", "dual_clip", "dose"] if update.get("policy") is False else []
    idle += ["dose_by"] if "dose" in idle or not update.get("dose") else []
    if update.get("policy") is False or update.get("scoring") == "engine":
        idle += ["mismatch_cap", "mismatch_level"]
        idle += ["old_policy"] if update.get("old_policy") == "start" else []  # with a lag, refused without the cap
    removed = _removed(config)
    idle += ["tokens"] if "update.tokens" in removed else []
    rollout = {k: v for k, v in (config.get("rollout") or {}).items() if f"rollout.{k}" not in removed}
    update = {name: value for name, value in update.items() if name not in idle}
    if warm_start.get("steps") == 0:
        warm_start.pop("dagger_rounds", None)
    now = {"run": run, "environment": environment, "update": update, "warmstart": warm_start, "rollout": rollout}
    for key, entry in EXTENSIONS.items():
        now |= {key: find(entry.settings).of_earlier(section)} if (section := config.get(key)) else {}
    return {**config, **{name: section for name, section in now.items() if name in config}}
