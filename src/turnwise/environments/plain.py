"""Convert an environment's values to plain data: what JSON can hold, within bounds."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from turnwise.base.errors import EnvironmentFault

MAX_DEPTH = 32
"""Deepest nesting of `info`."""
MAX_SIZE = 1 << 24
"""Largest `info`: characters of its texts, plus one per value."""
MAX_BITS = 63
"""Maximum number of digits of an integer; JSON readers in other languages cannot hold longer ones."""


def plain_mapping(value: Mapping[Any, Any], name: str) -> dict[str, Any]:
    """Convert a mapping to texts, numbers, booleans, None, lists and dicts.

    Arrays become lists; numbers that are not finite, and objects of other types, become their text.

    Args:
        value: The mapping; keys become texts.
        name: What to call it in messages, such as "info".

    Raises:
        EnvironmentFault: It is nested too deeply, too large, or holds a value that has no text.
    """
    return _Plain(name).mapping(value, name, 0)


class _Plain:
    """Convert one value, and count what it takes."""

    def __init__(self, name: str):
        self.name, self.left = name, MAX_SIZE

    def mapping(self, value: Mapping[Any, Any], where: str, depth: int) -> dict[str, Any]:
        converted = {}
        for key in value:
            text = key if type(key) is str else self._text_of(key, f"a key of {where}")
            text = self._counted(text)
            converted[text] = self.any(value[key], f"{where}[{text[:40]!r}]", depth + 1)
        return converted

    def any(self, value: Any, where: str, depth: int) -> Any:
        kind = type(value)
        if kind is str:
            return self._counted(value)
        self._count(1)
        if value is None or kind is bool:
            return value
        if kind in (list, tuple, dict) and len(value) > self.left:
            self._count(len(value))  # refused before millions of parts are looked at
        if depth > MAX_DEPTH:
            raise EnvironmentFault(f"{self.name} is nested more than {MAX_DEPTH} levels deep, at {where[:200]}")
        if isinstance(value, np.generic):
            return self.any(value.item(), where, depth + 1)
        if isinstance(value, np.ndarray):
            self._count(value.size)
            return self.any(value.tolist(), where, depth + 1)
        if isinstance(value, int):
            return self._integer(int(value), where)
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else self._counted(str(float(value)))
        if isinstance(value, Mapping):
            return self.mapping(value, where, depth)
        if isinstance(value, list | tuple):
            return [self.any(part, f"{where}[{place}]", depth + 1) for place, part in enumerate(value)]
        return self._counted(self._text_of(value, where))

    def _integer(self, value: int, where: str) -> int:
        if value.bit_length() > MAX_BITS:
            raise EnvironmentFault(
                f"{where} is an integer of {value.bit_length()} bits, expected at most {MAX_BITS}; give it as a text"
            )
        return value

    def _text_of(self, value: Any, where: str) -> str:
        try:
            return "".join(str(value))  # not of a subclass
        except Exception as error:  # a value may be of any class
            raise EnvironmentFault(
                f"{where} is of type {type(value).__name__}, whose text cannot be made ({type(error).__name__}); give "
                "texts, numbers, lists and dicts"
            ) from None

    def _counted(self, text: str) -> str:
        self._count(len(text) + 1)
        return sound_text(text)

    def _count(self, size: int) -> None:
        self.left -= size
        if self.left < 0:
            raise EnvironmentFault(
                f"{self.name} has more than {MAX_SIZE:,} characters and values; leave large ones out"
            )


def sound_text(text: str) -> str:
    """Replace characters that UTF-8 cannot encode (lone surrogates, which JSON allows) with "?"."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="replace").decode()
    return text


def sound(value: Any) -> Any:
    """Return a value of JSON, or a dataclass of such, with `sound_text` in place of its texts."""
    if isinstance(value, str):
        return sound_text(value)
    if isinstance(value, dict):
        return {sound(key): sound(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(sound, value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: sound(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return dataclasses.replace(value, **fields)
    return value
