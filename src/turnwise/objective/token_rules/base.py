"""Define the inputs and outputs of token rules."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
import pydantic

from turnwise.base.shapes import Bool, Float
from turnwise.credit.batch import Batch

Values = Float[np.ndarray, " T"]

Aggregate = Literal["token-mean", "response-mean", "trajectory-mean", "nested-mean", "constant"]
"""Ways to average a loss; see `turnwise.objective.losses.token_weights`."""
Clip = Literal["ppo", "keep", "cispo", "none"]
"""Clips of the probability ratio; see `turnwise.objective.losses.policy_loss`."""
LogRatio = Literal["free", "verl"]
"""Log-ratios as they are, or bounded as verl bounds them."""
Mismatch = Literal["truncate", "mask", "reject"]
"""What happens to tokens whose ratio to the engine is beyond its bounds; see `turnwise.objective.mismatch`."""
Spread = Literal["product", "geometric"]
"""Ratio of a span of tokens: the product of theirs, or their geometric mean."""
Estimator = Literal["k1", "k2", "k3", "abs", "k1+", "k3+", "abs+"]
"""Estimators of a KL divergence; see `turnwise.objective.kl.kl_penalty`."""

Frac = Annotated[float, pydantic.Field(gt=0, le=1)]
Positive = Annotated[float, pydantic.Field(gt=0)]
NotNegative = Annotated[float, pydantic.Field(ge=0)]

Rule = TypeVar("Rule", bound=Callable[..., Any])


def reads(*columns: str) -> Callable[[Rule], Rule]:
    """Declare the columns of the step's batch that a rule reads. A run takes the measures that fill them.

    Such a rule sees the whole step. Others see what the method keeps in the loss, since they compare tokens.
    """

    def declare(rule: Rule) -> Rule:
        rule.__dict__["reads"] = columns
        return rule

    return declare


def columns_of(rule: Callable[..., Any]) -> tuple[str, ...]:
    """Return the columns that `reads` declares for a rule; none without a declaration."""
    return rule.__dict__.get("reads", ())


@dataclasses.dataclass(frozen=True)
class StepTokens:
    """Generated tokens of a training step, under the policy at its start."""

    advantage_T: Values  # advantage of each token's response
    logprob_T: Values  # log-probability of each token (nats)
    entropy_T: Values  # entropy of the policy at each token (nats)
    clip_low: float = 0.2  # clip width below 1, from the recipe
    clip_high: float = 0.2  # clip width above 1, from the recipe
    steps_done: int = 0  # steps before this one
    steps: int = 1  # steps of the whole run
    seed: Sequence[int] = (0,)  # seed of the step's random draws
    state: Any = None  # state that the rule returned in the previous step; None in the first
    batch: Batch | None = None  # responses of the step, with the columns that the rule `reads`

    @property
    def responses(self) -> Batch:
        """Return the responses of the step, which rules that `reads` declares get."""
        assert self.batch is not None, "declare the columns of the rule with @reads(...)"
        return self.batch

    @property
    def progress(self) -> float:
        """Return the fraction of the run that is done, from 0."""
        return self.steps_done / self.steps

    def __len__(self) -> int:
        return len(self.advantage_T)


@dataclasses.dataclass(frozen=True)
class TokenCredit:
    """Inputs of `policy_loss` per token. None keeps the value without a rule."""

    # Whether a token counts; the means of the loss run over kept tokens only
    kept_T: Bool[np.ndarray, " T"] | None = None
    factor_T: Values | None = None  # factor on the loss of a token; the denominators do not change
    advantage_T: Values | None = None  # advantages that replace those of the responses
    clip_low_T: Values | None = None  # clip widths below 1
    clip_high_T: Values | None = None  # clip widths above 1; set both or neither
    tilt_T: Values | None = None  # argument `tilt` of `policy_loss`
    penalty_T: Values | None = None  # argument `penalty` of `policy_loss`
    state: Any = None  # state for the next step, as plain data for the checkpoint

    def part(self, chosen_T: Bool[np.ndarray, " T"] | None) -> "TokenCredit":
        """Return its values for some of the tokens; None: all."""
        if chosen_T is None:
            return self
        of_tokens = {
            name: value[chosen_T] for name, value in vars(self).items() if name.endswith("_T") and value is not None
        }
        return dataclasses.replace(self, **of_tokens)

    def among(self, chosen_T: Bool[np.ndarray, " T"]) -> "TokenCredit":
        """Return its values at some of more tokens, with zeros at the others."""
        of_tokens: dict[str, np.ndarray] = {}
        for name, value in vars(self).items():
            if name.endswith("_T") and value is not None:
                of_tokens[name] = np.zeros(len(chosen_T), dtype=value.dtype)
                of_tokens[name][chosen_T] = value
        return dataclasses.replace(self, **of_tokens)

    def corrected(self, factor_T: Values, kept_T: Bool[np.ndarray, " T"] | None) -> "TokenCredit":
        """Return it with a further factor and without further tokens; None: all are kept."""
        factor_T = factor_T if self.factor_T is None else self.factor_T * factor_T
        kept_T = self.kept_T if kept_T is None else kept_T if self.kept_T is None else self.kept_T & kept_T
        return dataclasses.replace(self, factor_T=factor_T, kept_T=kept_T)


@dataclasses.dataclass(frozen=True)
class Corridor:
    """Arguments of `entropy_loss` for the passes over a step."""

    aggregate: Aggregate  # argument `aggregate` of `token_weights`
    bonus: float  # coefficient of the entropy
    penalty: float = 0.0  # coefficient of the distance from the corridor
    low: float = 0.0  # lower end of the corridor (nats)
    high: float = float("inf")  # upper end of the corridor (nats)
    state: Any = None  # state for the next step, as plain data for the checkpoint
