"""Build the data of a page step by step, so that a live run costs only its new steps."""

import json
import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from turnwise.base.errors import DamagedError, install
from turnwise.lab.diagnostics.fidelity_record import NAME, equal_columns, fidelities, read_responses
from turnwise.lab.report.chunks import turns_table, write_table, write_value
from turnwise.lab.report.credit import OtherMethods
from turnwise.lab.report.pieces import Pieces
from turnwise.lab.report.steps import COMPARED, ENDINGS, OUTCOMES, index_columns
from turnwise.lab.report.summary import describe_run, failure_causes, metrics_columns, step_statistics
from turnwise.train.folder import RunFolder, by_step, doubles
from turnwise.train.recorded import RecordedStep, how_to_fill, read_step

AUDIT = "audit.json"
"""File that `turnwise audit` writes among the analyses of a run."""
Progress = Callable[[int, int], None]
Say = Callable[[str], None]
"""Called with a problem of a run's files, one line; each problem is reported once."""


class ReportData:
    """Build the data of a page about some runs.

    Args:
        paths: Run folders.
        folder: Folder to write the data to.
        methods: Methods to compare with, such as "gigpo+empg".
        wait: Whether a path may not exist yet; the run joins once its folder is there.
        on_problem: Called with every damaged or duplicate file, which the page leaves out.

    Raises:
        TurnwiseError: A path is not a run, or a method cannot be computed.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        folder: Path,
        methods: Sequence[str],
        on_problem: Say = lambda text: None,
        *,
        wait: bool = False,
    ):
        paths = list({path.resolve(): path for path in paths}.values())
        names = [path.resolve().name for path in paths]
        labels = [name if names.count(name) == 1 else str(path) for name, path in zip(names, paths, strict=True)]
        self.folder = folder
        OtherMethods(methods, invalid_penalty=0.0)  # refuses what cannot be computed before a run exists
        self._methods, self._on_problem = methods, on_problem
        self._places = list(zip(labels, paths, strict=True))
        self._runs: dict[int, _Run] = {}
        self._written = False
        self._open(wait=wait)

    def _open(self, *, wait: bool) -> None:
        for number, (label, path) in enumerate(self._places):
            if number not in self._runs and (path.exists() or not wait):
                self._runs[number] = _Run(path, self.folder / f"run{number}", label, self._methods, self._on_problem)

    @property
    def runs(self) -> list["_Run"]:
        """The runs that have begun, in the order of the paths."""
        return [self._runs[number] for number in sorted(self._runs)]

    @property
    def waiting(self) -> list[str]:
        """Labels of the runs that have not begun."""
        return [label for number, (label, _) in enumerate(self._places) if number not in self._runs]

    def update(self, progress: Progress = lambda done, total: None) -> bool:
        """Update the data and return whether anything has changed."""
        self._open(wait=True)
        new = [(run, path) for run in self.runs for path in run.new_files()]
        changed = bool(new) or not self._written
        for done, (run, path) in enumerate(new):
            progress(done, len(new))
            run.add(path)
        progress(len(new), len(new))
        for run in self.runs:
            changed |= run.finish()
        if changed:
            write_value(
                self.folder / "summary.js",
                "summary",
                {
                    "outcomes": OUTCOMES,
                    "endings": ENDINGS,
                    "compared": COMPARED,
                    "runs": [run.summary() for run in self.runs],
                    "waiting": self.waiting,
                },
            )
            self._written = True
        return changed


class _Run:
    """Build the data of one run."""

    def __init__(self, path: Path, folder: Path, label: str, methods: Sequence[str], on_problem: Say):
        self.run, self.config = RunFolder.open(path)
        self.folder, self.label, self._methods = folder, label, methods
        self._on_problem, self._said = on_problem, set[str]()
        self._start()
        if not self.run.verified:
            self._say(self.run.unverified)

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._on_problem(text)

    def _start(self) -> None:
        self._penalty = self.config.environment.invalid_penalty
        self.others = OtherMethods(self._methods, invalid_penalty=self._penalty)
        self.pieces = Pieces(self.run)
        self._seen: dict[Path, tuple[int, int]] = {}
        self._index: list[pa.Table] = []
        self._statistics: list[dict[str, float | None]] = []
        self._causes: Counter[str] = Counter()
        self._examples: dict[str, tuple[int, int]] = {}
        self._metrics: dict[str, Any] | None = None
        self._fidelity: dict[str, Any] | None = None
        self._fidelity_stamp: tuple[tuple[int, int] | None, ...] = (None, None)
        self._token_entropy = False
        self._stale = True

    def new_files(self) -> list[Path]:
        """List rollout files that are not in the data yet; all files if one has changed, such as after a rewind."""
        for text in doubles(self.run.rollouts, ".parquet"):
            self._say(text)
        found = {path: _stamp(path) for path in by_step(self.run.rollouts, ".parquet").values()}
        if any(found.get(path) != stamp for path, stamp in self._seen.items()):
            self._start()
        return [path for path in found if path not in self._seen]

    def add(self, path: Path) -> None:
        """Add the data of a step. A damaged file is named and left out."""
        self._seen[path] = _stamp(path)
        try:
            step = read_step(path, "request")
        except DamagedError as error:
            self._say(f"{error}. The page leaves it out")
            return
        self._index.append(pa.table(index_columns(step)))
        self._statistics.append(step_statistics(step))
        for cause, (count, example) in failure_causes(step).items():
            self._causes[cause] += count
            self._examples.setdefault(cause, (step.number, example))
        self._token_entropy |= step.has_token_entropies
        try:
            self.pieces.add(_distinct_tokens(step))
        except (DamagedError, ModuleNotFoundError) as error:
            lacking = f"; {install('train')}" if isinstance(error, ModuleNotFoundError) else ""
            self._say(f"{error}. The page shows no entropies of single tokens{lacking}")
        before = set(self.others.left_out)
        others = self.others(step)
        if left_out := {name: column for name, column in self.others.left_out.items() if name not in before}:
            columns = dict.fromkeys(left_out.values())
            mends = dict.fromkeys(how_to_fill(column, self.config.environment.name) for column in columns)
            page = f"{path} has no {', '.join(columns)}, so the page leaves out {', '.join(left_out)}"
            self._say("; ".join([page, *mends]))
        table = turns_table(step, others, invalid_penalty=self._penalty)
        write_table(self.folder / f"step-{step.number:06d}.js", f"{self.folder.name}/step-{step.number:06d}", table)
        self._stale = True

    def finish(self) -> bool:
        """Write the data that depend on all steps, and return whether anything has changed."""
        metrics = metrics_columns(self.run.metrics())
        changed = self._stale or metrics != self._metrics
        if self._stale:
            self.folder.mkdir(parents=True, exist_ok=True)
            if self._index:
                write_table(self.folder / "index.js", f"{self.folder.name}/index", pa.concat_tables(self._index))
            write_value(self.folder / "pieces.js", f"{self.folder.name}/pieces", self.pieces.texts)
        self._metrics, self._stale = metrics, False
        return self._add_fidelity() or changed

    def _add_fidelity(self) -> bool:
        """Add the newest fidelity analysis, if there is one, and return whether it has changed."""
        path = self.run.path / "analyses" / NAME
        stamp = tuple(_stamp(each) if each.exists() else None for each in (path, path.with_name(AUDIT)))
        if stamp == self._fidelity_stamp:
            return False
        self._fidelity, self._fidelity_stamp = None, stamp
        if stamp[0]:
            try:
                table, step, methods = read_responses(path)
            except DamagedError as error:
                self._say(f"{error}. The page leaves it out")
            else:
                write_table(self.folder / "fidelity.js", f"{self.folder.name}/fidelity", table)
                values = fidelities(table)
                ranked = sorted(equal_columns(table), key=lambda names: -values[names[0]])
                self._fidelity = {
                    "step": step,
                    "methods": methods,
                    "ranked": [{"names": names, "fidelity": values[names[0]]} for names in ranked],
                    "audit": self._audit(step),
                }
        return True

    def _audit(self, step: int) -> dict[str, float | None]:
        """Return how well each method finds turns with an effect (AUROC), if the policy of this step was audited."""
        path = self.run.path / "analyses" / AUDIT
        try:
            audit = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"found": {}}
            found = audit["found"] if audit.get("step") == step else {}
            return {name: one["auroc"]["value"] for name, one in found.items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            self._say(f"cannot read {path} ({error}); run `turnwise audit` again. The page leaves it out")
            return {}

    def summary(self) -> dict[str, Any]:
        """Return the data that the page loads first."""
        names = dict.fromkeys(name for statistics in self._statistics for name in statistics)
        return {
            "name": self.folder.name,
            **describe_run(self.run, self.config, self.label),
            **(self._metrics or {}),
            "steps": {name: [statistics.get(name) for statistics in self._statistics] for name in names},
            "causes": [
                {
                    "cause": cause,
                    "count": count,
                    "step": self._examples[cause][0],
                    "trajectory": self._examples[cause][1],
                }
                for cause, count in self._causes.most_common()
            ],
            "methods": self.others.names,
            "fidelity": self._fidelity,
            "shade": "entropy" if self._token_entropy else "surprisal",
        }


def _stamp(path: Path) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_mtime_ns, status.st_size


def _distinct_tokens(step: RecordedStep) -> list[int]:
    return step.table["response_ids"].combine_chunks().flatten().unique().to_pylist()
