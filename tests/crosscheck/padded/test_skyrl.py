"""The adapter on SkyRL's own training batch, beside its own estimators (SkyRL 0.3.0, see
benchmarks/requirements-padded.txt).

    PYTHONPATH=src <python with skyrl> -m pytest tests/crosscheck/padded -m crosscheck -p no:cacheprovider

Its trainer needs CUDA packages to import, so what it calls is read from its source.
"""

import ast
import importlib.util
import sys
import typing
import warnings
from pathlib import Path

import numpy as np
import pytest
import typing_extensions

import turnwise as tw
from turnwise.integrations.skyrl import TABLES, credit

pytestmark = [pytest.mark.crosscheck, pytest.mark.filterwarnings("ignore")]

if sys.version_info < (3, 12):
    typing.TypedDict = typing_extensions.TypedDict  # what pydantic asks of SkyRL 0.3.0 on this Python
torch = pytest.importorskip("torch", reason="see benchmarks/requirements-padded.txt")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    utils = pytest.importorskip(
        "skyrl.backends.skyrl_train.utils.ppo_utils",
        reason="SkyRL is not installed; see benchmarks/requirements-padded.txt",
    )
    from skyrl.backends.skyrl_train.training_batch import TrainingInputBatch

MASK = torch.tensor(
    [
        [1, 1, 0, 0, 1, 0],
        [1, 0, 1, 1, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [0, 1, 0, 1, 0, 1],
        [1, 0, 0, 0, 0, 1],
        [1, 1, 1, 1, 1, 1],
    ]
)
UIDS = ["1", "1", "1", "01", "01", "01"]
OUTCOMES = [1.0, 0.0, 0.5, 2.0, -1.0, 0.25]


def training_batch(rewards):
    """SkyRL's batch: `response_mask` covers observations, `loss_mask` does not."""
    response = torch.ones_like(MASK)
    data = TrainingInputBatch(
        {"loss_mask": MASK, "response_mask": response, "rewards": rewards, "values": torch.full(MASK.shape, 0.25)}
    )
    data.metadata = {"uids": UIDS}
    return data


def outcomes():
    """The reward of each row, on its last generated token."""
    rewards = torch.zeros(MASK.shape)
    rewards[torch.arange(len(MASK)), MASK.shape[1] - 1 - MASK.flip(1).argmax(1)] = torch.tensor(OUTCOMES)
    return rewards


@pytest.mark.parametrize(
    ("theirs", "method"), [("grpo", tw.grpo(convention="verl")), ("rloo", tw.rloo())], ids=["grpo", "rloo"]
)
def test_where_both_know_the_method_both_give_the_same_numbers(theirs, method):
    data = training_batch(outcomes())
    credit(data, method)
    own = utils.compute_advantages_and_returns(
        token_level_rewards=outcomes(),
        response_mask=MASK,
        index=np.array(UIDS),
        adv_estimator=theirs,
        config=None,
        values=None,
    )[0]
    torch.testing.assert_close(data["advantages"], own, atol=2e-5, rtol=2e-5)


def test_turns_are_told_apart_where_skyrls_estimators_see_one_response():
    rewards = outcomes()
    rewards[0, 0] = 3.0  # for the first of two responses
    data = training_batch(rewards)
    credit(data, tw.trloo())
    tokens = data["advantages"]
    assert tokens.dtype == rewards.dtype
    assert tokens[0, 0] == tokens[0, 1] != tokens[0, 4]
    assert not tokens[MASK == 0].any()


def test_a_critics_values_reach_the_method_and_come_back_as_returns():
    data = training_batch(outcomes())
    method = tw.METHODS["ppo"](standardize=False, discount=1.0, decay=1.0)
    credit(data, method)
    wanted = torch.tensor(OUTCOMES)[:, None] - 0.25
    torch.testing.assert_close(data["advantages"], wanted * MASK, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(data["returns"] * MASK, torch.tensor(OUTCOMES)[:, None] * MASK, atol=1e-6, rtol=1e-6)


def test_the_trainer_has_the_method_that_we_override_and_writes_our_tables():
    folder = Path(importlib.util.find_spec("skyrl").submodule_search_locations[0])
    source = (folder / "train" / "trainer.py").read_text()
    trainer = next(n for n in ast.parse(source).body if isinstance(n, ast.ClassDef) and n.name == "RayPPOTrainer")
    method = next(n for n in trainer.body if getattr(n, "name", "") == "compute_advantages_and_returns")
    assert [argument.arg for argument in method.args.args] == ["self", "data"]
    for name in (*TABLES, "loss_mask", "rewards"):
        assert f'"{name}"' in source, name
    for name in ("uids", "is_last_step"):
        assert f'metadata["{name}"]' in source, name
