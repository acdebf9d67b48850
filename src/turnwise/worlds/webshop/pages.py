"""Build WebShop's pages from the texts and buttons of the original's HTML, and their observations."""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Literal, NamedTuple

from turnwise.worlds.webshop.catalogue import Product

PAGE_SIZE = 10
MAX_HITS = 50
BACK, NEXT, PREVIOUS, BUY = "Back to Search", "Next >", "< Prev", "Buy Now"
SUB_PAGES = ("description", "features", "reviews", "attributes")


class Node(NamedTuple):
    """One text of a page."""

    text: str  # the text, with the surrounding white space of the HTML
    kind: Literal["text", "button", "link", "option"] = "text"  # kind of element; all but "text" can be clicked
    option: str = ""  # name of the option, for an option's value


Page = Sequence[Node]


def search_page(instruction: str) -> Page:
    """Build the search page, the start of a visit."""
    return [Node("WebShop"), Node("Instruction: "), Node(instruction), Node("Search", "button")]


def results_page(instruction: str, number: int, total: int, products: Sequence[Product]) -> Page:
    """Build a page of results; even the last page has the button to the next one."""
    page = [*_head(instruction), Node(f"Page {number} (Total results: {total})")]
    page += [Node(PREVIOUS, "button")] * (number > 1)
    page.append(Node(NEXT, "button"))
    for product in products:
        page += [Node(product.asin, "link"), Node(product.title), Node(product.price_tag)]
    return page


def item_page(instruction: str, product: Product, with_attributes: bool) -> Page:
    """Build the page of a product with its options; ratings are unknown, because the data has no reviews."""
    page = [*_head(instruction), Node(PREVIOUS, "button")]
    for name, values in product.options.items():
        page.append(Node(name))
        page += [Node(value, "option", name) for value in values]
    page += [Node(product.title), Node(f"Price: {product.price_tag}"), Node("Rating: N.A.")]
    sub_pages = SUB_PAGES if with_attributes else SUB_PAGES[:-1]
    return [*page, *(Node(name.capitalize(), "button") for name in sub_pages), Node(BUY, "button")]


def sub_page(instruction: str, product: Product, name: str) -> Page:
    """Build the page behind one of a product's buttons."""
    texts = {
        "description": (product.description,),
        "features": [f" {bullet}" for bullet in product.bullets],
        "reviews": (),
        "attributes": (
            *(f" {attribute}" for attribute in product.attributes),
            product.category,
            product.query,
            product.product_category,
        ),
    }[name]
    return [*_head(instruction), Node(PREVIOUS, "button"), *map(Node, texts)]


def done_page(asin: str, chosen: Mapping[str, str], score: float) -> Page:
    """Build the last page; the original fills most of it only for its own website."""
    options = json.dumps(chosen, sort_keys=True)
    for sign in "<>&'":
        options = options.replace(sign, f"\\u{ord(sign):04x}")
    texts = [
        "Thank you for shopping with us!",
        "Your code: ",
        "None",
        " (Paste it in your MTurk interface.)",
        "Purchased",
    ]
    texts += ["asin", asin, "options", options]
    texts += ["attrs", "None", "category", "None", "query", "None", "product category", "None", "Target"]
    texts += ["asin", "options", "attrs", "price upper", "instuction text", "category", "product category", "query"]
    texts += ["Goal ", "None", "Reward", "Your score (min 0.0, max 1.0)", str(score), "Reward Details ", "None"]
    return [Node(text) for text in texts]


def _head(instruction: str) -> list[Node]:
    return [Node("Instruction:"), Node(instruction), Node(BACK, "button")]


def targets(page: Page) -> dict[str, Node]:
    """Map the text of each click to its element: buttons, then products, then options.

    If options have equal values, the last one counts, as in the original.
    """
    clickable = {node.text.lower(): node for kind in ("button", "link") for node in page if node.kind == kind}
    clickable.update((node.text, node) for node in page if node.kind == "option")
    return clickable


def plain_text(page: Page) -> str:
    """Render the observation of mode "text"."""
    return " [SEP] ".join(node.text.strip() for node in page if _visible(node.text))


def rich_text(page: Page, keywords: str, chosen: Mapping[str, str], visited: Collection[str]) -> str:
    """Render the observation of mode "text_rich": one line per text, with marks at clickable and clicked elements."""
    clicked, lines = [], []
    # The original looks for the options clicked in the page's address, and so finds them in quoted keywords too, and
    # none beyond ASCII.
    address = f"{'+'.join(keywords.split(' '))}/{json.dumps(chosen)}"
    for text, kind, _ in page:
        if not _visible(text):
            continue
        if kind == "button":
            lines.append(f"[button] {text} [button_]")
        elif kind == "option" and f'"{text}"' in address:
            lines.append(f"  [clicked button] {text} [clicked button_]")
            clicked.insert(0, f"You have clicked {text}.")
        elif kind == "option":
            lines.append(f"  [button] {text} [button_]")
        elif kind == "link":
            lines.append(
                f"\n[clicked button] {text} [clicked button_]" if text in visited else f"\n[button] {text} [button_]"
            )
        else:
            lines.append(text)
    return "".join(f"{line}\n" for line in [*clicked, *lines])


def _visible(text: str) -> bool:
    """Return whether the original's HTML parser keeps a text; it drops empty ones, and blank ones with a line break."""
    return bool(text) and not (text.strip(" \n\t\f\r") == "" and "\n" in text)
