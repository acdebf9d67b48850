"""Ends of a gateway, and kills of a training through one, at random moments."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.doses import doses

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

LIVES = doses(1, 8, "TURNWISE_KILLS")


def run(module: str, *words: str) -> dict:
    done = subprocess.run(
        [sys.executable, "-m", module, *words],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=3600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    print(told)
    return told


@pytest.mark.parametrize("lives", LIVES)
def test_a_gateway_that_ends_at_random_moments_keeps_what_it_recorded(lives, tmp_path):
    told = run("tests.gateway.kills", str(tmp_path), str(lives))
    assert told["problems"] == []
    assert told["kills"] + told["terminated"] == lives
    assert told["sessions"] > lives


@pytest.mark.parametrize("lives", LIVES)
def test_kills_of_a_training_through_a_harness_change_nothing(lives, tmp_path):
    told = run("tests.train.kills", str(tmp_path), str(lives), "0", "harness")
    assert told["killed"] == lives
    assert told["differing"] == []
