"""Load WebShop's products and human instructions from its own files in $WEBSHOP_DATA.

    items_shuffle_1000.json, items_ins_v2_1000.json     the small catalogue, 1,000 products
    items_shuffle.json, items_ins_v2.json               the full one, 1.18 million
    items_human_ins.json                                instructions that people wrote, for either

Each may be compressed (.json.gz). They come from the downloads of github.com/princeton-nlp/WebShop (setup.sh), folder
`data`.
"""

import dataclasses
import itertools
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from turnwise.base.errors import ConfigError, DataError, did_you_mean
from turnwise.base.jsonl import UNREADABLE, open_text

DATA_VARIABLE = "WEBSHOP_DATA"
SIZES = {"small": "_1000", "full": ""}
"""Suffix of the file names by catalogue."""

_PRODUCTS, _ATTRIBUTES, _HUMAN = "items_shuffle", "items_ins_v2", "items_human_ins"
_DEFAULT_PRICE = 100.0
_CHUNK = 1 << 20


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Product:
    """One product, as WebShop shows and compares it."""

    asin: str  # its id, ten letters and digits
    title: str
    description: str
    bullets: tuple[str, ...]
    category: str
    query: str
    product_category: str
    prices: tuple[float, ...]  # lowest and highest price (dollars); a single one without a range
    options: Mapping[str, tuple[str, ...]]  # values by option name, lower case
    attributes: tuple[str, ...]  # attributes that WebShop's authors mined from its text ("machine wash")
    instruction: str | None = None  # start of a synthetic instruction for it, if any
    instruction_attributes: tuple[str, ...] = ()  # attributes that this instruction names

    @property
    def price_tag(self) -> str:
        """Price as shown on pages."""
        return " to ".join(f"${price}" for price in self.prices)

    @property
    def text(self) -> str:
        """Text that the search indexes."""
        options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in self.options.items())
        return " ".join([self.title, self.description, *self.bullets[:1], options]).lower()


def data_folder(data: str | Path | None = None) -> Path:
    """Find the folder with the files: `data`, or $WEBSHOP_DATA.

    Raises:
        DataError: Neither is set, or it is not a folder.
    """
    named = data or os.environ.get(DATA_VARIABLE)
    if not named:
        raise DataError(
            f"set {DATA_VARIABLE} to the folder that holds items_shuffle_1000.json and "
            "items_ins_v2_1000.json (setup.sh of github.com/princeton-nlp/WebShop fetches them)."
        )
    folder = Path(named).expanduser()
    if not folder.is_dir():
        raise DataError(f"{DATA_VARIABLE}={named} is not a folder; expected a folder with items_shuffle_1000.json.")
    return folder


def load_products(data: str | Path | None = None, *, catalogue: str = "small", num_products: int = 0) -> list[Product]:
    """Load a catalogue.

    Args:
        data: Folder, instead of the environment variable.
        catalogue: "small" or "full".
        num_products: Number of products to load; 0: all.

    Raises:
        ConfigError: The catalogue is unknown.
        DataError: A file is missing or malformed.
    """
    if catalogue not in SIZES:
        raise ConfigError(
            f"environment.options.catalogue={catalogue!r}: no such catalogue.{did_you_mean(catalogue, SIZES)}"
        )
    if num_products < 0:
        raise ConfigError(f"environment.options.num_products={num_products}: expected 0 (all) or more")
    folder = data_folder(data)
    file = _find(folder, _PRODUCTS + SIZES[catalogue])
    notes = _read_object(_find(folder, _ATTRIBUTES + SIZES[catalogue]))
    products: dict[str, Product] = {}
    for number, item in enumerate(itertools.islice(_read_array(file), num_products or None)):
        try:
            asin = item["asin"]
            if asin != "nan" and len(asin) <= 10 and asin not in products:
                products[asin] = _product(item, notes.get(asin, {}))
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise DataError(f"{file}: product {number} is not in WebShop's format: {error!r}.") from error
    if not products:
        raise DataError(f"{file} holds no products.")
    return list(products.values())


def load_human_instructions(data: str | Path | None = None) -> dict[str, list[dict[str, Any]]] | None:
    """Load the human instructions by asin; None if the file is missing."""
    folder = data_folder(data)
    return _read_object(_find(folder, _HUMAN)) if _exists(folder, _HUMAN) else None


def _product(item: Mapping[str, Any], notes: Mapping[str, Any]) -> Product:
    bullets = item["small_description"]
    options: dict[str, tuple[str, ...]] = {}
    for name, values in (item["customization_options"] or {}).items():
        if values is not None:
            options[name.lower()] = tuple(value["value"].strip().replace("/", " | ").lower() for value in values)
    return Product(
        asin=item["asin"],
        title=item["name"],
        description=item["full_description"] or "",
        bullets=tuple(bullets) if isinstance(bullets, list) else (bullets or "",),
        category=item["category"],
        query=item["query"].lower().strip(),
        product_category=item["product_category"],
        prices=_prices(item.get("pricing")),
        options=options,
        attributes=tuple(notes.get("attributes", ["DUMMY_ATTR"])),
        instruction=notes.get("instruction"),
        instruction_attributes=tuple(notes.get("instruction_attributes") or ()),
    )


def _prices(text: str | None) -> tuple[float, ...]:
    if not text:
        return (_DEFAULT_PRICE,)
    prices = tuple(float(re.sub(r"[^\d.]", "", part)) for part in text.split("$")[1:])
    if not prices:
        raise ValueError(f"pricing {text!r} names no dollars")
    return prices[:2]


def _exists(folder: Path, name: str) -> bool:
    return any((folder / f"{name}{ending}").is_file() for ending in (".json", ".json.gz"))


def _find(folder: Path, name: str) -> Path:
    for ending in (".json", ".json.gz"):
        if (folder / f"{name}{ending}").is_file():
            return folder / f"{name}{ending}"
    there = [size for size, ending in SIZES.items() if _exists(folder, _PRODUCTS + ending)]
    hint = f" It holds the {there[0]} catalogue: environment.options.catalogue={there[0]!r}." if there else ""
    raise DataError(
        f"{folder} holds no {name}.json (or .json.gz); setup.sh of github.com/princeton-nlp/WebShop fetches it.{hint}"
    )


def _read_object(file: Path) -> dict[str, Any]:
    try:
        with open_text(file) as stream:
            content = json.load(stream)
    except UNREADABLE as error:
        raise DataError(f"{file}: cannot read it as JSON: {error}.") from error
    if not isinstance(content, dict):
        raise DataError(f"{file} holds a {type(content).__name__}, expected an object by asin.")
    return content


def _read_array(file: Path) -> Iterator[Any]:
    """Read a JSON array element by element, because the full catalogue (5 GB) would exhaust memory."""
    scan = json.JSONDecoder().raw_decode
    try:
        with open_text(file) as stream:
            text = stream.read(_CHUNK)
            if not text.lstrip().startswith("["):
                raise ValueError("expected an array")
            place = text.index("[") + 1
            while True:
                while text[place : place + 1] in set(", \t\r\n"):
                    place += 1
                if text.startswith("]", place):
                    return
                try:
                    element, place = scan(text, place)
                except ValueError:
                    if not (more := stream.read(max(_CHUNK, len(text) - place))):
                        raise
                    text, place = text[place:] + more, 0
                    continue
                yield element
    except UNREADABLE as error:
        raise DataError(f"{file}: cannot read it as JSON: {error}.") from error
