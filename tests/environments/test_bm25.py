"""Lucene's analysis and ranking."""

import math

import numpy as np
import pytest
from tests.needs import needs

from turnwise.base.errors import ConfigError
from turnwise.worlds.bm25 import LuceneIndex, analyse, stored_length


@needs("Stemmer")
@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("The Men's T-Shirts & Tanks", ["men", "t", "shirt", "tank"]),  # stop words, possessive, hyphen, plural
        ("Women\u2019s running shoes", ["women", "run", "shoe"]),
        ("O:Neck don't 1,000 2.5 4;5", ["o:neck", "don't", "1,000", "2.5", "4;5"]),  # signs that join
        ("a,b end. 3.x x.3 10cm", ["b", "end", "3", "x", "x", "3", "10cm"]),  # letters with letters, digits with digits
        ("snake_case _ __", ["snake_cas"]),
        ("hearts \u2764\u2764 and \u2605 \u2122 \u00bd", ["heart", "\u2764", "\u2764", "\u2605"]),  # words, too
        (
            "\U0001f468\u200d\U0001f4bc\U0001f1eb\U0001f1f7",
            ["\U0001f468\u200d\U0001f4bc", "\U0001f1eb\U0001f1f7"],
        ),  # joined, flags
        ("us is as me", ["us", "me"]),  # Porter leaves words of two letters alone
        ("assembly assembled technology technological", ["assembl", "assembl", "technolog", "technolog"]),
        ("biology doubly", ["biologi", "doubli"]),
        ("", []),
    ],
)
def test_texts_become_lucenes_terms(text, terms):
    assert analyse(text) == terms


def test_lengths_survive_one_byte_as_in_lucene():
    # The table of Lucene's SmallFloat.byte4ToInt, from 0 to 152.
    table = [*range(40), *range(40, 56, 2), *range(56, 88, 4), *range(88, 153, 8)]
    for length in range(153):
        assert stored_length(length) == max(entry for entry in table if entry <= length)
    assert stored_length(343) == 312
    assert stored_length(344) == 344


@needs("Stemmer")
def test_a_rare_word_counts_more_than_a_common_one():
    index = LuceneIndex.build({"a": "red mug", "b": "red cup", "c": "red pot", "d": "blue mug"})
    assert index.search("red cup", 50)[0] == "b"
    assert index.search("cup", 50) == ["b"]


@needs("Stemmer")
@pytest.mark.parametrize(("k1", "b"), [(0.9, 0.4), (1.5, 0.75), (0.0, 1.0)])
def test_scores_are_lucenes_bm25(k1, b):
    """Written out for three documents, in which the term stands once, twice and not at all."""
    index = LuceneIndex.build({"a": "mug pan pan pan", "b": "mug mug", "c": "pan cup"}, k1=k1, b=b)
    idf = math.log(1 + (3 - 2 + 0.5) / (2 + 0.5))
    mean = (4 + 2 + 2) / 3
    expected = [idf * tf / (tf + k1 * (1 - b + b * length / mean)) for tf, length in ((1, 4), (2, 2))]
    place = index._terms["mug"]
    impacts = index._impacts[index._starts[place] : index._starts[place + 1]]
    np.testing.assert_allclose(impacts, expected, rtol=1e-6)


@needs("Stemmer")
def test_a_word_said_twice_counts_twice():
    index = LuceneIndex.build({"a": "mug x1 x2 x3 x4", "b": "cup", "c": "mug x5", "d": "cup x6 x7 x8"})
    assert index.search("mug cup", 50)[0] == "b"
    assert index.search("mug mug cup", 50)[0] == "c"


@needs("Stemmer")
def test_equal_scores_are_ordered_by_name_and_lengths_in_one_byte_are_equal():
    filler = " ".join(f"w{number}" for number in range(39))
    index = LuceneIndex.build({"z": f"mug {filler}", "a": f"mug {filler} extra", "m": "cup"})  # 40 and 41 words
    assert index.search("mug", 50) == ["a", "z"]


@needs("Stemmer")
def test_at_most_fifty_are_found_the_best_first():
    texts = {f"{number:03}": "mug " * (1 + number % 3) + "pot " * (3 - number % 3) for number in range(120)}
    found = LuceneIndex.build(texts).search("mug", 50)
    assert (
        found
        == [f"{number:03}" for number in range(120) if number % 3 == 2]
        + [f"{n:03}" for n in range(120) if n % 3 == 1][:10]
    )


@needs("Stemmer")
@pytest.mark.parametrize("query", ["", "the of", "unheard", "?!"])
def test_what_is_nowhere_is_not_found(query):
    assert LuceneIndex.build({"a": "mug", "b": "the pot"}).search(query, 50) == []


@needs("Stemmer")
def test_an_empty_shop_can_be_searched():
    assert LuceneIndex.build({}).search("mug", 50) == []


@needs("Stemmer")
def test_an_index_is_built_once_and_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("TURNWISE_CACHE", str(tmp_path))
    texts = {"b": "red mug \u2764", "a": "blue mug", "c": "a pot"}
    first = LuceneIndex.cached(texts)
    monkeypatch.setattr(LuceneIndex, "build", None)
    second = LuceneIndex.cached(texts)
    for query in ("mug", "blue", "\u2764 red", "pot"):
        assert first.search(query, 50) == second.search(query, 50) != []
    [kept] = (tmp_path / "bm25").iterdir()
    assert not kept.name.startswith("tmp")
    with pytest.raises(TypeError):  # other texts are another index
        LuceneIndex.cached({**texts, "c": "a pan"})
    with pytest.raises(TypeError):  # and so are other constants
        LuceneIndex.cached(texts, k1=1.5)


def test_a_missing_package_is_named(monkeypatch):
    import importlib

    def missing(name):
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr(importlib, "import_module", missing)
    from turnwise.environments.needs import needed

    with pytest.raises(ConfigError, match="BM25 needs the module 'Stemmer'; pip install PyStemmer"):
        needed("Stemmer", package="PyStemmer", by="BM25")
