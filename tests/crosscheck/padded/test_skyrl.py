"""The how-to's lines inside SkyRL's own registry (SkyRL 0.3.0, see benchmarks/requirements-padded.txt).

    PYTHONPATH=src <python with skyrl> -m pytest tests/crosscheck/padded -m crosscheck -p no:cacheprovider

Its dispatcher calls our estimator; where both know the method, both give the same numbers.
"""

import re
import sys
import typing
import warnings
from pathlib import Path

import numpy as np
import pytest
import typing_extensions

import turnwise as tw

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

PAGE = Path(__file__).parents[3] / "docs/how-to/other-trainers.md"
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
INDEX = np.array(["1", "1", "1", "01", "01", "01"])


def outcomes(*values):
    """The reward of each row, on its last generated token."""
    rewards = torch.zeros(MASK.shape)
    rewards[torch.arange(len(MASK)), MASK.shape[1] - 1 - MASK.flip(1).argmax(1)] = torch.tensor(values)
    return rewards


def advantages(name, rewards):
    return utils.compute_advantages_and_returns(
        token_level_rewards=rewards, response_mask=MASK, index=INDEX, adv_estimator=name, config=None, values=None
    )[0]


@pytest.fixture(scope="module", autouse=True)
def _registered():
    """Run the page's lines for SkyRL, as they stand there."""
    block = re.search(r"## SkyRL.*?```\w*\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert block is not None
    exec(block.group(1), {})
    yield
    utils.AdvantageEstimatorRegistry.unregister("turnwise")


def register(name, method):
    from turnwise.integrations.padded import padded_advantages

    @utils.register_advantage_estimator(name)
    def estimate(token_level_rewards, response_mask, index, **_):
        tokens = padded_advantages(
            method, row="trajectory", rewards=token_level_rewards, response_mask=response_mask, group=index
        ).tokens
        return tokens, tokens


@pytest.mark.parametrize(
    ("theirs", "method"), [("grpo", tw.grpo(convention="verl")), ("rloo", tw.rloo())], ids=["grpo", "rloo"]
)
def test_where_both_know_the_method_both_give_the_same_numbers(theirs, method):
    name = f"turnwise {theirs}"
    register(name, method)
    try:
        rewards = outcomes(1.0, 0.0, 0.5, 2.0, -1.0, 0.25)
        torch.testing.assert_close(advantages(name, rewards), advantages(theirs, rewards.clone()), atol=2e-5, rtol=2e-5)
    finally:
        utils.AdvantageEstimatorRegistry.unregister(name)


def test_the_lines_of_the_page_tell_turns_apart():
    rewards = outcomes(1.0, 0.0, 0.5, 2.0, -1.0, 0.25)
    rewards[0, 0] = 3.0  # for the first of two responses
    tokens = advantages("turnwise", rewards)
    assert tokens.dtype == rewards.dtype
    assert tokens[0, 0] == tokens[0, 1] != tokens[0, 4]
    assert not tokens[MASK == 0].any()
