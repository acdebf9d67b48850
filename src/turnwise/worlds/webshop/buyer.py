"""Demonstrate WebShop with a scripted buyer that knows the target product."""

import random
import re
from collections.abc import Iterator

from turnwise.worlds.webshop.environment import admissible, can_be_clicked, search_action
from turnwise.worlds.webshop.goals import Goal
from turnwise.worlds.webshop.pages import PAGE_SIZE
from turnwise.worlds.webshop.reward import counts
from turnwise.worlds.webshop.shop import Shop, Visit

_PRICE = re.compile(r", and price lower than [\d.]+ dollars$")


class Buyer:
    """Buy the product that a goal was written for, with the options that it names.

    Each action depends only on the page, so the buyer can continue after any other action.
    """

    def __init__(self, shop: Shop, goal: Goal):
        self._shop, self._goal = shop, goal
        self._product = shop.products[goal.asin]
        words = " ".join(_PRICE.sub("", goal.instruction).lower().removeprefix("find me ").split())
        self._keywords = words if self._product in shop.search(words) else goal.title.lower()

    def act(self, visit: Visit) -> str:
        """Return the next action."""
        if visit.page == "search":
            return search_action(self._keywords)
        if visit.page == "results":
            return f"click[{self._among_results(visit)}]"
        if visit.page == "item" and visit.product is self._product:
            return f"click[{next(self._missing(visit), 'buy now')}]"
        return "click[< prev]"

    def _among_results(self, visit: Visit) -> str:
        found = self._shop.search(visit.keywords)
        if self._product not in found:
            return "back to search"
        number = found.index(self._product) // PAGE_SIZE + 1
        if visit.number == number:
            return self._product.asin.lower()
        return "next >" if visit.number < number else "< prev"

    def _missing(self, visit: Visit) -> Iterator[str]:
        """Yield the option values left to choose, for options that the goal names or whose values it names."""
        for wanted in self._goal.options:
            for name, values in self._product.options.items():
                fitting = [
                    value
                    for value in filter(can_be_clicked, values)
                    if ((name, value) == wanted if isinstance(wanted, tuple) else counts(value, wanted))
                ]
                if fitting and visit.chosen.get(name) not in fitting and visit.targets[fitting[0]].option == name:
                    yield fitting[0]


def noise_action(visit: Visit, rng: random.Random) -> str:
    """Return a noise action: a click on something else or on a missing product, never a purchase."""
    if rng.random() < 0.5:
        return f"click[{rng.choice(list(visit.shop.products)).lower()}]"
    return rng.choice([action for action in admissible(visit) if action != "click[buy now]"])
