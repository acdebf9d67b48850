"""What `TurnwiseGRPOTrainer` takes for turns where rollout functions, tools and environments answer the model.

PYTHONPATH=src <python with trl> -m pytest tests/crosscheck/trl/test_trainer_turns.py -m crosscheck
"""

import warnings

import numpy as np
import pytest

import turnwise as tw
from turnwise.integrations.trl_environments import PlayedEnvironment, environment_factory, rows

pytestmark = [pytest.mark.crosscheck, pytest.mark.filterwarnings("ignore")]

pytest.importorskip("torch", reason="TRL needs torch; see benchmarks/requirements-trl.txt")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of TRL's imports
    pytest.importorskip("trl", reason="TRL is not installed; see benchmarks/requirements-trl.txt")

from tests.crosscheck.trl.trainers import (  # noqa: E402
    GROUPS,
    HOUSE,
    SIZE,
    Ours,
    Scripted,
    by_hand,
    lottery,
    make,
    play_turns,
)


def test_turns_are_the_runs_that_were_generated(tmp_path):
    trainer = make(Ours, tmp_path, method=tw.aem(), rollout_func=play_turns, max_steps=1, log_completions=True)
    trainer.train()
    assert [len(turns) for turns in trainer._logs["extra"]["turn_entropy"]] == [1, 2, 3, 1, 2, 3, 1, 2]
    logs = trainer.state.log_history[0]
    assert logs["credit/turns"] == pytest.approx(15 / 8)
    assert logs["credit/alpha_min"] < 1 < logs["credit/alpha_max"]
    assert {"credit/entropy", "credit/advantage_turn_0", "credit/advantage_turn_2"} <= set(logs)
    assert "credit/advantage_turn_3" not in logs
    table = next((tmp_path / "completions").glob("*.parquet"))
    import pandas

    assert len(pandas.read_parquet(table)["turn_alpha"][2]) == 3


def play(command: str) -> str:
    """Play a command.

    Args:
        command: What to do.

    Returns:
        What happens.
    """
    return f"you did: {command}"


def test_tools_alone_make_turns(tmp_path):
    method = tw.aem(tw.grpo(convention="trl"), min_range=0.0)
    trainer = make(
        Scripted, tmp_path, method=method, tools=[play], reward_funcs=[lottery], max_completion_length=400, max_steps=1
    )
    trainer.train()
    batch = trainer.batches[-1]
    generated = (batch["completion_mask"] * batch["tool_mask"]).bool()
    said = [
        trainer.processing_class.decode(ids[mine]) for ids, mine in zip(batch["completion_ids"], generated, strict=True)
    ]
    assert not any("you did" in text for text in said), "what the tool answers is not the policy's"
    assert all("you did" in trainer.processing_class.decode(ids) for ids in batch["completion_ids"])
    assert [text.count("<|im_end|>") for text in said] == [3] * len(said)
    rewards = [0.5 * (n % 3) for n in range(SIZE * GROUPS)]
    np.testing.assert_allclose(batch["advantages"].numpy(), by_hand(method, batch, rewards), rtol=2e-4, atol=1e-5)


def test_environments_are_played_as_tools(tmp_path):
    method = tw.aem(tw.gigpo(), min_range=0.0)
    factory = environment_factory(HOUSE)
    trainer = make(
        Scripted,
        tmp_path,
        method=method,
        environments=factory,
        prompts=rows(HOUSE),
        reward_funcs=[lottery],
        max_completion_length=400,
        max_steps=1,
    )
    trainer.train()
    assert trainer.reward_func_names[-1] == PlayedEnvironment.__name__
    batch = trainer.batches[-1]
    generated = batch["completion_mask"] * batch["tool_mask"]
    for row, world in enumerate(trainer.environments):
        text = trainer.processing_class.decode(batch["completion_ids"][row])
        assert all(step.observation in text for step in world._steps[1:]), "what the world said is in the row"
        said = trainer.processing_class.decode(batch["completion_ids"][row][generated[row].bool()])
        assert "tool_response" not in said
        assert said.count("<|im_end|>") == 3
    rewards = [0.5 * (n % 3) for n in range(SIZE * GROUPS)]
    states = [[world._key(at) for at in (0, 1, len(world._steps) - 1)] for world in trainer.environments]
    assert len(trainer.environments[0]._steps) == 3
    assert len(trainer.environments[1]._steps) == 2, "one call was wrong, and no command"
    expected = by_hand(method, batch, rewards, states=states, paid=[[0.0, 0.0, reward] for reward in rewards])
    np.testing.assert_allclose(batch["advantages"].numpy(), expected, rtol=2e-4, atol=1e-5)
    assert abs(expected).max() > 0.1


def test_a_world_that_breaks_is_not_trained_on(tmp_path, monkeypatch):
    broken = []

    def broke(world, command):
        if not broken:
            broken.append(world)
        if world is broken[0]:
            return world._broke(RuntimeError("boom"))
        return play(world, command)

    play = PlayedEnvironment.play
    monkeypatch.setattr(PlayedEnvironment, "play", broke)
    broke.__name__, broke.__doc__, broke.__annotations__ = (
        "play",
        play.__doc__,
        play.__annotations__,
    )  # TRL calls it by its name
    trainer = make(
        Scripted,
        tmp_path,
        method=tw.grpo(),
        environments=environment_factory(HOUSE),
        prompts=rows(HOUSE),
        reward_funcs=[lottery],
        max_completion_length=400,
        max_steps=1,
    )
    trainer.train()
    assert len(broken) == 1
    assert trainer._rewards.isnan().all(1).sum() == 1
    row = trainer._rewards.isnan().all(1).nonzero().item()
    assert trainer.environments[row] is broken[0]
    assert not trainer.batches[0]["advantages"][row].any()
    assert trainer.batches[0]["advantages"].any()
