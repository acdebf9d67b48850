"""Which pairs of features a recipe may have: those that are refused stand in a list that may only shrink."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.combinations.table import FEATURES, PAIRS, config_of, listed

ROOT = Path(__file__).parents[2]
ANEW = "write the list anew: python -m tests.combinations.table"


@pytest.fixture(scope="module")
def refused() -> dict[str, str]:
    """The pairs that are refused, found in a process that does not check types of arrays, a hundred times faster."""
    command = [sys.executable, "-m", "tests.combinations.table", "--print"]
    return json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout)


def test_the_table_has_the_features_of_the_recipes():
    assert len(FEATURES) == 44
    assert len(PAIRS) == 884


@pytest.mark.parametrize("feature", FEATURES)
def test_every_feature_is_possible_by_itself(feature):
    config_of([feature])


def test_no_other_pair_is_refused_than_those_of_the_list(refused):
    assert refused.keys() - listed().keys() == set(), "refused anew"


def test_every_pair_of_the_list_is_refused_with_its_message(refused):
    assert listed().keys() - refused.keys() == set(), f"not refused any more; {ANEW}"
    assert listed() == refused, ANEW


def test_a_refusal_is_one_line_that_names_two_settings_and_says_what_to_change():
    for pair, message in listed().items():
        assert "\n" not in message, pair
        what, mend = message.rsplit("; ", 1)
        assert mend.startswith(("remove ", "set ", "use ", "choose ")), pair
        assert ", and " in what, pair
