"""The adapter on AReaL's own actor, batches and normalisation (AReaL 1.0.4, see benchmarks/requirements-areal.txt).

    PYTHONPATH=src <python with areal> -m pytest tests/crosscheck/areal -m crosscheck -p no:cacheprovider

AReaL concatenates the groups, shifts its masks, pays the rewards and splits the groups again; only the model's engine
is a stand-in, which nothing asks here.
"""

import warnings
from types import SimpleNamespace

import numpy as np
import pytest

import turnwise as tw

pytestmark = [pytest.mark.crosscheck, pytest.mark.filterwarnings("ignore")]

torch = pytest.importorskip("torch", reason="see benchmarks/requirements-areal.txt")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    actors = pytest.importorskip(
        "areal.trainer.ppo.actor", reason="AReaL is not installed; see benchmarks/requirements-areal.txt"
    )
    from areal.api.cli_args import NormConfig, PPOActorConfig
    from areal.utils.data import Normalization

from turnwise.integrations.areal import assign_credit  # noqa: E402

# responses of two groups of two trajectories: prompts of two tokens, observations of one token
LENGTHS = [[[2, 1], [3]], [[1, 1, 2], [2, 2]]]
REWARDS = [[1.0, 0.0], [0.25, 0.75]]


def groups(seed=0):
    """What AReaL's workflows return: one dictionary per prompt, in tensors of its own width."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for lengths, rewards in zip(LENGTHS, REWARDS, strict=True):
        rows = [
            [0, 0] + [one for n, length in enumerate(each) for one in [0] * bool(n) + [1] * length] for each in lengths
        ]
        width = max(map(len, rows)) + 1  # AReaL takes a row without padding for truncated, and its GAE goes on after it
        mask = torch.tensor([row + [0] * (width - len(row)) for row in rows])
        real = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
        drawn = {name: torch.randn(mask.shape, generator=generator) - 2 for name in ("logprobs", "prox_logp", "values")}
        made.append(
            {
                "input_ids": torch.ones_like(mask),
                "attention_mask": real,
                "loss_mask": mask,
                "rewards": torch.tensor(rewards),
                **drawn,
            }
        )
    return made


def actor(**options):
    config = PPOActorConfig(experiment_name="e", trial_name="t", kl_ctl=0.0, reward_bias=0.0, adv_norm=None, **options)
    return actors.PPOActor(config, SimpleNamespace())


def batch(made, name=None):
    """The library's own batch of these groups, with values before each token as AReaL holds them: one place earlier."""
    nested = []
    for group, lengths in zip(made, LENGTHS, strict=True):
        nested.append([])
        for row, each in enumerate(lengths):
            turns, start = [], 2
            for number, length in enumerate(each):
                start += bool(number)
                turn = {"reward": 0.0, "num_tokens": length}
                if name:
                    turn[f"{name}_T"] = group["values"][row, start - 1 : start + length - 1].tolist()
                turns.append(turn)
                start += length
            turns[-1]["reward"] = float(group["rewards"][row])
            nested[-1].append(turns)
    return tw.Batch.from_trajectories(nested)


def tokens(made, name="advantages"):
    """Values at generated tokens, in order; AReaL's mask is shifted with them."""
    return np.concatenate(
        [row[mask == 1] for g in made for row, mask in zip(g[name].numpy(), g["loss_mask"].numpy(), strict=True)]
    )


@pytest.mark.parametrize("method", [tw.trloo(), tw.grpo(), tw.mica(discount=0.5)], ids=str)
def test_each_token_gets_its_responses_advantage(method):
    made = groups()
    wanted = batch(made)
    ours = actor()
    assign_credit(ours, method)
    done = ours.compute_advantages(made)
    np.testing.assert_allclose(tokens(done), wanted.tokens.broadcast(method(wanted)), rtol=1e-5, atol=1e-6)
    assert all(not g["advantages"][g["loss_mask"] == 0].any() for g in done)
    assert [g["advantages"].shape for g in done] == [g["loss_mask"].shape for g in done]


def test_a_critics_values_stand_where_areal_puts_them():
    method = tw.METHODS["ppo"](standardize=False, discount=1.0, decay=0.9)
    made = groups()
    wanted = batch(made, "value")
    theirs = actor(discount=1.0, gae_lambda=0.9).compute_advantages(groups())
    ours = actor()
    assign_credit(ours, method)
    done = ours.compute_advantages(made)
    trace, _ = method.trace(wanted)
    np.testing.assert_allclose(tokens(done), trace.advantage_T(wanted.tokens), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(tokens(done), tokens(theirs), rtol=1e-4, atol=1e-4, err_msg="AReaL's own GAE")
    np.testing.assert_allclose(tokens(done, "returns"), tokens(theirs, "returns"), rtol=1e-4, atol=1e-4)


def test_where_both_know_the_method_both_give_the_same_numbers():
    """AReaL's group normalisation of rewards with a leave-one-out mean is RLOO."""
    norm = NormConfig(mean_level="group", mean_leave1out=True, std_level=None, group_size=2)
    reward = torch.tensor([r for group in REWARDS for r in group])
    theirs = Normalization(norm)(reward)
    made = groups()
    ours = actor()
    assign_credit(ours, tw.rloo())
    done = ours.compute_advantages(made)
    firsts = [float(row[mask == 1][0]) for g in done for row, mask in zip(g["advantages"], g["loss_mask"], strict=True)]
    np.testing.assert_allclose(firsts, theirs.numpy(), rtol=1e-5, atol=1e-6)
