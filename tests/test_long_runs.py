"""Memory stays flat and nothing stays open; `TURNWISE_LONG=100` makes the runs a hundred times as long ."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TIMES = int(os.environ.get("TURNWISE_LONG", "1"))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(("what", "steps"), [("environment", 20_000 * TIMES), ("training", 30 * TIMES)])
def test_a_long_run_ends_with_the_memory_and_the_files_that_it_began_with(what, steps):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.long_runs", what, str(steps)],
        cwd=Path(__file__).parents[1],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["after"] == told["before"]
    second, last = told["memory_mb"][1], told["memory_mb"][-1]
    assert last < 1.05 * second, told["memory_mb"]
