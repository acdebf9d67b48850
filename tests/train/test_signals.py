"""SIGTERM and SIGHUP lose no completed step; `eval` and `report` leave whole files, however they end."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TIMES = int(os.environ.get("TURNWISE_KILLS", "3"))


@pytest.fixture(scope="module")
def told(tmp_path_factory) -> dict:
    done = subprocess.run(
        [sys.executable, "-m", "tests.train.signals", str(tmp_path_factory.mktemp("signals")), str(TIMES)],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=3600,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", ["train", "train-copying"])
def test_a_training_that_is_asked_to_end_loses_no_completed_step(told, name):
    told = told[name]
    assert told["stopped"] >= TIMES
    assert (told["lost"], told["late"], told["silent"], told["differing"]) == ([], [], [], [])


def test_a_second_signal_ends_the_process_at_once(told):
    told = told["second"]
    assert told["code"] == 143
    assert told["seconds"] < 2
    assert told["said"] == (
        "turnwise: SIGTERM: step 1 ends first, then its checkpoint is saved; a second signal ends the run at once"
    )


def test_a_hang_up_that_nohup_ignores_stays_ignored(told):
    assert told["nohup"]["code"] == 0


@pytest.mark.parametrize("name", ["eval", "report"])
def test_what_reads_a_run_leaves_whole_files_wherever_it_ends(told, name):
    told = told[name]
    assert told["disturbed"] >= TIMES
    assert (told["torn"], told["differing"]) == ([], [])
