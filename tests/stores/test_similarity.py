"""Similarity by words is difflib's, and its bound never excludes a text."""

import difflib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.extensions.stores.similarity import COMPARED, Similar, similarity, words_of

TEXTS = st.lists(st.sampled_from("abcd"), max_size=8).map(" ".join)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("you see a cup", "you see a cup", 1.0),
        ("you see a cup", "you see a mug", 0.75),  # 3 of 4 and 4 words
        ("open fridge 1", "open fridge 1 now", 6 / 7),
        ("a b", "c d", 0.0),
        ("a b", "b a", 0.5),  # in order: one word
        ("", "", 1.0),
        ("", "a", 0.0),
    ],
)
def test_similarity_by_hand(one, other, expected):
    assert similarity(words_of(one), words_of(other)) == pytest.approx(expected)
    assert Similar([other]).bounds(words_of(one))[0] >= expected


@given(st.lists(TEXTS, min_size=1, max_size=6), TEXTS)
def test_the_bound_is_difflibs_and_above_the_similarity(texts, text):
    words = text.split()
    bounds = Similar(texts).bounds(words)
    quick = [difflib.SequenceMatcher(None, words, each.split(), autojunk=False).quick_ratio() for each in texts]
    assert bounds == pytest.approx(quick)
    assert all(bound >= similarity(words, each.split()) - 1e-12 for bound, each in zip(bounds, texts, strict=True))


def test_texts_come_from_the_largest_bound_on():
    found = Similar(["a b", "a c", "b c", "a b"])
    ranked = list(found.ranked(["a", "b"], np.array([0.0, 1.0, 2.0, 1.0]), 0.5))
    assert ranked == [(3, 1.0), (0, 1.0), (2, 0.5), (1, 0.5)]
    assert words_of("x " * COMPARED) == ["x"] * (COMPARED // 2)
