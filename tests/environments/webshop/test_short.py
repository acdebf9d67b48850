"""The shop for policies of words: what they read, and what they write."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from tests.environments.webshop.conftest import item, write
from tests.needs import needs

from turnwise.environments.words import split_words
from turnwise.models.tiny import word_tokenizer
from turnwise.worlds.webshop.environment import WebshopEnvironment, respaced
from turnwise.worlds.webshop.shop import Visit, load_shop
from turnwise.worlds.webshop.suite import Buyer, noise_action, words

TARGETS = ["buy now", "< prev", "b0kettle01", "x-large", "black | white", "3 l"]


@pytest.fixture
def reread(small) -> Callable[[str], str]:
    """Return what a policy of words makes of a text that it says."""
    shop, goals = small
    tokenizer = word_tokenizer(words(shop.products.values(), goals))
    return lambda text: str(tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)))


def environment(shop, goal, **options) -> Any:
    return WebshopEnvironment(shop, goal, observation="text_short", **options)


@needs("Stemmer", "rapidfuzz")
def test_pages_say_what_is_new_in_lower_case(shop, kettle):
    visit = environment(shop, kettle)
    assert visit.start().observation == kettle.instruction.lower()
    results = visit.step("search[kettle]")
    assert results.observation == "b0kettle01 copper tea kettle, whistling"
    assert (
        visit.step("click[b0kettle01]").observation == "color: copper, black | white ; size: 2 l, 3 l ; $40.0 to $50.0"
    )
    assert visit.step("click[description]").observation.endswith("a kettle for the")
    visit.step("click[< prev]")
    assert visit.step("click[3 l]").observation == "color: copper, black | white ; size: 3 l ; $40.0 to $50.0"
    assert visit.step("click[black | white]").observation == "color: black | white ; size: 3 l ; $40.0 to $50.0"
    assert visit.step("click[buy now]").info["success"]


@needs("Stemmer", "rapidfuzz")
def test_each_result_is_a_number_and_the_first_words_of_a_title(shop, kettle):
    visit = environment(shop, kettle)
    visit.start()
    shown = visit.step("search[mug]").observation.split(" ; ")
    assert len(shown) == 10
    assert all(text.startswith("b0mug0000") and text.endswith(" coffee mug no " + text[9]) for text in shown)


@pytest.mark.parametrize(
    ("action", "meant"),
    [
        ("click [ x - large ]", "click[x-large]"),
        ("click [ b 0 kettle 01 ]", "click[b0kettle01]"),
        ("click[black|white]", "click[black | white]"),
        ("click[3 l]", "click[3 l]"),
        ("search [ tea kettle ]", "search[tea kettle]"),
        ("click [ blue ]", "click[blue]"),  # not there: the shop refuses it
        ("click [ buy", "click [ buy"),
        ("buy now", "buy now"),
        ("then click [ buy now ]", "then click [ buy now ]"),
        ("", ""),
    ],
)
def test_white_space_alone_is_forgiven(action, meant):
    assert respaced(action, TARGETS) == meant


@needs("Stemmer", "rapidfuzz")
def test_only_this_mode_forgives_it(shop, kettle):
    for mode, valid in (("text", False), ("text_rich", False), ("text_short", True)):
        visit = WebshopEnvironment(shop, kettle, observation=mode)
        visit.start()
        assert visit.step("search [ kettle ]").valid == valid


@needs("Stemmer", "rapidfuzz")
def test_what_a_policy_of_words_says_is_what_the_buyer_meant(small, reread):
    """The buyer's purchases succeed after its words went through a word-level tokenizer and back."""
    shop, goals = small
    for goal in goals:
        visit, mirror = environment(shop, goal), Visit(shop, goal)
        step, buyer = visit.start(), Buyer(shop, goal)
        while not step.ended:
            action = buyer.act(mirror)
            assert mirror.act(action)
            step = visit.step(reread(action))
            assert step.valid, action
        assert step.info["success"]


@needs("Stemmer", "rapidfuzz")
def test_every_click_of_every_page_can_be_said_and_every_word_read(tmp_path):
    options = {"Size": ["X-Large", "1/2 Inch", "2.5"], "Color": ["B&W", "black (no. 3)"]}
    note = {"B0MUG00000": {"instruction": "Find me a mug", "instruction_attributes": ["x"]}}
    shop, goals = load_shop(write(tmp_path, [item("B0MUG00000", "Odd Mug", options=options)], note))
    known = words(shop.products.values(), goals)
    tokenizer, rng = word_tokenizer(known), random.Random(0)
    visit, mirror = environment(shop, goals[0], max_steps=200), Visit(shop, goals[0])
    step = visit.start()
    for _ in range(199):
        assert set(split_words(step.observation)) <= set(known)
        action = noise_action(mirror, rng)
        said = str(tokenizer.decode(tokenizer.encode(action, add_special_tokens=False)))
        step = visit.step(said)
        assert step.valid == mirror.act(action), (action, said)
        if mirror.page != "results":
            assert visit._visit.state[0] == mirror.state[0]
            assert visit._visit.chosen == mirror.chosen


def test_a_click_on_a_target_is_that_target_though_another_one_differs_by_spaces():
    """As sizes of a real product."""
    sizes = ["39 x 49 in", "39x49in"]
    assert [respaced(f"click[{size}]", sizes) for size in sizes] == [f"click[{size}]" for size in sizes]
    assert respaced("click [ 39 x 49in ]", sizes) == "click[39 x 49 in]"
