"""Know how far the positions of a model reach."""

from collections.abc import Mapping
from typing import Any

from turnwise.base.errors import ConfigError


def longest(config: Any) -> int | None:
    """Return the number of positions within which what a token attends to does not depend on other rows of a pass.

    With `longrope`, transformers turns keys by other factors for all rows of a pass if one is longer than the original
    context.

    Args:
        config: Configuration of a model.
    """
    text = config.get_text_config()
    found = getattr(text, "max_position_embeddings", None)
    for rope in _ropes(text):
        if rope.get("rope_type", rope.get("type")) == "longrope":
            original = rope.get("original_max_position_embeddings")
            return original or getattr(text, "original_max_position_embeddings", None) or found
    return found


def check_positions(config: Any, name: str, max_context: int) -> None:
    """Raise if conversations may be longer than a model can read without depending on others.

    Raises:
        ConfigError: They may.
    """
    most = longest(config)
    if most is None or max_context <= most:
        return
    reads = getattr(config.get_text_config(), "max_position_embeddings", None)
    if most == reads:
        raise ConfigError(f"model.max_context={max_context} exceeds the {most} tokens that {name!r} can read; lower it")
    raise ConfigError(
        f"model.max_context={max_context} exceeds the {most} tokens of the original context of {name!r}: beyond them, "
        f"longrope makes the numbers of one conversation depend on others; set model.max_context={most} or less"
    )


def _ropes(text: Any) -> list[Mapping[str, Any]]:
    """Return the settings of rotary positions, of all kinds of layers."""
    given = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    return [given, *(each for each in given.values() if isinstance(each, Mapping))]
