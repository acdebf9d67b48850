"""The configuration of a run: frozen, typed, and free of torch, so that it prints and checks at once.

A recipe is TOML; `a.b=c` overrides follow. Unknown keys and wrong types are one-line errors.
"""

import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pydantic

from turnwise.errors import ConfigError, did_you_mean
from turnwise.settings import (
    CheckpointConfig,
    EngineConfig,
    EnvironmentConfig,
    EvaluateConfig,
    LogConfig,
    MethodConfig,
    ModelConfig,
    PromptConfig,
    RolloutConfig,
    RunConfig,
    Section,
    UpdateConfig,
    WarmStartConfig,
)


class Config(Section):
    """Everything about a run."""

    run: RunConfig = RunConfig()
    environment: EnvironmentConfig = EnvironmentConfig()
    model: ModelConfig = ModelConfig()
    prompt: PromptConfig = PromptConfig()
    warmstart: WarmStartConfig = WarmStartConfig()
    rollout: RolloutConfig = RolloutConfig()
    engine: EngineConfig = EngineConfig()
    method: MethodConfig = MethodConfig()
    aem: bool = True
    """Modulate the method's advantage by entropy; `method.temperature` and the like are AEM's options."""
    update: UpdateConfig = UpdateConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    log: LogConfig = LogConfig()

    @pydantic.model_validator(mode="after")
    def _engine_can_score(self) -> "Config":
        if self.update.scoring == "engine" and self.rollout.top_p < 1:
            raise ValueError(
                "update.scoring='engine' needs rollout.top_p=1: what top_p leaves out has no probability when it is sampled"
            )
        return self

    @pydantic.model_validator(mode="after")
    def _tiny_reads_observations_only(self) -> "Config":
        if self.model.name == "tiny" and self.prompt != PromptConfig():
            raise ValueError("prompt.* is for chat models; model.name='tiny' knows the world's words only")
        return self

    @pydantic.model_validator(mode="after")
    def _method_exists(self) -> "Config":
        from turnwise.methods.build import build_method

        build_method(self.method.name, self.method.model_extra or {}, with_aem=self.aem)
        return self

    @property
    def label(self) -> str:
        """What assigns the credit, for people: "grpo + aem"."""
        return self.method.name + (" + aem" if self.aem and self.method.name != "aem" else "")

    @property
    def run_folder(self) -> Path:
        """Folder of this run."""
        return self.run.folder / self.run.name


def load_config(recipe: Path | None, overrides: Sequence[str] = ()) -> Config:
    """Read a recipe and apply overrides such as `update.learning_rate=1e-4`.

    Raises:
        ConfigError: The file is missing or no TOML, a key is unknown, a value has the wrong type.
    """
    data: dict[str, Any] = {}
    if recipe is not None:
        try:
            data = tomllib.loads(recipe.read_text(encoding="utf-8"))
        except OSError as error:
            if (recipe / "config.json").is_file():
                raise ConfigError(
                    f"{recipe} is a run, not a recipe; `turnwise train --resume {recipe}` goes on with it"
                ) from None
            near = did_you_mean(recipe.name, [path.name for path in recipe.parent.glob("*.toml")])
            raise ConfigError(f"cannot read the recipe {recipe}: {error.strerror}.{near}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{recipe} is no valid TOML: {error}") from None
        if isinstance(run := data.setdefault("run", {}), dict):
            run.setdefault("name", recipe.stem)
    for override in overrides:
        _apply(data, override)
    return parse_config(data)


def override_config(config: Config, overrides: Sequence[str]) -> Config:
    """Apply overrides to a configuration."""
    data = config.model_dump(mode="json")
    for override in overrides:
        _apply(data, override)
    return parse_config(data)


def parse_config(data: dict[str, Any]) -> Config:
    """Check plain data against the configuration's types."""
    try:
        return Config.model_validate(data)
    except pydantic.ValidationError as error:
        raise ConfigError(_explain(error.errors()[0])) from None


def _apply(data: dict[str, Any], override: str) -> None:
    path, equals, text = override.partition("=")
    if not equals or not path.strip():
        raise ConfigError(f"override {override!r} is not of the form section.key=value")
    *sections, key = path.strip().split(".")
    value = text.strip() if _is_text(sections, key) and text.strip()[:1] not in ("'", '"') else _value(text.strip())
    for section in sections:
        if data.get(section) is None:
            data[section] = {}
        inner = data[section]
        if isinstance(inner, str) and section in ("method", "select", "tokens", "entropy"):
            inner = data[section] = {"name": inner}
        if not isinstance(inner, dict):
            raise ConfigError(f"override {override!r}: {section} is a value, not a section")
        data = inner
    data[key] = value


def _is_text(sections: Sequence[str], key: str) -> bool:
    """Whether a setting is a text or a path, so that `run.name=0` is none of a number."""
    fields: Any = Config
    for part in (*sections, key):
        if not (isinstance(fields, type) and issubclass(fields, pydantic.BaseModel) and part in fields.model_fields):
            return False
        fields = fields.model_fields[part].annotation
    return fields in (str, Path, str | None, Path | None)


def _value(text: str) -> Any:
    """Read a TOML value; what is none (a bare word) is a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _explain(error: Any) -> str:
    """Say in one line what pydantic found."""
    location = [str(part) for part in error["loc"]]
    where = ".".join(location) or "configuration"
    if error["type"] == "extra_forbidden":
        fields: Any = Config
        for part in location[:-1]:
            fields = fields.model_fields[part].annotation
        if where in ("recipes", "methods", "seeds"):
            return f"{where!r} is a key of a study, and this is read as a recipe: `turnwise study` takes studies"
        return f"unknown key {where!r}.{did_you_mean(location[-1], fields.model_fields)}"
    if error["type"] == "model_type" and isinstance(error["input"], str):
        return f"{where} is a section, got {json.dumps(error['input'])}; say {where}.KEY=VALUE, such as {where}.name={error['input']}"
    got = json.dumps(error["input"], default=str)
    message = error["msg"].removeprefix("Value error, ")
    return message if error["type"] == "value_error" else f"{where}: {message}, got {got}"
