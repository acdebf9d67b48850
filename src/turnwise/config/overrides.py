"""Read overrides such as `update.learning_rate=1e-4`."""

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pydantic

from turnwise.errors import ConfigError


def apply(data: dict[str, Any], override: str, whole: type[pydantic.BaseModel]) -> None:
    """Apply an override such as `update.learning_rate=1e-4` to plain data.

    Args:
        data: Sections by name; changed in place.
        override: The override; its value is one of TOML, and anything else, such as a bare word, is a text.
        whole: The configuration, which says what is a text.

    Raises:
        ConfigError: It is no override, or goes into a value.
    """
    path, equals, text = override.partition("=")
    *sections, key = (part.strip() for part in path.split("."))
    if not equals or not all((*sections, key)):
        raise ConfigError(f"override {override!r} does not have the form section.key=value")
    text = text.strip()
    value = text if _is_text(sections, key, whole) and text[:1] not in ("'", '"') else _value(text)
    for section in sections:
        if data.get(section) is None or data[section] is False:
            data[section] = {}
        inner = data[section]
        if isinstance(inner, str) and section in ("method", "select", "collector", "tokens", "entropy"):
            inner = data[section] = {"name": inner}
        if not isinstance(inner, dict):
            raise ConfigError(f"override {override!r}: {section} is a value, not a section")
        data = inner
    data[key] = value


def _is_text(sections: Sequence[str], key: str, whole: type[pydantic.BaseModel]) -> bool:
    """Return whether a setting is a text or a path, so that `run.name=0` is not read as a number."""
    fields: Any = whole
    for part in (*sections, key):
        if not (isinstance(fields, type) and issubclass(fields, pydantic.BaseModel) and part in fields.model_fields):
            return False
        fields = fields.model_fields[part].annotation
    return fields in (str, Path, str | None, Path | None)


def _value(text: str) -> Any:
    """Parse a TOML value; anything else, such as a bare word, is a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        if text[:1] in ("{", "["):
            raise ConfigError(
                f'{text} is not a value of TOML; write tables as {{name = "grpo"}} and lists as ["a", "b"], in '
                "quotes for the shell"
            ) from None
        return text
