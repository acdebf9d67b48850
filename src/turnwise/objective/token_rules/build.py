"""Build a token rule from a name and options, as a recipe gives them."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pydantic

from turnwise.base.errors import ConfigError
from turnwise.base.register import ENTROPY_RULES, TOKEN_RULES
from turnwise.credit.batch import Batch
from turnwise.credit.options import check_names, unknown
from turnwise.credit.segments import Segments
from turnwise.objective.token_rules.base import Corridor, StepTokens, TokenCredit, columns_of


def build_token_rule(name: str, options: Mapping[str, Any]) -> Callable[[StepTokens], TokenCredit]:
    """Build `TOKEN_RULES[name]` with its options.

    Raises:
        ConfigError: The name or an option is unknown, missing, of the wrong type or out of range.
    """
    return _build("tokens", TOKEN_RULES, name, options)


def build_entropy_rule(name: str, options: Mapping[str, Any]) -> Callable[[StepTokens], Corridor]:
    """Build `ENTROPY_RULES[name]` with its options; raises like `build_token_rule`."""
    return _build("entropy", ENTROPY_RULES, name, options)


def _build(section: str, rules: Mapping[str, Callable[..., Any]], name: str, options: Mapping[str, Any]) -> Any:
    if name not in rules:
        raise ConfigError(unknown(f"update.{section}", name, rules))
    make = rules[name]
    known = {p.name: p for p in inspect.signature(make).parameters.values() if p.kind is p.KEYWORD_ONLY}
    check_names(f"update.{section} {name!r}", options, known)
    for option, value in options.items():
        try:
            pydantic.TypeAdapter(known[option].annotation).validate_python(value, strict=True)
        except pydantic.ValidationError as error:
            raise ConfigError(f"update.{section}.{option}={value!r} of {name!r}: {error.errors()[0]['msg']}") from None
    missing = [option for option, p in known.items() if p.default is p.empty and option not in options]
    if missing:
        raise ConfigError(
            f"update.{section} {name!r} needs {' and '.join(missing)}; the paper's value is unknown, choose one"
        )
    rule = functools.partial(make, **options)
    rule(_one_token(columns_of(make)))  # so that conflicting options fail before the first rollout
    return functools.update_wrapper(rule, make)


def _one_token(columns: Sequence[str]) -> StepTokens:
    """Make a step of one response of one token, with zeros in the given columns."""
    one = Segments.from_lengths([1])
    batch = Batch(one, one, [0.0], {column: [0.0] for column in columns}, one)
    return StepTokens(np.zeros(1), np.zeros(1), np.zeros(1), batch=batch)
