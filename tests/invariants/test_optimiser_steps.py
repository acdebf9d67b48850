"""Optimiser steps of a step: whole trajectories where a ratio needs them, mean metrics, orders, reference column."""

import copy
import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from tests.invariants.test_update import (
    Frozen,
    Gradient,
    assert_same,
    experience,
    flat_gradient,
    make_config,
    scored_by_old,
)
from tests.steps import measured as score_trajectories
from tests.steps import updated as update_policy
from tests.toys import trajectory

from turnwise.credit.trace import Trace, Traced
from turnwise.objective.tokens import generated_logprobs
from turnwise.rollout.metrics import rollout_metrics
from turnwise.train import update as step_module


def test_a_trajectory_in_pieces_has_one_ratio_whatever_the_micro_batches():
    """A trajectory whose turns start new conversations has several sequences: its ratio needs all in one pass."""
    policy, old, _, trajectories, advantage_R = experience()
    pieces = [
        dataclasses.replace(t, turns=[dataclasses.replace(turn, fresh=True) for turn in t.turns]) for t in trajectories
    ]

    def of(max_tokens: int) -> Gradient:
        config, model = make_config(importance="trajectory", max_tokens=max_tokens), copy.deepcopy(policy.model)
        scored = score_trajectories(old.model, pieces, config)
        assert len(scored.sequences.token_ids) > len(pieces)
        update_policy(model, Frozen(model.parameters()), scored, advantage_R, config, step=1)
        return flat_gradient(model)

    assert_same(of(1), of(16384))


def test_metrics_are_means_over_the_optimisers_steps():
    def totals(**update: Any) -> dict[str, float]:
        policy, _, _, _, advantage_R = experience()
        config, model = make_config(**update), copy.deepcopy(policy.model)
        return update_policy(model, Frozen(model.parameters()), scored_by_old(config), advantage_R, config, step=1)[0]

    once = totals()
    assert once["grad_norm"] > 0
    assert totals(epochs=3) == pytest.approx(once, rel=1e-5)  # the weights are frozen


def test_more_mini_batches_than_trajectories_are_one_for_each():
    """Each step stands for the whole batch: with a thousand it was scaled by a thousand, and not by their number."""

    def gradient(mini_batches: int) -> Gradient:
        policy, _, _, _, advantage_R = experience()
        config, model = make_config(mini_batches=mini_batches), copy.deepcopy(policy.model)
        update_policy(model, Frozen(model.parameters()), scored_by_old(config), advantage_R, config, step=1)
        return flat_gradient(model)

    assert_same(gradient(1000), gradient(len(experience()[3])))


def test_the_learning_rate_follows_the_dose():
    """A factor on the credit would not: AdamW divides by its size."""
    policy, _, _, _, advantage_R = experience()
    rated = Traced("dose", advantage_R, np.ones(len(advantage_R)), advantage_R, rate=0.25)
    moved = []
    for credit in (Trace(advantage_R), Trace(advantage_R, (rated,))):
        config, model = make_config(), copy.deepcopy(policy.model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=config.update.learning_rate, weight_decay=0.0)
        update_policy(model, optimizer, scored_by_old(config), credit, config, step=1)
        pairs = zip(model.parameters(), policy.model.parameters(), strict=True)
        moved.append(sum((new - old).abs().sum().item() for new, old in pairs))
    assert moved[1] == pytest.approx(0.25 * moved[0], rel=1e-3)


def test_every_epoch_has_an_order_of_its_own(monkeypatch):
    policy, _, _, _, advantage_R = experience()
    passes: list[int] = []

    def watched(model, sequences, indices, **options):
        passes.extend(sequences.trajectory[indices].tolist())
        return generated_logprobs(model, sequences, indices, **options)

    monkeypatch.setattr(step_module, "generated_logprobs", watched)

    def orders(step: int) -> list[tuple[int, ...]]:
        passes.clear()
        config, model = make_config(epochs=2, mini_batches=13), copy.deepcopy(policy.model)
        update_policy(model, Frozen(model.parameters()), scored_by_old(config), advantage_R, config, step=step)
        return [tuple(passes[:13]), tuple(passes[13:])]

    drawn = orders(1)
    assert {tuple(sorted(order)) for order in (*drawn, *orders(2))} == {
        tuple(sorted(drawn[0]))
    }  # each has all that matter
    assert len({*drawn, *orders(2)}) == 4
    assert orders(1) == drawn


def test_the_references_column_is_the_policys_where_they_are_the_same():
    _, old, _, trajectories, _ = experience()
    scored = score_trajectories(old.model, trajectories, make_config(), reference=old.model)
    np.testing.assert_allclose(scored.batch.columns["ref_logprob"], scored.batch.columns["logprob"], rtol=1e-6)


def test_the_model_trains_in_the_passes_alone(monkeypatch):
    """What saves memory (gradient checkpointing) does so in training mode; sampling and scoring are not in it."""
    policy, _, _, _, advantage_R = experience()
    config, model, seen = make_config(), copy.deepcopy(policy.model), []

    def watched(*arguments, **options):
        seen.append(model.training)
        return generated_logprobs(*arguments, **options)

    monkeypatch.setattr(step_module, "generated_logprobs", watched)
    model.eval()
    update_policy(model, Frozen(model.parameters()), scored_by_old(config), advantage_R, config, step=1)
    assert set(seen) == {True}
    assert not model.training


def test_what_a_rollout_shows_by_hand():
    played = [
        trajectory(0, ([1], [2, 3]), ([4], [5]), success=True),
        trajectory(0, ([1], [2])),
        trajectory(1, ([1], [2]), ([1], [2]), ([1], [2]), failure="environment: gone"),  # counted, and nothing else
    ]
    played[0].turns[1] = dataclasses.replace(played[0].turns[1], valid=False, truncated=True, reward=3.0)
    played[1].ended = "context"
    for turn in played[2].turns:
        turn.valid, turn.truncated, turn.reward = False, True, 100.0
    assert rollout_metrics(played) == {
        "trajectories": 3.0,
        "batches": 1.0,
        "kept_frac": 1.0,
        "filled_frac": 1.0,
        "success": 0.5,
        "reward": 1.5,
        "turns": 1.5,
        "invalid_frac": pytest.approx(1 / 3),
        "truncated_frac": pytest.approx(1 / 3),
        "context_frac": pytest.approx(1 / 3),
        "failed_frac": pytest.approx(1 / 3),
        "tokens": 7.0,
        "env_steps": 6.0,
    }
