"""Simulate the shop: its products, its search, its goals, and a visit."""

import functools
import random
from collections.abc import Hashable, Sequence
from pathlib import Path

from turnwise.base.errors import ConfigError, DataError, did_you_mean
from turnwise.worlds.bm25 import LuceneIndex
from turnwise.worlds.webshop import pages
from turnwise.worlds.webshop.catalogue import Product, load_human_instructions, load_products
from turnwise.worlds.webshop.goals import Goal, draw_prices, human_goals, synthetic_goals
from turnwise.worlds.webshop.reward import Nouns, Score, nouns_of, score_purchase

GOALS = ("auto", "human", "synthetic")


class Shop:
    """Products with their prices and a search.

    Args:
        products: The catalogue.
        seed: Seed of prices drawn from ranges, and of the goals' price limits. The original redraws both at every
            start, from one stream in this order.
        nouns: Finds the nouns of a title; see `turnwise.worlds.webshop.reward.nouns_of`.
    """

    def __init__(self, products: Sequence[Product], *, seed: int = 0, nouns: Nouns | None = None):
        self.products = {product.asin: product for product in products}
        self.nouns = nouns or nouns_of()
        self.rng = random.Random(seed)
        self.prices = draw_prices(products, self.rng)
        self._index = LuceneIndex.cached({product.asin: product.text for product in products})
        self.search = functools.lru_cache(maxsize=4096)(self._search)

    def _search(self, keywords: str) -> list[Product]:
        return [self.products[asin] for asin in self._index.search(keywords, pages.MAX_HITS)]


def load_shop(
    data: str | Path | None = None,
    *,
    catalogue: str = "small",
    num_products: int = 0,
    goals: str = "auto",
    seed: int = 0,
    noun_model: str = "",
) -> tuple[Shop, list[Goal]]:
    """Load the shop and its goals.

    Args:
        data: Folder with WebShop's files, instead of $WEBSHOP_DATA.
        catalogue: "small" (1,000 products) or "full".
        num_products: Number of products to load; 0: all.
        goals: "human", "synthetic", or "auto": human goals if their file exists.
        seed: See `Shop`.
        noun_model: See `turnwise.worlds.webshop.reward.nouns_of`.

    Raises:
        ConfigError: An option is invalid.
        DataError: A file is missing or malformed.
    """
    if goals not in GOALS:
        raise ConfigError(f"environment.options.goals={goals!r}: no such goals.{did_you_mean(goals, GOALS)}")
    products = load_products(data, catalogue=catalogue, num_products=num_products)
    shop = Shop(products, seed=seed, nouns=nouns_of(noun_model))
    instructions = load_human_instructions(data) if goals != "synthetic" else None
    if instructions is not None:
        return shop, human_goals(products, shop.prices, shop.rng, instructions)
    if goals == "human":
        raise DataError("environment.options.goals='human' needs items_human_ins.json in the catalogue's folder.")
    return shop, synthetic_goals(products, shop.prices, shop.rng)


class Visit:
    """A visit to the shop, played with `search[keywords]` and `click[text on the page]`.

    Attributes:
        page: "search", "results", "item", one of `SUB_PAGES`, or "done".
        keywords: The last search.
        number: The page of results, from 1.
        product: The current product.
        chosen: Chosen value by option name.
        visited: Products visited since the search page.
        score: Score of the purchase; None before it.
    """

    def __init__(self, shop: Shop, goal: Goal, *, with_attributes: bool = False):
        self.shop, self.goal, self._with_attributes = shop, goal, with_attributes
        self._begin()

    def _begin(self) -> None:
        self.page, self.keywords, self.number = "search", "", 1
        self.product: Product | None = None
        self.chosen: dict[str, str] = {}
        self.visited: set[str] = set()
        self.score: Score | None = None
        self._show(pages.search_page(self.goal.instruction))

    def act(self, action: str) -> bool:
        """Play an action; returns whether it was valid.

        As in the original, only the part up to the last bracket counts, only the argument is lower-cased, and searching
        is possible on every page, though only one shows the search bar. The original's back doors ("search[<q> ...]"
        lists the products of a query) are removed, because an agent would exploit them.
        """
        line = action.partition("\n")[0]
        end = line.rfind("]")
        begin = line.rfind("[", 1, max(end - 1, 0))
        if begin < 0 or self.score is not None:
            return False
        name, argument = line[:begin], line[begin + 1 : end].lower()
        if name == "search":
            self._results(argument, 1)
            return True
        if name == "click" and argument in self.targets and argument != "search":
            self._click(argument)
            return True
        return False

    @property
    def state(self) -> Hashable:
        """State that determines the rest of the visit, apart from the goal and the marks of buttons once clicked."""
        asin = self.product.asin if self.product else ""
        return self.page, self.keywords, self.number, asin, tuple(sorted(self.chosen.items()))

    def _click(self, text: str) -> None:
        if text == pages.BUY.lower():
            self._buy()
        elif text == pages.BACK.lower():
            self._begin()
        elif text == pages.NEXT.lower():
            self._results(self.keywords, self.number + 1)
        elif text == pages.PREVIOUS.lower() and self.page == "results":
            self._results(self.keywords, self.number - 1)
        elif text == pages.PREVIOUS.lower() and self.page == "item":
            self._results(self.keywords, self.number)
        elif text in pages.SUB_PAGES:
            self.page = text
            self._show(pages.sub_page(self.goal.instruction, self._looked_at, text))
        else:
            self._item(text)

    def _results(self, keywords: str, number: int) -> None:
        self.page, self.keywords, self.number = "results", keywords, number
        self.product, self.chosen = None, {}
        found = self.shop.search(keywords)
        shown = found[(number - 1) * pages.PAGE_SIZE : number * pages.PAGE_SIZE]
        self._show(pages.results_page(self.goal.instruction, number, len(found), shown))

    def _item(self, text: str) -> None:
        """Open a product, choose one of its options, or return to it."""
        target = self.targets[text]
        if target.kind == "link":
            self.product = self.shop.products[target.text]
            self.visited.add(target.text)
        elif target.kind == "option":
            self.chosen[target.option] = text
        self.page = "item"
        self._show(pages.item_page(self.goal.instruction, self._looked_at, self._with_attributes))

    def _buy(self) -> None:
        product, self.page = self._looked_at, "done"
        self.score = score_purchase(self.goal, product, self.shop.prices[product.asin], self.chosen, self.shop.nouns)
        self._show(pages.done_page(product.asin, self.chosen, self.score.total))

    @property
    def _looked_at(self) -> Product:
        assert self.product is not None, "only the page of a product offers this"
        return self.product

    def _show(self, page: pages.Page) -> None:
        self.nodes, self.targets = page, pages.targets(page)
