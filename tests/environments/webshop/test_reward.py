"""The reward, part by part, against its definition written out by hand."""

import dataclasses
import sys
import types
from fractions import Fraction

import pytest
from tests.needs import needs

from turnwise.base.errors import ConfigError
from turnwise.worlds.webshop.catalogue import Product
from turnwise.worlds.webshop.goals import Goal
from turnwise.worlds.webshop.reward import counts, nouns_of, score_purchase

TEN = "oak pine elm ash fir yew teak larch cedar birch"
PRODUCT = Product(
    asin="B0",
    title=TEN,
    description="Made with Natural Ingredients",
    bullets=("A soft grip", "with essential oils"),
    category="garden",
    query="desks",
    product_category="Home \u203a Wood \u203a Desks",
    prices=(35.0,),
    options={},
    attributes=("tea tree", "easy clean"),
)
GOAL = Goal(
    number=0,
    asin="B0",
    title=TEN,
    query="desks",
    product_category="Home \u203a Wood \u203a Desks",
    category="garden",
    instruction="a desk",
    attributes=("tea tree",),
    options=(),
    price_upper=40.0,
)


def score(goal=GOAL, product=PRODUCT, price=35.0, chosen=None, **goal_changes):
    return score_purchase(dataclasses.replace(goal, **goal_changes), product, price, chosen or {}, nouns_of())


def other(title: str, **changes) -> Product:
    """A product of another query and of other categories."""
    return dataclasses.replace(
        PRODUCT, **{"title": title, "query": "lamps", "product_category": "Tools \u203a Light", **changes}
    )


@needs("rapidfuzz")
def test_the_thing_itself_scores_one():
    assert score().total == 1
    assert (score().type, score().attributes, score().options, score().price) == (1, 1, None, True)


@needs("rapidfuzz")
@pytest.mark.parametrize(
    ("product", "kind"),
    [
        (other("oak pine elm lamp"), 1.0),  # 3 of 10 words
        (other("oak pine lamp"), 0.5),  # 2 of 10: not more than 0.2
        (other("oak lamp"), 0.5),  # 1 of 10: not less than 0.1
        (other("lamp"), 0.0),
        (other("oak lamp", query="desks"), 1.0),
        (other("oak lamp", product_category="Wood \u203a Home \u203a Lamps"), 1.0),  # two categories, in any order
        (other("oak lamp", product_category="Wood \u203a Wood \u203a Lamps"), 0.5),  # one category twice
        (other("lamp", query="desks"), 0.0),  # no word in common outweighs all
    ],
)
def test_the_kind_of_product(product, kind):
    assert score(product=product).type == kind


@needs("rapidfuzz")
def test_one_word_of_eleven_is_nearly_nothing_whatever_the_query():
    assert score(product=other("oak lamp", query="desks"), title=f"{TEN} maple").type == 0.1


@needs("rapidfuzz")
def test_function_words_are_no_nouns_and_a_title_without_nouns_is_like_any():
    assert score(product=other("the lamp for you"), title=f"the {TEN} for you").type == 0
    assert score(product=other("lamp"), title="the 12").type == 0.5  # 0.2, by definition
    assert score(product=other("lamp", query="desks"), title="the 12").type == 1


@needs("rapidfuzz")
@pytest.mark.parametrize(
    ("attributes", "share"),
    [
        (("tea trees",), 1),  # alike
        (("tree",), 1),  # all words of it are there
        (("natural ingredients",), 1),  # in the description, whatever its case
        (("soft grip with",), 1),  # in the features, even across two
        (("yew teak",), 1),  # in the title
        (("lemon",), 0),
        (("tea tree", "lemon", "essential oils"), Fraction(2, 3)),
    ],
)
def test_attributes_are_found_among_attributes_and_in_texts(attributes, share):
    assert score(attributes=attributes).attributes == float(share)


@needs("rapidfuzz")
@pytest.mark.parametrize(
    ("value", "wanted", "good"),
    [
        ("xl", "xl", True),
        ("pack of 12", "12 pack of", True),
        ("powder snow", "cool powder snow", True),
        ("blue", "grey", False),
        ("sky blue", "navy blue", True),  # both are blue
        ("dark red", "bright red", False),  # the first colour of the list counts, and it is "dark"
        ("abcdefg", "abcdefh", True),  # 12 / 14, rounds to 86
        ("a" * 17 + "bbb", "a" * 17 + "ccc", False),  # 34 / 40 is 85, which is not more than 85
        ("large", ("size", "x-large"), True),  # the pair is one text
        ("size", ("size", "x-large"), True),
        ("small", ("size", "x-large"), False),
        ("jet black", ("color", "black"), True),
        ("blue137", ("color", "blue137"), False),  # the value is cut to its colour, and the pair is not
        ("caf\u00e9", "caf", True),  # letters of Latin-1 vanish
    ],
)
def test_options_count_as_generously_as_in_the_released_code(value, wanted, good):
    assert counts(value, wanted) is good


@needs("rapidfuzz")
def test_any_chosen_value_may_answer_any_option():
    wanted = (("color", "black"), ("size", "9"))
    assert score(options=wanted, chosen={"width": "9", "tint": "jet black"}).options == 1
    assert score(options=wanted, chosen={"size": "9"}).options == 0.5
    assert score(options=("9", "black"), chosen={"size": "9"}).options == 0.5
    assert score(options=wanted).options == 0


@needs("rapidfuzz")
def test_the_parts_make_the_score():
    goal = {"attributes": ("tea tree", "lemon", "mint"), "options": (("color", "black"), ("size", "9"))}
    chosen = {"color": "black"}
    assert score(**goal, chosen=chosen).total == float(Fraction(1 + 1 + 1, 3 + 2 + 1))
    assert score(**goal, chosen=chosen, price=40.01).total == float(Fraction(1 + 1 + 0, 3 + 2 + 1))
    assert score(**goal, chosen=chosen, price=40.0).price
    assert score(**goal, chosen=chosen, product=other("oak lamp")).total == float(Fraction(1, 2) * Fraction(3, 6))


def test_a_spacy_model_may_find_the_nouns(monkeypatch):
    def load(name):
        if name != "model":
            raise OSError("E050")
        return lambda text: [
            types.SimpleNamespace(text=word, pos_="NOUN" if word.istitle() else "ADJ") for word in text.split()
        ]

    monkeypatch.setitem(sys.modules, "spacy", types.SimpleNamespace(load=load))  # pyright: ignore[reportArgumentType]
    assert nouns_of("model")("shiny Oak Desk") == ["oak", "desk"]
    with pytest.raises(
        ConfigError, match="noun_model='models': spaCy has no such model; python -m spacy download models"
    ):
        nouns_of("models")


def test_without_spacy_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "spacy", None)
    with pytest.raises(ConfigError, match="webshop needs the module 'spacy'; pip install spacy"):
        nouns_of("model")
