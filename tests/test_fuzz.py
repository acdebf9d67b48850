"""Random configurations, commands and library calls; with `-m slow`, `TURNWISE_FUZZ=15000` makes as many, in minutes.

Damaged run folders: `TURNWISE_FUZZ_FOLDERS=2000` makes as many, in a quarter of an hour. Damaged logs of other agents:
`TURNWISE_FUZZ_LOGS`, 12,500 unless it says otherwise.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.doses import doses
from tests.fuzz import configuration, finding, fuzz
from tests.fuzz import library as library_call
from turnwise.base.errors import ConfigError


class Verbose(ConfigError):
    """An error that does not keep to one line."""

    __str__ = Exception.__str__


@pytest.mark.parametrize("cases", doses(30, 400, "TURNWISE_FUZZ"))
def test_nothing_random_gives_a_traceback_or_leaves_a_file(cases):
    nothing_found_by("tests.fuzz", cases)


@pytest.mark.parametrize("cases", doses(4, 80, "TURNWISE_FUZZ_FOLDERS"))
def test_no_damaged_folder_gives_a_traceback_or_is_changed(cases):
    nothing_found_by("tests.fuzz_folders", cases)


@pytest.mark.parametrize("cases", doses(30, 12_500, "TURNWISE_FUZZ_LOGS"))
def test_no_damaged_log_gives_a_traceback_or_leaves_a_folder(cases):
    nothing_found_by("tests.fuzz_logs", cases)


def nothing_found_by(fuzzer: str, cases: int) -> None:
    """In a process of its own, since pytest checks array types at run time, which a user does not have."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", fuzzer, str(cases)],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[1],
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-3000:]
    assert done.stdout == f"{cases} cases, 0 findings\n"


def test_a_case_is_the_same_each_time():
    import random

    for make in (configuration, library_call):
        assert len({str(make(random.Random("0-1")).__doc__) for _ in range(2)}) == 1


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (None, ""),
        (ConfigError("one line"), ""),
        (ConfigError("two\nlines" * 1000), ""),
        (Verbose("two\nlines"), "not one line"),
        (Verbose("x" * 2000), "not one line"),
        (KeyError("x"), "KeyError: 'x'"),
    ],
)
def test_a_finding_is_what_is_not_one_line_of_ours(error, said):
    def call():
        if error:
            raise error

    assert finding(call).startswith(said)
    assert bool(finding(call)) == bool(said)


def test_a_file_left_behind_is_a_finding(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tests.fuzz.configuration", lambda chance: lambda: Path("left").write_text("x"))
    (found,) = fuzz(1, 0)
    assert "left ['left'] on disk" in found
