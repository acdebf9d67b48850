"""Compose transforms: small steps that turn rewards into advantages.

A `Transform` maps the credit of every response to a new credit. Credit starts as the reward and ends as the advantage:

    method = chain(outcome_return(), center_by_group(), scale_by_group_std(), modulate_by_entropy())
    advantage_R = method(batch)

A transform with state, such as a running baseline, takes and returns it:
`credit_R, state = method.update(credit_R, state, batch)`. State is plain data, so that a checkpoint can hold it.
`method.trace(batch)` also returns the effect of each block.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, overload

import numpy as np

from turnwise.base.errors import BatchError, ConfigError
from turnwise.base.shapes import Float
from turnwise.credit.batch import Batch
from turnwise.credit.card import Card, Confidence, Gradient, Stage
from turnwise.credit.options import bind, check_batch, check_transforms, check_value, described
from turnwise.credit.trace import Trace, Traced, is_traced, report, report_mix, tracing

Credit = Float[np.ndarray, " R"]
State = Any
Update = Callable[[Credit, State, Batch], tuple[Credit, State]]
P = ParamSpec("P")


@dataclasses.dataclass(frozen=True)
class Transform:
    """One step from reward to advantage: `update(credit_R, state, batch) -> (credit_R, state)`.

    Attributes:
        name: Constructor call, such as "scale_by_group_std(eps=1e-06)", for error messages.
        update: Function that computes the step. It returns new arrays and never changes its arguments.
        init: Function that makes the first state; None for a stateless transform.
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
        """Compute the advantage of every response, `[responses]`, from the batch's rewards.

        Raises:
            BatchError: The batch lacks a column, or a step returned a wrong shape or a value that is not finite.
            ConfigError: The transform has state, which this call would lose.
        """
        check_batch(batch, self.name)
        if self.init is not None:
            raise ConfigError(
                f"{self.name} keeps state; call method.update(batch.reward_R, state, batch) with "
                "state = method.init(), and keep the state it returns"
            )
        credit_R, _ = self._update(None, batch)
        return batch.check_credit(credit_R, self.name)

    def trace(self, batch: Batch, state: State = None) -> tuple[Trace, State]:
        """Compute advantages and the effect of each traced block.

        Args:
            batch: Responses to assign credit to.
            state: State returned by the previous call; None for the first call.

        Returns:
            The trace (advantages, base advantage, and coefficient and result of each traced block), and the state for
            the next call.
        """
        check_batch(batch, self.name)
        if state is None and self.init is not None:
            state = self.init()
        with tracing() as blocks:
            credit_R, state = self._update(state, batch)
        return Trace(batch.check_credit(credit_R, self.name), tuple(blocks)), state

    def _update(self, state: State, batch: Batch) -> tuple[Any, State]:
        try:
            return self.update(batch.reward_R, state, batch)
        except BatchError:
            if self.card:  # the method is what a caller knows, not its block that misses a column
                check_batch(batch, self.name, self.needs)
            raise

    def __repr__(self) -> str:
        return self.name


@overload
def block(function: Callable[Concatenate[Credit, Batch, P], Credit], /) -> Callable[P, Transform]: ...
@overload
def block(**options: Any) -> Callable[[Callable[Concatenate[Credit, Batch, P], Credit]], Callable[P, Transform]]: ...
def block(  # pyright: ignore[reportInconsistentOverload]
    function: Callable[..., Any] | None = None,
    /,
    *,
    needs: Sequence[str] | Callable[[Mapping[str, Any]], Sequence[str]] = (),
    needs_option: str | None = None,
    across_groups: Callable[[Mapping[str, Any]], bool] = lambda options: options.get("scope") == "batch",
    coefficient: bool = False,
    scales: bool = False,
    traced: bool = False,
) -> Any:
    """Turn `f(credit_R, batch, *, options) -> credit_R` into a constructor `f(*, options) -> Transform`.

    Args:
        function: The function, for `@block` without brackets.
        needs: Columns that the block needs, or a function that returns them from the options.
        needs_option: Option whose value names further columns that the block needs, unless it is None or "turn".
        across_groups: Function that returns from the options whether a group's credit depends on other groups. Default:
            it does with `scope="batch"`.
        coefficient: Whether the function returns a coefficient. The block then multiplies the credit by it and reports
            both to the trace.
        scales: Whether the function returns a weight, such as 0 for what it rejects. The block then multiplies the
            credit by it, of responses and of their tokens, without reporting a coefficient.
        traced: Whether to report the credit before and after the block to the trace, for blocks that add or mask.

    Returns:
        A decorator; with `function` the constructor. The undecorated function is `constructor.function`.
    """

    def decorate(function: Callable[Concatenate[Credit, Batch, P], Credit]) -> Callable[P, Transform]:
        signature = inspect.signature(function)
        options = signature.replace(parameters=list(signature.parameters.values())[2:], return_annotation=Transform)

        @functools.wraps(function)
        def constructor(*args: P.args, **kwargs: P.kwargs) -> Transform:
            bound = bind(function.__name__, options, args, kwargs)  # a wrong option fails here, as the chain is built
            name = described(function.__name__, bound)
            how = {"name": name, "coefficient": coefficient, "scales": scales, "traced": traced}
            named = bound.arguments[needs_option] if needs_option else None
            columns = (named,) if isinstance(named, str) else tuple(named or ())
            return Transform(
                name,
                functools.partial(_apply, lambda credit_R, batch: function(credit_R, batch, *args, **kwargs), **how),
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

    return decorate if function is None else decorate(function)


# Functions of their own, not made for each block: the tests' type checks compile a function where it is defined.
def _apply(
    function: Callable[[Credit, Batch], Credit],
    credit_R: Credit,
    state: State,
    batch: Batch,
    *,
    name: str,
    coefficient: bool,
    scales: bool,
    traced: bool,
) -> tuple[Credit, State]:
    """Apply the function of a block, and report to the trace what a block of its kind reports."""
    result_R = function(credit_R, batch)
    if not (coefficient or scales or traced):
        return result_R, state
    after_R = credit_R * result_R if coefficient or scales else result_R
    if scales:  # 0.0 for a rejected response, and not -0.0
        after_R = credit_R if (result_R == 1.0).all() else after_R + 0.0
    coefficient_R = result_R if coefficient else np.ones(len(credit_R))
    before_R = credit_R if coefficient or traced else after_R  # no change to be reported
    report(Traced(name, before_R, coefficient_R, after_R, scale_R=result_R if scales else None))
    return after_R, state


def chain(*transforms: Transform, name: str | None = None, gradient: Gradient | None = None) -> Transform:
    """Apply transforms in order; check shape and finiteness after each.

    >>> from turnwise.credit.transforms import discounted_return, outcome_return
    >>> chain(outcome_return(), discounted_return()).name
    'chain(outcome_return(), discounted_return(discount=1.0))'

    Args:
        transforms: Blocks or whole methods.
        name: Name for error messages.
        gradient: Declared effect of the chain on the expected gradient.
    """
    if not transforms:
        raise ConfigError("chain() needs at least one transform")
    check_transforms("chain", {f"part {number}": part for number, part in enumerate(transforms)}, Transform)
    name = name or f"chain({', '.join(part.name for part in transforms)})"
    return _joint(name, functools.partial(_chained, transforms, name), transforms, gradient)


def _chained(
    transforms: Sequence[Transform], name: str, credit_R: Credit, state: State, batch: Batch
) -> tuple[Credit, State]:
    states = state if state is not None else _initial(transforms)
    after = []
    for part, part_state in zip(transforms, states, strict=True):
        credit_R, part_state = part.update(credit_R, part_state, batch)
        credit_R = batch.check_credit(credit_R, part.name if part.name == name else f"{part.name} in {name}")
        after.append(part_state)
    return credit_R, tuple(after)


def mix(
    *transforms: Transform,
    weights: Sequence[float] | Sequence[int] | None = None,
    name: str | None = None,
    gradient: Gradient | None = None,
) -> Transform:
    """Compute the weighted sum of several transforms of the same credit: `sum_i weights[i] * credit_i`.

    Args:
        transforms: Blocks or whole methods; each gets the same incoming credit.
        weights: One weight per transform; default all 1.
        name: Name for error messages.
        gradient: Declared effect of the sum on the expected gradient.
    """
    check_transforms("mix", {f"part {number}": part for number, part in enumerate(transforms)}, Transform)
    if isinstance(weights, str) or not isinstance(weights, Sequence | np.ndarray | None):
        raise ConfigError(f"mix(weights={weights!r}): expected one number per transform")
    weights = [1.0] * len(transforms) if weights is None else list(weights)
    for weight in weights:
        check_value(f"mix(weights={weights})", weight, float)
    if not transforms or len(weights) != len(transforms):
        raise ConfigError(
            f"mix() got {len(transforms)} transforms and {len(weights)} weights; give one weight per transform"
        )
    name = name or f"mix({', '.join(part.name for part in transforms)}, weights={weights})"
    return _joint(name, functools.partial(_mixed, transforms, weights, name), transforms, gradient)


def _mixed(
    transforms: Sequence[Transform],
    weights: Sequence[float],
    name: str,
    credit_R: Credit,
    state: State,
    batch: Batch,
) -> tuple[Credit, State]:
    states = state if state is not None else _initial(transforms)
    total_R, after, traces = np.zeros_like(credit_R), [], []
    for part, part_state, weight in zip(transforms, states, weights, strict=True):
        with tracing() as blocks:
            part_R, part_state = part.update(credit_R, part_state, batch)
        total_R = total_R + weight * batch.check_credit(part_R, f"{part.name} in {name}")
        after.append(part_state)
        traces.append((weight, part_R, blocks))
    if is_traced():
        report_mix(name, traces, total_R, batch.tokens)
    return total_R, tuple(after)


def method(
    title: str,
    *,
    arxiv: str = "",
    stage: Stage = "baseline",
    confidence: Confidence = "exact",
    trial: Mapping[str, Any] | None = None,
) -> Callable[[Callable[P, Transform]], Callable[P, Transform]]:
    """Mark the constructor of a published method.

    The transform is named after the constructor and its options. Transform and constructor carry the card (`card_of`).
    The constructor declares the effect on the expected gradient with `chain(..., gradient=...)`.

    Args:
        title: Title of the paper.
        arxiv: arXiv number of the paper.
        stage: Stage of credit assignment at which the method acts.
        confidence: How certain the formula is.
        trial: Values for options without a default, for listings and tests only; they come from no paper.
    """
    card = Card(title, arxiv, stage, confidence, trial or {})

    def decorate(constructor: Callable[P, Transform]) -> Callable[P, Transform]:
        signature = inspect.signature(constructor)

        @functools.wraps(constructor)
        def build(*args: P.args, **kwargs: P.kwargs) -> Transform:
            bound = bind(constructor.__name__, signature, args, kwargs)
            bases = {name: value for name, value in bound.arguments.items() if name == "base" and value is not None}
            check_transforms(constructor.__name__, bases, Transform)
            built = constructor(*args, **kwargs)
            return dataclasses.replace(built, name=described(constructor.__name__, bound), card=card)

        build.card = card  # pyright: ignore[reportAttributeAccessIssue]
        return build

    return decorate


def card_of(constructor: Callable[..., Transform]) -> Card:
    """Return the card of a published method, given its constructor."""
    return constructor.card  # pyright: ignore[reportFunctionMemberAccess]


def trial(constructor: Callable[..., Transform]) -> Transform:
    """Build a method with its defaults, and its card's trial values for other options: for listings and tests."""
    return constructor(**(card_of(constructor).trial if hasattr(constructor, "card") else {}))


def _initial(transforms: Sequence[Transform]) -> tuple[State, ...]:
    return tuple(part.init() if part.init else None for part in transforms)


def _joint(name: str, update: Update, parts: Sequence[Transform], gradient: Gradient | None) -> Transform:
    init = (lambda: _initial(parts)) if any(part.init for part in parts) else None
    return Transform(
        name,
        update if init else lambda credit_R, _, batch: (update(credit_R, None, batch)[0], None),
        init,
        needs=tuple(dict.fromkeys(name for part in parts for name in part.needs)),
        across_groups=any(part.across_groups for part in parts),
        gradient=gradient,
    )
