"""RLEP: which groups get which successes, at which probabilities, and that a resumed run is the same."""

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.steps import measured, updated
from tests.stores.same import content
from tests.toys import Colors, color_policy, small_config
from turnwise.base.errors import ConfigError, RunError
from turnwise.commands.cli import main
from turnwise.config import override_config
from turnwise.credit.batch import Batch
from turnwise.engines.local import LocalEngine
from turnwise.engines.models import Models, NamedModel
from turnwise.environments.base import Step
from turnwise.environments.hosts import InProcessEnvironments
from turnwise.extensions.stores.replay import Replaying
from turnwise.extensions.stores.rows import FILE, read_store
from turnwise.extensions.stores.settings import StoreConfig
from turnwise.extensions.stores.store import Store
from turnwise.models.policy import load_policy
from turnwise.objective.tokens import Sequences, score
from turnwise.rollout.collectors import Independent
from turnwise.rollout.experience import Experience
from turnwise.rollout.pool import Pool
from turnwise.rollout.record import read_rollouts
from turnwise.rollout.settings import RolloutConfig
from turnwise.train import loop
from turnwise.train.checkpoint import latest_checkpoint
from turnwise.train.credit import Credit, make_transform
from turnwise.train.folder import RunFolder
from turnwise.train.loop import train

RLEP = {"name": "rlep", "capacity": 64, "replays": 2}


def played(*, steps: int = 3, replays: int = 2) -> tuple[list[Experience], Store]:
    """Steps of a policy that guesses colors, over four tasks."""
    policy = color_policy(spread=8.0)
    settings = RolloutConfig(groups=4, group_size=4, max_new_tokens=3)
    models = Models(policy=NamedModel(policy, LocalEngine(policy.model)))
    models.publish()
    collector = Independent(InProcessEnvironments(Colors), settings)
    store = Store(StoreConfig(name="rlep", capacity=64, replays=replays), str)
    source = Replaying(Pool(range(4), settings, 0), store, 0)
    found = []
    for step in range(1, steps + 1):
        models.publish(step - 1)
        found.append(source.next(collector, models, step))
    return found, store


def test_a_group_gets_earlier_successes_of_its_own_task():
    steps, store = played()
    known: dict[int, int] = {}
    for number, experience in enumerate(steps, 1):
        own = [each for each in experience.trajectories if "replayed" not in each.info]
        replays = [each for each in experience.trajectories if "replayed" in each.info]
        assert len(own) == 16
        for each in replays:
            assert each.success
            assert each.info["replayed"] < number, "not of this step"
            assert each.turns[0].version == each.info["replayed"] - 1
            assert each.task == str(experience.numbers[each.group])
        for group, task in enumerate(experience.numbers):
            assert sum(each.group == group for each in replays) == min(2, known.get(task, 0))
        for each in own:
            task = experience.numbers[each.group]
            known[task] = known.get(task, 0) + each.success
        groups = [each.group for each in experience.trajectories]
        assert groups == sorted(groups), "those of a group are adjacent"
        assert experience.used_N.all()
        assert experience.metrics["replayed"] == len(replays)
        assert experience.metrics["tokens"] == sum(turn.num_generated for each in own for turn in each.turns)
        success = np.mean([each.success for each in own])
        assert experience.metrics["success"] == pytest.approx(success), "replays are no successes of the step"
    assert steps[-1].metrics["replayed"] > 0
    assert len(store.rows) == sum(known.values())


def test_no_replay_is_drawn_twice_for_a_group():
    (*_, last), store = played(steps=8, replays=50)
    for group, task in enumerate(last.numbers):
        replays = [each.turns[0].behavior_logprobs for each in last.trajectories if each.group == group][4:]
        stored = [row.trajectory.turns[0].behavior_logprobs for row in store.of(task) if row.step < 8]
        assert sorted(replays) == sorted(stored)


def test_a_lone_failure_and_a_replay_have_contrast():
    """Fails if replays had no part in the group's baseline: a group of failures would then have no advantage."""
    steps, _ = played()
    policy, config = color_policy(), small_config(Path("unused"), method="grpo")
    signals = 0
    for experience in steps:
        batch = measured(policy.model, experience.used, config).batch
        advantage_R = Credit(make_transform(config.method)).update(batch).advantage_R
        for group in range(batch.num_groups):
            members = [each for each in experience.used if each.group == group]
            own = {each.success for each in members if "replayed" not in each.info}
            if own == {False} and len(members) > 4:
                signals += 1
                assert advantage_R[batch.group_responses.ids == group].any()
    assert signals, "the seed has no such group"


def ratio_gradient(experience: Experience, policy: Any, config: Any) -> torch.Tensor:
    model = copy.deepcopy(policy.model)
    step = measured(model, experience.used, config)
    credit = Credit(make_transform(config.method)).update(step.batch)
    updated(model, Still(model.parameters()), step, credit, config, step=1)
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).double()


class Still(torch.optim.SGD):
    """Keeps weights and gradients as they are."""

    def step(self, closure=None):
        pass


def test_ratios_are_relative_to_the_weights_that_sampled(tmp_path):
    """The gradient of a replay is that of the ratio to its stored probabilities, token by token.

    Known wrong: `old_policy = "start"`, as if the present policy had sampled it.
    """
    steps, _ = played()
    experience, policy = steps[-1], color_policy(seed=3)
    given = {"clip": "none", "max_grad_norm": 1e9}
    sections = {"method": "dr_grpo", "environment": {"invalid_penalty": 0.0}}
    config = small_config(tmp_path, **sections, store=RLEP, update=given)
    assert config.update.old_policy == "behavior"
    batch = measured(policy.model, experience.used, config).batch
    model = copy.deepcopy(policy.model)
    advantage = by_hand_advantage(batch)
    num_tokens, place, total = sum(len(t.response_ids) for e in experience.used for t in e.turns), 0, torch.zeros(())
    for each in experience.used:
        for turn in each.turns:
            ids = torch.tensor([turn.prompt_ids + turn.response_ids])
            logprob = model(ids).logits[0, :-1].log_softmax(-1)[range(ids.shape[1] - 1), ids[0, 1:]]
            logprob = logprob[-len(turn.response_ids) :]
            ratio = (logprob - torch.tensor(turn.behavior_logprobs)).exp()
            total = total - advantage[place] * ratio.sum() / num_tokens
            place += 1
    total.backward()
    hand = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).double()
    ours = ratio_gradient(experience, policy, config)
    torch.testing.assert_close(ours, hand, rtol=1e-4, atol=1e-6)
    start = small_config(tmp_path, **sections, update={**given, "old_policy": "start"})
    assert not torch.allclose(ratio_gradient(experience, policy, start), hand, rtol=1e-2, atol=1e-3)


def by_hand_advantage(batch: Batch) -> list[float]:
    """Reward minus the mean of the group, replays in it; every trajectory has one turn here."""
    reward_R, group_R = batch.reward_R, batch.group_responses.ids
    return [float(reward - reward_R[group_R == group].mean()) for reward, group in zip(reward_R, group_R, strict=True)]


def config_of(folder: Path, **sections: Any):
    return small_config(
        folder,
        **{
            "rollout": {"groups": 4, "group_size": 4},
            "evaluate": {"every": 0},
            "store": RLEP,
            "checkpoint": {"every": 1},
            **sections,
        },
    )


@pytest.fixture(autouse=True)
def four_tasks(monkeypatch):
    """Tasks that come back in each step."""
    from turnwise.environments.suites import Seeded

    monkeypatch.setattr(Seeded, "tasks", lambda self, split: range(4))


def rollouts(folder: RunFolder) -> list[dict[str, Any]]:
    return [line for line in folder.metrics() if "rollout/success" in line]


def plain(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    left = ("time", "memory", "crc32")
    return [{name: value for name, value in line.items() if not name.startswith(left)} for line in lines]


def test_a_resumed_run_is_the_same_to_the_bit(tmp_path):
    whole = train(config_of(tmp_path / "whole", run={"steps": 5}))
    part = train(config_of(tmp_path / "part", run={"steps": 2}))
    part = train(override_config(RunFolder.open(part.path)[1], ["run.steps=5"]), resume=part.path)
    assert plain(rollouts(part)) == plain(rollouts(whole))
    assert rollouts(part)[-1]["rollout/replayed"] > 0
    ends = [latest_checkpoint(folder) for folder in (whole, part)]
    for name in (FILE, "model.safetensors"):
        one, other = (content(end / name) for end in ends)
        assert one == other, name
    trajectories, _ = read_rollouts(part.rollouts / "step-000005.parquet")
    assert any("replayed" in each.info for each in trajectories)
    assert {each.info["replayed"] for each in trajectories if "replayed" in each.info} <= {1, 2, 3, 4}


def test_a_damaged_store_is_refused_and_the_run_can_go_on_without_it(tmp_path, capsys):
    folder = train(config_of(tmp_path, run={"steps": 2}))
    file = latest_checkpoint(folder) / FILE
    lines = file.read_text().splitlines()
    lines[2] = lines[2].replace('"success": true', '"success": false')
    file.write_text("\n".join(lines) + "\n")
    capsys.readouterr()
    assert main(["train", "--resume", str(folder.path), "run.steps=3"]) == 2
    error = capsys.readouterr().err
    assert f"{file}, row 2, is damaged" in error
    assert "resume with store.damaged=empty" in error
    assert main(["train", "--resume", str(folder.path), "run.steps=3", "store.damaged=empty"]) == 0
    last = [line for line in folder.metrics() if "rollout/stored" in line][-1]
    assert (last["step"], last["rollout/stored"], last["rollout/replayed"]) == (3, 0.0, 0.0)


def test_a_store_that_is_gone_is_refused_too(tmp_path):
    folder = train(config_of(tmp_path, run={"steps": 1}))
    (latest_checkpoint(folder) / FILE).unlink()
    with pytest.raises(RunError, match=rf"{FILE} cannot be read: No such file.* store\.damaged=empty"):
        train(override_config(RunFolder.open(folder.path)[1], ["run.steps=2"]), resume=folder.path)


def test_a_run_can_start_with_the_successes_of_another(tmp_path):
    first = train(config_of(tmp_path / "one", run={"steps": 2}))
    stored = latest_checkpoint(first) / FILE
    second = train(config_of(tmp_path / "two", run={"steps": 1}, store={**RLEP, "start": str(stored)}))
    line = next(line for line in second.metrics() if "rollout/replayed" in line)
    assert line["rollout/replayed"] > 0
    assert line["rollout/stored_age"] >= 1, "they are older than the run"
    assert line["rollout/stored"] == json.loads(stored.read_text().splitlines()[0])["rows"]


@pytest.mark.parametrize("method", ["grpo+aem", "gigpo", "rloo"])
def test_methods_learn_with_replays(tmp_path, method):
    config = config_of(tmp_path, run={"steps": 3}, method=method)
    lines = [line for line in train(config).metrics() if "update/loss" in line]
    assert lines[-1]["rollout/replayed"] > 0
    assert all(np.isfinite(line["update/loss"]) for line in lines)


class Rare(Colors):
    """Pays only for three right colors in a row, so that most groups have no success."""

    def step(self, response: str) -> Step:
        step = super().step(response)
        return dataclasses.replace(step, reward=float(step.info["success"]))


def test_stored_successes_teach_a_policy_that_fails(tmp_path):
    """Fails if replay is switched off: a policy without a success of its own then stays as it is."""
    environment = {"name": "tests.stores.test_replay:Rare", "options": {"turns": 3}}
    lucky = train(config_of(tmp_path / "lucky", run={"steps": 1}, environment=environment, rollout={"group_size": 128}))
    start = latest_checkpoint(lucky) / FILE
    sequences = Sequences.from_trajectories([row.trajectory for row in read_store(start)])

    def mean_logprob(folder: RunFolder) -> float:
        return float(score(load_policy(latest_checkpoint(folder)).model, sequences)[0].mean())

    sections = {
        "run": {"steps": 10, "seed": 3},
        "environment": environment,
        "rollout": {"group_size": 2},
        "method": "grpo",
    }
    sections["update"] = {"mismatch_cap": 2.0}
    without = train(config_of(tmp_path / "without", store=None, **sections))
    assert not any(line["rollout/success"] for line in rollouts(without)), "the seed has no success of its own"
    taught = train(config_of(tmp_path / "with", store={**RLEP, "start": str(start)}, **sections))
    assert mean_logprob(taught) > mean_logprob(without) + 0.1


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        (
            {"update": {"old_policy": "start"}},
            r"'rlep' replays trajectories of earlier weights, and update\.old_policy='start' .*; remove",
        ),
        ({"store": {"name": "rlep", "replays": 1}}, r"store\.capacity"),
        ({"store": {**RLEP, "warm_up": 50}}, r"store\.warm_up is an option of store\.name='slea_rl' only, got 50"),
        ({"store": {**RLEP, "adaptive": False}}, r"store\.adaptive is an option of store\.name='prefix_sampling' only"),
        (
            {"rollout": {"top_p": 0.95}},
            r"top_p=0\.95 .*, the default with store\.name='rlep', .*; set rollout\.top_p=1",
        ),
    ],
    ids=str,
)
def test_what_does_not_fit_is_said(tmp_path, sections, message):
    with pytest.raises(ConfigError, match=message):
        config_of(tmp_path, **sections)


@pytest.mark.parametrize("kind", ["head", "ridge"])
def test_a_critic_learns_no_returns_of_replays(tmp_path, monkeypatch, kind):
    """They were chosen by their outcome, and would raise the values of all states that they passed."""
    steps: list[Batch] = []
    update = loop._update

    def watch(run, measured, credit, step):
        steps.append(measured.batch)
        return update(run, measured, credit, step)

    monkeypatch.setattr(loop, "_update", watch)
    critic = {"critic": {"kind": kind, "target": "return"}, "method": "turn_ppo"}
    lines = [
        line
        for line in train(config_of(tmp_path, run={"steps": 6}, **critic)).metrics()
        if "update/value_target" in line
    ]
    differing = 0
    for batch, line in zip(steps, lines, strict=True):
        return_R = batch.trajectories.suffix_sum(batch.reward_R)
        own_R = batch.columns["replayed"] == 0
        assert line["update/value_target"] == pytest.approx(return_R[own_R].mean())
        differing += return_R[own_R].mean() != pytest.approx(return_R.mean())
    assert differing
