"""Load and validate the configuration of a run without importing torch.

A recipe is a TOML file; overrides such as `a.b=c` follow it. Unknown keys and wrong types raise one-line errors.
"""

import copy
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pydantic

from turnwise.config.combined import check_demonstrations, check_passes, check_store, check_told, with_corrected_ratios
from turnwise.config.mistakes import explain
from turnwise.config.overrides import apply
from turnwise.config.recipes import find_recipe, read_recipe
from turnwise.config.sections import (
    CheckpointConfig,
    EvaluateConfig,
    LogConfig,
    MethodConfig,
    RunConfig,
    WarmStartConfig,
)
from turnwise.config.windows import check_played
from turnwise.environments.settings import EnvironmentConfig
from turnwise.errors import ConfigError, FormerWarning
from turnwise.gateway.settings import HarnessConfig
from turnwise.judge.settings import JudgeConfig
from turnwise.measures.monitor import MonitorConfig
from turnwise.methods.build import build_method
from turnwise.methods.former import read_former, refuse_contradiction
from turnwise.models.settings import CriticConfig, ModelConfig, PromptConfig, RewardModelConfig
from turnwise.objective.settings import UpdateConfig
from turnwise.rollout.demonstrations.settings import DemonstrationsConfig
from turnwise.rollout.settings import ContinuationsConfig, EngineConfig, RolloutConfig
from turnwise.rollout.stores.settings import StoreConfig
from turnwise.section import Section


class Config(Section):
    """Hold all settings of a run."""

    run: RunConfig = RunConfig()
    environment: EnvironmentConfig = EnvironmentConfig()
    model: ModelConfig = ModelConfig()
    prompt: PromptConfig = PromptConfig()
    warmstart: WarmStartConfig = WarmStartConfig()
    rollout: RolloutConfig = RolloutConfig()
    engine: EngineConfig = EngineConfig()
    harness: HarnessConfig | None = None
    """Agent of your own that plays the trajectories, instead of turnwise's loop of observation and response."""
    method: MethodConfig = MethodConfig()
    """Credit assignment: a name in `turnwise methods`, or `module:function`, and its options."""
    critic: CriticConfig | None = None
    """Critic that estimates returns, for methods that need values; default none."""
    reward_model: RewardModelConfig | None = None
    """A second model whose log-probabilities reward responses, for the method `istar`; default none."""
    judge: JudgeConfig | None = None
    """A judge of trajectories, for methods that need its verdicts; default none."""
    continuations: ContinuationsConfig | None = None
    """Continuations from every turn, for methods that need values, instead of a critic's; default none."""
    demonstrations: DemonstrationsConfig | None = None
    """Demonstrations that teach tasks while the policy trains; default none."""
    store: StoreConfig | None = None
    """Store of the run's own trajectories, which later steps use again; default none."""
    measures: tuple[str, ...] = ()
    """Extra measures to record, in addition to those that method and loss terms need.

    Each is a name in `turnwise.measures`, or `module:measure`."""
    monitor: MonitorConfig | None = None
    """Monitor of the mutual information between responses and their contexts; default none."""
    update: UpdateConfig = UpdateConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    log: LogConfig = LogConfig()

    @pydantic.model_validator(mode="before")
    @classmethod
    def _reads_former_recipes(cls, data: Any) -> Any:
        return read_former(data, MethodConfig.model_fields["name"].default) if isinstance(data, Mapping) else data

    @pydantic.model_validator(mode="before")
    @classmethod
    def _ratios_follow_the_lag(cls, data: Any) -> Any:
        """Relate ratios to the weights that sampled each token where these may lag behind the step's, or are stored."""
        return with_corrected_ratios(data) if isinstance(data, Mapping) else data

    @pydantic.model_validator(mode="after")
    def _lag_is_possible(self) -> "Config":
        lag = self.rollout.samples_earlier
        if lag and self.update.old_policy == "start" and self.update.mismatch_cap is None:
            raise ValueError(
                f"update.old_policy='start' ignores that {lag} samples from earlier weights; remove "
                "it, or add update.mismatch_cap=2 update.scoring=trainer"
            )
        if lag and self.engine.max_rows is not None:
            raise ValueError(
                f"engine.max_rows={self.engine.max_rows} lets responses wait for whole trajectories, and "
                f"{lag} changes the weights between responses; remove one"
            )
        if lag and self.harness is not None:
            raise ValueError(
                f"{lag} holds responses back while weights change, and the agent of [harness] would wait for the "
                "gateway; remove one of them"
            )
        return self

    @pydantic.model_validator(mode="after")
    def _engine_can_temper_and_score(self) -> "Config":
        if self.rollout.token_temperature and self.engine.name == "server":
            raise ValueError(
                "rollout.token_temperature needs an engine that changes the temperature from token to token, which "
                "engine.name='server' does not; set engine.name=local, or remove it"
            )
        if self.rollout.token_temperature and self.update.scoring == "engine":
            raise ValueError(
                "rollout.token_temperature needs update.scoring='trainer': the engine reports the probabilities of the "
                "temperatures it sampled at, which are not the policy's"
            )
        if self.reward_model and self.update.scoring == "engine":
            raise ValueError(
                "reward_model compares two models by the same passes, and update.scoring='engine' takes one from the "
                "engine, so that rewards would be its rounding at first; add update.scoring=trainer"
            )
        if self.update.scoring == "engine" and self.update.mismatch_cap is not None:
            raise ValueError(
                "update.mismatch_cap weighs tokens by the trainer's probabilities over the engine's, and with "
                "update.scoring='engine' there is no difference to see; add update.scoring=trainer, or remove it"
            )
        if self.update.old_policy == "behavior" and self.rollout.top_p < 1:
            raise ValueError(
                f"update.old_policy='behavior', the default with [store], needs rollout.top_p=1, got "
                f"{self.rollout.top_p:g}; with a lower top_p the engine reports probabilities of a truncated "
                "distribution"
            )
        if self.update.scoring == "engine" and self.rollout.top_p < 1:
            raise ValueError(
                f"update.scoring='engine' needs rollout.top_p=1, got {self.rollout.top_p:g}; with a lower top_p the "
                "engine reports probabilities of a truncated distribution"
            )
        return self

    @pydantic.model_validator(mode="after")
    def _a_harness_makes_its_own_prompts(self) -> "Config":
        if self.harness is not None:
            for name in ("collector", "context", "turn_budget"):
                given, usual = getattr(self.rollout, name), RolloutConfig.model_fields[name].default
                if given != usual:
                    raise ValueError(
                        f"rollout.{name}={given!r} has no effect with [harness], which plays the trajectories and "
                        "makes the prompts; remove one of them"
                    )
            if self.prompt.plan:
                raise ValueError("prompt.plan=true has no effect with [harness], which makes the prompts; remove one")
        return self

    @pydantic.model_validator(mode="after")
    def _trajectories_can_be_continued(self) -> "Config":
        if self.continuations is None:
            return self
        budget = self.rollout.turn_budget
        hindrances = {
            "[harness]": self.harness is not None,
            "rollout.collector='self_play'": self.rollout.collector.name == "self_play",
            "rollout.turn_budget.name='quantile'": budget is not None and budget.name == "quantile",
        }
        if found := [name for name, is_set in hindrances.items() if is_set]:
            raise ValueError(
                f"continuations play on from a turn as the policy would, which {found[0]} does not allow; remove one"
            )
        return self

    @pydantic.model_validator(mode="after")
    def _something_can_learn(self) -> "Config":
        if self.update.passes and self.critic:
            raise ValueError("update.passes has no critic among its turns; remove update.passes or [critic]")
        if self.update.only_norms and self.model.train == "lora":
            raise ValueError(
                "update.only_norms=true trains the gains of normalisation layers, and model.train='lora' trains "
                "adapters alone; add update.only_norms=false, with a learning rate for adapters such as "
                "update.learning_rate=1e-4"
            )
        return self

    @pydantic.model_validator(mode="after")
    def _demonstrations_and_store_fit(self) -> "Config":
        others = {
            name: getattr(self, name) is not None for name in ("harness", "critic", "continuations", "reward_model")
        }
        others["visits"] = self.critic is not None and self.critic.visits
        if self.demonstrations:
            check_demonstrations(self.demonstrations, self.rollout, self.update, others)
        if self.demonstrations and self.store:
            raise ValueError(
                "[store] adds trajectories to groups whose own successes [demonstrations] counts; remove one of them"
            )
        if self.store:
            check_store(self.store, self.rollout, self.update, others)
        return self

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
        collector, most_turns = self.rollout.collector.model_extra or {}, self.environment.max_steps
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
        if (rule := collector.get("rule")) in ("arpo", "rose") and self.engine.name == "server":
            raise ValueError(
                f"rollout.collector.rule={rule!r} needs the entropies of sampled tokens, which engine.name='server' "
                "does not report; set engine.name=local, or rule=tree_grpo"
            )
        return self

    @pydantic.model_validator(mode="after")
    def _players_can_wait_for_each_other(self) -> "Config":
        collector = self.rollout.collector
        if collector.name != "self_play":
            return self
        if self.critic is not None and self.critic.peers:
            raise ValueError(
                "critic.peers tells the returns of others in the group, where rollout.collector='self_play' seats the "
                "players of a match, whose returns tell each other's; set critic.peers=false and critic.visits=false"
            )
        if self.engine.max_rows is not None:
            raise ValueError(
                f"engine.max_rows={self.engine.max_rows} lets responses wait for whole trajectories, and the players "
                "of rollout.collector='self_play' wait for each other; remove engine.max_rows"
            )
        if (collector.model_extra or {}).get("past") and self.engine.name == "server":
            raise ValueError(
                "rollout.collector.past plays with earlier weights, and engine.name='server' serves one version; set "
                "engine.name=local or remove past"
            )
        return self

    @pydantic.model_validator(mode="after")
    def _tiny_reads_observations_only(self) -> "Config":
        if self.model.name == "tiny" and self.prompt != PromptConfig(plan=self.prompt.plan):
            raise ValueError(
                "prompt.* is only for chat models, and model.name='tiny' is not one; remove prompt.* except prompt.plan"
            )
        return self

    @pydantic.model_validator(mode="after")
    def _method_exists(self) -> "Config":
        transform = build_method(self.method.name, self.method.model_extra or {})
        if "info_gain" in transform.needs and self.update.scoring == "engine" and self.rollout.samples_earlier:
            raise ValueError(
                f"method {self.label!r} compares probabilities with and without an observation, and with "
                f"update.scoring='engine' {self.rollout.samples_earlier} gives the first from earlier weights; add "
                "update.scoring=trainer"
            )
        if self.rollout.learns_played:
            check_played(transform, self.label, vars(self))
        check_told(transform, self.label, vars(self), self.optional_models)
        check_passes(transform, self.label, self.update)
        return self

    @property
    def label(self) -> str:
        """Display name of the method, such as "gigpo + empg"."""
        return self.method.label

    @property
    def optional_models(self) -> tuple[str, ...]:
        """Names of what measures use and only some runs have: `critic` and its like, and the plan of `prompt.plan`."""
        asked = ("critic", "judge", "reward_model", "continuations")
        models = tuple(name for name in asked if getattr(self, name) is not None)
        return (*models, "plan") if self.prompt.plan else models

    @property
    def run_folder(self) -> Path:
        """Folder of the run."""
        return self.run.folder / self.run.name


def load_config(recipe: Path | None, overrides: Sequence[str] = ()) -> Config:
    """Load a recipe and apply overrides such as `update.learning_rate=1e-4`.

    The recipe is a file, or the name of one that comes with the package.

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
        wrong = next((file for file, told in files.items() if _mistake(told) == str(error)), None)
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
    data = config.model_dump(mode="json") | {"method": config.method.written}
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
