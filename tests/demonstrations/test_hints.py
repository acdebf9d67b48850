"""ADHint: how long hints are, what is learned from, which baselines groups have, and that a run learns by it."""

import dataclasses
import functools
import itertools
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.demonstrations.test_hpt import library, written
from tests.steps import measured
from tests.stores.test_replay import plain, rollouts
from tests.toys import Colors, color_policy, small_config
from turnwise.base.errors import ConfigError
from turnwise.config import override_config
from turnwise.engines.local import LocalEngine
from turnwise.engines.models import Models, NamedModel
from turnwise.environments.base import Step
from turnwise.environments.hosts import InProcessEnvironments
from turnwise.extensions.demonstrations import hints
from turnwise.extensions.demonstrations.hints import Hinted, hint_shares, hint_turns
from turnwise.extensions.demonstrations.library import Demonstrations
from turnwise.extensions.demonstrations.settings import DemonstrationsConfig
from turnwise.measures.base import Played
from turnwise.measures.step_rewards import step_rewards
from turnwise.objective.tokens import Sequences
from turnwise.rollout.collectors import Independent
from turnwise.rollout.experience import Experience
from turnwise.rollout.plays import play_tasks
from turnwise.rollout.settings import RolloutConfig
from turnwise.train.checkpoint import latest_checkpoint
from turnwise.train.credit import Credit, make_transform
from turnwise.train.folder import RunFolder
from turnwise.train.loop import train

ADHINT = {"name": "adhint", "hinted": 6, "w_min": 0.0, "w_max": 0.8, "noise": 0.0}
TURNS = 5
ROLLOUT = RolloutConfig(group_size=4, max_new_tokens=3)


def settings_of(**settings: Any) -> DemonstrationsConfig:
    return DemonstrationsConfig(**{**ADHINT, **settings})


def check_shares(shares: Any = hint_shares) -> None:
    """By exact fractions: of four trajectories, 0 to 4 succeed, and the share falls on a line from w_max to w_min."""
    low, high = Fraction(1, 5), Fraction(3, 5)
    expected = [float(high * (4 - won) / 4 + low * won / 4) for won in range(5)]
    difficulty_G = np.array([(4 - won) / 4 for won in range(5)])
    found = shares(difficulty_G, settings_of(w_min=0.2, w_max=0.6), np.random.default_rng(0))
    np.testing.assert_allclose(found, expected, atol=1e-12)
    np.testing.assert_allclose(expected, [0.6, 0.5, 0.4, 0.3, 0.2])
    hard_G, draws = np.ones(1000), np.random.default_rng(1)
    noisy = shares(hard_G, settings_of(w_min=0.2, w_max=0.6, noise=0.3), draws)
    assert (noisy.min(), noisy.max()) == (0.0, 1.0)
    assert np.median(noisy) == pytest.approx(0.6, abs=0.04)


def test_harder_tasks_get_longer_hints():
    check_shares()


def clean(difficulty_G: np.ndarray, least: float, most: float) -> np.ndarray:
    return (most - least) * difficulty_G + least


@pytest.mark.parametrize(
    "wrong",
    [
        lambda d, s, draws: np.clip(clean(1 - d, s.w_min, s.w_max) + s.noise * draws.standard_normal(len(d)), 0, 1),
        lambda d, s, draws: np.clip(s.w_max * d + s.noise * draws.standard_normal(len(d)), 0, 1),
        lambda d, s, draws: clean(d, s.w_min, s.w_max) + s.noise * draws.standard_normal(len(d)),
        lambda d, s, draws: clean(d, s.w_min, s.w_max),
        lambda d, s, draws: np.full(len(d), s.w_max),
    ],
    ids=["by success", "without w_min", "without bounds", "without noise", "the same for all"],
)
def test_wrong_shares_are_found(wrong):
    with pytest.raises(AssertionError):
        check_shares(wrong)


@pytest.mark.parametrize(
    ("share", "turns", "length"),
    [(0.5, 4, 2), (0.49, 4, 1), (0.3, 10, 3), (0.7, 10, 7), (1.0, 4, 3), (0.2, 4, 0), (1.0, 1, 0), (1.0, 0, 0)],
)
def test_a_hint_is_whole_turns_and_leaves_one(share, turns, length):
    assert hint_turns(share, turns) == length


class Given:
    """A source whose groups were played before."""

    def __init__(self, experience: Experience):
        self.experience = experience

    def next(self, collector: Any, models: Any, step: int, on_turn: Any = None) -> Experience:
        return self.experience

    def state_dict(self) -> dict[str, Any]:
        return {"cursor": 1}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state == {"cursor": 1}


def models_of() -> Models:
    policy = color_policy(spread=8.0, context=256)
    models = Models(policy=NamedModel(policy, LocalEngine(policy.model)))
    models.publish()
    return models


class Last(Colors):
    """Pays for the last turn alone."""

    def step(self, response: str) -> Step:
        step = super().step(response)
        return dataclasses.replace(step, reward=step.reward * step.terminated)


class Told(Colors):
    """Tells a reward for each response: its turn, from 0."""

    def step(self, response: str) -> Step:
        step = super().step(response)
        return dataclasses.replace(step, info={**step.info, "step_rewards": list(range(self.played))})


def hinted_of(
    *successes: int, demonstrations: Demonstrations | None = None, make: Any = Last, group_filter: Any = "none"
) -> Experience:
    """Play groups of four, of tasks 0, 1, ..., of which some are declared successful, and their hinted groups."""
    models = models_of()
    environments = InProcessEnvironments(lambda task: make(task, turns=TURNS))
    played = play_tasks(Independent(environments, ROLLOUT), models, range(len(successes)), seed=5)
    for number, each in enumerate(played):
        each.success = number % 4 < successes[each.group]
        each.failure = "gone" if successes[each.group] < 0 else None
    used_N = np.array([each.usable for each in played])
    numbers = range(len(successes))
    source = Given(Experience(played, used_N, {}, tasks=numbers, numbers=numbers))
    found = demonstrations or library(turns=TURNS, factory=make)
    rollout = ROLLOUT.model_copy(update={"filter": group_filter})
    given = Hinted(source, settings_of(), found, environments, rollout, 0)
    assert given.state_dict() == {"cursor": 1}
    no_collector: Any = None
    return given.next(no_collector, models, 1)


def test_each_task_is_played_again_by_its_difficulty():
    """Of five turns, 0.8 D are 4, 3 (of 0.6), 2 (of 0.4), 1 (of 0.2) and 0; a group without outcomes has no hint."""
    experience = hinted_of(0, 1, 2, 3, 4, -1)
    assert list(experience.numbers) == [0, 1, 2, 3, 4, 5, 0, 1, 2, 3]
    assert list(experience.tasks) == list(experience.numbers)
    hinted = experience.trajectories[24:]
    assert [each.group for each in hinted] == [group for group in (6, 7, 8, 9) for _ in range(6)]
    assert [each.info["prefix"]["turns"] for each in hinted] == [turns for turns in (4, 3, 2, 1) for _ in range(6)]
    assert all(each.failure is None and each.task.startswith(f"{each.group - 6}, from turn ") for each in hinted)
    metrics = experience.metrics
    assert (metrics["hinted"], metrics["difficulty"], metrics["hint_turns"]) == (4, 0.5, 2.5)
    assert metrics["hint_failed_frac"] == 0
    assert metrics["tokens"] == sum(turn.num_generated for each in hinted for turn in each.turns)
    assert metrics["env_steps"] == len(hinted) * TURNS, "with those of the hints"
    assert metrics["hint_success"] == np.mean([each.success for each in hinted])


def check_mask() -> None:
    """The sequence begins with the demonstration; the generated positions are those of the own turns alone."""
    hinted = hinted_of(0, 2).trajectories[8:]
    sequences = Sequences.from_trajectories(hinted)
    for ids, places, each in zip(sequences.token_ids, sequences.generated, hinted, strict=True):
        task, length = map(int, each.task.split(", from turn "))
        assert length == (2 if task else 4)
        _, turns, _ = library(turns=TURNS).played(task, color_policy(context=256))
        known = [id for turn in turns[:length] for id in (*turn.prompt_ids, *turn.response_ids)]
        assert ids[: len(known)].tolist() == known
        assert places.min() >= len(known) + len(turns[length].prompt_ids)
        assert len(each.turns) == TURNS - length


def test_hints_are_read_and_never_learned_from():
    check_mask()


def test_hints_that_are_learned_from_are_found(monkeypatch):
    monkeypatch.setattr(hints, "alone", lambda trajectory: dataclasses.replace(trajectory, shared=0, tree=None))
    with pytest.raises(AssertionError):
        check_mask()


def check_baselines(make: Any = hinted_of) -> None:
    """GRPO by hand: (r - mean) / (std + 1e-6), std of n - 1, over each group by itself."""
    experience = make(0, 0, 0)
    config = small_config(Path("unused"), method="grpo", environment={"invalid_penalty": 0.0})
    batch = measured(color_policy(context=256).model, experience.used, config).batch
    advantage_R = Credit(make_transform(config.method)).update(batch).advantage_R
    first_N = np.concatenate([[0], np.cumsum([len(each.turns) for each in experience.used])[:-1]])
    reward_N = np.add.reduceat(batch.reward_R, first_N)
    assert np.ptp(reward_N) > 0, "else all advantages are 0"
    kinds = itertools.groupby(experience.used, key=lambda each: (each.group, "prefix" in each.info))
    sizes = [len(list(members)) for _, members in kinds]
    for rewards, advantages in zip(
        np.split(reward_N, np.cumsum(sizes)[:-1]), np.split(advantage_R[first_N], np.cumsum(sizes)[:-1]), strict=True
    ):
        expected = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-6)
        np.testing.assert_allclose(advantages, expected, atol=1e-4)


def test_hinted_and_other_trajectories_have_separate_baselines():
    check_baselines()


def test_one_baseline_for_both_is_found():
    def by_task(*successes: int, pooled: bool) -> Experience:
        experience = hinted_of(*successes)
        ordered = sorted(experience.trajectories, key=lambda each: each.group % 3)
        renamed = [dataclasses.replace(each, group=each.group % 3) for each in ordered]
        return dataclasses.replace(experience, trajectories=renamed if pooled else ordered)

    check_baselines(functools.partial(by_task, pooled=False))
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        check_baselines(functools.partial(by_task, pooled=True))


def test_rewards_of_a_hint_are_not_the_policys():
    """Colors pays in every turn; a replay must pay as the demonstration did, and only own turns count."""
    hinted = hinted_of(0, 0, make=Colors).trajectories[8:]
    assert all(each.failure is None for each in hinted)
    assert {each.reward for each in hinted} <= {0.0, 1.0}


def test_rewards_of_single_responses_are_those_of_own_turns():
    hinted = hinted_of(0, 2, make=Told).trajectories[8:]
    assert step_rewards.run(Played(hinted), {})["step_reward"] == [4.0] * 6 + [2.0, 3.0, 4.0] * 6


def test_the_filter_keeps_hinted_groups_by_their_own_outcomes():
    experience = hinted_of(0, 0, 0, 0, 0, group_filter="mixed")
    found = set()
    for group in range(5, 10):
        places = [place for place, each in enumerate(experience.trajectories) if each.group == group]
        mixed = len({experience.trajectories[place].success for place in places}) == 2
        assert experience.used_N[places].tolist() == [mixed] * 6
        found.add(mixed)
    assert found == {True, False}


def test_tasks_without_a_demonstration_have_no_hint(tmp_path):
    file = written(tmp_path, {"task": "1", "responses": [Colors.color(1, turn) for turn in range(TURNS)]})
    experience = hinted_of(0, 0, demonstrations=library(file, turns=TURNS, factory=Last))
    assert list(experience.numbers) == [0, 1, 1]
    assert experience.metrics["hinted"] == 1
    none = hinted_of(4, 4)
    assert (len(none.trajectories), none.metrics["hinted"]) == (8, 0)


def config_of(folder: Path, **sections: Any):
    return small_config(
        folder,
        **{
            "method": "dr_grpo",
            "environment": {"name": "tests.demonstrations.test_hpt:Sparse", "options": {"turns": 3}},
            "rollout": {"groups": 8, "group_size": 4},
            "evaluate": {"every": 0, "final_episodes": 64, "temperature": 1.0},
            "demonstrations": {**ADHINT, "hinted": 4, "w_max": 1.0},
            "update": {"learning_rate": 0.01, "clip": "none", "aggregate": "constant"},
            "checkpoint": {"every": 99},
            **sections,
        },
    )


def test_a_policy_that_mostly_fails_learns_from_hints(tmp_path):
    """Fails if hints are switched off: guessing wins one game in 16, and the same run without them learns less."""
    sections = {"run": {"steps": 50}, "method": "grpo", "update": {"learning_rate": 0.015}}
    two = {"name": "tests.demonstrations.test_hpt:Sparse", "options": {"turns": 2}}
    lines = rollouts(train(config_of(tmp_path / "with", environment=two, **sections)))
    without = rollouts(train(config_of(tmp_path / "without", environment=two, demonstrations=None, **sections)))
    first, last, plainly = (
        np.mean([line["rollout/success"] for line in part]) for part in (lines[:10], lines[-10:], without[-10:])
    )
    assert last > first + 0.08
    assert last > plainly + 0.05
    assert lines[0]["rollout/hint_success"] > lines[0]["rollout/success"]


@pytest.mark.parametrize("context", ["append", "window"])
def test_a_resumed_run_is_the_same_to_the_bit(tmp_path, context):
    noisy = {**ADHINT, "w_max": 1.0, "noise": 0.2}
    rollout = {"groups": 4, "group_size": 4, "context": context}
    every = {"checkpoint": {"every": 1}, "demonstrations": noisy, "method": "gigpo", "rollout": rollout}
    whole = train(config_of(tmp_path / "whole", run={"steps": 3}, **every))
    part = train(config_of(tmp_path / "part", run={"steps": 2}, **every))
    part = train(override_config(RunFolder.open(part.path)[1], ["run.steps=3"]), resume=part.path)
    assert plain(rollouts(part)) == plain(rollouts(whole))
    assert all(line["rollout/hint_failed_frac"] == 0 for line in rollouts(part))
    one, other = ((latest_checkpoint(folder) / "model.safetensors").read_bytes() for folder in (whole, part))
    assert one == other


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        *(
            (
                {"demonstrations": {**ADHINT, name: None}},
                rf"demonstrations\.{name} needs a value",
            )
            for name in ("hinted", "w_min", "w_max", "noise")
        ),
        ({"demonstrations": {**ADHINT, "gate": 1}}, r"demonstrations\.gate is an option of .*'hpt' only"),
        ({"demonstrations": {"name": "hpt", "noise": 0.1}}, r"demonstrations\.noise is an option of .*'adhint' only"),
        ({"demonstrations": {**ADHINT, "w_min": 0.9}}, r"w_min=0\.9 is above demonstrations\.w_max=0\.8"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_said(tmp_path, sections, message):
    with pytest.raises(ConfigError, match=message):
        config_of(tmp_path, **sections)
