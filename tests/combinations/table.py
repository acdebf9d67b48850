"""The table of features: their settings, their pairs, and the configuration of some of them."""

import functools
import itertools
import json
import sys
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pydantic

from turnwise.base.errors import ConfigError
from turnwise.base.facets import Conflict
from turnwise.config import Config, parse_config

HERE = Path(__file__).parent
REFUSED = HERE / "refused.json"
DEEP = ("environment", "engine", "prompt", "rollout", "update")
"""Sections whose settings count one by one; any other section counts as one setting."""

TABLE = tomllib.loads((HERE / "features.toml").read_text())
BASE: dict[str, Any] = TABLE["base"]
FEATURES: dict[str, dict[str, Any]] = {
    name: {section: value for section, value in feature.items() if section != "with"}
    for name, feature in TABLE["feature"].items()
}
WITH: dict[str, dict[str, Any]] = {name: feature.get("with", {}) for name, feature in TABLE["feature"].items()}


def settings_of(feature: str) -> set[str]:
    """The settings that a feature makes, such as "rollout.filter" or "critic"."""
    return {
        f"{section}.{name}"
        for section, value in FEATURES[feature].items()
        for name in (value if section in DEEP else ("",))
    }


def _pairs() -> list[tuple[str, str]]:
    """All pairs of features that share no setting."""
    both = itertools.combinations(FEATURES, 2)
    return [(one, other) for one, other in both if not settings_of(one) & settings_of(other)]


PAIRS = _pairs()


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Tables merged key by key; a named thing, such as a collector, replaces another one."""
    nested = {
        name: merged(below[name], value)
        for name, value in above.items()
        if isinstance(value, dict) and isinstance(below.get(name), dict) and "name" not in value
    }
    both = {**below, **above, **nested}
    if isinstance(below.get("environment"), dict) and isinstance(above.get("environment"), dict):
        both["environment"] = {**below["environment"], **above["environment"]}
    return both


def data_of(features: Iterable[str], **sections: Any) -> dict[str, Any]:
    """Plain data of a recipe that has these features."""
    features = [*features]
    parts = [BASE, *(WITH[name] for name in features), *(FEATURES[name] for name in features), sections]
    return functools.reduce(merged, parts)


def config_of(features: Iterable[str], **sections: Any) -> Config:
    """A recipe that has these features.

    Raises:
        ConfigError: They conflict.
    """
    return parse_config(data_of(features, **sections))


@functools.cache
def refusal(*features: str) -> str:
    """Why a recipe with these features is refused; empty if it is not."""
    try:
        config_of(features)
    except ConfigError as error:
        return str(error)
    return ""


@functools.cache
def conflict(*features: str) -> Conflict | None:
    """The parts of a recipe with these features that do not go together; None if all do."""
    try:
        Config.model_validate(data_of(features))
    except pydantic.ValidationError as error:
        found = error.errors()[0].get("ctx", {}).get("error")
        return found if isinstance(found, Conflict) else None
    return None


def refused() -> dict[tuple[str, str], str]:
    """All pairs that are refused today, each with the message."""
    return {pair: message for pair in PAIRS if (message := refusal(*pair))}


def listed() -> dict[str, str]:
    """The refused pairs of the file, each with the message."""
    return json.loads(REFUSED.read_text())


def main() -> None:
    """Write the refused pairs to their file, which may only get shorter, or print them with `--print`."""
    text = json.dumps({" + ".join(pair): message for pair, message in refused().items()}, indent=1) + "\n"
    if "--print" in sys.argv[1:]:
        print(text)
    else:
        REFUSED.write_text(text)


if __name__ == "__main__":
    main()
