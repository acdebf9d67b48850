"""Prefix Sampling: which groups become prefixes, where they start, what is masked, how ratios adapt, and resuming."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.demonstrations.test_hints import Told
from tests.stores.same import content
from tests.stores.test_replay import plain, rollouts
from tests.toys import Colors, color_policy, small_config
from turnwise.base.errors import ConfigError
from turnwise.config import override_config
from turnwise.engines.local import LocalEngine
from turnwise.engines.models import Models, NamedModel
from turnwise.environments.base import Step
from turnwise.environments.hosts import InProcessEnvironments
from turnwise.extensions.stores.prefixes import PrefixSampling, Ratio, replayed_turns
from turnwise.extensions.stores.rows import FILE, read_store
from turnwise.extensions.stores.settings import StoreConfig
from turnwise.extensions.stores.store import Store
from turnwise.measures.base import Played
from turnwise.measures.step_rewards import step_rewards
from turnwise.objective.tokens import Sequences
from turnwise.rollout.collectors import Independent
from turnwise.rollout.experience import Experience
from turnwise.rollout.plays import play_tasks
from turnwise.rollout.settings import RolloutConfig
from turnwise.train.checkpoint import latest_checkpoint
from turnwise.train.folder import RunFolder
from turnwise.train.loop import train

PREFIXES = {"name": "prefix_sampling", "capacity": 16, "remaining": 0.5, "handicap": 0.5}


@pytest.mark.parametrize(
    ("turns", "kind", "ratio", "cap", "replayed"),
    [
        (8, "hard", 0.25, 30, 6),
        (8, "hard", 0.75, 30, 2),
        (8, "hard", 0.75, 4, 4),  # the cap leaves fewer turns
        (3, "hard", 0.25, 30, 2),  # one turn is left at least
        (1, "hard", 0.25, 30, 0),
        (8, "easy", 0.25, 30, 2),
        (8, "easy", 0.55, 3, 3),
        (3, "easy", 0.25, 30, 0),
        (1, "easy", 0.9, 30, 0),
        (10, "hard", 0.25 + 0.05 + 0.05 + 0.05, 30, 6),  # 0.39999999999999997 of 10 turns are 4
        (10, "easy", 0.25 + 0.05 + 0.05 + 0.05, 30, 4),
    ],
)
def test_how_many_turns_are_replayed(turns, kind, ratio, cap, replayed):
    assert replayed_turns(turns, kind, ratio, cap) == replayed


def test_ratios_follow_the_pass_rate():
    """Too easy: the mean goes 0.525, 0.549 (above 0.53: harder), then five steps without a change."""
    ratio = Ratio(0.45)
    values = []
    for _ in range(8):
        ratio.follow(1.0)
        values.append(round(ratio.value, 2))
    assert values == [0.45, 0.5, 0.5, 0.5, 0.5, 0.5, 0.55, 0.55]
    easier = Ratio(0.45)
    for _ in range(2):
        easier.follow(0.0)
    assert easier.value == pytest.approx(0.4)
    easier.follow(None)
    assert (easier.mean, easier.waits) == (pytest.approx(0.5 * 0.95**2), 4)
    held = Ratio(0.45)
    for rate in (0.9, 0.1) * 20:
        held.follow(rate)
    assert held.value == 0.45, "within the dead zone"
    bounded = Ratio(0.95)
    for _ in range(20):
        bounded.follow(1.0)
    assert bounded.value == 0.95


@pytest.mark.parametrize("adaptive", [True, False])
def test_ratios_stay_as_they_are_unless_they_adapt(adaptive):
    models = models_of()
    given = sampling(experience_of(1, models=models), experience_of(8, models=models), adaptive=adaptive)
    for step in (1, 2):
        take(given, models, step)
    assert (given.ratios["hard"] != Ratio(0.5)) == adaptive


class Given:
    """A source whose groups were played before."""

    def __init__(self, *steps: Experience):
        self.steps = list(steps)

    def next(self, collector: Any, models: Any, step: int, on_turn: Any = None) -> Experience:
        return self.steps.pop(0)

    def state_dict(self) -> dict[str, Any]:
        return {"cursor": 1}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state == {"cursor": 1}


ROLLOUT = RolloutConfig(group_size=8, max_new_tokens=3)
TURNS = 4


def models_of() -> Models:
    policy = color_policy(spread=8.0, context=256)
    models = Models(policy=NamedModel(policy, LocalEngine(policy.model)))
    models.publish()
    return models


def experience_of(*successes: int, models: Models) -> Experience:
    """Groups of eight, of tasks 0, 1, ..., of which some are declared successful."""
    environments = InProcessEnvironments(lambda task: Colors(task, turns=TURNS))
    played = play_tasks(Independent(environments, ROLLOUT), models, range(len(successes)), seed=5)
    for number, each in enumerate(played):
        each.success = number % 8 < successes[each.group]
    return Experience(played, np.ones(len(played), dtype=bool), {}, numbers=range(len(successes)))


def sampling(*steps: Experience, make: Any = None, rollout: RolloutConfig = ROLLOUT, **settings: Any) -> PrefixSampling:
    store = Store(StoreConfig(**{**PREFIXES, **settings}), str)
    environments = InProcessEnvironments(make or (lambda task: Colors(task, turns=TURNS)))
    return PrefixSampling(Given(*steps), store, range(8), environments, rollout, 0)


def take(given: PrefixSampling, models: Models, step: int) -> Experience:
    no_collector: Any = None
    return given.next(no_collector, models, step)


def test_hard_and_easy_groups_become_prefixes_of_the_next_step():
    models = models_of()
    first, second = experience_of(0, 1, 2, 4, 6, 7, 8, models=models), experience_of(8, 8, models=models)
    given = sampling(first, second)
    one = take(given, models, 1)
    assert len(one.trajectories) == 56
    assert [(row.task, row.trajectory.success, row.step) for row in given._store.rows] == [
        (1, True, 1),
        (2, True, 1),
        (4, False, 1),
        (5, False, 1),
    ]
    two = take(given, models, 2)
    assert list(two.numbers) == [0, 1, 1, 2, 4, 5]
    assert [each.group for each in two.trajectories] == [group for group in range(6) for _ in range(8)]
    assert two.metrics["prefixes"] == 4
    assert given._store.rows == (), "each is used once; the second step has no further ones"
    own = [turn for each in two.trajectories[16:] for turn in each.turns]
    assert two.metrics["tokens"] == sum(turn.num_generated for turn in own)
    assert two.metrics["env_steps"] == 4 * 8 * TURNS, "with those of the prefixes"
    for each in two.trajectories[16:]:
        success = each.group < 4
        assert each.info["prefix"] == {"turns": 2, "step": 1, "success": success}
        assert len(each.turns) == TURNS - 2
        assert each.failure is None
        assert (each.shared, each.tree) == (0, None)


def test_rewards_of_single_responses_are_those_of_own_turns():
    models = models_of()
    given = sampling(
        experience_of(1, models=models), experience_of(8, models=models), make=lambda task: Told(task, turns=TURNS)
    )
    take(given, models, 1)
    continuations = take(given, models, 2).trajectories[8:]
    assert step_rewards.run(Played(continuations), {})["step_reward"] == [2.0, 3.0] * 8


def test_the_tokens_of_a_prefix_are_read_and_never_learned_from():
    """The sequence is the whole conversation; the generated positions are those of the own turns alone."""
    models = models_of()
    first = experience_of(1, models=models)
    given = sampling(first, experience_of(8, models=models))
    take(given, models, 1)
    whole = given._store.rows[0].trajectory
    continuations = take(given, models, 2).trajectories[8:]
    assert len(continuations) == 8
    sequences = Sequences.from_trajectories(continuations)
    known = [id for turn in whole.turns[:2] for id in (*turn.prompt_ids, *turn.response_ids)]
    for ids, places, each in zip(sequences.token_ids, sequences.generated, continuations, strict=True):
        assert ids[: len(known)].tolist() == known
        assert places.min() >= len(known)
        assert len(places) == sum(len(turn.response_ids) for turn in each.turns)
        assert each.turns[0].observation == whole.turns[2].observation
        assert each.turns[0].fresh
    assert len({tuple(ids.tolist()) for ids in sequences.token_ids}) > 1, "they are sampled"


class Fickle(Colors):
    """Answers the second game of a task otherwise."""

    def step(self, response: str) -> Step:
        answered = super().step(response)
        return Step(observation=f"{answered.observation} say", reward=answered.reward, terminated=answered.terminated)


def test_an_environment_that_answers_otherwise_loses_the_continuation():
    models = models_of()
    given = sampling(
        experience_of(1, models=models),
        experience_of(8, models=models),
        make=lambda task: Fickle(task, turns=TURNS),
    )
    take(given, models, 1)
    two = take(given, models, 2)
    lost = two.trajectories[8:]
    assert all("the replay observed" in (each.failure or "") for each in lost)
    assert not two.used_N[8:].any()
    assert two.metrics["prefix_failed_frac"] == 1.0
    assert "prefix_success_hard" not in two.metrics


def test_the_filter_drops_continuations_without_contrast():
    models = models_of()

    def used(group_filter: Any) -> Experience:
        rollout = ROLLOUT.model_copy(update={"filter": group_filter})
        given = sampling(experience_of(1, models=models), experience_of(8, models=models), rollout=rollout)
        take(given, models, 1)
        return take(given, models, 2)

    every, mixed = used("none"), used("mixed")
    assert every.used_N[8:].all()
    outcomes = {each.success for each in mixed.trajectories[8:]}
    assert mixed.used_N[8:].any() == (len(outcomes) == 2)


def config_of(folder: Path, **sections: Any):
    return small_config(
        folder,
        **{
            "environment": {"options": {"turns": 3}},
            "rollout": {"groups": 6, "group_size": 8},
            "evaluate": {"every": 0},
            "store": PREFIXES,
            "checkpoint": {"every": 1},
            "update": {"learning_rate": 0.03},
            **sections,
        },
    )


def test_a_resumed_run_is_the_same_to_the_bit(tmp_path):
    whole = train(config_of(tmp_path / "whole", run={"steps": 6}))
    part = train(config_of(tmp_path / "part", run={"steps": 3}))
    part = train(override_config(RunFolder.open(part.path)[1], ["run.steps=6"]), resume=part.path)
    assert plain(rollouts(part)) == plain(rollouts(whole))
    for name in (FILE, "model.safetensors"):
        one, other = (content(latest_checkpoint(folder) / name) for folder in (whole, part))
        assert one == other, name
    assert sum(line["rollout/prefixes"] for line in rollouts(part)[3:]) > 0
    assert all(row.step == 6 for row in read_store(latest_checkpoint(part) / FILE))


@pytest.mark.parametrize("context", ["append", "window"])
def test_methods_train_on_prefixes(tmp_path, context):
    rollout = {"groups": 6, "group_size": 8, "context": context}
    sections = {"rollout": rollout, "environment": {"options": {"turns": 2}}, "method": "gigpo"}
    lines = rollouts(train(config_of(tmp_path, run={"steps": 4}, **sections)))
    assert sum(line["rollout/prefixes"] for line in lines) > 0
    assert all(line["rollout/trajectories"] == 8 * (6 + line["rollout/prefixes"]) for line in lines)
    assert all(line["rollout/prefix_failed_frac"] == 0 for line in lines if line["rollout/prefixes"])
    assert all(np.isfinite(line["update/loss"]) for line in lines)


class Wary(Colors):
    """Fails if all colors are right."""

    def step(self, response: str) -> Step:
        step = super().step(response)
        return dataclasses.replace(step, info={"success": not step.info["success"]})


@pytest.mark.parametrize(("make", "lucky"), [(Colors, True), (Wary, False)])
def test_a_head_start_is_easier_and_a_handicap_harder(make, lucky):
    """Fails if a prefix starts elsewhere, or is not played at all: over 100 continuations of random play.

    Both begin with a right color, which makes it likelier that all are right.
    """
    models = models_of()
    base, continued = [], []
    for seed in range(12):
        environments = InProcessEnvironments(lambda task: make(task, turns=2))
        played = play_tasks(Independent(environments, ROLLOUT), models, range(8), seed=seed)
        base += [each.success == lucky for each in played]
        first = Experience(played, np.ones(64, dtype=bool), {}, numbers=range(8))
        given = sampling(first, experience_of(8, models=models), make=lambda task: make(task, turns=2))
        take(given, models, 1)
        of_prefixes = take(given, models, 2).trajectories[8:]
        assert all(each.info["prefix"]["success"] == lucky for each in of_prefixes)
        continued += [each.success == lucky for each in of_prefixes]
    assert len(continued) > 100
    assert np.mean(continued) > 2 * np.mean(base)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"store": {"name": "prefix_sampling", "capacity": 4}}, r"store\.remaining needs a value"),
        ({"store": {**PREFIXES, "replays": 2}}, r"store\.replays is an option of store\.name='rlep' or"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_said(tmp_path, sections, message):
    with pytest.raises(ConfigError, match=message):
        config_of(tmp_path, **sections)
