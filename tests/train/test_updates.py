"""Methods, modulation and kinds of update, each in a short run."""

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from tests.toys import small_config
from tests.train.test_loop import steps

from turnwise.objective.gradient import clip_groups
from turnwise.train.loop import train


@pytest.mark.parametrize("aem", [True, False])
@pytest.mark.parametrize("method", ["grpo", "dr_grpo", "rloo", "reinforce", "gigpo"])
def test_every_method_runs(tmp_path, method, aem):
    config = small_config(
        tmp_path,
        run={"steps": 1},
        environment={"options": {"turns": 2}},
        # a random policy's entropies differ little
        method={"name": f"{method}+aem", "min_range": 0.0} if aem else method,
        update={"aggregate": "constant" if method == "dr_grpo" else "token-mean"},
    )
    [record] = steps(train(config))
    assert record["credit/mismatch_max"] < 1e-4  # behaviour and scoring are the same weights
    assert record["update/grad_norm"] > 0
    assert (record["credit/alpha_min"] < 1 < record["credit/alpha_max"]) == aem


@pytest.mark.parametrize("options", [{"temperature": 2.0}, {"shuffle": True, "seed": 3}, {"scope": "batch"}], ids=str)
def test_the_recorded_coefficient_is_the_one_applied(tmp_path, options):
    tables = []
    for name, method in (("plain", "grpo"), ("modulated", {"name": "grpo+aem", "min_range": 0.0, **options})):
        config = small_config(
            tmp_path / name,
            run={"steps": 1},
            method=method,
            rollout={"groups": 8},
            environment={"invalid_penalty": 0.0},
        )
        table = pq.read_table(train(config).rollouts / "step-000001.parquet")
        tables.append({name: table.column(name).to_numpy() for name in ("alpha", "advantage")})
    plain, modulated = tables
    np.testing.assert_array_equal(plain["alpha"], 1)
    np.testing.assert_allclose(modulated["advantage"], modulated["alpha"] * plain["advantage"], atol=1e-9)
    assert np.abs(modulated["advantage"] - plain["advantage"]).max() > 0.05


@pytest.mark.parametrize(
    "update",
    [
        {"kl": 0.1},
        {"kl": 0.1, "kl_in": "reward", "kl_estimator": "k2"},
        {"mismatch_cap": 2.0, "mismatch": "reject", "tokens": {"name": "spo_mask", "threshold": 0.9}},
        {"entropy_bonus": 0.01},
        {"epochs": 2, "mini_batches": 2},
        {"max_tokens": 20},
    ],
    ids=str,
)
def test_every_kind_of_update_runs(tmp_path, update):
    config = small_config(tmp_path, update={"learning_rate": 0.01, **update})
    folder = train(config)
    records = steps(folder)
    assert len(records) == 2
    for record in records:  # only where there are several updates have the weights changed before the last of them
        assert (1e-6 < record["update/kl_old"] < 10) == ("epochs" in update)
    assert (records[1]["update/kl_reference"] > 0) == ("kl" in update)
    assert records[1]["credit/mismatch_max"] < 1e-4


def test_the_norm_of_a_step_is_that_of_all_groups_of_weights():
    weights = [torch.zeros(1, requires_grad=True) for _ in range(2)]
    for weight, gradient in zip(weights, (3.0, 4.0), strict=True):
        weight.grad = torch.tensor([gradient])
    optimizer = torch.optim.SGD([{"params": [weight]} for weight in weights], lr=1.0)
    assert clip_groups(optimizer, 100.0) == pytest.approx(5.0)
