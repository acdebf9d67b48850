"""Trace how blocks turn rewards into advantages.

A traced block (`block(coefficient=True)` or `block(traced=True)`) reports the credit before and after it, and one that
weights or masks (`block(scales=True)`) its effect on tokens. Records, reports and adapters read the base advantage and
the coefficients here, so that nothing computes them twice.
"""

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar

import numpy as np

from turnwise.base.shapes import Bool, Float
from turnwise.credit.segments import Segments

Values = Float[np.ndarray, " R"]
TokenValues = Float[np.ndarray, " T"]


@dataclasses.dataclass(frozen=True, slots=True)
class Traced:
    """Effect of one block: `after = coefficient * before + added`.

    Attributes:
        block: Name of the block with its options.
        before_R: `[responses]` credit before the block.
        coefficient_R: `[responses]` factor; 1 for a block that adds or masks.
        after_R: `[responses]` credit after the block.
        parts: For `mix`: effects of the blocks of its parts, part by part; a `mix` in it has its own parts.
        within_T: `[tokens]` credit of each token minus that of its response, for a block that distinguishes tokens.
        targets: What a critic should learn, by column, for a block that assigns credit from values.
        kept_R: `[responses]` whether the loss has the response, for a block that leaves some out.
        scale_R: `[responses]` factor for the credit of single tokens, of a block that weights or masks responses.
        scale_T: `[tokens]` the same, of a block that weights tokens.
        rate: Factor on the step's learning rate.
    """

    block: str
    before_R: Values
    coefficient_R: Values
    after_R: Values
    parts: tuple["Traced", ...] = ()
    within_T: TokenValues | None = None
    targets: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    kept_R: Bool[np.ndarray, " R"] | None = None
    scale_R: Values | None = None
    scale_T: TokenValues | None = None
    rate: float = 1.0

    @property
    def name(self) -> str:
        """Return the name of the block without its options."""
        return self.block.partition("(")[0]

    @property
    def changes(self) -> bool:
        """Whether the block changes the credit of responses; others report targets or tokens only."""
        return self.after_R is not self.before_R


@dataclasses.dataclass(frozen=True, slots=True)
class Trace:
    """Advantages and the effects of the traced blocks.

    Attributes:
        advantage_R: `[responses]` final advantages.
        blocks: Effects of the traced blocks, in order; a `mix` is one entry.
    """

    advantage_R: Values
    blocks: tuple[Traced, ...] = ()

    @property
    def base_R(self) -> Values:
        """Return the base advantage: the credit before the first traced block that changes it, `[responses]`."""
        return next((traced.before_R for traced in self.blocks if traced.changes), self.advantage_R)

    @property
    def coefficient_R(self) -> Values:
        """Return the product of the coefficients, `[responses]`; 1 where no block has one."""
        product_R = np.ones(len(self.advantage_R))
        for traced in self.blocks:
            product_R = product_R * traced.coefficient_R
        return product_R

    def within_T(self, tokens: Segments | None) -> TokenValues | None:
        """Return each token's credit minus that of its response; None if no block tells tokens apart.

        A coefficient, weight or mask scales what the blocks before it report. Blocks that add, centre or standardise
        change the response's credit alone.
        """
        result = None
        for traced in self.blocks:
            if result is not None:
                assert tokens is not None, "a block that tells tokens apart needs tokens"
                scale_R = traced.coefficient_R if traced.scale_R is None else traced.scale_R
                result = result * (tokens.broadcast(scale_R) if traced.scale_T is None else traced.scale_T)
            if traced.within_T is not None:
                result = traced.within_T if result is None else result + traced.within_T
        return result

    def advantage_T(self, tokens: Segments) -> TokenValues:
        """Return the advantage of every token: its response's, plus what sets the token apart."""
        within_T = self.within_T(tokens)
        advantage_T = tokens.broadcast(self.advantage_R)
        return advantage_T if within_T is None else advantage_T + within_T

    @property
    def kept_R(self) -> Bool[np.ndarray, " R"] | None:
        """Return whether the loss has each response, if a block leaves some out."""
        masks = [traced.kept_R for traced in _each(self.blocks) if traced.kept_R is not None]
        return np.logical_and.reduce(masks) if masks else None

    @property
    def in_loss_R(self) -> Bool[np.ndarray, " R"]:
        """Return whether the loss has each response, also if no block leaves any out."""
        return np.ones(len(self.advantage_R), dtype=bool) if self.kept_R is None else self.kept_R

    @property
    def rate(self) -> float:
        """Return the factor on the step's learning rate."""
        return math.prod(traced.rate for traced in _each(self.blocks))

    @property
    def targets(self) -> dict[str, np.ndarray]:
        """Return what a critic should learn, by column, as the blocks report it."""
        return {name: target for traced in _each(self.blocks) for name, target in traced.targets.items()}

    @property
    def columns(self) -> dict[str, Values]:
        """Return the columns to record: `base`, `alpha` (product of coefficients), `advantage`, and two per block.

        Block i has the columns `trace.{i}.{name}.coefficient` and `trace.{i}.{name}`, its result. The last result is
        the advantage. Block j of the parts of a `mix` that is block i has `trace.{i}.{j}.{name}`.
        """
        result = {"base": self.base_R, "alpha": self.coefficient_R, "advantage": self.advantage_R}
        for place, traced in _places(self.blocks):
            result[place] = traced.after_R
            if (traced.coefficient_R != 1.0).any():
                result[f"{place}.coefficient"] = traced.coefficient_R
        return result


def _each(blocks: Sequence[Traced]) -> Iterator[Traced]:
    """Yield the blocks, the parts of a `mix` before it."""
    for traced in blocks:
        yield from _each(traced.parts)
        yield traced


def _places(blocks: Sequence[Traced], prefix: str = "trace") -> Iterator[tuple[str, Traced]]:
    """Yield the blocks that change credit with the names of their columns, the parts of a `mix` before it."""
    for number, traced in enumerate(each for each in blocks if each.changes):
        yield from _places(traced.parts, f"{prefix}.{number}")
        yield f"{prefix}.{number}.{traced.name}", traced


_open: ContextVar[list[Traced] | None] = ContextVar("turnwise_trace", default=None)


@contextlib.contextmanager
def tracing() -> Iterator[list[Traced]]:
    """Collect the reports of blocks inside the `with` statement; an outer collection does not receive them."""
    collected: list[Traced] = []
    token = _open.set(collected)
    try:
        yield collected
    finally:
        _open.reset(token)


def is_traced() -> bool:
    """Return whether a `tracing()` statement collects reports."""
    return _open.get() is not None


def report(traced: Traced) -> None:
    """Report the effect of a block, if a `tracing()` statement collects it."""
    if (collected := _open.get()) is not None:
        collected.append(traced)


def report_values(
    name: str,
    credit_R: Values,
    *,
    targets: Mapping[str, np.ndarray],
    within_T: TokenValues | None = None,
    scale_T: TokenValues | None = None,
) -> None:
    """Report what a block that reads a critic knows in addition to the credit that it assigns.

    Args:
        name: Name of the block.
        credit_R: `[responses]` credit that the block assigns.
        targets: What the critic should learn, by column.
        within_T: `[tokens]` credit of each token minus that of its response.
        scale_T: `[tokens]` factor for what earlier blocks report of tokens; default 1.
    """
    told = {"within_T": within_T, "targets": targets, "scale_T": scale_T}
    report(Traced(name, credit_R, np.ones(len(credit_R)), credit_R, **told))


def report_tokens(
    name: str,
    credit_T: TokenValues,
    tokens: Segments,
    *,
    targets: Mapping[str, np.ndarray] | None = None,
    scale_T: TokenValues | None = None,
) -> Values:
    """Report the credit of tokens, and more as in `report_values`; return the mean of each response."""
    credit_R = tokens.mean(credit_T)
    within_T = credit_T - tokens.broadcast(credit_R)
    report_values(name, credit_R, targets=targets or {}, within_T=within_T, scale_T=scale_T)
    return credit_R


def report_kept(name: str, credit_R: Values, kept_R: Bool[np.ndarray, " R"]) -> None:
    """Report which responses the loss keeps, for a block that leaves some out without changing the credit."""
    report(Traced(name, credit_R, np.ones(len(credit_R)), credit_R, kept_R=kept_R))


def report_rate(name: str, credit_R: Values, rate: float) -> None:
    """Report a factor on the step's learning rate, for a block that leaves the credit as it is."""
    report(Traced(name, credit_R, np.ones(len(credit_R)), credit_R, rate=rate))


def report_mix(
    name: str,
    parts: Sequence[tuple[float, Values, Sequence[Traced]]],
    total_R: Values,
    tokens: Segments | None = None,
) -> None:
    """Report a weighted sum as one block. Its base is the sum of the parts' bases, its coefficient the ratio of sums.

    Where the bases sum to 0 the ratio does not exist, and the coefficient is 1.

    Args:
        name: Name of the sum.
        parts: Weight, credit and block reports of each part.
        total_R: `[responses]` weighted sum.
        tokens: Segments of tokens, for parts that tell tokens apart.
    """
    if not any(blocks for _, _, blocks in parts):
        return
    base_R, product_R = np.zeros(len(total_R)), np.zeros(len(total_R))
    inner: list[Traced] = []
    within_T = None
    for weight, part_R, blocks in parts:
        trace = Trace(part_R, tuple(blocks))
        if (part_T := trace.within_T(tokens)) is not None:
            within_T = weight * part_T + (0.0 if within_T is None else within_T)
        base_R = base_R + weight * trace.base_R
        product_R = product_R + weight * trace.base_R * trace.coefficient_R
        inner += blocks
    ratio_R = np.divide(product_R, base_R, out=np.ones(len(total_R)), where=base_R != 0.0)
    changes = any(traced.changes for traced in inner)
    report(Traced(name, base_R if changes else total_R, ratio_R, total_R, tuple(inner), within_T))
