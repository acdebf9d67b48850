"""Checkpoints: everything comes back, half of one is never taken for a whole one."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.toys import color_policy, small_config

from turnwise.base.errors import RunError
from turnwise.train.checkpoint import (
    checkpoint_at,
    checkpoints,
    latest_checkpoint,
    load_checkpoint,
    load_parts,
    save_checkpoint,
)
from turnwise.train.folder import RunFolder


@pytest.fixture
def folder(tmp_path) -> RunFolder:
    return RunFolder.create(small_config(tmp_path))


def trained(seed: int = 0):
    policy = color_policy(seed=seed)
    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=0.01)
    for _ in range(2):
        optimizer.zero_grad()
        policy.model(input_ids=torch.tensor([[1, 2, 3]])).logits.square().sum().backward()
        optimizer.step()
    return policy, optimizer


class Remembers:
    """A part with a state."""

    def __init__(self, state):
        self.state = state

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


def save(folder: RunFolder, step: int, *, keep: int = 2, state=None) -> Path:
    policy, optimizer = trained()
    states = {"optimizer": optimizer.state_dict(), "method": Remembers(state).state_dict()}
    return save_checkpoint(folder, step, policy, states, keep=keep)


def test_a_round_trip_keeps_weights_optimizer_and_tokenizer(folder):
    policy, optimizer = trained()
    step, loaded, state = load_checkpoint(
        save_checkpoint(folder, 7, policy, {"optimizer": optimizer.state_dict()}, keep=2)
    )
    assert step == 7
    for ours, theirs in zip(policy.model.parameters(), loaded.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    again = torch.optim.AdamW(loaded.model.parameters(), lr=0.5)
    again.load_state_dict(state["optimizer"])
    assert again.param_groups[0]["lr"] == 0.01
    for ours, theirs in zip(optimizer.state.values(), again.state.values(), strict=True):
        assert {name: value.tolist() for name, value in ours.items()} == {n: v.tolist() for n, v in theirs.items()}
    text = "say red, blue"
    assert loaded.format.prompt_ids(text, first=True) == policy.format.prompt_ids(text, first=True)
    assert loaded.format.stop_id == policy.format.stop_id
    assert loaded.max_context == policy.max_context
    assert loaded.tokenizer.get_vocab() == policy.tokenizer.get_vocab()


def test_the_state_of_a_method_comes_back_as_it_was(folder):
    frozen = np.arange(3.0)
    frozen.flags.writeable = False
    state = (None, {"mean": np.array([0.1, 1 / 3]), "count": 3, "by": {"task": np.float64(0.5)}}, [frozen, True, "x"])
    back = load_checkpoint(save(folder, 1, state=state))[2]["method"]
    assert isinstance(back, tuple)
    assert back[0] is None
    np.testing.assert_array_equal(back[1]["mean"], state[1]["mean"])
    assert back[1]["mean"].dtype == np.float64
    assert (back[1]["count"], back[1]["by"]["task"]) == (3, 0.5)
    np.testing.assert_array_equal(back[2][0], frozen)
    assert back[2][1:] == [True, "x"]


def test_the_latest_and_the_first_are_kept(folder):
    for step in (0, 2, 4, 6, 8):
        save(folder, step, keep=2)
    assert [path.name for path in checkpoints(folder)] == ["step-000000", "step-000006", "step-000008"]
    assert latest_checkpoint(folder).name == "step-000008"
    save(folder, 10, keep=1)
    assert [path.name for path in checkpoints(folder)] == ["step-000000", "step-000010"]


def test_a_leftover_of_a_kill_is_ignored_and_replaced(folder):
    save(folder, 0)
    leftover = folder.checkpoints / ".step-000002.tmp"
    leftover.mkdir()
    (leftover / "junk").write_text("half")
    assert latest_checkpoint(folder).name == "step-000000"
    path = save(folder, 2)
    assert not leftover.exists()
    assert not (path / "junk").exists()


def test_a_save_that_fails_leaves_the_checkpoint_before(folder, monkeypatch):
    save(folder, 2)

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(
        RunError, match=r"cannot write the checkpoint .*: no space left on /.*; free disk space, and resume from"
    ):
        save(folder, 2)
    with pytest.raises(
        RunError, match=r"cannot write the checkpoint .*: no space left on /.*; free disk space, and resume from"
    ):
        save(folder, 4)
    monkeypatch.undo()
    assert [path.name for path in checkpoints(folder)] == ["step-000002"]
    assert load_checkpoint(latest_checkpoint(folder))[0] == 2


@pytest.mark.parametrize("name", ["model.safetensors", "state.pt", "step.json", "config.json", "tokenizer.json"])
@pytest.mark.parametrize("how", ["cut", "missing", "garbage"])
def test_a_damaged_checkpoint_is_named(folder, name, how):
    path = save(folder, 3)
    target = path / name
    if how == "missing":
        target.unlink()
    else:
        target.write_bytes(target.read_bytes()[:-20] if how == "cut" else b"\x00\xff" * 50)
    with pytest.raises(RunError, match=r"cannot load the checkpoint .*step-000003 \(") as caught:
        load_checkpoint(path)
    assert "\n" not in str(caught.value)
    assert "weights_only" not in str(caught.value)  # torch's advice to trust the file
    if name == "state.pt":  # which playing does not read
        assert load_checkpoint(path, to_play=True)[0] == 3


def test_a_run_without_checkpoints_says_so(folder):
    with pytest.raises(RunError, match=r"has no checkpoint, which playing and resuming need; .*another run.name. Noth"):
        latest_checkpoint(folder)


def test_an_unknown_step_names_the_known_ones(folder):
    save(folder, 0)
    save(folder, 20)
    assert checkpoint_at(folder, 20).name == "step-000020"
    assert checkpoint_at(folder, None).name == "step-000020"
    with pytest.raises(RunError, match="no checkpoint of step 10; saved steps: 0, 20"):
        checkpoint_at(folder, 10)


def test_parts_get_their_states_by_name(folder):
    states = load_checkpoint(save(folder, 1, state={"mean": 0.5}))[2]
    optimizer, method = trained(seed=1)[1], Remembers(None)
    load_parts({"optimizer": optimizer, "method": method}, states)
    assert method.state == {"mean": 0.5}
    with pytest.raises(RunError, match=r"has a state of 'method', which this run lacks. Did you mean 'methods'\?"):
        load_parts({"optimizer": optimizer, "methods": method}, states)
    with pytest.raises(RunError, match="has no state of 'critic'; it has states of 'optimizer', 'method'"):
        load_parts({"optimizer": optimizer, "method": method, "critic": method}, states)
