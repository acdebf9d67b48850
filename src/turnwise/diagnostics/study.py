"""A study: a grid of methods, seeds and recipes, described in TOML.

    recipes = ["../recipes/household-tiny-aem.toml"]      # relative to the study's file
    seeds = 30
    settings = ["run.steps=130"]                          # overrides for all runs
    compare = [["grpo + aem", "grpo"]]                    # A against B

    [methods]                                             # name = overrides
    "grpo" = ["method=grpo", "aem=false"]
    "grpo + aem" = ["method=grpo", "aem=true"]

Its runs are runs/STUDY/RECIPE/METHOD/seed-NN, ordinary run folders. Seeds are the outer loop, so that a study that is stopped early has pairs to
compare.
"""

import dataclasses
import json
import re
import shutil
import tomllib
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import pydantic

from turnwise.config import Config, load_config
from turnwise.diagnostics.compare import Comparison, compare
from turnwise.diagnostics.runs import Run
from turnwise.errors import ConfigError, RunError, did_you_mean
from turnwise.settings import Section
from turnwise.train.folder import RunFolder


class StudyConfig(Section):
    """What a study's file may say."""

    recipes: list[Path] = pydantic.Field(min_length=1)
    """Recipes, relative to the file."""
    methods: dict[str, list[str]] = pydantic.Field(min_length=1)
    """Name of an arm to its overrides."""
    like: Path | None = None
    """Another study, relative to the file, whose `methods` and `compare` are taken where this one has none."""
    seeds: int = pydantic.Field(ge=1)
    """Runs of each arm on each recipe."""
    first_seed: int = pydantic.Field(default=0, ge=0)
    """Seeds count up from here."""
    settings: tuple[str, ...] = ()
    """Overrides for all runs."""
    compare: tuple[tuple[str, str], ...] = ()
    """Pairs of arms: A against B."""
    notes: str = ""
    """Markdown for the end of its page, such as what others have reported."""
    folder: Path = Path("runs")
    """Parent of the study's folder."""
    keep: Literal["everything", "policies", "results"] = "everything"
    """Of finished runs. "policies": no rollouts, a tenth of the disk, and `recredit` has nothing to read; "results": no checkpoints either, so that
    what is left (configuration, metrics, episodes of evaluations) is small enough to be kept for good, and to be taken to another machine."""


OWN = ("run.seed=", "run.folder=", "run.name=", "run.threads=")
"""What a study says of each run."""
_NOT_KEPT = {"everything": (), "policies": ("rollouts",), "results": ("rollouts", "checkpoints")}


@dataclasses.dataclass(frozen=True)
class Job:
    """One run of the grid."""

    recipe: Path
    arm: str
    seed: int
    overrides: tuple[str, ...]

    @cached_property
    def config(self) -> Config:
        """What it is trained with."""
        return load_config(self.recipe, self.overrides)

    @property
    def path(self) -> Path:
        """Its run folder."""
        return self.config.run_folder


@dataclasses.dataclass(frozen=True)
class Study:
    """A study and its jobs, in the order in which they are run."""

    name: str
    config: StudyConfig
    jobs: list[Job]

    @property
    def folder(self) -> Path:
        """Where its runs and its results are."""
        return self.config.folder / self.name

    def of_arm(self, recipe: Path, arm: str) -> list[Job]:
        """The jobs of an arm on a recipe."""
        return [job for job in self.jobs if (job.recipe, job.arm) == (recipe, arm)]


def load_study(path: Path, overrides: tuple[str, ...] = ()) -> Study:
    """Read a study and check every arm's configuration, before anything is run.

    Args:
        path: The TOML file.
        overrides: Further ones for all runs.

    Raises:
        ConfigError: The file is missing or wrong, or an arm's configuration is.
    """
    told = _read(path)
    if isinstance(like := told.get("like"), str):
        told = {key: value for key, value in _read(path.parent / like).items() if key in ("methods", "compare")} | told
    try:
        config = StudyConfig.model_validate(told)
    except pydantic.ValidationError as error:
        raise ConfigError(f"{path}: {_explain(error)}") from None
    for pair in config.compare:
        if pair[0] == pair[1]:
            raise ConfigError(f"{path}: compare names {pair[0]!r} against itself")
        for arm in pair:
            if arm not in config.methods:
                raise ConfigError(
                    f"{path}: compare names {arm!r}, which is no method of this study.{did_you_mean(arm, config.methods)}"
                )
    for what, names in (
        ("methods", map(slug, config.methods)),
        ("recipes", (recipe.stem for recipe in config.recipes)),
    ):
        folders = list(names)
        if len(set(folders)) < len(folders):
            raise ConfigError(
                f"{path}: two {what} would share the folder {max(folders, key=folders.count)!r}; rename one"
            )
    told = (*config.settings, *overrides, *(override for arm in config.methods.values() for override in arm))
    if own := next((override for override in told if override.startswith(OWN)), None):
        raise ConfigError(
            f"{path}: {own!r} is the study's own to say: seeds, first_seed and folder are keys of its file, and a run has one thread"
        )
    jobs = list(_jobs(path, config, overrides))
    for job in jobs[: len(config.recipes) * len(config.methods)]:
        try:
            _ = job.config
        except ConfigError as error:
            raise ConfigError(f"{path}: {job.arm!r} on {job.recipe.name}: {error}") from None
    return Study(path.stem, config, jobs)


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        near = did_you_mean(path.name, [found.name for found in path.parent.glob("*.toml")])
        raise ConfigError(f"cannot read the study {path}: {error.strerror}.{near}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is no valid TOML: {error}") from None


def _explain(error: pydantic.ValidationError) -> str:
    first = min(error.errors(), key=lambda found: found["type"] != "extra_forbidden")  # a misspelt key is missing too
    where = ".".join(map(str, first["loc"]))
    if first["type"] == "extra_forbidden":
        if where in Config.model_fields:
            return f"{where!r} is a key of a recipe, and this is read as a study: `turnwise train` takes recipes"
        return f"unknown key {where!r}.{did_you_mean(where, StudyConfig.model_fields)}"
    return f"{where}: {first['msg']}"


def _jobs(path: Path, config: StudyConfig, overrides: tuple[str, ...]) -> Iterator[Job]:
    for seed in range(config.first_seed, config.first_seed + config.seeds):
        for recipe in (path.parent / given for given in config.recipes):
            for arm, told in config.methods.items():
                folder = config.folder / path.stem / recipe.stem / slug(arm)
                place = (f"run.seed={seed}", f"run.folder={json.dumps(str(folder))}", f"run.name=seed-{seed:02d}")
                yield Job(recipe, arm, seed, (*config.settings, *told, *overrides, "run.threads=1", *place))


def slug(arm: str) -> str:
    """A folder name for an arm."""
    return re.sub(r"[^A-Za-z0-9_.+-]+", "-", re.sub(r"\s*\+\s*", "+", arm)).strip("-.") or "arm"


def state(job: Job) -> str:
    """How far a job is: "new", "begun", or "done".

    Raises:
        RunError: Its folder holds a run with other settings.
    """
    if not (job.path / "config.json").exists():
        return "new"
    folder, config = RunFolder.open(job.path)
    there, asked = _plain(config), _plain(job.config)
    changed = [name for name in sorted(there | asked) if there.get(name) != asked.get(name)]
    if changed:
        told = ", ".join(f"{name} is {there.get(name)!r} there and {asked.get(name)!r} here" for name in changed[:3])
        further = f", and {len(changed) - 3} more differ" if len(changed) > 3 else ""
        raise RunError(f"{job.path} was made with other settings than the study's: {told}{further}. Give the overrides that it was made with, "
                       "or move it away, or give the study another name")  # fmt: skip
    trimmed, last = not folder.checkpoints.exists(), folder.checkpoints / f"step-{config.run.steps:06d}"
    return "done" if Run(folder, config).finished and (trimmed or last.exists()) else "begun"


def tidy(study: Study, job: Job) -> None:
    """Remove what the study does not keep of a finished run, and draw the figure of one that was killed before it did.

    Killed in the middle of this, it is still a finished one.
    """
    for name in _NOT_KEPT[study.config.keep]:
        whole, going = job.path / name, job.path / f".{name}"
        if whole.exists():
            whole.rename(going)
        shutil.rmtree(going, ignore_errors=True)
    folder, config = RunFolder.open(job.path)
    if not folder.figure.exists():
        from turnwise.train.display import plot_run

        plot_run(folder, config)


def _plain(config: Config) -> dict[str, Any]:
    """Settings that the numbers depend on, by their dotted names."""
    return dict(
        _leaves("", config.model_dump(mode="json", exclude={"run": {"threads", "folder", "name"}, "log": True}))
    )


def _leaves(name: str, settings: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(settings, dict):
        yield name, settings
        return
    for key, value in settings.items():
        yield from _leaves(f"{name}.{key}".lstrip("."), value)


def finished(study: Study) -> dict[Path, dict[str, list[Run]]]:
    """The study's finished runs by recipe and arm; arms without one are left out."""
    found: dict[Path, dict[str, list[Run]]] = {}
    for job in study.jobs:
        if state(job) == "done":
            found.setdefault(job.recipe, {}).setdefault(job.arm, []).append(Run(*RunFolder.open(job.path)))
    return found


def results(study: Study, arms: dict[Path, dict[str, list[Run]]] | None = None) -> list[tuple[Path, Comparison]]:
    """The study's comparisons by recipe, of the pairs that are finished; `arms` are those of `finished`, where they are at hand."""
    return [
        (recipe, compare(arms[a], arms[b], names=(a, b)))
        for recipe, arms in (finished(study) if arms is None else arms).items()
        for a, b in study.config.compare
        if a in arms and b in arms
    ]
