"""Describe published methods: paper, stage, and effect on the expected gradient."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal


@dataclasses.dataclass(frozen=True, slots=True)
class Gradient:
    """Effect of a method on the expected policy gradient. Methods declare it; `tests/oracle` checks it exactly.

    Attributes:
        kind: "unbiased": equal to the gradient of the expected return. "scaled": equal up to `factor`. "biased": not
            parallel to it.
        factor: For "scaled": the factor as a function of the group size.
        reason: For "biased": the cause. For "unbiased": the condition, if any ("with exact values").
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
"""Stage at which a method acts: it changes the baseline, the weight of an advantage, or the rewards."""

Confidence = Literal["exact", "near-exact", "reconstructed", "ours"]
"""How certain a formula is: read in the paper or its code; all but details read; from secondary sources; our own."""


@dataclasses.dataclass(frozen=True, slots=True)
class Card:
    """Facts about a published method that are available without building it.

    Attributes:
        title: Title of the paper.
        arxiv: arXiv number of the paper.
        stage: Stage of credit assignment at which the method acts.
        confidence: How certain the formula is.
        trial: Values for options without a published value, for listings and tests only.
    """

    title: str
    arxiv: str = ""
    stage: Stage = "baseline"
    confidence: Confidence = "exact"
    trial: Mapping[str, Any] = dataclasses.field(default_factory=dict)
