"""Runs whose rollouts play ahead of the update: bounded lag, no bias, resuming, ratios, errors."""

import asyncio
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from tests.toys import Colors, color_policy, small_config

from turnwise.base.blocking import make_loop
from turnwise.base.errors import ConfigError
from turnwise.credit.batch import Batch
from turnwise.credit.segments import Segments
from turnwise.credit.trace import Trace
from turnwise.engines.local import LocalEngine
from turnwise.engines.models import Models, NamedModel
from turnwise.environments.base import Step
from turnwise.environments.hosts import InProcessEnvironments
from turnwise.objective.policy import PolicyTerm
from turnwise.objective.settings import UpdateConfig
from turnwise.objective.terms import Pass, StepView
from turnwise.rollout.collectors import make_collector
from turnwise.rollout.experience import lag_metrics
from turnwise.rollout.gate import Gate, VisitedEngine
from turnwise.rollout.pool import Pool
from turnwise.rollout.record import read_rollouts
from turnwise.rollout.settings import RolloutConfig
from turnwise.rollout.trajectory import Trajectory, Turn
from turnwise.train.checkpoint import latest_checkpoint, load_checkpoint
from turnwise.train.display import Display
from turnwise.train.folder import RunFolder
from turnwise.train.loop import train


class Waiting(Colors):
    """Every fourth task takes 30 ms a step, the others none."""

    async def step(self, response: str) -> Step:  # pyright: ignore[reportIncompatibleMethodOverride]
        await asyncio.sleep(0.03 if self.seed % 4 == 0 else 0)
        return super().step(response)


def lagging(folder: Path, lag: int = 2, **sections: Any):
    rollout = {"groups": 2, "group_size": 2, "max_new_tokens": 3, "max_lag": lag}
    environment = {"name": "tests.train.test_lag:Waiting", "success_reward": 1.0, "options": {"turns": 3}}
    return small_config(folder, rollout=rollout, environment=environment, **{"run": {"steps": 5}, **sections})


def tasks(folder: RunFolder) -> list[list[str]]:
    """The tasks of every step, once per group."""
    return [list(dict.fromkeys(pq.read_table(path)["task"].to_pylist())) for path in sorted(folder.rollouts.iterdir())]


def test_the_lag_is_bounded_and_the_tasks_are_those_of_lag_0(tmp_path):
    folder = train(lagging(tmp_path / "ahead"))
    assert tasks(folder) == tasks(train(lagging(tmp_path / "in-step", lag=0)))
    lags, spans = [], 0
    for step, path in enumerate(sorted(folder.rollouts.iterdir()), 1):
        for trajectory in read_rollouts(path)[0]:
            versions = [turn.version for turn in trajectory.turns]
            assert versions == sorted(versions)
            spans += len(set(versions)) > 1
            lags += [step - 1 - version for version in versions]
    assert min(lags) == 0
    assert max(lags) == 2
    assert spans, "no trajectory went on with new weights"
    records = [record for record in folder.metrics() if "rollout/success" in record]
    assert max(record["rollout/lag_max"] for record in records) == 2
    assert {record["rollout/spans_versions_frac"] > 0 for record in records} == {True, False}
    assert all("eval/success" in record for record in folder.metrics() if "rollout/success" not in record)


class Interrupted(Display):
    """Ends the process's work in the middle of a run, like a kill: nothing is saved."""

    def step(self, step: int, steps: int, metrics: Any) -> None:
        if step == 3:
            raise MemoryError("killed")


def test_a_resumed_run_plays_half_played_batches_again_and_trains_each_task_once(tmp_path):
    whole = train(lagging(tmp_path / "whole", lag=0))
    config = lagging(tmp_path / "half", checkpoint={"every": 1})
    with pytest.raises(MemoryError):
        train(config, display=Interrupted())
    folder = RunFolder(config.run_folder)
    step, _, states = load_checkpoint(latest_checkpoint(folder))
    assert step == 2
    assert [list(map(str, each["numbers"])) for each in states["selector"]["in_flight"]] == tasks(whole)[2:4]
    resumed = train(config, resume=config.run_folder)
    assert tasks(resumed) == tasks(whole)
    assert [record["step"] for record in resumed.metrics() if "rollout/success" in record] == [1, 2, 3, 4, 5]
    assert "in_flight" not in load_checkpoint(latest_checkpoint(resumed))[2]["selector"]


class SlowSuccess(Colors):
    """Every fourth task takes 60 ms and succeeds; the others fail at once."""

    async def step(self, response: str) -> Step:  # pyright: ignore[reportIncompatibleMethodOverride]
        slow = self.seed % 4 == 0
        await asyncio.sleep(0.06 if slow else 0)
        return Step(observation="", terminated=True, info={"success": slow})


def learned_success(seed: int, *, order: Literal["started", "finished"]) -> float:
    """Success among the trajectories that the first 12 steps of a run learn from, with 12 steps ahead."""
    policy, loop = color_policy(), make_loop(apart=True)
    settings = RolloutConfig(groups=1, group_size=1, max_new_tokens=2, max_lag=12, order=order)
    environments = InProcessEnvironments(SlowSuccess)
    try:
        pool = Pool(range(400), settings, seed, last_step=10**6, loop=loop, environments=environments)
        engine = VisitedEngine(Gate(LocalEngine(policy.model, apart=True)), loop)
        models, collector = Models(policy=NamedModel(policy, engine)), make_collector(settings, environments, str)
        return float(np.mean([pool.next(collector, models, step).metrics["success"] for step in range(1, 13)]))
    finally:
        loop.close()


def interval(values: list[float]) -> tuple[float, float]:
    half = 1.96 * float(np.std(values, ddof=1)) / len(values) ** 0.5
    return float(np.mean(values)) - half, float(np.mean(values)) + half


def test_slow_episodes_are_not_under_represented():
    ours = interval([learned_success(seed, order="started") for seed in range(20)])
    assert ours[0] < 0.25 < ours[1], ours  # the share of slow tasks
    biased = interval([learned_success(seed, order="finished") for seed in range(20)])
    assert biased[1] < 0.25, biased


def gradient(old_policy: Any, cap: float | None, current: torch.Tensor, sampled: torch.Tensor) -> torch.Tensor:
    """Expected gradient of one response of one token, over all tokens that the earlier weights could sample."""
    num = len(current)
    settings = UpdateConfig(clip="none", old_policy=old_policy, mismatch_cap=cap, aggregate="trajectory-mean")
    logits = current.clone().requires_grad_()
    logprob = torch.log_softmax(logits, 0)
    start_T, behavior_T = (torch.log_softmax(each, 0).double().numpy() for each in (current, sampled))
    advantage_R = np.array([1.0, -0.5, 2.0])
    # every token once, its advantage weighed by the probability of being sampled
    batch = Batch(
        Segments.from_lengths([num]),
        Segments.from_lengths([1] * num),
        np.zeros(num),
        {"logprob_T": start_T, "entropy_T": np.zeros(num), "behavior_logprob_T": behavior_T},
        Segments.from_lengths([1] * num),
    )
    term = PolicyTerm(settings).prepare(StepView(batch, Trace(advantage_R * np.exp(behavior_T))))
    loss, _ = term.loss(Pass(logprob, torch.zeros(num), torch.arange(num)))
    (num * loss).backward()
    assert logits.grad is not None
    return logits.grad


def test_ratios_to_the_sampling_weights_give_the_gradient_of_the_current_policy():
    current, sampled = torch.tensor([0.3, -0.2, 0.5]), torch.tensor([1.0, 0.4, -0.8])
    logits = current.clone().requires_grad_()
    (-(torch.softmax(logits, 0) * torch.tensor([1.0, -0.5, 2.0])).sum()).backward()  # exact, by enumeration
    assert logits.grad is not None
    torch.testing.assert_close(gradient("behavior", None, current, sampled), logits.grad, rtol=0, atol=1e-6)
    torch.testing.assert_close(gradient("start", 1e6, current, sampled), logits.grad, rtol=0, atol=1e-6)
    ignored = gradient("start", None, current, sampled)  # known wrong: as if the current weights had sampled
    assert (ignored - logits.grad).abs().max() > 0.05


@pytest.mark.parametrize(
    ("update", "old_policy"),
    [({}, "behavior"), ({"mismatch_cap": 2.0}, None), ({"old_policy": "start", "mismatch_cap": 2.0}, "start")],
)
def test_ratios_follow_the_lag_unless_a_cap_corrects_it(tmp_path, update, old_policy):
    assert lagging(tmp_path, update=update).update.old_policy == old_policy
    assert lagging(tmp_path, lag=0, update=update).update.old_policy == update.get("old_policy")


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"rollout": {"max_lag": 1, "top_p": 0.9}}, r"top_p=0.9 .*, and rollout.max_lag=1 .*; set rollout.top_p=1"),
        (
            {"rollout": {"max_lag": 1}, "update": {"old_policy": "start"}},
            r"max_lag=1 samples .*, and update.old_policy='start' .* or add update.mismatch_cap=2 update.scoring",
        ),
        ({"update": {"old_policy": "behavior", "mismatch_cap": 2.0}}, r"correct for the same difference; remove one"),
        (
            {"rollout": {"max_lag": 1}, "update": {"scoring": "engine", "mismatch_cap": 2.0}},
            r"update.scoring='engine' .*, and update.mismatch_cap=2 weights .*; set update.scoring=trainer",
        ),
        (
            {"rollout": {"max_lag": 1}, "update": {"scoring": "engine"}, "method": "infopo"},
            r"max_lag=1 samples .*, and method 'infopo' with update.scoring='engine' .*; set update.scoring=trainer",
        ),
        ({"rollout": {"max_lag": -1}}, r"rollout.max_lag: .*greater than or equal to 0, got -1"),
    ],
)
def test_what_cannot_be_played_ahead_is_refused(tmp_path, sections, message):
    sections = {name: {"max_new_tokens": 3, **each} if name == "rollout" else each for name, each in sections.items()}
    with pytest.raises(ConfigError, match=message):
        small_config(tmp_path, **sections)


def test_a_turn_whose_engine_failed_was_sampled_by_no_weights():
    turns = [Turn("", "", [1], [2], [0.0], "", True, version=4), Turn("", "", [1], [], [], "", False)]
    told = lag_metrics([Trajectory(0, "t", turns)], step=6)
    assert told == {"lag_mean": 1.0, "lag_max": 1.0, "spans_versions_frac": 0.0}
