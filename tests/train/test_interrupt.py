"""Ctrl-C in every phase of a run: what is done is saved, and the run ends later as if nobody had pressed it."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.gateway.asking import play_toy  # noqa: F401 (imported before an interrupt can fall into its import)
from tests.toys import small_config
from tests.train.kills import HARNESS, whole

import turnwise.config
import turnwise.train.loop
from turnwise.base.stopping import stoppable
from turnwise.commands.cli import main
from turnwise.environments.supervise import descendants
from turnwise.extensions.continuations.play import Continuations
from turnwise.models.policy import Policy
from turnwise.train import prepare
from turnwise.train.display import ConsoleDisplay
from turnwise.train.folder import RunFolder, by_step
from turnwise.train.loop import train
from turnwise.train.run import Run
from turnwise.train.update import Learner

SETTINGS = {
    "run": {"steps": 4},
    "method": "v05+aem",  # it keeps a state
    "evaluate": {"every": 3},
    "checkpoint": {"every": 3, "keep": 9},
    "update": {"learning_rate": 0.01, "warmup_steps": 0},
}
WORKERS = {"environment": {"workers": 1}, "engine": {"max_rows": 1}}  # one at a time: sums in a fixed order
CONTINUATIONS = {"method": "vine_ppo", "continuations": {"number": 1}}
PHASES = {
    "playing": ((ConsoleDisplay, "turn"), 2, 2, {}),
    "playing in workers": ((ConsoleDisplay, "turn"), 2, 2, WORKERS),
    "playing through the gateway": ((ConsoleDisplay, "turn"), 2, 2, HARNESS),
    "continuing": ((Continuations, "_play"), 2, 2, CONTINUATIONS),
    "measuring": ((Run, "measure"), 2, 2, {}),
    "computing gradients": ((Learner, "update"), 2, 2, {}),
    "changing weights": ((torch.optim.AdamW, "step"), 2, 3, {}),
    "completing": ((Run, "complete"), 3, 3, {}),
    "evaluating": ((turnwise.train.loop, "evaluate_held_out"), 3, 3, {}),
    "checkpointing": ((Policy, "save"), 3, 3, {}),
}
"""What a phase calls, recorded steps before it, the step that is saved, and settings."""


def press_ctrl_c_in(monkeypatch, owner: object, name: str, when: Callable[[], bool]) -> None:
    """Have a function press Ctrl-C once, as soon as it should."""
    function, pressed = getattr(owner, name), []

    def pressing(*args, **kwargs):
        if not pressed and when():
            pressed.append(True)
            os.kill(os.getpid(), signal.SIGINT)
        return function(*args, **kwargs)

    monkeypatch.setattr(owner, name, pressing)


def steps_of(folder: Path) -> list[int]:
    return [record["step"] for record in RunFolder(folder).metrics() if "rollout/success" in record]


def any_recipe(folder: Path) -> str:
    """A file that is read in place of the configuration that a test gives."""
    path = folder / "any.toml"
    path.touch()
    return str(path)


@pytest.mark.parametrize("phase", PHASES)
def test_ctrl_c_saves_the_last_completed_step(phase, tmp_path, monkeypatch, capsys):
    (owner, name), recorded, saved, further = PHASES[phase]
    train(small_config(tmp_path / "whole", **SETTINGS | further))
    run = tmp_path / "stopped" / "run"
    config = small_config(run.parent, **SETTINGS | further)
    monkeypatch.setattr(turnwise.config, "load_config", lambda *_: config)
    with monkeypatch.context() as patched:
        press_ctrl_c_in(patched, owner, name, lambda: len(steps_of(run)) == recorded)
        assert main(["train", any_recipe(tmp_path)]) == 130
    said = capsys.readouterr().err.splitlines()[-1]
    assert said == (
        f"turnwise: interrupted; resume from the checkpoint of step {saved} with `turnwise train --resume {run}`"
    )
    assert max(by_step(run / "checkpoints")) == max(steps_of(run)) == saved
    assert main(["train", "--resume", str(run)]) == 0
    found, expected = whole(run.parent), whole(tmp_path / "whole")
    assert {name for name in expected if name != "names" and found[name] != expected[name]} == set()


def test_ctrl_c_in_the_warm_start_says_how_to_start_again(tmp_path, monkeypatch, capsys):
    config = small_config(tmp_path)
    monkeypatch.setattr(turnwise.config, "load_config", lambda *_: config)
    with monkeypatch.context() as patched:
        press_ctrl_c_in(patched, prepare, "warm_policy", lambda: True)
        assert main(["train", any_recipe(tmp_path)]) == 130
    said = "turnwise: interrupted; no checkpoint was saved; start again with the same command"
    assert capsys.readouterr().err.splitlines()[-1] == said
    assert main(["train", any_recipe(tmp_path)]) == 0


def test_ctrl_c_before_the_first_checkpoint_says_how_to_start_again(tmp_path, monkeypatch, capsys):
    config = small_config(tmp_path)
    monkeypatch.setattr(turnwise.config, "load_config", lambda *_: config)
    with monkeypatch.context() as patched:
        press_ctrl_c_in(patched, prepare, "open_trackers", lambda: True)
        assert main(["train", any_recipe(tmp_path)]) == 130
    again = ["train", "--resume", str(config.run_folder)]
    said = f"turnwise: interrupted; no checkpoint was saved; start again with `turnwise {' '.join(again)}`"
    assert capsys.readouterr().err.splitlines()[-1] == said
    assert main(again) == 0


def test_ctrl_c_saves_for_callers_of_the_library_too(tmp_path, monkeypatch):
    config = small_config(tmp_path, **SETTINGS)
    press_ctrl_c_in(monkeypatch, Run, "measure", lambda: len(steps_of(config.run_folder)) == 2)
    with pytest.raises(KeyboardInterrupt):
        train(config)
    assert max(by_step(config.run_folder / "checkpoints")) == 2
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, which Linux has")
@pytest.mark.parametrize("how", [KeyboardInterrupt, ValueError])
def test_workers_end_with_a_run_that_does_not_end_well(tmp_path, monkeypatch, how):
    before, alive = descendants(os.getpid()), list[list[int]]()

    def fails(*_):
        alive.append(descendants(os.getpid(), without=before))
        raise how

    monkeypatch.setattr(Run, "measure", fails)
    with pytest.raises(how):
        train(small_config(tmp_path, **SETTINGS | WORKERS))
    assert alive[0], "workers play"
    assert not descendants(os.getpid(), without=before)


def test_a_handler_of_the_callers_stays(tmp_path):
    def mine(number, frame):
        raise AssertionError

    before = signal.signal(signal.SIGINT, mine)
    try:
        with stoppable():
            assert signal.getsignal(signal.SIGINT) is mine
    finally:
        signal.signal(signal.SIGINT, before)
