"""Crossroads: each knob does what it says and nothing else, and its exact values are those of its plays."""

import bisect
import functools
import random
from typing import Any

import numpy as np
import pytest
from scipy import stats

from turnwise.base.errors import ConfigError, EnvironmentFault
from turnwise.credit.batch import Batch
from turnwise.credit.methods import METHODS
from turnwise.credit.segments import Segments
from turnwise.environments.check import check_environment
from turnwise.environments.settings import EnvironmentConfig
from turnwise.environments.suites import make_suite
from turnwise.environments.tamper_apart import tamper
from turnwise.environments.words import split_words
from turnwise.extensions.continuations.play import Histories
from turnwise.lab.diagnostics.fidelity import cosine, group_sums, measure_fidelity
from turnwise.lab.diagnostics.values import Truth, continue_histories, true_advantages
from turnwise.rollout.starts import Start
from turnwise.rollout.trajectory import Trajectory, Turn
from turnwise.worlds.crossroads.knobs import ROADS, SETTINGS, Knobs, read_knobs
from turnwise.worlds.crossroads.road import (
    Road,
    RoadValues,
    action_of,
    draw_road,
    exact_advantages,
    exact_values,
)
from turnwise.worlds.crossroads.suite import CrossroadsEnvironment

HARD = {"turns": 6, "critical": 2, "slip": 0.2, "delay": 2, "roads": 3, "start_success": 0.4, "follow": 0.5}
"""Small, with every source of randomness."""


def suite(max_steps: int = 60, **options: Any) -> Any:
    return make_suite(EnvironmentConfig(name="crossroads", max_steps=max_steps, success_reward=1.0, options=options))


def wrong(road: Any, turn: int) -> str:
    return ROADS[(road.sign_T[turn] + 1) % road.knobs.roads]


def right(road: Any, turn: int) -> str:
    return ROADS[road.sign_T[turn]]


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_teacher_wins_as_often_as_the_setting_says(setting):
    knobs = read_knobs(setting)
    success = [exact_values(road, road.teacher()).success for road in (draw_road(n, knobs) for n in range(300))]
    assert np.mean(success) == pytest.approx(knobs.start_success, abs=0.03 if knobs.slip else 1e-9)


@pytest.mark.parametrize("turns", [60, 160])
@pytest.mark.parametrize("critical", [3, 40])
def test_long_walks_are_as_hard_as_said_and_played_to_their_end(turns, critical):
    knobs = read_knobs("short", turns=turns, critical=critical)
    success = [exact_values(road, road.teacher()).success for road in (draw_road(n, knobs) for n in range(50))]
    assert success == pytest.approx([0.3] * 50)
    assert check_environment(suite(max_steps=turns, turns=turns, critical=critical)) == []
    road = draw_road(7, knobs)
    lost = int(np.flatnonzero(road.critical_T)[0])
    for mistake in (None, lost):
        environment = CrossroadsEnvironment(road)
        environment.start()
        for turn in range(turns):
            step = environment.step(wrong(road, turn) if turn == mistake else right(road, turn))
            assert step.ended == (turn == turns - 1)
        assert step.info["success"] == (mistake is None)


@pytest.mark.parametrize("slip", [0.0, 0.1, 0.3])
@pytest.mark.parametrize("critical", [1, 4])
def test_slipping_and_the_number_of_critical_turns_leave_start_success_alone(slip, critical):
    knobs = read_knobs("short", slip=slip, critical=critical, start_success=0.2)
    success = [exact_values(road, road.teacher()).success for road in (draw_road(n, knobs) for n in range(400))]
    assert np.mean(success) == pytest.approx(0.2, abs=4 * np.std(success) / np.sqrt(400) + 1e-9)


def test_follow_sets_who_is_uncertain_and_leaves_critical_turns_alone():
    entropies = {}
    for setting in ("hesitant", "short", "confident"):
        road = draw_road(0, read_knobs(setting))
        entropy_T = stats.entropy(road.teacher(), axis=1)
        entropies[setting] = entropy_T[road.critical_T].mean(), entropy_T[~road.critical_T].mean()
    assert len({critical for critical, _ in entropies.values()}) == 1
    assert entropies["hesitant"][0] > 3 * entropies["hesitant"][1]
    assert entropies["confident"][0] < 0.8 * entropies["confident"][1]


def test_only_the_sign_of_a_critical_turn_matters_and_a_dead_end_shows_after_the_delay():
    for delay, shown in ((0, 1), (3, 4), (200, 10)):
        made = suite(delay=delay)
        for task in range(20):
            road, environment = draw_road(task, made.knobs), made.environment(task)
            first = int(np.flatnonzero(road.critical_T)[0])
            twin = made.environment(task)
            steps = [(environment.start(), twin.start())]
            while not steps[-1][0].ended:
                turn = len(steps) - 1
                told = wrong(road, turn) if turn == first else right(road, turn)
                steps.append((environment.step(told), twin.step(right(road, turn))))
            assert len(steps) - 1 == min(first + shown, 10)
            assert steps[-1][0].observation == "dead end"
            assert not steps[-1][0].info["success"]
            assert all(one == other for one, other in steps[:-1]), "until it shows, nothing differs"
    environment = made.environment(3)
    environment.start()
    road = draw_road(3, made.knobs)
    last = [environment.step(right(road, turn) if road.critical_T[turn] else wrong(road, turn)) for turn in range(10)]
    assert (last[-1].observation, last[-1].reward, last[-1].info) == ("home", 1.0, {"success": True})


def observations(made: Any, task: int, seed: int) -> list[str]:
    environment, generator = made.environment(task), np.random.default_rng(seed)
    steps = [environment.start()]
    while not steps[-1].ended:
        steps.append(environment.step(ROADS[generator.integers(4)]))
    return [step.state_key for step in steps[:-1]]


def test_states_recur_as_the_option_says():
    plays = {
        kind: [observations(suite(recurrence=kind), 0, s) for s in range(8)] for kind in ("turn", "often", "never")
    }
    within = {kind: np.mean([len(set(keys)) < len(keys) for keys in some]) for kind, some in plays.items()}
    across = {kind: len({key for keys in some for key in keys[4:]}) for kind, some in plays.items()}
    assert within == {"turn": 0, "often": 1, "never": 0}
    assert across["turn"] == 6
    assert across["often"] <= 8
    assert across["never"] == 8 * 6
    # what a policy must read is the same
    text = lambda key: key[0] if isinstance(key, tuple) else key  # noqa: E731
    strip = lambda kind: [text(key).split()[-2:] for key in plays[kind][0]]  # noqa: E731
    assert strip("turn") == strip("often") == strip("never")


def test_slips_are_as_frequent_as_said_and_differ_with_earlier_responses():
    knobs = read_knobs("short", slip=0.2, critical=10, start_success=0.05)
    stays = np.stack([draw_road(n, knobs).stays_TWA for n in range(200)])
    sign = np.stack([draw_road(n, knobs).sign_T for n in range(200)])
    named = np.take_along_axis(stays, sign[:, :, None, None], axis=3)
    assert named.mean() == pytest.approx(0.8, abs=0.005)
    assert named[:, 3].std(axis=1).mean() > 0.1, "luck at one turn depends on the weather, which responses make"
    assert not stays[..., -1].any(), "an invalid response never leads on at a critical turn"
    assert draw_road(5, knobs).stays_TWA.tolist() == draw_road.__wrapped__(5, knobs).stays_TWA.tolist()


def test_invalid_responses_take_the_turn_and_lose_it_where_it_is_critical():
    made = suite(critical=9)
    road, environment = draw_road(0, made.knobs), made.environment(0)
    environment.start()
    lost = int(np.flatnonzero(~road.critical_T)[0])
    for turn in range(10):
        step = environment.step("north east" if turn == lost else f" {right(road, turn)}\n")
        assert step.valid == (turn != lost)
    assert step.info["success"]
    with pytest.raises(EnvironmentFault, match="after the end"):
        environment.step("north")
    with pytest.raises(EnvironmentFault, match=r"before start\(\)"):
        CrossroadsEnvironment(road).step("north")
    all_critical = suite(turns=2, critical=2, delay=0).environment(0)
    all_critical.start()
    assert all_critical.step("home").observation == "dead end"


def test_exact_values_by_hand():
    """Three turns, one critical; a policy names the sign with 0.6, and nothing with 0.1 elsewhere."""
    road = draw_road(0, read_knobs("short", turns=3, critical=1, roads=2))
    chance_TA = np.full((3, 2), 0.45)
    critical = int(np.flatnonzero(road.critical_T)[0])
    chance_TA[critical] = 0.4
    chance_TA[critical, road.sign_T[critical]] = 0.6
    values = exact_values(road, chance_TA)
    assert values.state_TW[:, 0] == pytest.approx([0.6 if turn <= critical else 1.0 for turn in range(3)])
    actions = road.sign_T.copy()
    assert exact_advantages(road, values, actions) == pytest.approx(np.where(road.critical_T, 0.4, 0.0))
    actions[critical] = 1 - actions[critical]
    assert exact_advantages(road, values, actions) == pytest.approx(np.where(road.critical_T, -0.6, 0.0))
    with pytest.raises(ConfigError, match=r"shape \(2, 2\); expected \(3, 2\)"):
        exact_values(road, chance_TA[:2])


@functools.lru_cache(maxsize=4096)
def walked(task: int, knobs: Knobs) -> tuple[Road, list[list[float]], RoadValues]:
    """The road of a task, the walker's cumulative probabilities per turn, and their exact values."""
    road = draw_road(task, knobs)
    chance_TA = road.teacher() * 0.95
    return road, np.cumsum(chance_TA, axis=1).tolist(), exact_values(road, chance_TA)


class Walker:
    """Plays walks with fixed probabilities per turn, forks included, in the real environment."""

    def __init__(self, made: Any):
        self.suite = made

    def __call__(self, starts: list[Start], *, seed: int) -> list[Trajectory]:
        generator = np.random.default_rng(seed)
        return [self.play(start, generator) for start in starts]

    def play(self, start: Start, generator: np.random.Generator) -> Trajectory:
        environment, roads = self.suite.environment(start.task), self.suite.knobs.roads
        _, cumulative_TA, _ = walked(start.task, self.suite.knobs)
        step, turns = environment.start(), []
        while not step.ended:
            if len(turns) < len(start.turns):
                action = start.turns[len(turns)].response_ids[0]
            else:
                action = bisect.bisect_left(cumulative_TA[len(turns)], generator.random())
            response = ROADS[action] if action < roads else "?"
            seen, step = step, environment.step(response)
            turns.append(Turn(seen.observation, seen.state_key, [0], [action], [-1.0], response, False, step.reward))
        return Trajectory(start.group, start.name, turns, ended="terminated", shared=len(start.turns))


def played_groups(walker: Walker, first: int, count: int) -> tuple[list[Trajectory], Batch, np.ndarray]:
    """Groups of 8, their batch, and the exact advantages."""
    tasks = range(first, first + count)
    starts = [Start(task, number, str(task)) for number, task in enumerate(tasks) for _ in range(8)]
    played = walker(starts, seed=first)
    exact = []
    for start, trajectory in zip(starts, played, strict=True):
        road, _, values = walked(start.task, walker.suite.knobs)
        actions = np.array([action_of(turn.response, road.knobs) for turn in trajectory.turns])
        exact.append(exact_advantages(road, values, actions))
    batch = Batch(
        Segments.from_lengths([8] * count),
        Segments.from_lengths([len(trajectory.turns) for trajectory in played]),
        [turn.reward for trajectory in played for turn in trajectory.turns],
        {"state_key": [turn.state_key for trajectory in played for turn in trajectory.turns]},
    )
    return played, batch, np.concatenate(exact)


def estimate(walker: Walker, played: list[Trajectory], batch: Batch, first: int, draws: int) -> Truth:
    tasks = range(first, first + len(batch.groups))
    found = Histories.of(played, tasks)
    return_HK = continue_histories(found.starts, draws, walker, at_once=4096, seed=10_000 + first)
    return true_advantages(batch.reward_R, found.before_R, found.after_R, return_HK)


def test_continuations_converge_to_the_exact_advantages():
    """Real environments, replayed: errors have mean zero and the size that the estimate says of itself."""
    walker = Walker(suite(**HARD))
    played, batch, exact_R = played_groups(walker, 0, 24)
    truth = estimate(walker, played, batch, 0, 8)
    error_R = truth.advantage_R - exact_R
    assert np.mean(error_R**2) == pytest.approx(truth.variance_R.mean(), rel=0.2)
    assert abs(error_R.mean()) < 0.01
    assert truth.square_R.mean() == pytest.approx((exact_R**2).mean(), rel=0.15)
    assert np.polyfit(exact_R, truth.advantage_R, 1)[0] == pytest.approx(1.0, abs=0.1)


@pytest.mark.usefixtures("array_types_unchecked")
@pytest.mark.slow
def test_intervals_of_fidelity_cover_the_exact_fidelity():
    """24 draws of 24 groups and 6 continuations: 95 % intervals cover in 20 or more, for GRPO and GiGPO."""
    walker, methods = Walker(suite(**HARD)), {"grpo": METHODS["grpo"](), "gigpo": METHODS["gigpo"]()}
    _, batch, exact_R = played_groups(walker, 100_000, 1500)
    exactly = Truth(exact_R, np.zeros_like(exact_R))
    wanted = {
        name: float(cosine(group_sums(method(batch), exactly, batch.group_responses).sum(0)))
        for name, method in methods.items()
    }
    covered = dict.fromkeys(methods, 0)
    for draw in range(24):
        first = 1000 * draw
        played, batch, _ = played_groups(walker, first, 24)
        truth = estimate(walker, played, batch, first, 6)
        found = measure_fidelity({n: method(batch) for n, method in methods.items()}, truth, batch.group_responses)
        for name, one in found.by_method.items():
            covered[name] += one.low <= wanted[name] <= one.high
    assert min(covered.values()) >= 20, (covered, wanted)


@pytest.mark.parametrize("reading", ["short", "text"])
@pytest.mark.parametrize("recurrence", ["turn", "often", "never"])
def test_environments_are_sound_and_tiny_policies_know_all_words(reading, recurrence):
    made = suite(reading=reading, recurrence=recurrence, slip=0.1)
    assert check_environment(made) == []
    known, heard, won = set(made.words()), set(), 0
    for task in made.tasks("train")[:40]:
        environment = made.environment(task)
        heard |= set(split_words(environment.start().observation))
        turns = made.demonstrate(task, noise=0.2, seed=task)
        assert turns == made.demonstrate(task, noise=0.2, seed=task)
        for turn in turns:
            step = environment.step(turn.response)
            assert step.valid == turn.imitate
            heard |= set(split_words(turn.response)) | set(split_words(step.observation))
        won += step.info["success"]
    assert heard <= known
    assert 0 < won < 40
    assert len(known) < 100


def test_states_that_never_recur_never_do():
    """The words of an observation have 13,824 values, so among many turns some are equal."""
    made = suite(setting="unique", turns=60)
    keys: dict[Any, set[tuple[str, ...]]] = {}
    texts = set()
    for seed in range(12):
        environment, played = made.environment(0), ()
        step = environment.start()
        rng = random.Random(seed)
        while not getattr(step, "ended", False):
            keys.setdefault(step.state_key, set()).add(played)
            texts.add(step.observation)
            played += (rng.choice(step.admissible),)
            step = environment.step(played[-1])
    assert max(map(len, keys.values())) == 1
    assert len(texts) <= len(keys)


def test_a_chat_policy_reads_the_rules_once():
    environment = suite(reading="text").environment(0)
    first = environment.start()
    assert "answer with the road to take, one of: north, east, south, west." in first.observation
    assert first.observation.endswith(first.state_key)
    assert environment.step("north").observation.startswith("Mile 2: You are at a")


def test_it_withstands_all_attacks():
    assert [finding for finding in tamper(EnvironmentConfig(name="crossroads")) if finding.succeeded] == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"setting": "lang"}, r"setting='lang'. Did you mean 'long'\?"),
        ({"turn": 10}, r"has no option 'turn'. Did you mean 'turns'\?"),
        ({"turns": 1}, "turns=1: expected a whole number from 2 to 200"),
        ({"turns": 5.5}, "turns=5.5: expected a whole number"),
        ({"critical": 11}, r"critical=11: expected a whole number from 1 to 10 \(turns=10\)"),
        ({"delay": -1}, "delay=-1: expected a whole number from 0 to 200"),
        ({"roads": 9}, "roads=9: expected a whole number from 2 to 8"),
        ({"start_success": 0.0}, "start_success=0.0: expected a number from 1e-06 to below 1"),
        ({"start_success": 1e-5, "slip": 0.2}, "start_success=1e-05 cannot be with critical=3, slip=0.2 and roads=4"),
        ({"start_success": 0.8, "slip": 0.2}, "cannot be with .*slip=0.2 .* and below 0.51"),
        ({"follow": 0.2}, r"follow=0.2: expected a number from 0.25 to below 1 \(roads=4\)"),
        ({"slip": 0.5}, "slip=0.5: expected a number from 0 to below 0.5"),
        ({"recurrence": "alway"}, "recurrence='alway'"),
        ({"reading": "txt"}, r"reading='txt'. Did you mean 'text'\?"),
        ({"num_valid": 0}, "num_valid=0: expected a whole number of roads"),
        ({"turns": 80}, "max_steps=60 is less than the 80 turns of a walk; set environment.max_steps=80"),
    ],
)
def test_a_mistaken_option_is_said(options, message):
    with pytest.raises(ConfigError, match=message):
        suite(**options)
    with pytest.raises(ConfigError, match=r"no split 'vald'"):
        suite().tasks("vald")
