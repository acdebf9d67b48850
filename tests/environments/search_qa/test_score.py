"""Scores of answers; what is expected is written out by hand."""

import pytest

from turnwise.worlds.search_qa.environment import exact_match, f1, normalise


@pytest.mark.parametrize(
    ("answer", "normal"),
    [
        ("The  B-17 Flying\tFortress!", "b17 flying fortress"),
        ("an apple a day", "apple day"),
        ("Theatre of Athens", "theatre of athens"),  # "the" and "a" within words stay
        ("U.S.", "us"),
        ("The The", "the the"),  # nothing else would be left
        ("!!!", "!!!"),
    ],
)
def test_answers_are_normalised(answer, normal):
    assert normalise(answer) == normal


@pytest.mark.parametrize(
    ("answer", "gold", "right", "likeness"),
    [
        ("klee", ["Klee"], True, 1),
        ("the village of Klee", ["Klee", "Village of Klee."], True, 1),
        ("village Klee", ["Klee", "Bonn"], False, 2 / 3),
        ("big red barn", ["small red barn", "barn"], False, 2 / 3),  # the best of several, not the first or the mean
        ("red red barn", ["red barn barn"], False, 2 / 3),  # a repeated word is shared as often as both have it
        ("red red barn", ["red red bus"], False, 2 / 3),
        ("yes", ["yes"], True, 1),
        ("yes or no", ["no"], False, 0),  # hedging
        ("yes", ["yes indeed"], False, 0),
        ("!!!", ["the"], False, 0),
        ("blue", ["red barn"], False, 0),
    ],
)
def test_answers_are_scored(answer, gold, right, likeness):
    assert exact_match(answer, gold) is right
    assert f1(answer, gold) == pytest.approx(likeness, abs=1e-12)
