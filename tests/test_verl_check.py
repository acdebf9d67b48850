"""What `turnwise verl-check` says; verl itself is not needed."""

import importlib.util

import pytest

from turnwise.cli import main
from turnwise.integrations.verl_check import verdict

THERE = {
    "entry point": True,
    "estimators": ["turnwise", "turnwise_grpo"],
    "trainers": ["turnwise_sync"],
    "loops": ["turnwise"],
}
NOTHING = {"estimators": [], "trainers": [], "loops": []}
CASES = {
    "all there": ({}, {}, True, "2 estimators, trainers turnwise_sync, agent loop turnwise"),
    "estimators alone": (
        {"trainers": [], "loops": []},
        {},
        False,
        "no trainers and no loops of turnwise: its import failed",
    ),
    "not installed": (NOTHING | {"entry point": False}, {}, False, "not installed there"),
    "switched off": (
        NOTHING,
        {"VERL_USE_EXTERNAL_PLUGINS": "none"},
        False,
        "VERL_USE_EXTERNAL_PLUGINS=none excludes it",
    ),
    "verl broken": ({"error": "ImportError: a\nb"}, {}, False, "verl cannot be imported: ImportError: a b"),
}


@pytest.mark.parametrize(("changes", "environment", "fine", "text"), CASES.values(), ids=CASES)
def test_a_process_gets_one_line(changes, environment, fine, text, monkeypatch):
    monkeypatch.delenv("VERL_USE_EXTERNAL_PLUGINS", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    told = verdict("worker 0", THERE | changes)
    assert told[0] is fine
    assert text in told[1]
    assert told[1].startswith("worker 0: ")
    assert "\n" not in told[1]


@pytest.mark.skipif(importlib.util.find_spec("verl") is not None, reason="verl is installed here")
def test_without_verl_there_is_nothing_to_look_at(capsys):
    assert main(["verl-check"]) == 2
    assert capsys.readouterr().err == "turnwise: verl is not installed here; see docs/how-to/verl.md\n"
