"""Read plan-and-act responses: keep the subgoal or switch, the subgoal, the action, each between tags.

<switch>SWITCH</switch><subgoal>find a mug</subgoal><action>go to desk 1</action>
"""

import bisect
import dataclasses
from collections.abc import Callable, Sequence

from turnwise.environments.tool_calls import THINK, THOUGHT, tagged

KEEP, SWITCH = "KEEP", "SWITCH"
TAGS = tuple(f"<{slash}{name}>" for name in ("switch", "subgoal", "action") for slash in ("", "/"))
CURRENT = "\nCurrent subgoal: "
"""What an observation ends with once there is a subgoal; the subgoal follows."""
INSTRUCTION = (
    "Answer with three parts and nothing else: <switch>SWITCH</switch> to set a new subgoal or <switch>KEEP</switch> "
    "to keep the current one, then the subgoal between <subgoal> and </subgoal>, then one action between <action> and "
    "</action>."
)
"""Text added to the system message with `prompt.plan`."""


@dataclasses.dataclass(frozen=True)
class Planned:
    """Parts of a plan-and-act response."""

    switch: bool  # whether it decides for anything but KEEP; without a decision it keeps the subgoal
    subgoal: str | None  # subgoal that it states; None without one
    # Tokens before the end of the decision, and before the end of the subgoal. What follows, with whatever stands
    # between the parts, belongs to the action, which has the last token at least.
    cuts: tuple[int, int]
    acts: bool = True  # whether it has an action between tags; without, all of its tokens are action as well


def write(action: str, subgoal: str, *, switch: bool) -> str:
    """Return the text of a plan-and-act response."""
    decision = SWITCH if switch else KEEP
    return f"<switch>{decision}</switch><subgoal>{subgoal}</subgoal><action>{action}</action>"


def read(ids: Sequence[int], decode: Callable[[Sequence[int]], str]) -> Planned:
    """Find the parts of a response, in this order.

    Args:
        ids: Tokens of the response. A tag may begin or end inside a token, which then belongs to the earlier part.
        decode: Function from tokens to their text. More tokens give a text that is not shorter.
    """
    text = decode(ids)
    begin = _after_reasoning(text)
    decision, after = _part(text, "switch", begin)
    subgoal, last = _part(text, "subgoal", begin if decision is None else after)
    switch = decision is not None and decision.upper() not in ("", KEEP)

    first = 0 if decision is None else min(tokens_to(after, ids, decode), len(ids) - 1)
    second = first if subgoal is None else min(tokens_to(last, ids, decode), len(ids) - 1)
    return Planned(switch, subgoal, (first, second), _part(text, "action", begin)[0] is not None)


def _part(text: str, name: str, begin: int) -> tuple[str | None, int]:
    """Return the first part of this name from a place on, and where it ends; None if there is none."""
    for start, end in tagged(text, name, begin):
        return text[start:end].strip(), end + len(f"</{name}>")
    return None, begin


def _after_reasoning(text: str) -> int:
    """Return where reasoning ends, which may draft other parts; the end of the text if it does not end."""
    place = text.rfind(THOUGHT)
    return place + len(THOUGHT) if place >= 0 else len(text) * (THINK in text)


def tokens_to(end: int, ids: Sequence[int], decode: Callable[[Sequence[int]], str]) -> int:
    """Count the tokens of a response up to a character of its text."""
    return bisect.bisect_left(range(len(ids)), end, key=lambda count: len(decode(ids[:count])))
