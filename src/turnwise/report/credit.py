"""Compute the credit that other methods assign, for the page."""

from collections.abc import Sequence

import numpy as np

from turnwise.errors import ConfigError
from turnwise.methods.build import build_method, split_name
from turnwise.train.recorded import KNOWN, Step, recorded_batch
from turnwise.transform import Transform, chain
from turnwise.transforms import add_penalty

METHODS = ("grpo", "grpo+aem", "dr_grpo", "rloo", "gigpo", "gigpo+aem", "hgpo", "empg")
"""Default methods to compare with."""


def named_method(name: str) -> Transform:
    """Build the method of a name such as "gigpo" or "gigpo+aem", and check that a record can feed it.

    Raises:
        ConfigError: There is no such method, or it needs options or a column that is not recorded.
    """
    base, with_aem = split_name(name)
    method = build_method(base, {}, with_aem=with_aem)
    for column in method.needs:
        if column not in KNOWN:
            raise ConfigError(
                f"method {name!r} needs the column {column!r}, which rollout files do not record; remove it from "
                "--methods"
            )
    return method


class OtherMethods:
    """Compute the credit that other methods assign. Methods with state need the steps in order.

    Args:
        names: Names of methods, such as "gigpo" or "gigpo+aem".
        invalid_penalty: `environment.invalid_penalty` of the run.
    """

    def __init__(self, names: Sequence[str], *, invalid_penalty: float):
        self._invalid_penalty = invalid_penalty
        self._methods = {name: chain(named_method(name), add_penalty()) for name in dict.fromkeys(names)}
        self._states = {name: method.init() if method.init else None for name, method in self._methods.items()}

    @property
    def names(self) -> list[str]:
        """The methods."""
        return list(self._methods)

    def __call__(self, step: Step) -> dict[str, np.ndarray]:
        """Return `[rows]` advantages by name, penalties included; nan for responses without credit."""
        learned_R = step.learned_R
        if not learned_R.any():
            return {name: np.full(len(learned_R), np.nan) for name in self._methods}
        batch, result = recorded_batch(step, invalid_penalty=self._invalid_penalty), {}
        for name, method in self._methods.items():
            credit_R, self._states[name] = method.update(batch.reward_R, self._states[name], batch)
            result[name] = np.full(len(learned_R), np.nan)
            result[name][learned_R] = credit_R
        return result
