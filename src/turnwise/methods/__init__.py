"""Published methods, one file each: a chain of public blocks, its formula, its reference.

To add one: write its file, add it to `METHODS`. That line enters it into the conformance table, the oracle, the command line and the
docs.
"""

from collections.abc import Callable

from turnwise.methods.aem import aem
from turnwise.methods.gigpo import gigpo
from turnwise.methods.grpo import dr_grpo, grpo
from turnwise.methods.reinforce import reinforce
from turnwise.methods.rloo import rloo
from turnwise.transform import Transform

METHODS: dict[str, Callable[..., Transform]] = {
    "reinforce": reinforce,
    "rloo": rloo,
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "gigpo": gigpo,
    "aem": aem,
}
"""Name to constructor; every constructor works without arguments."""

__all__ = ["METHODS", "aem", "dr_grpo", "gigpo", "grpo", "reinforce", "rloo"]
