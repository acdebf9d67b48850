"""Reading WebShop's files."""

import gzip
import json

import pytest
from tests.environments.webshop.conftest import ITEMS, NOTES, item, write

from turnwise.base.errors import ConfigError, DataError
from turnwise.worlds.webshop import catalogue
from turnwise.worlds.webshop.catalogue import load_human_instructions, load_products


def test_a_product_is_read_as_the_original_reads_it(folder):
    kettle = load_products(folder)[0]
    assert (kettle.asin, kettle.title, kettle.query) == ("B0KETTLE01", "Copper Tea Kettle, Whistling", "kettles")
    assert kettle.options == {"color": ("copper", "black | white"), "size": ("2 l", "3 l")}
    assert (kettle.prices, kettle.price_tag) == ((40.0, 50.0), "$40.0 to $50.0")
    assert kettle.attributes == ("easy clean", "stainless steel")
    assert kettle.instruction == "Find me easy clean kettles with stainless steel"
    assert kettle.text == (
        "copper tea kettle, whistling a kettle for the stove. easy clean "
        "color: copper, black | white, and size: 2 l, 3 l"
    )


def test_products_without_a_proper_number_or_with_one_seen_before_are_left_out(folder):
    assert [product.asin for product in load_products(folder)] == [
        "B0KETTLE01",
        *(f"B0MUG{number:05}" for number in range(12)),
        "B0LAMP0001",
    ]


def test_what_a_file_leaves_open_is_filled_in_as_in_the_original(tmp_path):
    no_price = {key: value for key, value in item("B0", "Mug").items() if key != "pricing"}
    [mug] = load_products(write(tmp_path, [no_price], {}))
    assert (mug.prices, mug.price_tag, mug.attributes) == ((100.0,), "$100.0", ("DUMMY_ATTR",))
    assert (mug.options, mug.bullets, mug.query, mug.instruction) == ({}, ("",), "mugs", None)


@pytest.mark.parametrize(
    ("pricing", "prices"),
    [("$1,020.5", (1020.5,)), ("$3.99 - $10.99", (3.99, 10.99)), ("$1 $2 $3", (1.0, 2.0)), ("", (100.0,))],
)
def test_prices_are_read_from_text(tmp_path, pricing, prices):
    assert load_products(write(tmp_path, [item("B0", "Mug", pricing=pricing)]))[0].prices == prices


@pytest.mark.parametrize("chunk", [1, 7, 300, 1 << 20])
def test_a_catalogue_is_read_piece_by_piece(folder, monkeypatch, chunk):
    monkeypatch.setattr(catalogue, "_CHUNK", chunk)
    assert list(catalogue._read_array(folder / "items_shuffle_1000.json")) == ITEMS


def test_the_full_catalogue_and_the_first_products_of_one(folder):
    write(folder, [item("B1", "Mug"), item("B2", "Cup")], {}, ending="")
    assert [product.asin for product in load_products(folder, catalogue="full")] == ["B1", "B2"]
    assert [product.asin for product in load_products(folder, catalogue="full", num_products=1)] == ["B1"]


def test_human_instructions_are_read_where_they_are(folder):
    assert load_human_instructions(folder) is None
    with gzip.open(folder / "items_human_ins.json.gz", "wt") as file:
        json.dump({"B1": []}, file)
    assert load_human_instructions(folder) == {"B1": []}


def test_the_variable_names_the_folder(folder, monkeypatch):
    monkeypatch.setenv("WEBSHOP_DATA", str(folder))
    assert len(load_products()) == 14


def test_without_data_it_says_what_to_put_where(tmp_path, monkeypatch):
    monkeypatch.delenv("WEBSHOP_DATA", raising=False)
    with pytest.raises(
        DataError, match=r"^set WEBSHOP_DATA to the folder that holds items_shuffle_1000\.json and .*setup\.sh"
    ):
        load_products()
    with pytest.raises(DataError, match=r"WEBSHOP_DATA=.*nowhere is not a folder"):
        load_products(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"holds no items_shuffle_1000\.json \(or \.json\.gz\); setup\.sh"):
        load_products(tmp_path)


def test_the_catalogue_that_is_there_is_offered(folder):
    with pytest.raises(
        DataError, match=r"holds no items_shuffle\.json .*It holds the small catalogue: .*catalogue='small'"
    ):
        load_products(folder, catalogue="full")
    with pytest.raises(ConfigError, match=r"catalogue='ful': no such catalogue. Did you mean 'full'\?"):
        load_products(folder, catalogue="ful")
    with pytest.raises(ConfigError, match=r"num_products=-1: expected 0 \(all\) or more"):
        load_products(folder, num_products=-1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[", "cannot read it as JSON"),
        ('[{"asin": "B0"}', "product 0 is not in WebShop's format: KeyError"),
        ("{}", "cannot read it as JSON: expected an array"),
        ("[3]", "product 0 is not in WebShop's format"),
        ("[]", "holds no products"),
        (json.dumps([item("B0", "Mug", pricing="cheap")]), "pricing 'cheap' names no dollars"),
    ],
)
def test_a_broken_file_is_named(folder, content, message):
    (folder / "items_shuffle_1000.json").write_text(content)
    with pytest.raises(DataError, match=rf"items_shuffle_1000\.json:? .*{message}|items_shuffle_1000\.json {message}"):
        load_products(folder)


def test_a_broken_file_of_attributes_is_named(folder):
    (folder / "items_ins_v2_1000.json").write_text(json.dumps([NOTES]))
    with pytest.raises(DataError, match=r"items_ins_v2_1000\.json holds a list, expected an object by asin"):
        load_products(folder)


def test_a_damaged_compressed_file_is_named(folder):
    (folder / "items_shuffle_1000.json").unlink()
    damaged = bytearray(gzip.compress(b"[" + b"12345, " * 500 + b"1]"))
    damaged[15:25] = b"\xff" * 10
    (folder / "items_shuffle_1000.json.gz").write_bytes(damaged)
    with pytest.raises(DataError, match=r"items_shuffle_1000\.json\.gz: cannot read it as JSON"):
        load_products(folder)
