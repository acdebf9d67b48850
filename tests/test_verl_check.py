"""What `turnwise verl-check` says; verl itself is not needed."""

import importlib.util
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

import pytest

from turnwise.commands.cli import main
from turnwise.integrations import verl_check
from turnwise.integrations.verl_check import check, verdict

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
    assert capsys.readouterr().err == (
        "turnwise: verl is not installed here; see "
        "https://github.com/turnwise-rl/turnwise/blob/main/docs/how-to/verl.md\n"
    )


def test_a_worker_without_turnwise_is_one_line_and_others_are_checked(monkeypatch):
    """Ray sends a function by its module's name, which such a worker cannot import, unless told otherwise."""
    by_value, asked = [], []

    def get(worker):
        if verl_check not in by_value:
            raise ModuleNotFoundError("No module named 'turnwise'")
        if worker:
            raise RuntimeError("ray::_ask() (pid=7)\n  Traceback\nActorDiedError: the node died")
        return "node-a", THERE

    ray = SimpleNamespace(
        init=lambda **_: None,
        shutdown=lambda: None,
        cloudpickle=SimpleNamespace(register_pickle_by_value=by_value.append),
        remote=lambda **_: lambda function: SimpleNamespace(remote=lambda: asked.append(function) or len(asked) - 1),
        get=get,
    )
    for name in ("verl", "ray"):
        made = ModuleType(name)
        made.__spec__ = ModuleSpec(name, None)
        vars(made).update(vars(ray))
        monkeypatch.setitem(sys.modules, name, made)
    monkeypatch.setattr(verl_check, "state", lambda: THERE)
    code, lines = check(workers=2)
    assert code == 1
    assert [line.partition(":")[0] for line in lines] == ["driver", "worker 0 on node-a", "worker 1 cannot answer"]
    assert lines[2].endswith("ActorDiedError: the node died")
