"""Same convention, same numbers: our methods against verl's own functions (verl 0.9.1, see
benchmarks/requirements-verl.txt).

    PYTHONPATH=src <python with verl> -m pytest tests/crosscheck/verl -m crosscheck

verl gives one row a trajectory here, as its classic trainer does; rows of a multi-turn session are another matter (the
adapter's).
"""

import warnings

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

# The loops compute in the dtype of the rewards, here float64: rounding of sums in another order, magnified by 1 / (std
# + 1e-6).
FLOAT64 = {"rtol": 1e-9, "atol": 1e-9}
# verl's vectorized GRPO computes in float32 whatever it gets.
FLOAT32 = {"rtol": 1e-5, "atol": 1e-5}
# verl divides the reward that a lone trajectory keeps by 1 + 1e-6; our convention keeps it as it is.
LONE = {"rtol": 2e-6}
MASK = np.array([1.0, 1.0, 0.0, 1.0])  # the reward sits on the last token; verl's result is masked


def drawn(seed: int, *, binary: bool):
    """Groups of 1 to 8 trajectories, rows of all groups shuffled."""
    generator = np.random.default_rng(seed)
    group = np.repeat([f"uid-{g}" for g in range(12)], [1, 1, 2, 2, 3, 4, 5, 6, 7, 8, 8, 8])
    group = group[generator.permutation(len(group))]
    reward = generator.integers(0, 2, len(group)).astype(float) if binary else generator.normal(size=len(group))
    return group, reward


def verl_credit(function, group, reward, **options) -> np.ndarray:
    """Call one of verl's estimators and take one advantage a row, checking the broadcast on the way."""
    rewards = torch.zeros(len(reward), len(MASK), dtype=torch.float64)
    rewards[:, -1] = torch.from_numpy(reward)
    mask = torch.from_numpy(np.tile(MASK, (len(reward), 1)))
    advantages, _ = function(
        token_level_rewards=rewards, response_mask=mask, index=np.array(group, dtype=object), **options
    )
    np.testing.assert_array_equal(advantages.numpy(), advantages.numpy()[:, :1] * MASK)
    return advantages.numpy()[:, 0]


def our_credit(method, group, reward) -> np.ndarray:
    batch, order = tw.Batch.from_arrays(group=group, trajectory=range(len(group)), reward=reward)
    out = np.empty(len(group))
    out[order] = method(batch)
    return out


def keeps_lone_dr_grpo() -> tw.Transform:
    """Dr. GRPO as verl's loop has it: the raw reward where there is nothing to compare with."""
    return tw.chain(tw.outcome_return(), tw.center_by_group(lone="keep"))


def is_lone(group) -> np.ndarray:
    labels, counts = np.unique(group, return_counts=True)
    return np.isin(group, labels[counts == 1])


CENTRE_ONLY = {"norm_adv_by_std_in_grpo": False}
CASES = {
    "GRPO, loop": ("compute_grpo_outcome_advantage", {}, tw.grpo(convention="verl"), FLOAT64),
    "GRPO, vectorized": ("compute_grpo_vectorized_outcome_advantage", {}, tw.grpo(convention="verl"), FLOAT32),
    "Dr. GRPO, loop": ("compute_grpo_outcome_advantage", CENTRE_ONLY, keeps_lone_dr_grpo(), FLOAT64),
    "Dr. GRPO, vectorized": ("compute_grpo_vectorized_outcome_advantage", CENTRE_ONLY, keeps_lone_dr_grpo(), FLOAT32),
    "RLOO, loop": ("compute_rloo_outcome_advantage", {}, tw.rloo(convention="verl"), FLOAT64),
    # verl's two RLOOs differ: a lone trajectory gets 0 in this one, as in our own convention
    "RLOO, vectorized": ("compute_rloo_vectorized_outcome_advantage", {}, tw.rloo(), FLOAT64),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("binary", [True, False], ids=["binary", "normal"])
@pytest.mark.parametrize("seed", range(3))
def test_the_same_convention_gives_the_same_numbers(case, binary, seed):
    function, options, method, close = CASES[case]
    group, reward = drawn(seed, binary=binary)
    ours = our_credit(method, group, reward)
    verls = verl_credit(getattr(core_algos, function), group, reward, **options)
    lone = is_lone(group)
    assert lone.sum() == 2
    np.testing.assert_allclose(ours[~lone], verls[~lone], **close)
    np.testing.assert_allclose(ours[lone], verls[lone], **LONE)


@pytest.mark.parametrize("method", ["grpo", "rloo", "dr_grpo"])
def test_our_own_convention_differs_in_lone_trajectories_only(method):
    function, options = {
        "grpo": ("compute_grpo_outcome_advantage", {}),
        "dr_grpo": ("compute_grpo_outcome_advantage", {"norm_adv_by_std_in_grpo": False}),
        "rloo": ("compute_rloo_outcome_advantage", {}),
    }[method]
    group, reward = drawn(7, binary=False)
    ours = our_credit(tw.METHODS[method](), group, reward)
    verls = verl_credit(getattr(core_algos, function), group, reward, **options)
    lone = is_lone(group)
    np.testing.assert_allclose(ours[~lone], verls[~lone], **FLOAT64)
    np.testing.assert_array_equal(ours[lone], 0.0)
    np.testing.assert_allclose(verls[lone], reward[lone], **LONE)  # the known fault: a raw reward as advantage


def test_known_fault_verls_vectorized_grpo_merges_labels_that_look_like_numbers():
    """`as_torch_index` reads "1" and "01" as the number 1. When this fails, verl has mended it: tell known_wrong."""
    group, reward = np.array(["1", "1", "01", "01"], dtype=object), np.array([0.0, 1.0, 10.0, 13.0])
    ours = our_credit(tw.grpo(convention="verl"), group, reward)
    np.testing.assert_allclose(ours, np.array([-1, 1, -1, 1]) / np.sqrt(2), rtol=1e-5)
    np.testing.assert_allclose(verl_credit(core_algos.compute_grpo_outcome_advantage, group, reward), ours, **FLOAT64)
    merged = verl_credit(core_algos.compute_grpo_vectorized_outcome_advantage, group, reward)
    np.testing.assert_allclose(merged, (reward - reward.mean()) / (reward.std(ddof=1) + 1e-6), rtol=1e-6)
