"""ST-PPO's correction: the gradient over the norm of the gradient that the clip leaves out, where that is above 1."""

import copy
from typing import Any

import numpy as np
import pytest
from tests.invariants.test_objectives import all_tokens, defined_weights
from tests.invariants.test_update import (
    Frozen,
    Gradient,
    assert_same,
    difference,
    experience,
    flat_gradient,
    make_config,
    scored_by_old,
)
from tests.steps import updated
from tests.toys import small_config

from turnwise.base.errors import ConfigError
from turnwise.config import Config
from turnwise.train.loop import train

NARROW = {"clip_low": 0.05, "clip_high": 0.05}
TURNS = {**NARROW, "importance": "response", "clip_low": 0.03, "clip_high": 0.03}


def taken(config: Config, *, scale: float = 1.0) -> tuple[Gradient, dict[str, float]]:
    """Gradient and metrics of an update with advantages `scale` times as large."""
    policy, _, _, _, advantage_R = experience()
    model = copy.deepcopy(policy.model)
    scored = scored_by_old(config, reference=config.update.kl > 0)
    metrics, _ = updated(model, Frozen(model.parameters()), scored, scale * advantage_R, config, step=1)
    return flat_gradient(model), metrics


def left_out(config: Config, scale: float) -> Gradient:
    """Gradient of ratio * A over the tokens at which the clip binds, token by token in float64."""
    settings, model = config.update, copy.deepcopy(experience()[0].model).double()
    tokens = all_tokens(config, model)
    total: Any = 0.0
    for token, weight in zip(tokens, defined_weights(tokens, "token-mean", [True] * len(tokens), config), strict=True):
        own = [each for each in tokens if each.response == token.response]
        log = token.now - token.old
        if settings.importance == "response":
            log = log - log.detach() + float(np.mean([(each.now - each.old).item() for each in own]))
        ratio, advantage = log.exp(), scale * token.advantage
        too_high = advantage > 0 and ratio.item() > 1 + settings.clip_high
        too_low = advantage < 0 and ratio.item() < 1 - settings.clip_low
        total = total + (weight * ratio * advantage if too_high or too_low else 0.0)
    total.backward()
    return flat_gradient(model)


@pytest.mark.parametrize("update", [NARROW, TURNS], ids=["tokens", "turns"])
def test_a_large_gradient_left_out_divides_the_gradient_by_its_norm(update):
    config, scale = make_config(**update, clip_correction="figure"), 100.0
    norm = float(left_out(config, scale).norm())
    assert norm > 2
    plain, _ = taken(make_config(**update), scale=scale)
    ours, told = taken(config, scale=scale)
    assert_same(ours, plain / norm)
    assert told["clip_damping"] == pytest.approx(1 / norm, rel=1e-3)
    assert abs(float(plain.norm()) / norm - 1) > 0.1  # the norm of what is left out is not that of the gradient


def test_a_small_one_changes_nothing():
    config, scale = make_config(**NARROW, clip_correction="figure"), 1e-3
    assert 0 < float(left_out(config, scale).norm()) < 1
    ours, told = taken(config, scale=scale)
    assert difference(ours, taken(make_config(**NARROW), scale=scale)[0])[0] < 1e-6
    assert told["clip_damping"] == 1.0


def test_the_size_of_micro_batches_does_not_matter():
    options: Any = {**TURNS, "clip_correction": "figure", "kl": 0.3}
    assert_same(
        taken(make_config(**options, max_tokens=1), scale=100.0)[0], taken(make_config(**options), scale=100.0)[0]
    )


def test_a_run_learns_with_it_and_a_critic(tmp_path):
    config = small_config(
        tmp_path,
        method="turn_ppo",
        environment={"options": {"turns": 2}},
        critic={"learning_rate": 0.1, "trunk_gradient": 0.5},
        update={**NARROW, "clip_correction": "figure", "mini_batches": 2, "epochs": 2, "learning_rate": 0.1},
    )
    records = [record for record in train(config).metrics() if "update/loss" in record]
    damping = [record["update/clip_damping"] for record in records]
    assert 0 < min(damping) < 1
    assert max(damping) <= 1
    assert all(record["update/critic_grad_norm"] > 0 for record in records)


@pytest.mark.parametrize(
    "update", [{"clip": "none"}, {"clip": "cispo"}, {"policy": False, "preference": {"name": "simpo"}}], ids=str
)
def test_it_needs_a_clip_that_leaves_something_out(update):
    with pytest.raises(ConfigError, match=r"update\.clip_correction measures the gradient that the clip leaves out"):
        make_config(clip_correction="figure", **update)
