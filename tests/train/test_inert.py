"""Settings without effect are named once, at the start of a run (C9)."""

import pytest
import torch
from tests.toys import small_config

from turnwise.base.recipes import shipped_recipes
from turnwise.config import load_config
from turnwise.objective.inert import inert_note, inert_settings
from turnwise.objective.settings import UpdateConfig
from turnwise.rollout.record import read_rollouts
from turnwise.train.checkpoint import latest_checkpoint, load_checkpoint
from turnwise.train.display import Display
from turnwise.train.folder import RunFolder
from turnwise.train.loop import train

INERT = [
    {"clip_high": 0.28},
    {"clip_low": 0.16, "clip_high": 0.24},
    {"tokens": {"name": "adapo", "rate": 0.1, "high_min": 0.1, "high_max": 0.4}},
    {"tokens": {"name": "flexible_clip", "upper": [0.5, 0.2], "lower": [0.4, 0.1]}},
    {"tokens": {"name": "kl_cov", "frac": 0.5}},
    {"tokens": {"name": "hapo", "redistribute": False}},
    {"dual_clip": 3.0},
    {"clip_correction": "figure"},
]


class Notes(Display):
    def __init__(self):
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def weights(folder: RunFolder) -> dict[str, torch.Tensor]:
    return load_checkpoint(latest_checkpoint(folder))[1].model.state_dict()


@pytest.mark.parametrize("update", INERT, ids=str)
def test_what_is_named_changes_nothing_and_all_else_is_not_named(tmp_path, update):
    display = Notes()
    given = train(small_config(tmp_path / "a", update=update), display=display)
    plain = train(small_config(tmp_path / "b"))
    assert len(display.notes) == 1
    for name in update:
        assert f"update.{name}=" in display.notes[0]
    assert "mini_batches" in display.notes[0]
    assert "\n" not in display.notes[0]
    ours, theirs = weights(given), weights(plain)
    for name, weight in ours.items():
        torch.testing.assert_close(weight, theirs[name], rtol=1e-4, atol=1e-5)
    assert read_rollouts(given.rollouts / "step-000001.parquet")[0]


def test_with_several_optimiser_steps_nothing_is_inert():
    for update in INERT:
        assert inert_note(UpdateConfig.model_validate({**update, "mini_batches": 2})) == ""
        assert inert_note(UpdateConfig.model_validate({**update, "old_policy": "behavior"})) == "", "ratios of a lag"
    assert inert_settings(UpdateConfig.model_validate({"tokens": "hapo"})) == ["tokens=hapo (its widths)"]
    assert inert_settings(UpdateConfig.model_validate({"tokens": "gain_clip"})) == ["tokens=gain_clip"]
    assert inert_note(UpdateConfig()) == ""
    assert inert_note(UpdateConfig.model_validate({"kl": 0.1, "tokens": "steer", "entropy_bonus": 0.1})) == ""


IDLE = [
    ({"model": {"lora_rank": 4, "lora_alpha": 8}}, {"model": {"train": "top"}}),
    ({"model": {"top_layers": 1}}, {}),
    ({"rollout": {"window": 5}}, {}),
    ({"update": {"clip_low": 0.1, "mini_batches": 2}}, {"update": {"clip": "none", "mini_batches": 2}}),
    ({"log": {"traces": True}}, {}),
]


@pytest.mark.parametrize(("idle", "other"), IDLE, ids=str)
def test_a_setting_that_needs_another_one_is_named(tmp_path, idle, other):
    display, merged = Notes(), {key: {**idle.get(key, {}), **other.get(key, {})} for key in {*idle, *other}}
    given = train(small_config(tmp_path / "a", **merged), display=display)
    plain = train(small_config(tmp_path / "b", **other))
    said = [note for note in display.notes if note.startswith("without effect: ")]
    (section, settings), *_ = idle.items()
    names = settings.keys() - other.get(section, {}).keys()
    assert said
    assert all(f"{section}.{name}=" in said[0] for name in names)
    ours, theirs = weights(given), weights(plain)
    assert all(torch.equal(weight, theirs[name]) for name, weight in ours.items())


def test_what_only_environments_read_is_named_where_an_agent_plays():
    given = ["environment.max_steps=3", "environment.success_reward=1.0"]
    assert [*load_config(None, [*given, "harness.run=a:b"]).idle()] == [f"{each} with [harness]" for each in given]
    assert not [*load_config(None, given).idle()]


def test_no_recipe_of_ours_has_settings_without_effect():
    for name, path in shipped_recipes().items():
        assert not [*load_config(path).idle()], name
    used = ["rollout.context=window", "rollout.window=5", "log.traces=true", "log.tensorboard=true"]
    assert not [*load_config(None, [*used, "model.train=top", "model.top_layers=1"]).idle()]
