"""Credit for the page: the base advantage of each response, and what other methods would have assigned."""

from collections.abc import Sequence

import numpy as np

from turnwise.columns import COLUMNS
from turnwise.config import Config
from turnwise.errors import ConfigError
from turnwise.methods.build import build_method, split_name
from turnwise.train.columns import SCORED
from turnwise.train.recorded import Step, penalties, recorded_batch
from turnwise.transform import Transform, chain
from turnwise.transforms import add_penalty

METHODS = ("grpo", "grpo+aem", "dr_grpo", "rloo", "gigpo", "gigpo+aem", "hgpo", "empg")
"""Methods that a page compares with unless others are asked for."""


def base_advantage(step: Step, config: Config) -> np.ndarray:
    """`[rows]` advantage before AEM's coefficient and without the penalty for an invalid response, nan where nothing was learned.

    The trainer recorded `alpha * base + penalty`.
    """
    return (step.values("advantage") - penalties(step, config)) / step.values("alpha")


def named_method(name: str) -> Transform:
    """Build the method of a name such as "gigpo" or "gigpo+aem", and check that a record can feed it.

    Raises:
        ConfigError: There is no such method, it needs options, or a column that no record has.
    """
    base, with_aem = split_name(name)
    method = build_method(base, {}, with_aem=with_aem)
    known = {key for key, column in COLUMNS.items() if column.source == "trainer"} | set(SCORED)
    for column in method.needs:
        if column not in known:
            raise ConfigError(
                f"method {name!r} needs the column {column!r}, which rollout files do not keep; leave it out"
            )
    return method


class OtherMethods:
    """What other methods would have assigned; methods with a state need the steps in order."""

    def __init__(self, names: Sequence[str], config: Config):
        self.config = config
        self._methods = {name: chain(named_method(name), add_penalty()) for name in dict.fromkeys(names)}
        self._states = {name: method.init() if method.init else None for name, method in self._methods.items()}

    @property
    def names(self) -> list[str]:
        """The methods."""
        return list(self._methods)

    def __call__(self, step: Step) -> dict[str, np.ndarray]:
        """Name to `[rows]` advantage, the penalty for an invalid response included; nan where the step learned nothing."""
        learned_R = step.learned_R
        if not learned_R.any():
            return {name: np.full(len(learned_R), np.nan) for name in self._methods}
        batch, result = recorded_batch(step, self.config), {}
        for name, method in self._methods.items():
            credit_R, self._states[name] = method.update(batch.reward_R, self._states[name], batch)
            result[name] = np.full(len(learned_R), np.nan)
            result[name][learned_R] = credit_R
        return result
