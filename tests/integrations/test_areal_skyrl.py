"""The adapters for AReaL and SkyRL, on batches as they make them; tests/crosscheck runs them with their own types."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.integrations.test_trainers import (
    MASK,
    PAID,
    ROWS,
    WIDTH,
    close,
    expected,
    played,
    spans,
    table,
)

import turnwise as tw
from turnwise.base.errors import IntegrationError
from turnwise.integrations import areal, skyrl

PPO = tw.METHODS["ppo"](standardize=False)


def areal_groups():
    """What AReaL's `compute_advantages` returns: a dictionary per prompt, of its own width."""
    made = []
    for group in range(2):
        rows, width = slice(2 * group, 2 * group + 2), (6, 9)[group]
        rewards = np.zeros((2, width))
        rewards[:, -1] = [sum(paid) for paid in PAID[rows]]
        made.append(
            {
                "loss_mask": torch.tensor(MASK[rows, :width]).float(),
                "tot_rewards": torch.tensor(rewards),
                "logprobs": torch.tensor(table("behavior_logprob_T")[rows, :width]),
                "prox_logp": torch.tensor(table("logprob_T")[rows, :width]),
                "values": torch.tensor(table("value_T")[rows, :width]),
            }
        )
    return made


@pytest.mark.parametrize(("method", "columns"), [(tw.trloo(), ()), (PPO, ("value_T",))], ids=["trloo", "ppo"])
def test_areal_groups_are_items_of_its_list(method, columns):
    actor = SimpleNamespace(reward_norm=None, adv_norm=None, kl_ctl=0.0, compute_advantages=lambda data: data)
    areal.assign_credit(actor, method)
    made = actor.compute_advantages(areal_groups())
    wanted = expected(method, columns, outcome=True)
    for group, own in enumerate(made):
        rows, width = slice(2 * group, 2 * group + 2), own["loss_mask"].shape[1]
        close(own["advantages"], wanted[rows, :width])
        if columns:
            values, mask = table("value_T")[rows, :width], own["loss_mask"].numpy()
            close(own["returns"].numpy() * mask, (wanted[rows, :width] + values) * mask)


@pytest.mark.parametrize(("name", "value"), [("adv_norm", object()), ("reward_norm", object()), ("kl_ctl", 0.1)])
def test_areal_settings_that_would_change_the_credit_are_refused(name, value):
    actor = SimpleNamespace(**{"reward_norm": None, "adv_norm": None, "kl_ctl": 0.0} | {name: value})
    with pytest.raises(IntegrationError, match=name):
        areal.assign_credit(actor, tw.grpo())


def skyrl_batch():
    """SkyRL's training batch, with a padding row."""

    class Data(dict):
        metadata: dict

    rewards = np.zeros((5, WIDTH), dtype=np.float32)
    for row, paid in enumerate(PAID):
        for (_, stop), reward in zip(spans(ROWS[row]), paid, strict=True):
            rewards[row, stop - 1] = reward
    tables = {name: torch.tensor(np.vstack([table(name), table(name)[:1]])) for name in ("value_T", "logprob_T")}
    mask = torch.tensor(np.vstack([MASK, 0 * MASK[:1]]))
    data = Data(
        loss_mask=mask,
        response_mask=torch.ones_like(mask),
        rewards=torch.tensor(rewards),
        values=tables["value_T"],
        action_log_probs=tables["logprob_T"],
    )
    data.metadata = {"uids": ["a", "a", "b", "b", "pad0"]}
    return data


def test_skyrl_tells_turns_apart_by_its_loss_mask():
    class Theirs:
        def compute_advantages_and_returns(self, data):
            return data

    for method, columns in ((tw.trloo(), ()), (PPO, ("value_T",))):
        data = skyrl.with_credit(Theirs, method)().compute_advantages_and_returns(skyrl_batch())
        wanted = expected(method, columns)
        close(data["advantages"][:4], wanted)
        assert not data["advantages"][4].any()
        if columns:
            close(data["returns"][:4].numpy() * MASK, (wanted + table("value_T")) * MASK)


def test_skyrl_rows_of_steps_are_responses_of_their_trajectory():
    data = skyrl_batch()
    rows = [(row, start, stop) for row, lengths in enumerate(ROWS) for start, stop in spans(lengths)]
    mask, rewards = torch.zeros(len(rows), 4, dtype=torch.int64), torch.zeros(len(rows), 4)
    paid = [reward for each in PAID for reward in each]
    for place, (_, start, stop) in enumerate(rows):
        mask[place, : stop - start] = 1
        rewards[place, stop - start - 1] = paid[place]
    data.clear()
    data.update(loss_mask=mask, rewards=rewards)
    data.metadata = {"uids": ["ab"[row // 2] for row, *_ in rows]}
    data.metadata["is_last_step"] = [
        place + 1 == len(rows) or rows[place + 1][0] != row for place, (row, *_) in enumerate(rows)
    ]
    skyrl.credit(data, tw.trloo())
    wanted = tw.trloo()(played())
    close(data["advantages"], wanted[:, None] * mask.numpy())


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.bfloat16, torch.uint8, torch.bool])
def test_skyrl_steps_that_are_not_trained_keep_their_reward_for_the_trajectory(dtype):
    """An overlong last step has its reward and no tokens; the padding has neither."""
    data = skyrl_batch()
    data.clear()
    mask = torch.tensor([[1, 1], [0, 0], [1, 1], [0, 0], [0, 0]], dtype=dtype)
    data.update(loss_mask=mask, rewards=torch.tensor([[0, 0], [0, 1.0], [0, 0], [0.5, 0], [9.0, 0]]))
    data.metadata = {"uids": [*"aaaa", "pad0"], "is_last_step": [False, True, False, True, True]}
    skyrl.credit(data, tw.trloo())
    close(data["advantages"], np.array([[0.5, 0.5], [0, 0], [-0.5, -0.5], [0, 0], [0, 0]]))
    assert data["rewards"][1, 1] == 1.0, "the batch is not ours to change"
