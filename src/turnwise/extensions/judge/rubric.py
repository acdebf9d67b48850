"""Read a rubric: weighted criteria, each about a turn or a whole trajectory."""

import tomllib
from pathlib import Path
from typing import Any, Literal

import pydantic

from turnwise.base.errors import ConfigError
from turnwise.base.imports import import_named


class Criterion(pydantic.BaseModel):
    """One criterion, answered yes, no or not applicable."""

    model_config = pydantic.ConfigDict(extra="forbid", str_strip_whitespace=True)

    text: str = pydantic.Field(min_length=1)
    """What is to be met."""
    weight: float = pydantic.Field(default=1.0, strict=True, allow_inf_nan=False)
    """Weight of a yes; negative for what should not happen."""
    per: Literal["turn", "trajectory"] = "trajectory"
    """Whether the question is about every turn, or the whole trajectory at its end."""

    @property
    def about(self) -> str:
        """What a question asks about."""
        return "the last turn" if self.per == "turn" else "the whole attempt"


class _Rubric(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")

    criteria: list[Criterion] = pydantic.Field(min_length=1)


def read_rubric(name: str) -> list[Criterion]:
    """Read the criteria of a TOML file, in tables `[[criteria]]`, or those of a list `module:NAME`.

    Raises:
        ConfigError: It cannot be read, or is not such a list.
    """
    try:
        given: Any = (
            tomllib.loads(Path(name).read_text(encoding="utf-8-sig"))
            if name.endswith(".toml")
            else {"criteria": import_named(name)}
        )
        return _Rubric.model_validate(given).criteria
    except OSError as error:
        raise ConfigError(f"judge.rubric: cannot read {name}: {error.strerror or error}") from None
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"judge.rubric={name!r}: {place}: {first['msg']}, got {str(first['input'])[:80]!r}") from None
    except ConfigError as error:  # of the import
        raise ConfigError(f"judge.rubric={name!r}: {error}") from None
    except ValueError as error:  # of TOML
        raise ConfigError(f"judge.rubric: {name} is not valid TOML: {error}") from None
