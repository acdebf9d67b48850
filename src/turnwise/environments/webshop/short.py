"""The shop for small policies that know words and not letters: short pages, and actions with spaces in them."""

import itertools
import re
from collections.abc import Iterable, Iterator

from turnwise.environments.webshop.shop import Visit

TITLE_WORDS = 4
"""Words of a title, or of another long text, that are shown."""

_ACTION = re.compile(r"(search|click) *\[(.+)\]")


def short_text(visit: Visit) -> str:
    """The observation of mode "text_short".

    The search page is the instruction, which the others do not repeat. Results are numbers of products with the first
    words of their titles; a product is its options and its price. An option that was chosen shows its value alone.
    Buttons are left out: they are the same on all pages of a kind. All is in lower case, as actions are, since to a
    policy of words "B0" is not "b0".
    """
    return " ; ".join(_parts(visit)).lower()


def respaced(action: str, targets: Iterable[str]) -> str:
    """The action as the shop expects it, where nothing but its white space is wrong.

    A policy of words writes "click [ x - large ]", the shop reads "click[x-large]".
    """
    match = _ACTION.fullmatch(action)
    if match is None:
        return action
    name, argument = match[1], match[2].strip()
    if name == "click":
        squeezed = "".join(argument.split())
        argument = next((text for text in targets if "".join(text.split()) == squeezed), argument)
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
