"""Which pairs of features a recipe may have: those that are refused stand in a list that may only shrink."""

import json

import pytest

from tests.combinations.table import FEATURES, PAIRS, REFUSED, config_of, refusal


def listed() -> dict[str, str]:
    return json.loads(REFUSED.read_text())


def test_the_table_has_the_features_of_the_recipes():
    assert len(FEATURES) == 44
    assert len(PAIRS) == 880


@pytest.mark.parametrize("feature", FEATURES)
def test_every_feature_is_possible_by_itself(feature):
    config_of([feature])


def test_the_refused_pairs_are_those_of_the_list():
    """Fails for a pair that is refused anew, and for one that is not refused any more; see `table.py`."""
    found = {f"{one} + {other}" for one, other in PAIRS if refusal(one, other)}
    assert found - set(listed()) == set(), "refused anew"
    assert set(listed()) - found == set(), "not refused any more: write the list anew"


def test_the_list_has_the_messages_of_today():
    for pair, message in listed().items():
        assert refusal(*pair.split(" + ")) == message, "write the list anew: python -m tests.combinations.table"
        assert "\n" not in message
