"""Held-out evaluation: the same tasks each time, and an honest interval."""

import dataclasses
from pathlib import Path

import pytest
from tests.toys import Broken, Colors, ScriptedEngine, color_policy, small_config

from turnwise.engines.models import Models, NamedModel
from turnwise.environments.hosts import InProcessEnvironments
from turnwise.environments.suites import Seeded
from turnwise.rollout.collectors import make_collector
from turnwise.train.display import describe
from turnwise.train.evaluation.intervals import wilson_interval
from turnwise.train.evaluation.play import evaluate, invalid_frac, panel

POLICY = color_policy()


def test_a_panel_is_evenly_spaced_and_always_the_same():
    assert panel(range(100), 4) == [0, 25, 50, 75]
    assert panel(range(10), 4) == [0, 2, 5, 7]
    assert panel(range(3), 3) == [0, 1, 2]
    assert panel(range(3), 8) == [0, 1, 2, 0, 1, 2, 0, 1]
    assert len(set(panel(range(1000), 128))) == 128


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [  # Wilson's formula with z = 1.959964, worked by hand: (p + z^2/2n -+ z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n)
        (5, 10, 0.236593, 0.763407),  # 0.5 -+ 0.263407
        (0, 10, 0.0, 0.277533),  # z^2 / (n + z^2) = 3.841459 / 13.841459
        (10, 10, 0.722467, 1.0),
        (1, 1, 0.206549, 1.0),  # 1 / (1 + 3.841459)
        (0, 0, 0.0, 1.0),
    ],
)
def test_wilson_interval_by_hand(successes, trials, low, high):
    assert wilson_interval(successes, trials) == pytest.approx((low, high), abs=1e-6)


def test_the_interval_covers_the_share_and_narrows():
    widths = []
    for trials in (8, 64, 512):
        low, high = wilson_interval(trials // 4, trials)
        assert low < 0.25 < high
        widths.append(high - low)
    assert widths == sorted(widths, reverse=True)


def test_the_interval_holds_the_share_where_rounding_is_against_it():
    for trials in (4, 10, 128, 512):
        assert wilson_interval(trials, trials)[1] == 1.0
        assert wilson_interval(0, trials)[0] == 0.0


CONFIG = small_config(Path("runs"), environment={"eval_split": "valid"}, evaluate={"temperature": 0.3})


def report(suite, respond, episodes: int = 8, **more):
    engine = ScriptedEngine(respond)
    collector = make_collector(CONFIG.rollout, InProcessEnvironments(suite.environment), suite.task_name)
    models, tasks = Models(policy=NamedModel(POLICY, engine)), suite.tasks(CONFIG.environment.eval_split)
    told = evaluate(collector, models, tasks, episodes=episodes, temperature=CONFIG.evaluate.temperature, **more)
    return (*told, engine)


def word(text: str) -> list[int]:
    return POLICY.tokenizer.encode(text, add_special_tokens=False)


def test_metrics_by_hand():
    suite = Seeded(Colors, {"turns": 2})
    suite.tasks = lambda split: range(8)
    stop = POLICY.format.stop_id

    def respond(number: int, turn: int) -> list[int]:
        if number == 0:
            return [*word("say"), stop]
        return [*word(Colors.color(number, turn) if number < 5 else "say"), stop]

    metrics, trajectories, engine = report(suite, respond)
    assert [t.success for t in trajectories] == [False, True, True, True, True, False, False, False]
    assert metrics["success"] == 0.5
    assert (metrics["success_low"], metrics["success_high"]) == pytest.approx(wilson_interval(4, 8))
    assert (metrics["turns"], metrics["episodes"], metrics["failed"]) == (2, 8, 0)
    assert metrics["invalid_frac"] == 0.5 == invalid_frac(trajectories)
    assert {(s.temperature, s.max_new_tokens) for s in engine.samplings} == {(0.3, 3)}


def test_the_same_seed_plays_the_same_panel():
    suite = Seeded(Colors, {})
    stop = POLICY.format.stop_id
    first = report(suite, lambda number, turn: [stop], seed=1)
    again = report(suite, lambda number, turn: [stop], seed=1)
    other = report(suite, lambda number, turn: [stop], seed=2)
    assert first[:2] == again[:2]
    assert first[2].samplings == again[2].samplings != other[2].samplings
    assert first[2].calls == other[2].calls  # another seed, the same tasks


def test_success_by_task_type():
    class Typed(Colors):
        def step(self, response):
            step = super().step(response)
            step.info["task_type"] = "even" if self.seed % 2 == 0 else "odd"  # pyright: ignore
            return step

    stop = POLICY.format.stop_id
    suite = Seeded(Typed, {})
    suite.tasks = lambda split: range(8)
    metrics, *_ = report(suite, lambda number, turn: [*word(Colors.color(0, 0)), stop])
    assert metrics["success/even"] == 0.5  # tasks 0 and 4 of 0, 2, 4, 6
    assert metrics["success/odd"] == 0.0
    assert metrics["success"] == 0.25


def test_rewards_between_all_and_nothing_are_reported_with_their_interval():
    class Graded(Colors):
        def step(self, response):
            return dataclasses.replace(super().step(response), reward=float(self.seed % 4))

    stop = POLICY.format.stop_id
    suite = Seeded(Graded, {})
    suite.tasks = lambda split: range(8)
    metrics, *_ = report(suite, lambda number, turn: [stop])
    half = 1.959964 * (10 / 7 / 8) ** 0.5  # 0 1 2 3 twice: squares 2 * (2.25 + 0.25 + 0.25 + 2.25) = 10, of 7
    assert [metrics[name] for name in ("reward", "reward_low", "reward_high")] == pytest.approx(
        [1.5, 1.5 - half, 1.5 + half]
    )
    assert "reward 1.50 [0.67, 2.33]" in describe(metrics)
    suite.tasks = lambda split: [0, 1] * 4
    metrics, *_ = report(suite, lambda number, turn: [stop])
    assert "reward" not in metrics, "of two values the success says it all"


def test_failed_episodes_are_counted_and_left_out():
    metrics, *_ = report(Seeded(Broken, {}), lambda number, turn: [POLICY.format.stop_id])
    assert (metrics["failed"], metrics["episodes"], metrics["success"]) == (8, 0, 0)
    assert (metrics["success_low"], metrics["success_high"]) == (0, 1)
