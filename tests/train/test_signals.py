"""Ctrl-C, SIGTERM and SIGHUP lose no completed step; `eval` and `report` leave whole files, however they end."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.doses import doses

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module", params=doses(1, 8, "TURNWISE_KILLS"))
def told(tmp_path_factory, request) -> dict:
    done = subprocess.run(
        [sys.executable, "-m", "tests.train.signals", str(tmp_path_factory.mktemp("signals")), str(request.param)],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},  # a fork cannot use a GPU
        capture_output=True,
        text=True,
        check=False,
        timeout=3600,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout) | {"times": request.param}


@pytest.mark.parametrize("name", ["train", "train-copying"])
def test_a_training_that_is_asked_to_end_loses_no_completed_step(told, name):
    times, told = told["times"], told[name]
    assert told["stopped"] >= times
    assert (told["lost"], told["late"], told["silent"], told["differing"]) == ([], [], [], [])


@pytest.mark.parametrize(
    ("name", "code", "said"), [("second", 143, "SIGTERM"), ("second-interrupt", 130, "interrupted")]
)
def test_a_second_signal_ends_the_process_at_once(told, name, code, said):
    told = told[name]
    assert told["code"] == code
    assert told["seconds"] < 2
    assert told["said"] == (
        f"turnwise: {said}: step 1 ends first, then its checkpoint is saved; a second signal ends the run at once"
    )


def test_a_hang_up_that_nohup_ignores_stays_ignored(told):
    assert told["nohup"]["code"] == 0


@pytest.mark.parametrize("name", ["eval", "report"])
def test_what_reads_a_run_leaves_whole_files_wherever_it_ends(told, name):
    times, told = told["times"], told[name]
    assert told["disturbed"] >= times
    assert (told["torn"], told["differing"]) == ([], [])
