"""Collect the words of a shop, for word-level tokenizers."""

from collections.abc import Iterable, Iterator

from turnwise.environments.words import split_words
from turnwise.worlds.webshop.catalogue import Product
from turnwise.worlds.webshop.goals import Goal
from turnwise.worlds.webshop.pages import (
    MAX_HITS,
    SUB_PAGES,
    Page,
    done_page,
    item_page,
    results_page,
    search_page,
    sub_page,
)


def words(products: Iterable[Product], goals: Iterable[Goal]) -> list[str]:
    """Return every word of the pages and their actions, as `split_words` finds them, sorted.

    The score on the last page may have further digits; no response follows it.
    """
    found = {
        *split_words("search[] click[] [SEP] [button_] [clicked button_] You have clicked. : , ;"),
        *map(str, range(MAX_HITS + 1)),
    }
    for page in _pages(products, goals):
        for node in page:
            found.update(split_words(node.text), split_words(node.text.lower()))
    return sorted(found)


def _pages(products: Iterable[Product], goals: Iterable[Goal]) -> Iterator[Page]:
    yield done_page("", {}, 1.0)
    for goal in goals:
        yield search_page(goal.instruction)
    for product in products:
        yield results_page("", 2, 1, [product])
        yield item_page("", product, with_attributes=True)
        yield from (sub_page("", product, name) for name in SUB_PAGES)
