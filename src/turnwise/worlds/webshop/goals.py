"""Make WebShop's goals: an instruction with the criteria of a good purchase."""

import dataclasses
import itertools
import random
from collections.abc import Mapping, Sequence
from typing import Any

from turnwise.base.errors import ConfigError, DataError, did_you_mean
from turnwise.worlds.webshop.catalogue import Product

SHUFFLE_SEED = 233
"""Seed of the original's shuffle, which fixes the goals' numbers and splits."""

SPLITS = {
    "papers": {"train": slice(500, None), "test": slice(500)},
    "original": {"train": slice(1500, None), "valid": slice(500, 1500), "test": slice(500)},
}
"""Ranges of goal numbers per split, of verl-agent (and papers that use it), and of WebShop's own models."""

_LIMITS = [10.0 * tens for tens in range(1, 100)]
_NO_LIMIT = 1_000_000.0


@dataclasses.dataclass(frozen=True, slots=True)
class Goal:
    """One goal of a customer."""

    number: int  # its index among all goals, the original's session number
    asin: str  # the product that it was written for; others may also satisfy it
    title: str  # title of that product
    query: str  # suitable search keywords
    product_category: str  # the product's path of categories
    category: str  # the department
    instruction: str  # the customer's text
    attributes: tuple[str, ...]  # required attributes
    # Required options: pairs of name and value, or values only (human instructions name no options)
    options: tuple[tuple[str, str] | str, ...]
    price_upper: float  # price limit (dollars)


def draw_prices(products: Sequence[Product], rng: random.Random) -> dict[str, float]:
    """Draw the price of each product by asin, uniformly from its range."""
    return {p.asin: p.prices[0] if len(p.prices) == 1 else rng.uniform(*p.prices) for p in products}


def synthetic_goals(products: Sequence[Product], prices: Mapping[str, float], rng: random.Random) -> list[Goal]:
    """Make a goal per combination of options of each product with an instruction, in the original's order."""
    goals: list[Goal] = []
    for product in products:
        if not product.instruction or not product.instruction_attributes:
            continue
        limit, text = _price_limit(prices[product.asin], rng)
        names = sorted(product.options)
        for values in itertools.product(*(product.options[name] for name in names)):
            options = tuple(zip(names, values, strict=True))
            wanted = ", and ".join(f"{name}: {value}" for name, value in options)
            instruction = f"{product.instruction}{' with ' + wanted if wanted else ''}{text}"
            goals.append(_goal(product, instruction, product.instruction_attributes, options, limit))
    return _in_order(goals)


def human_goals(
    products: Sequence[Product],
    prices: Mapping[str, float],
    rng: random.Random,
    instructions: Mapping[str, Sequence[Mapping[str, Any]]],
) -> list[Goal]:
    """Make the goals that people wrote, in the original's order; those without attributes are skipped."""
    goals: list[Goal] = []
    for product in products:
        for written in instructions.get(product.asin, ()):
            try:
                attributes, options = tuple(written["instruction_attributes"]), tuple(written["instruction_options"])
                instruction = written["instruction"].strip(".")
            except (KeyError, TypeError, AttributeError) as error:
                raise DataError(
                    f"items_human_ins.json: the instruction at {product.asin} is not in WebShop's format: {error!r}."
                ) from error
            if attributes:
                limit, text = _price_limit(prices[product.asin], rng)
                goals.append(_goal(product, instruction + text, attributes, options, limit))
    return _in_order(goals)


def split_goals(goals: Sequence[Goal], split: str, splits: str = "papers") -> Sequence[Goal]:
    """Return the goals of a split.

    Raises:
        ConfigError: The split, or the way to split, is unknown.
        DataError: The split is empty.
    """
    if splits not in SPLITS:
        raise ConfigError(f"environment.options.splits={splits!r}: no such way to split.{did_you_mean(splits, SPLITS)}")
    if split not in SPLITS[splits]:
        hint = " environment.options.splits='original' has one." if split in SPLITS["original"] else ""
        raise ConfigError(f"webshop has no split {split!r}.{hint or did_you_mean(split, SPLITS[splits])}")
    if not (chosen := goals[SPLITS[splits][split]]):
        raise DataError(f"split {split!r} is empty: this catalogue has {len(goals)} goals only.")
    return chosen


def _price_limit(price: float, rng: random.Random) -> tuple[float, str]:
    """Draw a limit above the price, with its phrase in the instruction."""
    limits = [limit for limit in _LIMITS if limit > price][:4]
    if len(limits) < 2:
        return _NO_LIMIT, ""
    limit = max(rng.sample(limits, 2))
    return limit, f", and price lower than {limit:.2f} dollars"


def _goal(
    product: Product,
    instruction: str,
    attributes: tuple[str, ...],
    options: tuple[tuple[str, str] | str, ...],
    price_upper: float,
) -> Goal:
    of_product = (product.asin, product.title, product.query, product.product_category, product.category)
    return Goal(-1, *of_product, instruction, attributes, options, price_upper)


def _in_order(goals: list[Goal]) -> list[Goal]:
    if not goals:
        raise DataError("no product of this catalogue has an instruction of this kind; see environment.options.goals.")
    random.Random(SHUFFLE_SEED).shuffle(goals)
    return [dataclasses.replace(goal, number=number) for number, goal in enumerate(goals)]
