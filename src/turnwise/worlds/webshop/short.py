"""Render short pages for word-level policies, and parse actions with spaces in them."""

import itertools
import re
from collections.abc import Iterable, Iterator

from turnwise.worlds.webshop.shop import Visit

TITLE_WORDS = 4
"""Words shown of a title or another long text."""

_ACTION = re.compile(r"(search|click) *\[(.+)\]")


def short_text(visit: Visit) -> str:
    """Render the observation of mode "text_short".

    The search page shows the instruction, which other pages do not repeat. Results show product ids with the first
    words of the titles; a product shows its options and its price. A chosen option shows only its value. Buttons are
    omitted, because they are the same on all pages of a kind. The text is in lower case, as actions are, because "B0"
    and "b0" are different words to the policy.
    """
    return " ; ".join(_parts(visit)).lower()


def spaceless(text: str) -> str:
    """Remove white space, of which the words of a word-level policy have more."""
    return "".join(text.split())


def respaced(action: str, targets: Iterable[str]) -> str:
    """Correct the white space of an action.

    A word-level policy writes "click [ x - large ]", the shop expects "click[x-large]".
    """
    match = _ACTION.fullmatch(action)
    if match is None:
        return action
    name, argument = match[1], match[2].strip()
    if name == "click":
        squeezed = spaceless(argument)
        argument = next((text for text in targets if spaceless(text) == squeezed), argument)
    return f"{name}[{argument}]"


def _parts(visit: Visit) -> Iterator[str]:
    if visit.page == "search":
        yield visit.goal.instruction
    elif visit.page == "item" and visit.product:
        for name, values in visit.product.options.items():
            yield f"{name}: {visit.chosen.get(name) or ', '.join(values)}"
        yield visit.product.price_tag
    elif visit.page == "results":
        for node, following in itertools.pairwise(visit.nodes):
            if node.kind == "link":
                yield f"{node.text} {_beginning(following.text)}"
    else:
        yield from (_beginning(node.text) for node in visit.nodes if node.kind == "text")


def _beginning(text: str) -> str:
    return " ".join(text.split()[:TITLE_WORDS])
