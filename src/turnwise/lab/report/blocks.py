"""Read from the record of a step what each traced block did to the credit of each response."""

import dataclasses
import math
import re
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from turnwise.train.recorded import RecordedStep, base_advantage, penalties

OTHER = "other"
"""Stands for blocks that the record does not trace."""
MODULATION, PENALTY, MASK = "modulate_by_entropy", "add_penalty", "mask_by_drift"
RESULT = re.compile(r"trace\.(\d+(?:\.\d+)*)\.(.+?)(\.coefficient)?")
"""A column of `turnwise.credit.trace.Trace.columns`: place, name, and whether it is the coefficient."""
PRECISION = 1e-9
"""Differences below this share of the values are rounding."""


@dataclasses.dataclass(frozen=True, slots=True)
class Did:
    """What one block did: `result = coefficient * what came in + added`."""

    block: str  # name of the block, or `OTHER`
    coefficient_R: np.ndarray  # `[rows]` factor; 1 for a block without one
    added_R: np.ndarray  # `[rows]` term; for a mask, minus the credit that it removes
    result_R: np.ndarray  # `[rows]` credit after the block
    # The block acts inside the `mix` that follows. Its `added_R` is 0, since nothing tells what came in.
    part: bool = False
    mix: bool = False  # the block is a `mix`


def traced_blocks(step: RecordedStep, *, invalid_penalty: float) -> list[Did]:
    """List what each block did, in order, so that the sum leads from the base advantage to the advantage.

    Files of version 0.1 do not say: there it is the recorded coefficient, then the penalty.

    Args:
        step: The record.
        invalid_penalty: `environment.invalid_penalty` of the run.
    """
    value_R = base_advantage(step, invalid_penalty=invalid_penalty)
    advantage_R, penalty_R = step.values("advantage"), penalties(step, invalid_penalty)
    rounding_R = PRECISION * (np.abs(value_R) + np.abs(advantage_R) + np.abs(penalty_R))
    recorded = _recorded(step, value_R)
    result: list[Did] = []

    def add_other(after_R: np.ndarray) -> np.ndarray:
        """Account for what untraced blocks did up to here; return the credit after them."""
        added_R = _difference(value_R, after_R, rounding_R)
        if not np.nan_to_num(added_R).any():
            return value_R
        other_R = np.where(added_R == 0.0, value_R, after_R)
        result.append(Did(OTHER, np.ones(len(added_R)), added_R, other_R))
        return other_R

    for block in recorded:
        if block.part:
            result.append(block)
            continue
        is_penalty = block is recorded[-1] and block.block == PENALTY
        value_R = add_other(_came_in(block, value_R, penalty_R if is_penalty else None))
        added_R = _difference(block.coefficient_R * value_R, block.result_R, rounding_R)
        result.append(dataclasses.replace(block, added_R=added_R))
        value_R = block.result_R
    add_other(advantage_R)
    return result


def blocks_column(step: RecordedStep, blocks: Sequence[Did]) -> pa.ListArray:
    """Turn the blocks into a column: a list per response, empty where nothing was learned."""
    learned_R = step.learned_R
    num = int(learned_R.sum())

    def interleaved(values: Sequence[np.ndarray]) -> np.ndarray:
        return np.stack([column[learned_R] for column in values], axis=1).ravel() if values else np.zeros(0)

    fields = {
        "block": pa.array([block.block for block in blocks] * num, pa.string()),
        "coefficient": pa.array(interleaved([block.coefficient_R for block in blocks]), pa.float32()),
        "added": pa.array(interleaved([block.added_R for block in blocks]), pa.float32()),
        "result": pa.array(interleaved([block.result_R for block in blocks]), pa.float32()),
        "part": pa.array([block.part for block in blocks] * num, pa.bool_()),
    }
    offsets = np.concatenate([[0], np.cumsum(learned_R * len(blocks))]).astype(np.int32)
    return pa.ListArray.from_arrays(offsets, pa.StructArray.from_arrays(list(fields.values()), list(fields)))


def _recorded(step: RecordedStep, base_R: np.ndarray) -> list[Did]:
    """The blocks of the file, with `added_R` still 0; the parts of a `mix` before it."""
    ones_R, zeros_R = np.ones(len(base_R)), np.zeros(len(base_R))
    found = [match for name in step.table.column_names if (match := RESULT.fullmatch(name))]
    factors = {match[1]: step.values(match[0]) for match in found if match[3]}
    blocks = {
        tuple(map(int, match[1].split("."))): Did(
            match[2], factors.get(match[1], ones_R), zeros_R, step.values(match[0]), part="." in match[1]
        )
        for match in found
        if not match[3]
    }
    if not blocks:
        alpha_R = step.values("alpha")
        modulation = Did(MODULATION, alpha_R, zeros_R, base_R * alpha_R)
        return [modulation, Did(PENALTY, ones_R, zeros_R, step.values("advantage"))]
    mixes = {place[:-1] for place in blocks}
    return [
        dataclasses.replace(blocks[place], mix=place in mixes)
        for place in sorted(blocks, key=lambda place: (*place, math.inf))
    ]


def _came_in(block: Did, value_R: np.ndarray, penalty_R: np.ndarray | None) -> np.ndarray:
    """`[rows]` credit before a block, as far as its result tells; elsewhere the credit after the block before it."""
    if penalty_R is not None:
        return block.result_R - penalty_R
    if block.block == MASK:
        return np.where(block.result_R == 0.0, value_R, block.result_R)
    if block.mix or (block.coefficient_R == 1.0).all():
        return value_R
    return np.divide(block.result_R, block.coefficient_R, out=value_R.copy(), where=block.coefficient_R != 0.0)


def _difference(before_R: np.ndarray, after_R: np.ndarray, rounding_R: np.ndarray) -> np.ndarray:
    """`after - before`, and 0 where only rounding makes them differ."""
    difference_R = after_R - before_R
    return np.where(np.abs(difference_R) <= rounding_R, 0.0, difference_R)
