"""Define a study: a grid of methods, seeds and recipes in a TOML file.

    recipes = ["household-tiny-aem"]                      # names, or files relative to the study's file
    seeds = 30
    settings = ["run.steps=130"]                          # overrides for all runs
    compare = [["gigpo + empg", "gigpo"]]                 # A against B

    [methods]                                             # name = overrides
    "gigpo" = ["method=gigpo"]
    "gigpo + empg" = ["method=gigpo+empg"]

Its runs are ordinary run folders, runs/STUDY/RECIPE/METHOD/seed-NN. Seeds are the outer loop, so that a study stopped
early has pairs to compare.
"""

import dataclasses
import itertools
import json
import re
import shutil
import tomllib
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import pydantic

from turnwise.base.errors import ConfigError, RunError, did_you_mean
from turnwise.base.recipes import shipped_recipes
from turnwise.base.run_paths import is_one_name
from turnwise.base.section import Section, flattened
from turnwise.config import Config, load_config
from turnwise.lab.diagnostics.differences import settings_of
from turnwise.lab.diagnostics.runs import RunLog
from turnwise.train.folder import RunFolder


class StudyConfig(Section):
    """Define the keys of a study's file."""

    recipes: list[Path] = pydantic.Field(min_length=1)
    """Recipes: names of shipped ones, or files relative to the study's file."""
    methods: dict[str, list[str]] = pydantic.Field(min_length=1)
    """Overrides of each arm by name."""
    like: Path | None = None
    """Another study, relative to the file, that provides every key that this one leaves out."""
    seeds: int = pydantic.Field(ge=1)
    """Number of runs per arm and recipe."""
    first_seed: int = pydantic.Field(default=0, ge=0)
    """First seed; seeds count up from it."""
    settings: tuple[str, ...] = ()
    """Overrides for all runs."""
    dose: float | None = pydantic.Field(default=None, gt=0, le=1)
    """`update.dose` of all arms: the same effective sample size for each, as printed by `turnwise audit`."""
    compare: tuple[tuple[str, str], ...] = ()
    """Pairs of arms: A against B."""
    notes: str = ""
    """Markdown for the end of the page, such as results reported by others."""
    folder: Path = Path("runs")
    """Folder that holds the study's folder."""
    keep: Literal["everything", "policies", "results"] = "everything"
    """Files to keep of finished runs. "policies" drops rollouts, which saves nine tenths of the disk space but leaves
    nothing for `recredit`. "results" also drops checkpoints; configuration, metrics and evaluation episodes remain."""


OWN = ("run.seed=", "run.folder=", "run.name=", "run.threads=")
"""Settings that the study controls in each run."""
_NOT_KEPT = {"everything": (), "policies": ("rollouts",), "results": ("rollouts", "checkpoints")}


@dataclasses.dataclass(frozen=True)
class Job:
    """Define one run of the grid."""

    recipe: Path
    arm: str
    seed: int
    overrides: tuple[str, ...]

    @cached_property
    def config(self) -> Config:
        """Configuration of the run."""
        return load_config(self.recipe, self.overrides)

    @property
    def path(self) -> Path:
        """Folder of the run."""
        return self.config.run_folder


@dataclasses.dataclass(frozen=True)
class Study:
    """Hold a study and its jobs, in running order."""

    name: str
    config: StudyConfig
    jobs: list[Job]

    @property
    def folder(self) -> Path:
        """Folder of the study's runs and results."""
        return self.config.folder / self.name

    def of_arm(self, recipe: Path, arm: str) -> list[Job]:
        """Return the jobs of an arm on a recipe."""
        return [job for job in self.jobs if (job.recipe, job.arm) == (recipe, arm)]


def load_study(path: Path, overrides: tuple[str, ...] = ()) -> Study:
    """Load a study and check every arm's configuration.

    Args:
        path: TOML file of the study.
        overrides: Extra overrides for all runs.

    Raises:
        ConfigError: The file is missing or invalid, an arm's configuration is invalid, two arms have the same
            settings, or arms that are compared are evaluated in different environments.
    """
    try:
        config = StudyConfig.model_validate(_with_inherited(path))
    except pydantic.ValidationError as error:
        raise ConfigError(f"{path}: {_explain(error)}") from None
    for pair in config.compare:
        if pair[0] == pair[1]:
            raise ConfigError(f"{path}: compare lists {pair[0]!r} against itself; name two different arms")
        for arm in pair:
            if arm not in config.methods:
                raise ConfigError(
                    f"{path}: compare lists {arm!r}, which is not a method of this "
                    f"study.{did_you_mean(arm, config.methods)}"
                )
    for file in (path, *config.recipes):
        if not is_one_name(file.stem):
            raise ConfigError(f"{path}: {file.stem!r}, from {file.name!r}, is not the name of one folder; rename it")
    for what, names in (
        ("methods", map(slug, config.methods)),
        ("recipes", (recipe.stem for recipe in config.recipes)),
    ):
        folders = list(names)
        if len(set(folders)) < len(folders):
            raise ConfigError(
                f"{path}: two {what} would share the folder {max(folders, key=folders.count)!r}; rename one"
            )
    every = (*config.settings, *overrides, *(override for arm in config.methods.values() for override in arm))
    if own := next((override for override in every if override.startswith(OWN)), None):
        raise ConfigError(
            f"{path}: {own!r} is set by the study; "
            + (
                "remove it: each run has one thread"
                if own.startswith("run.threads=")
                else "remove it, and use the keys seeds, first_seed and folder"
            )
        )
    jobs = list(_jobs(path, config, overrides))
    for job in jobs[: len(config.recipes) * len(config.methods)]:
        try:
            _ = job.config
        except ConfigError as error:
            raise ConfigError(f"{path}: {job.arm!r} on {job.recipe.name}: {error}") from None
    study = Study(path.stem, config, jobs)
    for recipe in config.recipes:
        first = {arm: study.of_arm(recipe, arm)[0] for arm in config.methods}
        _refuse_same_settings(path, list(first.values()))
        for a, b in config.compare:
            _refuse_other_environments(path, first[a], first[b])
    return study


def _refuse_same_settings(path: Path, jobs: Sequence[Job]) -> None:
    """Raise if two jobs of one recipe and seed would be the same run under two names."""
    settings = [settings_of(job.config, irrelevant=FREE) for job in jobs]
    for (a, of_a), (b, of_b) in itertools.combinations(zip(jobs, settings, strict=True), 2):
        if of_a == of_b:
            raise ConfigError(
                f"{path}: {a.arm!r} and {b.arm!r} have the same settings on {a.recipe.name}; remove one of them, or "
                "the override that makes them the same"
            )


def _refuse_other_environments(path: Path, a: Job, b: Job) -> None:
    """Raise unless both jobs are evaluated in the same environment, without which nothing compares them."""
    of_a, of_b = (flattened(json.loads(RunLog(RunFolder(job.path), job.config).environment)) for job in (a, b))
    if name := next((name for name in of_a | of_b if of_a.get(name) != of_b.get(name)), None):
        raise ConfigError(
            f"{path}: compare lists {a.arm!r} against {b.arm!r}, which are evaluated in different environments on "
            f"{a.recipe.name}: {name} is {of_a.get(name)!r} and {of_b.get(name)!r}; give both the same, or remove the "
            "pair"
        )


def _with_inherited(path: Path, above: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Return a study file's keys, with missing ones from the study that it is `like`."""
    if path.resolve() in above:
        raise ConfigError(f"{above[0]} is `like` itself, through {above[-1].name}; give one of them its own keys")
    data = _read(path)
    if unknown := next((key for key in data if key not in StudyConfig.model_fields), None):
        raise ConfigError(f"{path}: {_unknown(unknown)}")
    if isinstance(data.get("recipes"), list):  # relative to this file, since a study in another folder may be like it
        data["recipes"] = [_recipe(path.parent, given) for given in data["recipes"]]
    if isinstance(like := data.get("like"), str):
        data = _with_inherited(path.parent / like, (*above, path.resolve())) | data
    return data


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        among = [found.name for found in path.parent.glob("*.toml") if found.name != "pyproject.toml"]
        named = path.parent / "studies" / f"{path.stem}.toml"
        near = f" Did you mean '{named}'?" if named.is_file() else did_you_mean(path.name, among)
        raise ConfigError(f"cannot read the study {path}: {error.strerror or error}.{near}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None


def _explain(error: pydantic.ValidationError) -> str:
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


def _unknown(key: str) -> str:
    if key in Config.model_fields:
        return f"{key!r} is a key of a recipe, not of a study; run the file with `turnwise train`"
    return f"unknown key {key!r}.{did_you_mean(key, StudyConfig.model_fields)}"


def _jobs(path: Path, config: StudyConfig, overrides: tuple[str, ...]) -> Iterator[Job]:
    for seed in range(config.first_seed, config.first_seed + config.seeds):
        for recipe in config.recipes:
            for arm, own in config.methods.items():
                folder = config.folder / path.stem / recipe.stem / slug(arm)
                dose = [f"update.dose={config.dose}"] if config.dose else []
                place = (f"run.seed={seed}", f"run.folder={json.dumps(str(folder))}", f"run.name=seed-{seed:02d}")
                yield Job(recipe, arm, seed, (*dose, *config.settings, *own, *overrides, "run.threads=1", *place))


def _recipe(folder: Path, given: Any) -> Any:
    """Return the file of a recipe: relative to the study's folder if it exists there, else a shipped one."""
    if not isinstance(given, str):
        return given  # refused by the validation
    beside = folder / given
    return beside if beside.is_file() else shipped_recipes().get(given, beside)


def slug(arm: str) -> str:
    """Return a folder name for an arm."""
    return re.sub(r"[^A-Za-z0-9_.+-]+", "-", re.sub(r"\s*\+\s*", "+", arm)).strip("-.") or "arm"


FREE = ("run.threads", "run.folder", "run.name", "log.")
"""Settings that may differ between a job and the folder that it resumes."""


def state(job: Job) -> str:
    """Return the state of a job: "new", "begun", or "done".

    Raises:
        RunError: The job's folder holds a run with other settings.
    """
    if not (job.path / "config.json").exists():
        return "new"
    folder, config = RunFolder.open(job.path)
    there, asked = (settings_of(given, irrelevant=FREE) for given in (config, job.config))
    changed = [name for name in sorted(there | asked) if there.get(name) != asked.get(name)]
    if changed:
        differ = ", ".join(f"{name} is {there.get(name)!r} there and {asked.get(name)!r} here" for name in changed[:3])
        further = f", and {len(changed) - 3} more differ" if len(changed) > 3 else ""
        raise RunError(
            f"{job.path} was made with other settings than the study's: {differ}{further}. Use the overrides that it "
            "was made with, move the folder away, or rename the study"
        )
    trimmed, last = not folder.checkpoints.exists(), folder.checkpoints / f"step-{config.run.steps:06d}"
    return "done" if RunLog(folder, config).finished and (trimmed or last.exists()) else "begun"


def tidy(study: Study, job: Job) -> None:
    """Remove files of a finished run that the study does not keep, and draw its figure if missing.

    A run whose cleanup was killed still counts as finished.
    """
    for name in _NOT_KEPT[study.config.keep]:
        whole, going = job.path / name, job.path / f".{name}"
        if whole.exists():
            whole.rename(going)
        shutil.rmtree(going, ignore_errors=True)
    folder, config = RunFolder.open(job.path)
    if not folder.figure.exists():
        from turnwise.train.figure import plot_run

        plot_run(folder, config.label)


def finished(study: Study) -> dict[Path, dict[str, list[RunLog]]]:
    """Find the study's finished runs by recipe and arm, without empty arms."""
    found: dict[Path, dict[str, list[RunLog]]] = {}
    for job in study.jobs:
        if state(job) == "done":
            found.setdefault(job.recipe, {}).setdefault(job.arm, []).append(RunLog(*RunFolder.open(job.path)))
    return found
