"""Goals: their sentences, their order, their prices and their splits."""

import json
import random
from typing import Any

import pytest
from tests.environments.webshop.conftest import item, write
from tests.needs import needs

from turnwise.base.errors import ConfigError, DataError
from turnwise.worlds.webshop.goals import split_goals
from turnwise.worlds.webshop.shop import load_shop

pytestmark = needs("Stemmer", "rapidfuzz")

HUMAN = {
    "B0KETTLE01": [
        {
            "instruction": "i want a kettle.",
            "instruction_attributes": ["easy clean"],
            "instruction_options": ["copper", "2 l"],
        },
        {"instruction": "any kettle", "instruction_attributes": [], "instruction_options": []},
    ],
    "B0LAMP0001": [{"instruction": "a lamp", "instruction_attributes": ["easy install"], "instruction_options": []}],
}


def test_there_is_a_goal_for_every_combination_of_options(small):
    kettles = {goal.options: goal for goal in small[1] if goal.asin == "B0KETTLE01"}
    assert set(kettles) == {(("color", c), ("size", s)) for c in ("copper", "black | white") for s in ("2 l", "3 l")}
    goal = kettles[("color", "copper"), ("size", "2 l")]
    assert goal.instruction == (
        "Find me easy clean kettles with stainless steel with color: copper, and size: 2 l, and price lower than "
        f"{goal.price_upper:.2f} dollars"
    )
    assert (goal.attributes, goal.query, goal.category) == (("easy clean", "stainless steel"), "kettles", "garden")
    assert [goal.number for goal in small[1]] == list(range(6))


def test_a_goal_beyond_all_limits_has_none(small):
    lamps = [goal for goal in small[1] if goal.asin == "B0LAMP0001"]
    assert {goal.instruction for goal in lamps} == {
        f"Find me easy install lamps with color: {color}, and wattage: 5 w" for color in ("white", "black")
    }
    assert {goal.price_upper for goal in lamps} == {1_000_000}


def test_a_limit_is_the_higher_of_two_among_the_next_four_tens(tmp_path):
    note = {"instruction": "Find me pans", "instruction_attributes": ["x"]}
    write(tmp_path, [item("B0", "Pan", pricing="$40.00")], {"B0": note})
    limits = {load_shop(tmp_path, seed=seed)[1][0].price_upper for seed in range(50)}
    assert limits == {60.0, 70.0, 80.0}  # of 50, 60, 70 and 80


def test_an_instruction_names_options_in_the_order_of_their_names(tmp_path):
    note = {"instruction": "Find me pans", "instruction_attributes": ["x"]}
    write(tmp_path, [item("B0", "Pan", options={"Size": ["L"], "Color": ["Red"]})], {"B0": note})
    assert "Find me pans with color: red, and size: l, and price" in load_shop(tmp_path)[1][0].instruction


def test_prices_limits_and_order_are_those_of_the_original_after_the_same_seed(folder):
    """The original draws from Python's global generator: prices of ranges as in the catalogue, limits, the order."""
    shop, goals = load_shop(folder, seed=7)
    random.seed(7)
    price = random.uniform(40.0, 50.0)
    limit = max(random.sample([limit for limit in (50.0, 60.0, 70.0, 80.0, 90.0) if limit > price][:4], 2))
    random.seed(233)
    order = [("copper", "2 l"), ("copper", "3 l"), ("black | white", "2 l"), ("black | white", "3 l"), "white", "black"]
    random.shuffle(order)
    assert shop.prices["B0KETTLE01"] == price
    assert {goal.price_upper for goal in goals if goal.asin == "B0KETTLE01"} == {limit}
    values = [tuple(value for _, value in goal.options) for goal in goals]
    assert values == [(entry, "5 w") if isinstance(entry, str) else entry for entry in order]


def test_a_seed_is_all_that_goals_depend_on(folder):
    assert load_shop(folder, seed=3)[1] == load_shop(folder, seed=3)[1]
    assert len({load_shop(folder, seed=seed)[0].prices["B0KETTLE01"] for seed in range(5)}) == 5


def test_goals_that_people_wrote_are_preferred(folder):
    assert len(load_shop(folder)[1]) == 6
    (folder / "items_human_ins.json").write_text(json.dumps(HUMAN))
    goals = {goal.asin: goal for goal in load_shop(folder)[1]}
    kettle, lamp = goals["B0KETTLE01"], goals["B0LAMP0001"]
    assert kettle.instruction == f"i want a kettle, and price lower than {kettle.price_upper:.2f} dollars"
    assert (kettle.options, kettle.attributes) == (("copper", "2 l"), ("easy clean",))
    assert (lamp.instruction, lamp.options) == ("a lamp", ())
    assert len(load_shop(folder, goals="human")[1]) == 2
    assert len(load_shop(folder, goals="synthetic")[1]) == 6


def test_goals_that_are_not_there_are_missed(folder):
    with pytest.raises(DataError, match=r"goals='human' needs items_human_ins\.json"):
        load_shop(folder, goals="human")
    with pytest.raises(ConfigError, match=r"goals='humane': no such goals. Did you mean 'human'\?"):
        load_shop(folder, goals="humane")
    (folder / "items_human_ins.json").write_text(json.dumps({"B0KETTLE01": [{"instruction": "a kettle"}]}))
    with pytest.raises(DataError, match=r"items_human_ins\.json: .* at B0KETTLE01 .*: KeyError"):
        load_shop(folder)
    write(folder, [item("B0", "Mug")], {})
    with pytest.raises(DataError, match="no product of this catalogue has an instruction"):
        load_shop(folder, goals="synthetic")


def test_the_splits_of_the_papers_and_of_the_original(small):
    numbered: Any = list(enumerate([small[1][0]] * 2000))
    splits = [
        ("papers", "train"),
        ("papers", "test"),
        ("original", "train"),
        ("original", "valid"),
        ("original", "test"),
    ]
    cut: dict[tuple[str, str], Any] = {(how, split): split_goals(numbered, split, how) for how, split in splits}
    bounds = {key: (chosen[0][0], chosen[-1][0]) for key, chosen in cut.items()}
    assert bounds == {
        ("papers", "train"): (500, 1999),
        ("papers", "test"): (0, 499),
        ("original", "train"): (1500, 1999),
        ("original", "valid"): (500, 1499),
        ("original", "test"): (0, 499),
    }


def test_an_unknown_split_names_a_known_one(small):
    goals = small[1]
    with pytest.raises(ConfigError, match=r"no split 'tests'. Did you mean 'test'\?"):
        split_goals(goals, "tests")
    with pytest.raises(ConfigError, match=r"no split 'valid'. environment.options.splits='original' has one."):
        split_goals(goals, "valid")
    with pytest.raises(ConfigError, match=r"splits='orignal': no such way to split. Did you mean 'original'\?"):
        split_goals(goals, "test", "orignal")
    with pytest.raises(DataError, match="split 'train' is empty: this catalogue has 6 goals only"):
        split_goals(goals, "train")
