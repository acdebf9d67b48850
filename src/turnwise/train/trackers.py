"""Copy a run's metrics to TensorBoard, Weights & Biases, trackio or MLflow, through their own libraries.

metrics.jsonl remains the reference.
"""

import importlib
import json
import secrets
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from turnwise.base.errors import ConfigError, RunError
from turnwise.base.files import write_text
from turnwise.config.sections import LogConfig

INSTALL = {"tensorboard": "tensorboard", "wandb": "wandb", "trackio": "trackio", "mlflow": "mlflow"}
IDENTITY_FILE = "tracker.json"
"""File in the run folder with the identity of the run for Weights & Biases and trackio."""


class Tracker(Protocol):
    """Define a destination for metrics."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record the metrics of a step."""
        ...

    def trace(self, step: int, name: str, messages: Sequence[Mapping[str, Any]], metadata: Mapping[str, Any]) -> None:
        """Show a trajectory: its name, messages, and what else is known about it."""
        ...

    def close(self) -> None:
        """Send remaining metrics."""
        ...


def check_trackers(log: LogConfig) -> None:
    """Fail before training if a tracker that `log` names is not installed.

    Raises:
        ConfigError: A tracker is not installed.
    """
    asked = {name: getattr(log, name) for name in INSTALL}
    for name in (name for name, wanted in asked.items() if wanted):
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
            raise ConfigError(f"log.{name} needs {name}, which is not installed; pip install {INSTALL[name]}") from None


def open_trackers(
    log: LogConfig, folder: Path, *, name: str, seed: int, config: Mapping[str, Any], start: int
) -> list[Tracker]:
    """Open the trackers that `log` names.

    Args:
        log: Which trackers to open, and their projects.
        folder: Run folder. It holds the files of TensorBoard, those of Weights & Biases, and the id of the run.
        name: Name of the run, `run.name`; runs of a study share names.
        seed: Seed of the run.
        config: Resolved configuration, for the tracker to show.
        start: Step that the run resumes from; TensorBoard drops what it has of later steps.
    """
    trackers: list[Tracker] = []
    if log.tensorboard:
        trackers.append(_TensorBoard(folder / "tensorboard", start))
    if log.wandb:
        trackers.append(_Wandb(log.wandb, folder, identity(folder, name, seed), config))
    if log.trackio:
        trackers.append(_Trackio(log.trackio, identity(folder, name, seed), config))
    if log.mlflow:
        trackers.append(_Mlflow(log.mlflow, identity(folder, name, seed), config))
    return trackers


class Identity(NamedTuple):
    """Identify a run for a tracker."""

    id: str  # random id, unique to the run
    name: str  # display name


def identity(folder: Path, name: str, seed: int) -> Identity:
    """Return the identity of the run in `folder`.

    The first call makes it and stores it in the folder, so that it survives a resume. Names do not identify a run,
    since a study names the runs of every arm "seed-NN"; nor do paths, since a folder can be moved.

    Raises:
        RunError: The stored identity is damaged.
    """
    path = folder / IDENTITY_FILE
    if path.exists():
        try:
            return Identity(**json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, TypeError) as error:
            raise RunError(
                f"{path} is damaged: {error}; delete it, and trackers will show the remaining steps as a new run"
            ) from None
    made = Identity(secrets.token_hex(8), display_name(folder, name, seed))
    write_text(path, json.dumps(made._asdict()) + "\n")
    return made


def display_name(folder: Path, name: str, seed: int) -> str:
    """Return the name to show: parent folder (the arm, in a study), run name, and the seed if that name lacks it."""
    return f"{folder.absolute().parent.name}/{name}" + ("" if "seed" in name else f", seed {seed}")


class _TensorBoard:
    def __init__(self, folder: Path, start: int):
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder), purge_step=start + 1)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def trace(self, step: int, name: str, messages: Sequence[Mapping[str, Any]], metadata: Mapping[str, Any]) -> None:
        said = [f"**{each['role']}**\n\n    " + each["content"].replace("\n", "\n    ") for each in messages]
        self._writer.add_text(f"traces/{name}", "\n\n".join([f"`{json.dumps(metadata)}`", *said]), step)

    def close(self) -> None:
        self._writer.close()


class _Wandb:
    """A resumed run continues in the same place, by the id in its folder.

    Steps are a separate axis, since those of Weights & Biases can only grow.
    """

    def __init__(self, project: str, folder: Path, run: Identity, config: Mapping[str, Any]):
        import wandb  # pyright: ignore[reportMissingImports]

        self._run: Any = wandb.init(
            project=project,
            id=run.id,
            name=run.name,
            dir=str(folder),
            config=dict(config),
            resume="allow",
        )
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log({**metrics, "step": step})

    def trace(self, step: int, name: str, messages: Sequence[Mapping[str, Any]], metadata: Mapping[str, Any]) -> None:
        from wandb.sdk.data_types import trace_tree  # pyright: ignore[reportMissingImports]

        root = trace_tree.Trace(name, "AGENT", metadata=dict(metadata), start_time_ms=0, end_time_ms=len(messages))
        for place in range(0, len(messages), 2):
            asked, said = ({each["role"]: each["content"]} for each in messages[place : place + 2])
            times = {"start_time_ms": place, "end_time_ms": place + 2}
            root.add_child(trace_tree.Trace(f"turn {place // 2 + 1}", "LLM", inputs=asked, outputs=said, **times))
        self._run.log({f"traces/{name}": trace_tree.WBTraceTree(root._span), "step": step})

    def close(self) -> None:
        self._run.finish()


class _Trackio:
    """A resumed run continues in the same place: its name ends in the id, and trackio resumes by name."""

    def __init__(self, project: str, run: Identity, config: Mapping[str, Any]):
        import trackio  # pyright: ignore[reportMissingImports]

        self._run: Any = trackio.init(
            project=project,
            name=f"{run.name} ({run.id})",
            config=dict(config),
            resume="allow",
        )

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def trace(self, step: int, name: str, messages: Sequence[Mapping[str, Any]], metadata: Mapping[str, Any]) -> None:
        import trackio  # pyright: ignore[reportMissingImports]

        made = trackio.Trace(messages=[dict(each) for each in messages], metadata=dict(metadata))
        self._run.log({f"traces/{name}": made}, step=step)

    def close(self) -> None:
        self._run.finish()


class _Mlflow:
    """A resumed run continues in the same place: the run has the id as a tag."""

    def __init__(self, experiment: str, run: Identity, config: Mapping[str, Any]):
        import mlflow  # pyright: ignore[reportMissingImports]

        self._client: Any = mlflow.MlflowClient()
        known = self._client.get_experiment_by_name(experiment)
        self._experiment = known.experiment_id if known else self._client.create_experiment(experiment)
        found = self._client.search_runs([self._experiment], f"tags.turnwise = '{run.id}'")
        made = (
            found[0]
            if found
            else self._client.create_run(self._experiment, tags={"turnwise": run.id}, run_name=run.name)
        )
        self._id = made.info.run_id
        self._client.update_run(self._id, status="RUNNING")
        self._client.log_dict(self._id, dict(config), "config.json")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        from mlflow.entities import Metric  # pyright: ignore[reportMissingImports]

        now = int(time.time() * 1000)
        self._client.log_batch(self._id, [Metric(name, value, now, step) for name, value in metrics.items()])

    def trace(self, step: int, name: str, messages: Sequence[Mapping[str, Any]], metadata: Mapping[str, Any]) -> None:
        import mlflow  # pyright: ignore[reportMissingImports]

        kept = {key: str(value) for key, value in metadata.items()}
        place = {"experiment_id": self._experiment, "metadata": {**kept, "mlflow.sourceRun": self._id}}
        root = mlflow.start_span_no_context(f"{name} of step {step}", "AGENT", inputs=messages[0], **place)
        for asked, said in zip(messages[::2], messages[1::2], strict=False):
            span = mlflow.start_span_no_context("turn", "LLM", parent_span=root, inputs=[dict(asked)])
            span.end(outputs=dict(said))
        root.end(outputs=dict(messages[-1]), attributes=dict(metadata))

    def close(self) -> None:
        import mlflow  # pyright: ignore[reportMissingImports]

        mlflow.flush_trace_async_logging()
        self._client.set_terminated(self._id)
