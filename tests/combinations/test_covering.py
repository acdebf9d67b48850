"""Recipes of many features each train, are killed in their last step, and end as if nobody had killed them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.combinations.covering import allowed, array, covered
from tests.combinations.table import refusal

ROOT = Path(__file__).parents[2]
SAMPLE = (5, 15, 52)
"""Places of recipes in the array that `make test` tries; `make test-slow` tries all."""
PARTS = 8


def tried(folder: Path, numbers: list[int]) -> dict[str, str]:
    """What went wrong with recipes of the array, by their features."""
    command = [sys.executable, "-m", "tests.combinations.lives", str(folder), *map(str, numbers)]
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["number"] for each in told] == numbers
    return {" + ".join(each["features"]): each["wrong"] for each in told}


def test_the_array_has_every_allowed_pair():
    """If it fails, write the array anew: python -m tests.combinations.covering"""
    assert not [row for row in array() if refusal(*row)]
    assert set().union(*map(covered, array())) >= allowed()


def test_a_sample_of_the_array_trains_and_resumes(tmp_path):
    assert not {name: wrong for name, wrong in tried(tmp_path, list(SAMPLE)).items() if wrong}


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_the_array_trains_and_resumes(tmp_path, part):
    assert not {name: wrong for name, wrong in tried(tmp_path, list(range(part, len(array()), PARTS))).items() if wrong}
