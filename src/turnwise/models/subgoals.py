"""Read plan-and-act responses: keep the subgoal or switch, the subgoal, the action, each between tags.

<switch>SWITCH</switch><subgoal>find a mug</subgoal><action>go to desk 1</action>
"""

import bisect
import dataclasses
import re
from collections.abc import Callable, Sequence

from turnwise.environments.tool_calls import THINK, THOUGHT

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

_SWITCH, _SUBGOAL, _ACTION = (
    re.compile(f"<{name}>(.*?)</{name}>", re.DOTALL) for name in ("switch", "subgoal", "action")
)


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
    decided = _SWITCH.search(text, begin)
    stated = _SUBGOAL.search(text, decided.end() if decided else begin)
    switch = decided is not None and decided[1].strip().upper() not in ("", KEEP)

    first = min(tokens_to(decided.end(), ids, decode), len(ids) - 1) if decided else 0
    second = min(tokens_to(stated.end(), ids, decode), len(ids) - 1) if stated else first
    return Planned(
        switch, stated[1].strip() if stated else None, (first, second), _ACTION.search(text, begin) is not None
    )


def _after_reasoning(text: str) -> int:
    """Return where reasoning ends, which may draft other parts; the end of the text if it does not end."""
    place = text.rfind(THOUGHT)
    return place + len(THOUGHT) if place >= 0 else len(text) * (THINK in text)


def tokens_to(end: int, ids: Sequence[int], decode: Callable[[Sequence[int]], str]) -> int:
    """Count the tokens of a response up to a character of its text."""
    return bisect.bisect_left(range(len(ids)), end, key=lambda count: len(decode(ids[:count])))
