"""Load and validate the configuration of a run without importing torch.

A recipe is a TOML file; overrides such as `a.b=c` follow it. Unknown keys and wrong types raise one-line errors.
"""

import contextlib
import copy
import dataclasses
import functools
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pydantic

from turnwise.base.errors import ConfigError, FormerWarning
from turnwise.base.facets import Facet, Part, broken, refuse_conflicts
from turnwise.base.imports import NotLoaded
from turnwise.base.recipes import find_recipe, read_recipe
from turnwise.base.register import EXTENSIONS
from turnwise.base.section import Section, extensible
from turnwise.config.methods import measure_parts, method_parts, refuse_varied, term_parts
from turnwise.config.mistakes import explain
from turnwise.config.overrides import apply
from turnwise.config.sections import (
    CheckpointConfig,
    EvaluateConfig,
    LogConfig,
    MethodConfig,
    RunConfig,
    WarmStartConfig,
)
from turnwise.credit.methods.build import build_method
from turnwise.credit.methods.former import read_former, refuse_contradiction
from turnwise.credit.methods.names import parameters
from turnwise.engines.settings import EngineConfig, LocalEngineConfig
from turnwise.environments.settings import IMPORTED, EnvironmentConfig
from turnwise.measures.lacking import OPTIONAL
from turnwise.measures.plan import plan_measures
from turnwise.models.settings import CriticConfig, ModelConfig, PromptConfig
from turnwise.objective.settings import UpdateConfig, behavior_parts
from turnwise.rollout.settings import RolloutConfig


@extensible()
class Config(Section):
    """Hold all settings of a run."""

    run: RunConfig = RunConfig()
    environment: EnvironmentConfig = EnvironmentConfig()
    model: ModelConfig = ModelConfig()
    prompt: PromptConfig = PromptConfig()
    warmstart: WarmStartConfig = WarmStartConfig()
    rollout: RolloutConfig = RolloutConfig()
    engine: EngineConfig = LocalEngineConfig()
    method: MethodConfig = MethodConfig()
    """Credit assignment: a name in `turnwise methods`, or `module:function`, and its options."""
    critic: CriticConfig | None = None
    """Critic that estimates returns, for methods that need values. Default: none."""
    measures: tuple[str, ...] = ()
    """Measures to record in addition to those that method and loss terms need. Each is a name in `turnwise.measures`,
    or `module:measure`."""
    update: UpdateConfig = UpdateConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    log: LogConfig = LogConfig()

    @pydantic.model_validator(mode="before")
    @classmethod
    def _reads_former_recipes(cls, data: Any) -> Any:
        return read_former(data, MethodConfig.model_fields["name"].default) if isinstance(data, Mapping) else data

    @pydantic.model_validator(mode="after")
    def _a_response_fits(self) -> "Config":
        if self.rollout.max_new_tokens >= self.model.max_context:
            raise ValueError(
                f"rollout.max_new_tokens={self.rollout.max_new_tokens} leaves no room for an observation in "
                f"model.max_context={self.model.max_context} tokens; lower the first or raise the second"
            )
        return self

    @pydantic.model_validator(mode="after")
    def _a_budget_holds_a_trajectory(self) -> "Config":
        if (most_turns := self.most_turns) is None:
            return self
        collector = self.rollout.collector.model_extra or {}
        longest = {"max_tokens": most_turns * self.rollout.max_new_tokens, "max_env_steps": most_turns}
        for name, least in longest.items():
            budget = collector.get(name)
            if isinstance(budget, int) and budget < least:
                raise ValueError(
                    f"rollout.collector.{name}={budget} is too small for one trajectory of environment.max_steps="
                    f"{most_turns} and rollout.max_new_tokens={self.rollout.max_new_tokens}: set {name}={least} or more"
                )
        steps = self.rollout.step_budget
        least = longest["max_tokens" if steps and steps.tokens else "max_env_steps"]
        if steps and steps.learn == "complete" and steps.amount < least:
            raise ValueError(
                f"{self.rollout.samples_earlier} is too small for one trajectory of environment.max_steps={most_turns} "
                f"and rollout.max_new_tokens={self.rollout.max_new_tokens}: set {least} or more"
            )
        return self

    @pydantic.model_validator(mode="after")
    def _parts_go_together(self) -> "Config":
        """Refuse conflicts; relate ratios to the weights that sampled if these may be earlier ones."""
        for section in self.extensions().values():
            section.check_recipe(self)
        self.model.check_recipe(self)
        parts = [*self.parts()]
        refuse_conflicts(parts)
        earlier, update = broken(Facet.WEIGHTS, parts), self.update
        if earlier and update.old_policy is None and update.mismatch_cap is None:
            update = update.model_copy(update={"old_policy": "behavior"})
            object.__setattr__(self, "update", update)
            default = f"update.old_policy='behavior', the default with {earlier.setting},"
            refuse_conflicts([*parts, *(dataclasses.replace(part, setting=default) for part in behavior_parts(update))])
        if update.kl and update.kl_in is None and broken(Facet.LOSS, parts):
            object.__setattr__(self, "update", update.model_copy(update={"kl_in": "reward"}))
        return self

    def parts(self) -> Iterator[Part]:
        """Return all parts of the recipe, with what they break and need; see `turnwise.base.facets`."""
        parts = [*super().parts()]
        yield from parts
        with contextlib.suppress(NotLoaded):  # of a recorded run, which was checked when it began
            yield from self._parts_of_method(parts)
            if broken(Facet.WHOLE, parts):
                yield from term_parts(self.update.terms)

    def _parts_of_method(self, parts: Sequence[Part]) -> Iterator[Part]:
        transform = build_method(self.method.name, self.method.model_extra or {})
        if self.environment.max_steps > 1 and self.environment.name != IMPORTED:
            refuse_varied(transform, self.label, parameters(self.method.name))
        own = [*method_parts(transform, self.label, self.update.scoring)]
        yield from own
        if broken(Facet.ANSWERS, [*parts, *own]) or broken(Facet.HERE, [*parts, *own]):
            needs, further = {f"method {self.label!r}": transform.needs}, self.measures
            plan = plan_measures(needs, scoring=self.update.scoring, further=further, models=self.optional_models)
            yield from measure_parts(plan.measures)

    @property
    def most_turns(self) -> int | None:
        """Most turns of a trajectory; None if an agent plays them, which `environment.max_steps` does not limit."""
        return None if broken(Facet.TURNS, super().parts()) else self.environment.max_steps

    @property
    def without_code(self) -> "Config":
        """This without the measures and loss terms whose code it names; who reads a run needs neither."""
        update = self.update.model_copy(update={"terms": ()})
        measures = tuple(name for name in self.measures if ":" not in name)
        return self.model_copy(update={"measures": measures, "update": update})

    def idle(self, prefix: str = "") -> Iterator[str]:
        """Name also what only environments read, where an agent plays."""
        yield from super().idle(prefix)
        if self.most_turns is None:
            world, usual = self.environment, EnvironmentConfig()
            for name in ("max_steps", "success_reward"):
                if (given := getattr(world, name)) != getattr(usual, name):
                    yield f"{prefix}environment.{name}={given} with [harness]"

    @property
    def label(self) -> str:
        """Display name of the method, such as "gigpo + empg"."""
        return self.method.label

    def extensions(self) -> dict[str, Section]:
        """Return the sections of extensions that the recipe has, by key, such as "store" or "rollout.turn_budget"."""
        found = {key: functools.reduce(getattr, key.split("."), self) for key in EXTENSIONS}
        return {key: section for key, section in found.items() if isinstance(section, Section)}

    @property
    def optional_models(self) -> tuple[str, ...]:
        """Names of optional models and services that this run has: critic, services of extensions, `prompt.plan`."""
        asked = {"critic": self.critic, **self.extensions(), "plan": self.prompt.plan}
        return tuple(name for name, given in asked.items() if given and name in OPTIONAL)

    @property
    def run_folder(self) -> Path:
        """Folder of the run."""
        return self.run.folder / self.run.name


def load_config(recipe: Path | None, overrides: Sequence[str] = ()) -> Config:
    """Load a recipe and apply overrides such as `update.learning_rate=1e-4`.

    The recipe is a file, or the name of a packaged one.

    Raises:
        ConfigError: The file, or one that it extends, is missing or is not TOML, a key is unknown, or a value has the
            wrong type.
    """
    data: dict[str, Any] = {}
    files: dict[Path, dict[str, Any]] = {}
    if recipe is not None:
        recipe = find_recipe(recipe)
        files = read_recipe(recipe)
        data = copy.deepcopy(files[recipe])
        if isinstance(run := data.setdefault("run", {}), dict):
            run.setdefault("name", recipe.stem)
    refuse_contradiction(overrides)
    for override in overrides:
        apply(data, override, Config)
    try:
        return parse_config(data)
    except ConfigError as error:
        wrong = next((file for file, content in files.items() if _mistake(content) == str(error)), None)
        raise ConfigError(f"{wrong}: {error}" if wrong else str(error)) from None


def _mistake(data: dict[str, Any]) -> str:
    """Return what is wrong with plain data, or nothing."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FormerWarning)
            parse_config(data)
    except ConfigError as error:
        return str(error)
    return ""


def override_config(config: Config, overrides: Sequence[str]) -> Config:
    """Return a configuration with overrides applied."""
    replaced = any(override.startswith("method=") for override in overrides)  # then its code is not loaded
    data = config.model_dump(mode="json") | {"method": {} if replaced else config.method.written}
    refuse_contradiction(overrides)
    for override in overrides:
        apply(data, override, Config)
    return parse_config(data)


def parse_config(data: dict[str, Any]) -> Config:
    """Validate plain data and return the configuration."""
    try:
        return Config.model_validate(data)
    except pydantic.ValidationError as error:
        raise ConfigError(explain(error.errors()[0], Config)) from None
