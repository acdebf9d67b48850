"""The choices of `[update]` in whole runs: each trains, and those with a memory go on where they stopped."""

from typing import Any

import pytest
from tests.toys import small_config
from tests.train.test_loop import assert_same_run, steps

from turnwise.objective.gradient import clip_groups
from turnwise.train.checkpoint import latest_checkpoint, load_checkpoint
from turnwise.train.loop import train

EPO = {"name": "epo", "beta_decay": 1.0, "bonus": 0.05, "high": 1.0}
REPO = {"name": "repo", "zeta": 0.1, "zeta_min": 0.01, "zeta_max": 1.0}
OSCILLATING = {
    "name": "flexible_clip",
    "schedule": "od",
    "entropy_min": 0.1,
    "upper": [0.5, 0.2],
    "lower": [0.4, 0.1],
}


@pytest.mark.parametrize(
    "update",
    [
        {"importance": "trajectory", "aggregate": "trajectory-mean", "clip_low": 3e-3, "clip_high": 4e-3},
        {"importance": "response", "aggregate": "nested-mean"},
        {"clip": "cispo"},
        {"tokens": "steer", "dual_clip": 10.0},
        {"tokens": "kl_cov", "clip": "none"},
        {"tokens": "spo_mask", "entropy": EPO},
    ],
    ids=str,
)
def test_every_kind_of_objective_runs(tmp_path, update):
    config = small_config(
        tmp_path, update={"learning_rate": 0.01, "epochs": 2, **update}, environment={"options": {"turns": 2}}
    )
    records = steps(train(config))
    assert len(records) == 2
    assert all(record["update/grad_norm"] > 0 for record in records)
    assert all(0 <= record["update/clipped_frac"] <= 1 for record in records)


@pytest.mark.parametrize("update", [{"entropy": EPO, "tokens": REPO}, {"tokens": OSCILLATING}], ids=["epo", "flexible"])
def test_a_run_that_was_interrupted_remembers_past_entropies(tmp_path, update):
    settings: dict[str, Any] = {
        "checkpoint": {"every": 3},
        "update": {"epochs": 2, "learning_rate": 0.01, "warmup_steps": 0, **update},
    }
    whole = train(small_config(tmp_path / "whole", run={"steps": 6}, **settings))
    half = small_config(tmp_path / "half", run={"steps": 6}, **settings)
    folder = train(half)
    for path in latest_checkpoint(folder).iterdir():  # as if it had been killed after step 3
        path.unlink()
    latest_checkpoint(folder).rmdir()
    step, _, state = load_checkpoint(latest_checkpoint(folder))
    assert step == 3
    if "entropy" in update:
        entropies = [record["credit/entropy"] for record in steps(folder)]
        assert state["objective"]["entropy_rule"] == {"total": pytest.approx(sum(entropies[:3])), "steps": 3}
        assert state["objective"]["policy"]["target"] == pytest.approx(entropies[0])
    else:
        assert state["objective"]["policy"].keys() == {"first", "raising"}
    assert_same_run(train(half, resume=half.run_folder), whole)
    assert len(steps(whole)) == 6


def test_the_norm_is_the_mean_of_those_of_the_steps_that_were_taken(tmp_path, monkeypatch):
    """With more mini-batches than trajectories, some are empty."""
    norms = []

    def watched(optimizer: Any, most: float) -> float:
        norms.append(clip_groups(optimizer, most))
        return norms[-1]

    monkeypatch.setattr("turnwise.train.update.clip_groups", watched)
    (record,) = steps(train(small_config(tmp_path, run={"steps": 1}, update={"mini_batches": 100, "epochs": 2})))
    assert 2 <= len(norms) < 200
    assert record["update/grad_norm"] == pytest.approx(sum(norms) / len(norms))
