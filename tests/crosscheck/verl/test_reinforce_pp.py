"""REINFORCE++, plain and with a group baseline, against verl 0.9.1 (benchmarks/requirements-verl.txt).

    PYTHONPATH=src <python with verl> -m pytest tests/crosscheck/verl -m crosscheck

Responses of different length, since both count tokens: verl by its mask, ours by the column `length`.
"""

import warnings
from types import SimpleNamespace

import numpy as np
import pytest

import turnwise as tw

pytestmark = pytest.mark.crosscheck

torch = pytest.importorskip("torch", reason="verl needs torch; see benchmarks/requirements-verl.txt")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of verl's imports
    pytest.importorskip("verl", reason="verl is not installed; see benchmarks/requirements-verl.txt")
    core_algos = pytest.importorskip(
        "verl.trainer.ppo.core_algos", reason="verl is there, but not all that its algorithms import"
    )

WIDEST = 7


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "normal"])
@pytest.mark.parametrize("scale", [1.0, 1e-4], ids=["usual rewards", "tiny rewards"])
def test_the_same_convention_gives_the_same_numbers(binary, scale):
    generator = np.random.default_rng(0)
    group = np.repeat([f"uid-{g}" for g in range(6)], [1, 1, 2, 3, 5, 8])
    group = group[generator.permutation(len(group))]
    reward = generator.integers(0, 2, len(group)).astype(float) if binary else generator.normal(size=len(group))
    length = generator.integers(1, WIDEST + 1, len(group))
    mask = (np.arange(WIDEST) < length[:, None]).astype(float)
    rewards = torch.zeros(len(group), WIDEST, dtype=torch.float64)
    rewards[np.arange(len(group)), length - 1] = torch.from_numpy(reward * scale)
    theirs, _ = core_algos.compute_reinforce_plus_plus_baseline_outcome_advantage(
        token_level_rewards=rewards, response_mask=torch.from_numpy(mask), index=group.astype(object)
    )
    batch, order = tw.Batch.from_arrays(
        group=group, trajectory=range(len(group)), reward=reward * scale, columns={"length": length}
    )
    ours = np.empty(len(group))
    ours[order] = tw.reinforce_pp_baseline(convention="verl")(batch)
    # verl adds 1e-8 to the number of tokens of a mean: some 1e-10 of its value here
    np.testing.assert_allclose(theirs.numpy(), ours[:, None] * mask, rtol=1e-8, atol=1e-8)


def test_the_plain_one_gives_the_same_numbers_for_one_turn():
    generator = np.random.default_rng(1)
    reward, length = generator.normal(size=9), generator.integers(1, WIDEST + 1, 9)
    mask = (np.arange(WIDEST) < length[:, None]).astype(float)
    rewards = torch.zeros(9, WIDEST, dtype=torch.float64)
    rewards[np.arange(9), length - 1] = torch.from_numpy(reward)
    theirs, _ = core_algos.compute_reinforce_plus_plus_outcome_advantage(
        token_level_rewards=rewards, response_mask=torch.from_numpy(mask), config=SimpleNamespace(gamma=1.0)
    )
    batch, order = tw.Batch.from_arrays(group=range(9), trajectory=range(9), reward=reward, columns={"length": length})
    ours = np.empty(9)
    ours[order] = tw.reinforce_pp(convention="verl")(batch)
    np.testing.assert_allclose(theirs.numpy(), ours[:, None] * mask, rtol=1e-7, atol=1e-7)
