"""Which groups a step plays and keeps."""

import itertools
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.steps import gathered as gather
from tests.toys import Levels, ScriptedEngine, color_policy, small_config

from turnwise.environments.suites import Seeded
from turnwise.rollout.experience import Experience, learned_from, spreads
from turnwise.rollout.trajectory import Trajectory, Turn

POLICY = color_policy()


class InOrder:
    """Chooses tasks 0, 1, 2, ... and remembers what it is told."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {}
        self.observed: list[list[list[int]]] = []

    def choose(self, step: int):
        return itertools.count()

    def observe(self, task_G: np.ndarray, successes_G: np.ndarray, failures_G: np.ndarray) -> None:
        self.observed.append([task_G.tolist(), successes_G.tolist(), failures_G.tolist()])


def half_red(number: int) -> str:
    return ("red", "blue green")[number % 2]


def play(
    tmp_path,
    levels: Sequence[str],
    *,
    say: Callable[[int], str] = half_red,
    step: int = 1,
    engine: ScriptedEngine | None = None,
    seed: int = 0,
    **rollout: Any,
) -> tuple[Experience, InOrder]:
    """Gather from `Levels` with responses by conversation number (groups of 4)."""
    tokens = {word: POLICY.tokenizer.encode(word, add_special_tokens=False) for word in map(say, range(100))}
    engine = engine or ScriptedEngine(lambda number, turn: [*tokens[say(number)], POLICY.format.stop_id])
    config, selector = small_config(tmp_path, rollout=rollout, run={"seed": seed}), InOrder()
    suite = Seeded(Levels, {"levels": levels})
    return gather(engine, POLICY, suite, range(1000), selector, config, step=step), selector


def groups(experience: Experience) -> list[int]:
    return sorted({trajectory.group for trajectory in experience.used})


def test_without_a_filter_one_batch_is_played_and_all_of_it_used(tmp_path):
    experience, selector = play(tmp_path, ("never", "red", "always"))
    assert groups(experience) == [0, 1, 2]
    assert len(experience.used) == 12
    assert selector.observed == [[[0, 1, 2], [0, 2, 4], [4, 2, 0]]]
    names = ("batches", "kept_frac", "filled_frac", "trajectories")
    assert [experience.metrics[name] for name in names] == [1, 1, 1, 12]


def test_mixed_groups_are_kept_and_the_others_replaced(tmp_path):
    levels = ("never", "red", "always", "red")  # tasks 1, 3, 5, 7, ... are mixed
    experience, selector = play(tmp_path, levels, filter="mixed")
    assert [t.task for t in experience.trajectories] == [str(n) for n in range(6) for _ in range(4)]
    assert [t.group for t in experience.trajectories] == [n for n in range(6) for _ in range(4)]
    assert groups(experience) == [1, 3, 5]
    assert len(experience.used) == 12
    assert selector.observed == [[[0, 1, 2, 3, 4, 5], [0, 2, 4, 2, 0, 2], [4, 2, 0, 2, 4, 2]]]
    metrics = experience.metrics
    assert [metrics[name] for name in ("batches", "kept_frac", "filled_frac")] == [2, 1 / 2, 1]
    assert metrics["trajectories"] == 24
    assert metrics["tokens"] == 12 * 2 + 12 * 3  # all that was generated: "red <end>" and "blue green <end>"
    assert metrics["success"] == 10 / 24


def test_the_filter_begins_at_its_step(tmp_path):
    levels, settings = ("never", "red", "always", "red"), {"filter": "mixed", "filter_from": 3}
    for step, expected, batches in ((1, [0, 1, 2], 1), (2, [0, 1, 2], 1), (3, [1, 3, 5], 2), (4, [1, 3, 5], 2)):
        experience, _ = play(tmp_path, levels, step=step, **settings)
        assert groups(experience) == expected
        assert experience.metrics["batches"] == batches


def test_before_its_step_a_filter_replaces_nothing(tmp_path):
    say = ["pink"] * 4 + ["red"] * 8  # the first group is lost
    experience, _ = play(tmp_path, ("red",), say=lambda number: say[number % 12], filter="mixed", filter_from=2)
    assert [experience.metrics[name] for name in ("batches", "filled_frac")] == [1, 2 / 3]


def test_groups_are_learned_from_by_the_spread_of_their_rewards(tmp_path):
    levels = ("never", "red", "always")  # deviations of the rewards: 0.06, 0.52 and 0.06
    for share, expected in ((0.5, [1]), (0.9, [0, 1]), (1.0, [0, 1, 2])):
        experience, selector = play(tmp_path, levels, keep_spread=share)
        assert groups(experience) == expected
        assert len(experience.trajectories) == 12
        assert selector.observed == [[[0, 1, 2], [0, 2, 4], [4, 2, 0]]]
    # groups of 2 and of 4 with equal rewards but for one: sample deviations, as in the released code
    paid = [(0, 1.0), (0, 0.0), (1, 1.0), *[(1, 0.0)] * 3, (2, 5.0)]
    played: Any = [SimpleNamespace(usable=True, group=group, reward=reward) for group, reward in paid]
    np.testing.assert_allclose(spreads(played, np.array([True] * 3)), [0.5**0.5, 0.5, 0.0])
    alike, _ = play(tmp_path, levels, say=lambda number: "red", keep_spread=0.9)
    assert not alike.used


def test_a_shaped_reward_does_not_make_a_group_mixed(tmp_path):
    experience, _ = play(tmp_path, ("never",), filter="mixed", max_batches=3)
    assert len({t.reward for t in experience.trajectories}) == 2
    assert not experience.used
    assert experience.usable


def test_the_filter_gives_up_after_its_batches_and_goes_on_with_what_there_is(tmp_path):
    levels = ("never",) * 4 + ("red",) + ("always",) * 95
    experience, selector = play(tmp_path, levels, filter="mixed", max_batches=5)
    assert len(experience.trajectories) == 5 * 3 * 4
    assert groups(experience) == [4]
    assert len(selector.observed) == 1
    metrics = experience.metrics
    assert [metrics[name] for name in ("batches", "kept_frac", "filled_frac")] == [5, 1 / 15, 1 / 3]


def test_all_wrong_groups_can_be_kept(tmp_path):
    experience, _ = play(tmp_path, ("always", "never", "red"), filter="not-all-correct")
    assert groups(experience) == [1, 2, 4]  # group 5 is one too many
    assert [experience.metrics[name] for name in ("batches", "kept_frac", "filled_frac")] == [2, 3 / 5, 1]


def test_a_group_is_judged_by_its_usable_trajectories(tmp_path):
    say = ["red", "red", "red", "pink", "red", "blue", "red", "pink"]  # two groups of four; "pink" is lost
    experience, selector = play(
        tmp_path, ("red",), say=lambda number: say[number % 8], filter="mixed", groups=2, max_batches=2
    )
    assert selector.observed == [[[0, 1, 2, 3], [3, 2, 3, 2], [0, 1, 0, 1]]]
    assert [t.group for t in experience.used] == [1, 1, 1, 3, 3, 3]
    assert experience.metrics["failed_frac"] == 4 / 16
    assert experience.metrics["tokens"] == 16 * 2  # those of lost trajectories too


@pytest.mark.parametrize("group_filter", ["none", "mixed"])
def test_a_broken_world_is_not_asked_again(tmp_path, group_filter):
    experience, selector = play(tmp_path, ("red",), say=lambda number: "pink", filter=group_filter)
    assert [experience.metrics[name] for name in ("batches", "kept_frac", "filled_frac")] == [1, 0, 0]
    assert not experience.usable
    assert selector.observed == [[[0, 1, 2], [0, 0, 0], [0, 0, 0]]]


def test_no_two_batches_of_a_run_are_drawn_with_the_same_seed(tmp_path):
    engine = ScriptedEngine(lambda number, turn: [POLICY.format.stop_id])
    for step in range(1, 8):
        play(tmp_path, ("never",), engine=engine, step=step, seed=2, filter="mixed", max_batches=4)
    assert len({sampling.seed for sampling in engine.samplings}) == 7 * 4
    single = ScriptedEngine(lambda number, turn: [POLICY.format.stop_id])
    play(tmp_path, ("never",), engine=single, step=5, seed=2)
    assert {sampling.seed for sampling in single.samplings} == {2 * 100_003 + 5}


def test_further_groups_are_dropped_by_their_spread_too():
    def group(number: int, *rewards: float) -> list[Trajectory]:
        return [
            Trajectory(number, "t", [Turn("", "", [1], [2], [0.0], "", True, reward=reward)], ended="terminated")
            for reward in rewards
        ]

    played = [*group(4, 1.0, 1.0), *group(5, 0.0, 1.0), *group(6, 0.5, 0.6)]
    assert learned_from(played, "none", 3, first=4).all()
    kept = learned_from(played, "none", 3, first=4, keep_spread=1.0)
    assert kept.tolist() == [False, False, True, True, True, True]
    few = learned_from(played, "none", 3, first=4, keep_spread=0.2)
    assert few.tolist() == [False, False, True, True, False, False]
