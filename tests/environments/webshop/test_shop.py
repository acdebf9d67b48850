"""Visits to the small shop: what is shown, and what can be done."""

import pytest
from tests.environments.webshop.conftest import KETTLE, item, write
from tests.needs import needs

from turnwise.worlds.webshop.pages import plain_text, rich_text
from turnwise.worlds.webshop.shop import Visit, load_shop

pytestmark = needs("Stemmer", "rapidfuzz")


def page(*texts: str) -> str:
    """Write texts as an observation has them."""
    return " [SEP] ".join(texts)


def said(visit: Visit, *actions: str) -> str:
    """Play actions, all of which must be understood, and return what is shown without the instruction."""
    for action in actions:
        assert visit.act(action), action
    return plain_text(visit.nodes).replace(visit.goal.instruction, "...")


KETTLE_PAGE = page(
    *("Instruction:", "...", "Back to Search", "< Prev"),
    *("color", "copper", "black | white", "size", "2 l", "3 l"),
    *("Copper Tea Kettle, Whistling", "Price: $40.0 to $50.0", "Rating: N.A."),
    *("Description", "Features", "Reviews", "Buy Now"),
)


@pytest.fixture
def visit(shop, kettle) -> Visit:
    return Visit(shop, kettle)


def test_a_visit_begins_at_the_search_page(visit):
    assert said(visit) == "WebShop [SEP] Instruction: [SEP] ... [SEP] Search"
    assert list(visit.targets) == ["search"]


def test_results_show_number_title_and_price(visit):
    assert said(visit, "search[a whistling KETTLE, please]") == page(
        *("Instruction:", "...", "Back to Search", "Page 1 (Total results: 1)", "Next >"),
        *("B0KETTLE01", "Copper Tea Kettle, Whistling", "$40.0 to $50.0"),
    )
    assert list(visit.targets) == ["back to search", "next >", "b0kettle01"]


def test_results_are_paged_by_ten_and_the_next_page_is_always_offered(visit):
    first = said(visit, "search[mug]")
    assert "Page 1 (Total results: 12) [SEP] Next > [SEP] B0MUG00000 " in first
    assert first.count("Coffee Mug") == 10
    second = said(visit, "click[next >]")
    assert "Page 2 (Total results: 12) [SEP] < Prev [SEP] Next > [SEP] B0MUG00010 [SEP]" in second
    assert second.count("Coffee Mug") == 2
    assert said(visit, "click[next >]").endswith("Page 3 (Total results: 12) [SEP] < Prev [SEP] Next >")
    assert said(visit, "click[< prev]", "click[< prev]") == first


def test_a_product_shows_its_options_and_the_buttons_come_first_among_the_clicks(visit):
    assert said(visit, "search[kettle]", "click[B0KETTLE01]") == KETTLE_PAGE
    assert list(visit.targets) == [
        *("back to search", "< prev", "description", "features", "reviews", "buy now"),
        *("copper", "black | white", "2 l", "3 l"),
    ]


@pytest.mark.parametrize(
    ("button", "shown"),
    [
        ("description", ["A kettle for the stove."]),
        ("features", ["Easy clean", "Holds 2 l"]),
        ("reviews", []),
        ("attributes", ["easy clean", "stainless steel", "garden", "kettles", KETTLE["product_category"]]),
    ],
)
def test_sub_pages_lead_back_to_the_product_and_keep_what_was_chosen(shop, kettle, button, shown):
    visit = Visit(shop, kettle, with_attributes=True)
    product = said(visit, "search[kettle]", "click[b0kettle01]", "click[3 l]")
    assert "Reviews [SEP] Attributes [SEP] Buy Now" in product
    assert said(visit, f"click[{button}]") == page("Instruction:", "...", "Back to Search", "< Prev", *shown)
    assert said(visit, "click[< prev]") == product
    assert visit.chosen == {"size": "3 l"}


def test_choosing_shows_nothing_and_the_last_choice_of_an_option_counts(visit):
    assert (
        said(visit, "search[kettle]", "click[b0kettle01]", "click[copper]", "click[black | white]", "click[3 l]")
        == KETTLE_PAGE
    )
    assert visit.chosen == {"color": "black | white", "size": "3 l"}


def test_going_back_forgets_what_was_chosen(visit):
    results = said(visit, "search[tea mug]", "click[next >]", "click[< prev]")
    assert said(visit, "click[b0kettle01]", "click[copper]", "click[< prev]") == results
    assert visit.chosen == {}
    assert said(visit, "click[back to search]").startswith("WebShop [SEP]")
    assert (visit.page, visit.keywords, visit.visited) == ("search", "", set())


def test_searching_is_possible_from_every_page(visit):
    assert "B0LAMP0001" in said(visit, "search[kettle]", "click[b0kettle01]", "search[lamp]")
    assert visit.chosen == {}


def test_buying_what_was_wanted_scores_one_and_ends_the_visit(visit):
    shown = said(visit, "search[kettle]", "click[b0kettle01]", "click[black | white]", "click[3 l]", "click[buy now]")
    assert shown == page(
        *("Thank you for shopping with us!", "Your code:", "None", "(Paste it in your MTurk interface.)", "Purchased"),
        *("asin", "B0KETTLE01", "options", '{"color": "black | white", "size": "3 l"}'),
        *("attrs", "None", "category", "None", "query", "None", "product category", "None"),
        *("Target", "asin", "options", "attrs", "price upper", "instuction text", "category", "product category"),
        *("query", "Goal", "None", "Reward", "Your score (min 0.0, max 1.0)", "1.0", "Reward Details", "None"),
    )
    assert visit.score is not None
    assert visit.score.total == 1
    assert not visit.act("search[kettle]")


def test_options_are_written_as_the_original_writes_json(tmp_path, small):
    mug = item("B0", "Mug", options={"Style": ["Men's <b> & \u00e9"]})
    shop, _ = load_shop(write(tmp_path, [mug], {"B0": {"instruction": "a mug", "instruction_attributes": ["x"]}}))
    visit = Visit(shop, small[1][0])
    shown = said(visit, "search[mug]", "click[b0]", "click[men's <b> & \u00e9]", "click[buy now]")
    assert r'{"style": "men\u0027s \u003cb\u003e \u0026 \u00e9"}' in shown


@pytest.mark.parametrize(
    "action",
    [
        *("", "dance", "buy now", "search", "search[]", "click[]", "Search[mug]", "find[mug]", "click[no such button]"),
        *(
            "click[ b0kettle01 ]",
            "click[search]",
            "I will click[b0kettle01]",
            "search\n[mug]",
            "search[mug\n]",
            "search[mug",
        ),
    ],
)
def test_what_the_page_does_not_admit_changes_nothing(visit, action):
    before = said(visit, "search[kettle]")
    assert not visit.act(action)
    assert said(visit) == before


@pytest.mark.parametrize("action", ["click[back to search] and on", "click[BACK TO SEARCH]"])
def test_what_follows_the_bracket_and_the_case_of_the_argument_do_not_matter(visit, action):
    assert said(visit, "search[kettle]", action).startswith("WebShop [SEP]")


def test_the_originals_back_doors_are_ordinary_words(visit):
    assert "Total results: 0" in said(visit, "search[<c> electronics]")
    assert "Total results: 0" in said(visit, "search[ ]")


def test_of_two_options_with_the_same_value_the_last_is_chosen(tmp_path, small):
    mug = item("B0", "Mug", options={"Color": ["Red"], "Handle": ["red"]})
    shop, _ = load_shop(write(tmp_path, [mug], {"B0": {"instruction": "a mug", "instruction_attributes": ["x"]}}))
    visit = Visit(shop, small[1][0])
    said(visit, "search[mug]", "click[b0]", "click[red]")
    assert visit.chosen == {"handle": "red"}


def test_texts_of_white_space_are_shown_as_the_original_parses_them(tmp_path, small):
    mug = item("B0", " Mug \n", bullets=["one", "", " ", "\n", "two"])
    shop, _ = load_shop(write(tmp_path, [mug], {"B0": {"instruction": "a mug", "instruction_attributes": ["x"]}}))
    visit = Visit(shop, small[1][0])
    assert "[SEP] Mug [SEP] Price" in said(visit, "search[mug]", "click[b0]")
    assert said(visit, "click[features]").endswith("< Prev [SEP] one [SEP]  [SEP]  [SEP] two")


def test_the_rich_text_marks_buttons_and_what_was_clicked(visit):
    said(visit, "search[kettle]")
    assert rich_text(visit.nodes, "kettle", {}, set()) == (
        f"Instruction:\n{visit.goal.instruction}\n[button] Back to Search [button_]\nPage 1 (Total results: 1)\n"
        "[button] Next > [button_]\n"
        "\n[button] B0KETTLE01 [button_]\nCopper Tea Kettle, Whistling\n$40.0 to $50.0\n"
    )
    assert "\n\n[clicked button] B0KETTLE01 [clicked button_]\n" in rich_text(visit.nodes, "kettle", {}, {"B0KETTLE01"})
    said(visit, "click[b0kettle01]", "click[copper]", "click[2 l]")
    text = rich_text(visit.nodes, "kettle", visit.chosen, visit.visited)
    assert text.startswith("You have clicked 2 l.\nYou have clicked copper.\nInstruction:\n")
    assert "color\n  [clicked button] copper [clicked button_]\n  [button] black | white [button_]\nsize\n" in text


def test_a_state_names_page_search_and_choice(visit):
    states = {visit.state}
    for action in (
        "search[kettle mug]",
        "click[next >]",
        "click[< prev]",
        "click[b0kettle01]",
        "click[copper]",
        "click[description]",
    ):
        visit.act(action)
        states.add(visit.state)
    assert len(states) == 6  # the first page of results is met twice
    visit.act("click[< prev]")
    visit.act("click[black | white]")
    visit.act("click[copper]")
    assert visit.state in states


def test_brackets_that_do_not_close_are_no_action(visit):
    """In linear time: a pattern that tries each beginning took 300 s."""
    assert not visit.act("a[" * 50_000)
    assert visit.act("b[search[kettle]]\nc]") is False
    assert visit.act("search[kettle]] more")
