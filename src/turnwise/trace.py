"""Trace how blocks turn rewards into advantages.

A traced block (`block(coefficient=True)` or `block(traced=True)`) reports the credit before and after it. Records,
reports and adapters read the base advantage and the coefficients here, so that nothing computes them twice.
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from contextvars import ContextVar

import numpy as np
from jaxtyping import Float

Values = Float[np.ndarray, " R"]


@dataclasses.dataclass(frozen=True, slots=True)
class Traced:
    """Effect of one block: `after = coefficient * before + added`.

    Attributes:
        block: Name of the block with its options.
        before_R: `[responses]` credit before the block.
        coefficient_R: `[responses]` factor; 1 for a block that adds or masks.
        after_R: `[responses]` credit after the block.
        parts: For `mix`: effects of the blocks of its parts, part by part; a `mix` in it has parts of its own.
    """

    block: str
    before_R: Values
    coefficient_R: Values
    after_R: Values
    parts: tuple["Traced", ...] = ()

    @property
    def name(self) -> str:
        """Return the name of the block without its options."""
        return self.block.partition("(")[0]


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
        """Return the base advantage: the credit before the first traced block, `[responses]`."""
        return self.blocks[0].before_R if self.blocks else self.advantage_R

    @property
    def coefficient_R(self) -> Values:
        """Return the product of the coefficients, `[responses]`; 1 where no block has one."""
        product_R = np.ones(len(self.advantage_R))
        for traced in self.blocks:
            product_R = product_R * traced.coefficient_R
        return product_R

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


def _places(blocks: Sequence[Traced], prefix: str = "trace") -> Iterator[tuple[str, Traced]]:
    """Yield the blocks with the names of their columns, the parts of a `mix` before it."""
    for number, traced in enumerate(blocks):
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


def report_mix(name: str, parts: Sequence[tuple[float, Values, Sequence[Traced]]], total_R: Values) -> None:
    """Report a weighted sum as one block. Its base is the sum of the parts' bases, its coefficient the ratio of sums.

    Where the bases sum to 0 the ratio does not exist, and the coefficient is 1.

    Args:
        name: Name of the sum.
        parts: Weight, credit and block reports of each part.
        total_R: `[responses]` weighted sum.
    """
    if not any(blocks for _, _, blocks in parts):
        return
    base_R, product_R = np.zeros(len(total_R)), np.zeros(len(total_R))
    inner: list[Traced] = []
    for weight, part_R, blocks in parts:
        trace = Trace(part_R, tuple(blocks))
        base_R = base_R + weight * trace.base_R
        product_R = product_R + weight * trace.base_R * trace.coefficient_R
        inner += blocks
    ratio_R = np.divide(product_R, base_R, out=np.ones(len(total_R)), where=base_R != 0.0)
    report(Traced(name, base_R, ratio_R, total_R, tuple(inner)))
