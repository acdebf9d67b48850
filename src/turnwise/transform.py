"""Transforms: small steps that turn rewards into advantages, and how to compose them.

A `Transform` maps the credit of every response to a new one, given the batch. It starts as the reward and ends as the advantage:

    method = chain(outcome_return(), center_by_group(), scale_by_group_std(), modulate_by_entropy())
    advantage_R = method(batch)

A transform with state (a running baseline, say) takes and returns it: `credit_R, state = method.update(credit_R, state, batch)`.
State is a plain value, so that a checkpoint can hold it.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Concatenate, Literal, ParamSpec

import numpy as np
from jaxtyping import Float

from turnwise.batch import Batch
from turnwise.errors import ConfigError

Credit = Float[np.ndarray, " R"]
State = Any
Update = Callable[[Credit, State, Batch], tuple[Credit, State]]
P = ParamSpec("P")


@dataclasses.dataclass(frozen=True, slots=True)
class Gradient:
    """What a method does to the expected policy gradient, declared by the method and checked exactly in `tests/oracle`.

    Attributes:
        kind: "unbiased": equal to the gradient of the expected return. "scaled": equal up to `factor`. "biased": not parallel.
        factor: For "scaled": the factor as a function of the group size.
        reason: For "biased": why. For "unbiased": on which condition, if any ("with exact values").
        formula: For "scaled": the factor in words.
    """

    kind: Literal["unbiased", "scaled", "biased"]
    factor: Callable[[int], float] | None = None
    formula: str = ""
    reason: str = ""

    def __str__(self) -> str:
        return {
            "unbiased": f"unbiased {self.reason}".rstrip(),
            "scaled": f"scaled by {self.formula}",
            "biased": f"biased: {self.reason}",
        }[self.kind]


Stage = Literal["baseline", "modulation", "shaping"]
"""Where a method acts: on what a return is compared with, on how much an advantage counts, or on the rewards themselves."""

Confidence = Literal["exact", "near-exact", "reconstructed", "ours"]
"""How surely the formula is known: read in the paper or its code; all but details; from secondary notes that agree; our own."""


@dataclasses.dataclass(frozen=True, slots=True)
class Card:
    """What is known of a published method without building it.

    Attributes:
        title: Title of the paper.
        arxiv: Its arXiv number.
        stage: Where it acts.
        confidence: How surely its formula is known.
        trial: Values for the options that nobody published a value of, for listings and tests only.
    """

    title: str
    arxiv: str = ""
    stage: Stage = "baseline"
    confidence: Confidence = "exact"
    trial: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Transform:
    """One step from reward to advantage: `update(credit_R, state, batch) -> (credit_R, state)`.

    Attributes:
        name: How it was made, such as "scale_by_group_std(eps=1e-06)"; errors name it.
        update: The step itself. It returns new arrays and never changes its arguments.
        init: Makes the first state; None for a stateless transform.
        needs: Columns that the batch must have.
        across_groups: Whether the credit of a group depends on the other groups of its batch.
        gradient: Effect on the expected gradient, for published methods.
        card: Paper and stage, for published methods.
    """

    name: str
    update: Update
    init: Callable[[], State] | None = None
    needs: tuple[str, ...] = ()
    across_groups: bool = False
    gradient: Gradient | None = None
    card: Card | None = None

    def __call__(self, batch: Batch) -> Credit:
        """Advantage of every response, `[responses]`, from the batch's reward.

        Raises:
            BatchError: The batch lacks a column, or a step returned a wrong shape or a value that is not finite.
            ConfigError: The transform has state, which a plain call would lose.
        """
        if self.init is not None:
            raise ConfigError(f"{self.name} keeps state; call method.update(batch.reward_R, state, batch) with "
                              "state = method.init(), and keep the state it returns")  # fmt: skip
        credit_R, _ = self.update(batch.reward_R, None, batch)
        return batch.check_credit(credit_R, self.name)

    def __repr__(self) -> str:
        return self.name


_FACTORS = {"discount", "decay"}
"""Options that mean a factor a turn wherever they occur."""


def block(
    *,
    needs: Sequence[str] | Callable[[Mapping[str, Any]], Sequence[str]] = (),
    needs_option: str | None = None,
    across_groups: Callable[[Mapping[str, Any]], bool] = lambda options: options.get("scope") == "batch",
) -> Callable[[Callable[Concatenate[Credit, Batch, P], Credit]], Callable[P, Transform]]:
    """Turn `f(credit_R, batch, *, options) -> credit_R` into a constructor `f(*, options) -> Transform`.

    Args:
        needs: Columns that the block always needs, or what says from the options which.
        needs_option: The option whose value names further needed columns, unless it is None or "turn".
        across_groups: Says from the options whether a group's credit depends on other groups; default: with `scope="batch"`.

    Returns:
        A decorator. The pure function stays reachable as `constructor.function`.
    """

    def decorate(function: Callable[Concatenate[Credit, Batch, P], Credit]) -> Callable[P, Transform]:
        signature = inspect.signature(function)
        options = signature.replace(parameters=list(signature.parameters.values())[2:], return_annotation=Transform)

        @functools.wraps(function)
        def constructor(*args: P.args, **kwargs: P.kwargs) -> Transform:
            bound = options.bind(*args, **kwargs)  # a wrong option fails here, when the chain is built
            bound.apply_defaults()
            name = _described(function.__name__, bound)
            for factor in _FACTORS & bound.arguments.keys():
                if not 0.0 <= bound.arguments[factor] <= 1.0:
                    raise ConfigError(f"{function.__name__}: {factor}={bound.arguments[factor]} must lie in [0, 1]: what comes later counts "
                                      "no more for that")  # fmt: skip

            def update(credit_R: Credit, state: State, batch: Batch) -> tuple[Credit, State]:
                return function(credit_R, batch, *args, **kwargs), state

            named = bound.arguments[needs_option] if needs_option else None
            columns = (named,) if isinstance(named, str) else tuple(named or ())
            return Transform(
                name,
                update,
                needs=(
                    *(needs(bound.arguments) if callable(needs) else needs),
                    *(column for column in columns if column != "turn"),
                ),
                across_groups=across_groups(bound.arguments),
            )

        constructor.__signature__ = options  # pyright: ignore[reportAttributeAccessIssue]
        constructor.function = function  # pyright: ignore[reportAttributeAccessIssue]
        del constructor.__wrapped__  # else the help would show credit_R and batch as arguments
        return constructor

    return decorate


def chain(*transforms: Transform, name: str | None = None, gradient: Gradient | None = None) -> Transform:
    """Apply transforms in order. After each one, shape and finiteness are checked, and the error names it.

    >>> from turnwise.transforms import discounted_return, outcome_return
    >>> chain(outcome_return(), discounted_return()).name
    'chain(outcome_return(), discounted_return(discount=1.0))'

    Args:
        transforms: Blocks or whole methods.
        name: Name for errors.
        gradient: Declared effect of the whole on the expected gradient.
    """
    if not transforms:
        raise ConfigError("chain() needs at least one transform")
    name = name or f"chain({', '.join(part.name for part in transforms)})"

    def update(credit_R: Credit, state: State, batch: Batch) -> tuple[Credit, State]:
        states = state if state is not None else _initial(transforms)
        after = []
        for part, part_state in zip(transforms, states, strict=True):
            credit_R, part_state = part.update(credit_R, part_state, batch)
            batch.check_credit(credit_R, part.name if part.name == name else f"{part.name} in {name}")
            after.append(part_state)
        return credit_R, tuple(after)

    return _joint(name, update, transforms, gradient)


def mix(
    *transforms: Transform,
    weights: Sequence[float] | Sequence[int] | None = None,
    name: str | None = None,
    gradient: Gradient | None = None,
) -> Transform:
    """Weighted sum of what several transforms make of the same incoming credit: `sum_i weights[i] * credit_i`.

    Args:
        transforms: Blocks or whole methods; each sees the credit that came in.
        weights: One a transform; default all 1.
        name: Name for errors.
        gradient: Declared effect of the whole on the expected gradient.
    """
    weights = [1.0] * len(transforms) if weights is None else list(weights)
    if not transforms or len(weights) != len(transforms):
        raise ConfigError(
            f"mix() got {len(transforms)} transforms and {len(weights)} weights; give one weight a transform"
        )
    name = name or f"mix({', '.join(part.name for part in transforms)}, weights={weights})"

    def update(credit_R: Credit, state: State, batch: Batch) -> tuple[Credit, State]:
        states = state if state is not None else _initial(transforms)
        total_R, after = np.zeros_like(credit_R), []
        for part, part_state, weight in zip(transforms, states, weights, strict=True):
            part_R, part_state = part.update(credit_R, part_state, batch)
            total_R = total_R + weight * batch.check_credit(part_R, f"{part.name} in {name}")
            after.append(part_state)
        return total_R, tuple(after)

    return _joint(name, update, transforms, gradient)


def method(
    title: str,
    *,
    arxiv: str = "",
    stage: Stage = "baseline",
    confidence: Confidence = "exact",
    trial: Mapping[str, Any] | None = None,
) -> Callable[[Callable[P, Transform]], Callable[P, Transform]]:
    """Mark the constructor of a published method.

    What it builds is named after the constructor and its options, and carries the card, which the constructor has too (`card_of`).
    The constructor declares the effect on the expected gradient, as `chain(..., gradient=...)`.

    Args:
        title: Title of the paper.
        arxiv: Its arXiv number.
        stage: Where the method acts.
        confidence: How surely its formula is known.
        trial: Values for the options without a default, for listings and tests; no paper's.
    """
    card = Card(title, arxiv, stage, confidence, trial or {})

    def decorate(constructor: Callable[P, Transform]) -> Callable[P, Transform]:
        signature = inspect.signature(constructor)

        @functools.wraps(constructor)
        def build(*args: P.args, **kwargs: P.kwargs) -> Transform:
            built = constructor(*args, **kwargs)
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            return dataclasses.replace(built, name=_described(constructor.__name__, bound), card=card)

        build.card = card  # pyright: ignore[reportAttributeAccessIssue]
        return build

    return decorate


def card_of(constructor: Callable[..., Transform]) -> Card:
    """Card of a published method, given its constructor."""
    return constructor.card  # pyright: ignore[reportFunctionMemberAccess]


def trial(constructor: Callable[..., Transform]) -> Transform:
    """Build a method as it comes, with its card's trial values where it has no default: for listings and tests."""
    return constructor(**card_of(constructor).trial)


def _described(name: str, bound: inspect.BoundArguments) -> str:
    """The call that was made: `name(base, option=value)`."""
    parts = [
        repr(v) if isinstance(v, Transform) else f"{k}={v!r}"
        for k, v in bound.arguments.items()
        if k != "base" or v is not None
    ]
    return f"{name}({', '.join(parts)})"


def _initial(transforms: Sequence[Transform]) -> tuple[State, ...]:
    return tuple(part.init() if part.init else None for part in transforms)


def _joint(name: str, update: Update, parts: Sequence[Transform], gradient: Gradient | None) -> Transform:
    return Transform(
        name,
        update,
        (lambda: _initial(parts)) if any(part.init for part in parts) else None,
        needs=tuple(dict.fromkeys(name for part in parts for name in part.needs)),
        across_groups=any(part.across_groups for part in parts),
        gradient=gradient,
    )
