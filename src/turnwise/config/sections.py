"""Define the sections of a recipe that no single package owns."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pydantic

from turnwise.base.imports import as_data
from turnwise.base.run_paths import is_one_name
from turnwise.base.section import Named, Section
from turnwise.credit.methods.names import as_table, as_written, label_of


class RunConfig(Section):
    """Set where a run is stored and how long it trains."""

    name: str = pydantic.Field(default="run", min_length=1)
    """Name of the run folder inside `folder`."""
    folder: Path = Path("runs")
    """Folder that holds all runs."""
    seed: int = pydantic.Field(default=0, ge=0, lt=2**32)
    """Seed of all random draws."""
    steps: int = pydantic.Field(default=60, ge=0)
    """Number of training steps."""
    threads: int = pydantic.Field(default=0, ge=0, le=4096)
    """CPU threads; 0: torch's default."""
    device: str = "auto"
    """"cpu", "cuda", or "auto", which uses cuda if available."""

    @pydantic.field_validator("name")
    @classmethod
    def _is_one_folder(cls, name: str) -> str:
        if not is_one_name(name):
            raise ValueError(
                f"run.name={name!r} is not the name of one folder: expected printable characters without / and \\, and "
                "not '.' or '..'; set run.folder to store the run elsewhere"
            )
        return name

    @pydantic.field_validator("folder")
    @classmethod
    def _is_a_path(cls, folder: Path) -> Path:
        if not str(folder).isprintable():
            raise ValueError(f"run.folder={str(folder)!r} is not a path of printable characters")
        return folder


class WarmStartConfig(Section):
    """Configure supervised learning on expert demonstrations before reinforcement learning. The result is cached."""

    demonstrations: str | None = None
    """Recorded conversations to imitate, for a harness: a file of JSON Lines, each with the `messages` of chat
    completions and the `tools` that could be called (docs/how-to/train-your-agent.md), or "module:function", which
    returns them. Only what the assistant says is imitated. Default: the environment's expert plays."""
    games: int = pydantic.Field(default=400, ge=0)
    """Number of training tasks to demonstrate, or of recorded conversations to imitate."""
    rounds: int = pydantic.Field(default=1, ge=1)
    """Demonstrations of each of these tasks; each has its own noise actions."""
    steps: int = pydantic.Field(default=300, ge=0)
    """Number of updates; 0 disables the warm start."""
    batch_size: int = pydantic.Field(default=16, ge=1)
    """Demonstrations per update."""
    learning_rate: float = pydantic.Field(default=3e-3, gt=0)
    """Peak learning rate. It warms up over 5 % of the steps, then decays to 0 by a cosine."""
    noise: float = pydantic.Field(default=0.1, ge=0, le=1)
    """Share of noise actions in the demonstrations: other admissible actions, and malformed ones."""
    imitate_noise: bool = False
    """Train on the noise actions too; otherwise they are only played."""
    observation_weight: float = pydantic.Field(default=0.3, ge=0)
    """Weight of the language-model loss on observation tokens."""
    dagger_rounds: int = pydantic.Field(default=0, ge=0)
    """Rounds of DAgger after that. In each the policy plays `games` new tasks, the expert takes over at a turn of each,
    and the policy imitates these corrections too. The environment must have `correct` (`CorrectingSuite`)."""
    dagger_steps: int = pydantic.Field(default=1000, ge=1)
    """Updates per round of DAgger, on all demonstrations and corrections so far."""

    @pydantic.model_validator(mode="after")
    def _dagger_follows_imitation(self) -> "WarmStartConfig":
        if self.dagger_rounds and not self.steps:
            raise ValueError(
                f"warmstart.dagger_rounds={self.dagger_rounds} follows imitation, and warmstart.steps=0 leaves that "
                "out; add warmstart.dagger_rounds=0 to begin without demonstrations, or set warmstart.steps"
            )
        if self.dagger_rounds and self.demonstrations:
            raise ValueError(
                f"warmstart.dagger_rounds={self.dagger_rounds} needs an expert that corrects the policy, and "
                "warmstart.demonstrations only shows what one did; remove one of them"
            )
        return self


class MethodConfig(Named):
    """Choose the credit assignment: a name in `turnwise methods`, and options as `credit.methods.build` reads them."""

    name: str = "grpo"

    @pydantic.model_validator(mode="before")
    @classmethod
    def _modifiers_are_tables(cls, value: Any) -> Any:
        """Turn a name such as "gigpo+empg" into tables, each modifier around its base."""
        table = {"name": value} if isinstance(value, str) else value
        if not isinstance(table, Mapping):
            return value
        options = dict(table)
        name = options.pop("name", cls.model_fields["name"].default)
        return as_table(name, options) if isinstance(name, str) else value

    @property
    def label(self) -> str:
        """Display name of the method, such as "gigpo + empg"."""
        return label_of(self.model_dump())

    @property
    def options(self) -> dict[str, Any]:
        """Options of the method, including those of the base that it modifies."""
        with as_data():
            written = self.written
        base = written.get("base")
        both = {**(base if isinstance(base, Mapping) else {}), **written}
        return {name: value for name, value in both.items() if name not in ("name", "base")}

    @property
    def written(self) -> dict[str, Any]:
        """The method as a recipe writes it, such as `{"name": "gigpo+empg"}`."""
        return as_written(self.model_dump(mode="json"))


class EvaluateConfig(Section):
    """Configure held-out evaluation on a fixed panel of tasks."""

    every: int = pydantic.Field(default=20, ge=0)
    """Steps between evaluations; 0 evaluates only before and after training."""
    episodes: int = pydantic.Field(default=128, ge=0)
    """Episodes per evaluation during training; 0: no evaluation."""
    final_episodes: int = pydantic.Field(default=256, ge=0)
    """Episodes of the evaluations before and after training; 0: no evaluation."""
    temperature: float = pydantic.Field(default=0.4, ge=0)
    """Sampling temperature; 0 is greedy."""

    def episodes_after(self, step: int, last: int) -> int:
        """Return how many episodes to play after a step of a run of `last` steps."""
        if step in (0, last):
            return self.final_episodes
        return self.episodes if self.every and step % self.every == 0 else 0


class CheckpointConfig(Section):
    """Configure which checkpoints are kept."""

    every: int = pydantic.Field(default=20, ge=1)
    """Steps between checkpoints. The last step always saves one."""
    keep: int = pydantic.Field(default=2, ge=1)
    """Number of latest checkpoints to keep."""


class LogConfig(Section):
    """Choose the trackers that receive a copy of metrics.jsonl."""

    tensorboard: bool = False
    """Write event files to `tensorboard/` in the run folder."""
    wandb: str | None = None
    """Project on Weights & Biases; set WANDB_MODE=offline to keep the data local."""
    trackio: str | None = None
    """Project on trackio."""
    mlflow: str | None = None
    """Experiment on MLflow; MLFLOW_TRACKING_URI says where it is."""
    traces: bool = False
    """Show a step's best, worst and longest trajectory in the trackers, with truncated texts."""

    def idle(self, prefix: str = "") -> Iterator[str]:
        """Name traces that no tracker shows."""
        if self.traces and not (self.tensorboard or self.wandb or self.trackio or self.mlflow):
            yield f"{prefix}traces=true without a tracker"
