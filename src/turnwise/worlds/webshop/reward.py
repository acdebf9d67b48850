"""Compute WebShop's reward of a purchase.

    score = type * (attributes met + options met + (price <= limit)) / (attributes + options + 1)

The counts are matched fuzzily and generously, exactly as in the released code: see `score_purchase`.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping

from turnwise.base.errors import ConfigError
from turnwise.environments.needs import needed
from turnwise.worlds.webshop.catalogue import Product
from turnwise.worlds.webshop.goals import Goal

Nouns = Callable[[str], list[str]]

_FUNCTION_WORDS = frozenset(
    re.findall(r"\w+", "a an the and or for with of in to on by from at is are be as it this that your you our x")
)
# The first of these colours in an option's value represents the whole value.
_COLORS = re.findall(
    r"\w+",
    "alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze brown burgundy camel "
    "camo caramel champagne charcoal cheetah chestnut chocolate christmas coffee cognac copper coral cranberry "
    "cream crystal dark denim eggplant elephant espresso fuchsia gold granite grape graphite grass gray green "
    "grey heather indigo ivory ivy khaki lavender lemon leopard light lilac lime magenta maroon mauve merlot "
    "midnight mint mocha multicolor mushroom mustard natural navy nude olive orange peach pewter pink plum purple "
    "rainbow red rose royal rust sand sapphire seashell silver skull slate steel stone stonewash sunflower tan "
    "taupe teal tiger turquoise violet walnut wheat white wine yellow",
)
_LATIN_1 = dict.fromkeys(range(128, 256))


@dataclasses.dataclass(frozen=True, slots=True)
class Score:
    """A purchase's reward and its parts."""

    total: float  # between 0 and 1; a purchase is a success at 1
    type: float  # 1, or 0.5, 0.1 or 0 if the product is of another kind
    attributes: float  # fraction of the goal's attributes that the product has
    options: float | None  # fraction of the goal's options that were chosen; None if it names none
    price: bool  # whether the price is within the limit


def score_purchase(goal: Goal, product: Product, price: float, chosen: Mapping[str, str], nouns: Nouns) -> Score:
    """Score a purchase.

    An attribute counts when one of the product's resembles it, or when a text of the product contains it. An option
    counts when any chosen value resembles it: the goal's pair of name and value is compared as one text with each
    chosen value, whatever that value's name, so "large" is good enough for ("size", "x-large"). Values that contain a
    colour are compared by that colour. All this is the original's.

    Args:
        goal: The goal.
        product: The purchased product.
        price: Its price (dollars).
        chosen: Chosen value by option name.
        nouns: Finds the nouns of a title; see `nouns_of`.

    Reference: S. Yao et al., WebShop, arXiv 2207.01206, and the code released with it.
    """
    kind = _type(goal, product, nouns)
    texts = [text.lower() for text in (product.title, " ".join(product.bullets), product.description)]
    num_attributes = sum(
        any(_alike(had, wanted) for had in product.attributes) or any(wanted in text for text in texts)
        for wanted in goal.attributes
    )
    num_options = sum(any(counts(value, wanted) for value in chosen.values()) for wanted in goal.options)
    affordable = price <= goal.price_upper
    share = (num_attributes + num_options + affordable) / (len(goal.attributes) + len(goal.options) + 1)
    return Score(
        total=share * kind,
        type=kind,
        attributes=num_attributes / len(goal.attributes),
        options=num_options / len(goal.options) if goal.options else None,
        price=affordable,
    )


def counts(value: str, wanted: tuple[str, str] | str) -> bool:
    """Return whether a chosen value satisfies an option of a goal."""
    return _alike(_color(value), _color(wanted))


def _type(goal: Goal, product: Product, nouns: Nouns) -> float:
    """Score how well the product's type matches the goal."""
    wanted = nouns(goal.title)
    shared = len(set(wanted).intersection(nouns(product.title))) / len(wanted) if wanted else 0.2
    if shared == 0:
        return 0.0
    if shared < 0.1:
        return 0.1
    near = product.query == goal.query or len(_categories(product) & _categories(goal)) >= 2 or shared > 0.2
    return 1.0 if near else 0.5


def _categories(thing: Product | Goal) -> set[str]:
    return {part.strip() for part in thing.product_category.split("\u203a")}


def _color(value: tuple[str, str] | str) -> str:
    """Return the colour in a text; in a pair, only a name or value that is exactly a colour counts."""
    return next((color for color in _COLORS if color in value), str(value))


@functools.lru_cache(maxsize=1 << 16)
def _alike(first: str, second: str) -> bool:
    fuzz, utils = (needed(f"rapidfuzz.{part}", extra="webshop", by="webshop") for part in ("fuzz", "utils"))
    first, second = (utils.default_process(text.translate(_LATIN_1)) for text in (first, second))
    return round(fuzz.token_set_ratio(first, second)) > 85


def nouns_of(model: str = "") -> Nouns:
    """Make the function that finds the nouns of a title, lower case.

    Args:
        model: Name of an installed spaCy model ("en_core_web_sm", which the original loads), or "": every word that is
            not one of a few function words. No package index carries spaCy's models. The choice matters if the
            titles of the wanted and the purchased product share few words.

    Raises:
        ConfigError: spaCy or the model is not installed.
    """
    if not model:
        return _words
    try:
        parse = needed("spacy", by="webshop").load(model)
    except OSError:
        raise ConfigError(
            f"environment.options.noun_model={model!r}: spaCy has no such model; python -m spacy download {model}"
        ) from None
    return functools.lru_cache(maxsize=1 << 16)(
        lambda text: [token.text.lower() for token in parse(text) if token.pos_ in ("NOUN", "PROPN")]
    )


def _words(text: str) -> list[str]:
    return [word for word in re.findall(r"[a-z']+", text.lower()) if word not in _FUNCTION_WORDS]
