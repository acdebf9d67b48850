"""A small shop, written by hand in the format of WebShop's own files."""

import gzip
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.needs import skip_without

from turnwise.worlds.webshop.catalogue import DATA_VARIABLE
from turnwise.worlds.webshop.goals import Goal
from turnwise.worlds.webshop.shop import Shop, load_shop


def item(
    asin: str,
    name: str,
    *,
    description: str = "",
    bullets: Sequence[str] | str = "",
    query: str = "Mugs ",
    category: str = "garden",
    product_category: str = "Home & Kitchen \u203a Kitchen & Dining \u203a Mugs",
    pricing: str = "$9.99",
    options: Mapping[str, Sequence[str] | None] | str = "",
) -> dict[str, Any]:
    """One product as the file has it."""
    if isinstance(options, Mapping):
        values = {name: v and [{"value": value, "image": None} for value in v] for name, v in options.items()}
    else:
        values = options
    return {
        "asin": asin,
        "name": name,
        "full_description": description,
        "small_description": bullets,
        "query": query,
        "category": category,
        "product_category": product_category,
        "pricing": pricing,
        "customization_options": values,
        "images": ["https://example.org/1.jpg"],
    }


KETTLE = item(
    "B0KETTLE01",
    "Copper Tea Kettle, Whistling",
    description="A kettle for the stove.",
    bullets=["Easy clean", "Holds 2 l "],
    query="kettles",
    product_category="Home & Kitchen \u203a Kitchen & Dining \u203a Kettles",
    pricing="$40.00 - $50.00",
    options={"Color": ["Copper", "Black/White "], "Size": ["2 L", "3 L"], "Style": None},
)
LAMP = item(
    "B0LAMP0001",
    'Desk Lamp <LED> & "Clamp" for your Painter\'s Table',
    description="Bright.",
    query="lamps",
    category="electronics",
    product_category="Tools \u203a Lighting \u203a Lamps",
    pricing="$1,020.5",
    options={"color": ["white", "black"], "Wattage": ["5 W"]},
)
MUGS = [item(f"B0MUG{number:05}", f"Coffee Mug No {number}", bullets=["Stoneware"]) for number in range(12)]
ITEMS = [
    KETTLE,
    *MUGS,
    LAMP,
    item("nan", "Not a product"),
    item("B0KETTLE01", "A kettle twice"),
    item("B" * 11, "Too long"),
]
NOTES = {
    "B0KETTLE01": {
        "attributes": ["easy clean", "stainless steel"],
        "instruction": "Find me easy clean kettles with stainless steel",
        "instruction_attributes": ["easy clean", "stainless steel"],
    },
    "B0LAMP0001": {
        "attributes": ["easy install"],
        "instruction": "Find me easy install lamps",
        "instruction_attributes": ["easy install"],
    },
    "B0MUG00000": {"attributes": []},
}


def write(folder: Path, items: Sequence[Any] = ITEMS, notes: Mapping[str, Any] = NOTES, ending: str = "_1000") -> Path:
    """Write a catalogue, one file of it compressed."""
    (folder / f"items_shuffle{ending}.json").write_text(json.dumps(items, indent=1), encoding="utf-8")
    with gzip.open(folder / f"items_ins_v2{ending}.json.gz", "wt", encoding="utf-8") as file:
        json.dump(notes, file)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with the small shop's files."""
    return write(tmp_path)


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Shop, list[Goal]]:
    """Return the small shop and its goals: four for the kettle, two for the lamp."""
    skip_without("Stemmer", "rapidfuzz")
    return load_shop(write(tmp_path_factory.mktemp("webshop")))


@pytest.fixture
def shop(small: tuple[Shop, list[Goal]]) -> Shop:
    """Return the small shop."""
    return small[0]


@pytest.fixture
def kettle(small: tuple[Shop, list[Goal]]) -> Goal:
    """Return the goal of a black and white kettle of 3 l."""
    wanted = (("color", "black | white"), ("size", "3 l"))
    return next(goal for goal in small[1] if goal.options == wanted)


@pytest.fixture(scope="session")
def recorded() -> Path:
    """Return the folder with the real catalogue and episodes recorded in the original; skips where there is none."""
    skip_without(DATA_VARIABLE, "Stemmer", "rapidfuzz")
    named = os.environ[DATA_VARIABLE]
    if not (Path(named) / "transcripts.jsonl.gz").is_file():
        pytest.skip(f"needs transcripts.jsonl.gz in {DATA_VARIABLE}: episodes recorded in the original environment")
    return Path(named)
