"""DAgger: the expert goes on from where the policy got, and the policy learns what demonstrations never show."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import pytest
import torch
from tests.needs import needs
from tests.toys import COLORS, Colors, small_config

from turnwise.base.errors import ConfigError
from turnwise.config import override_config
from turnwise.environments.base import Demonstrated, Step, as_step
from turnwise.environments.settings import EnvironmentConfig
from turnwise.environments.suites import CorrectingSuite, make_suite
from turnwise.models.tiny import tiny_policy
from turnwise.rollout.context import make_context
from turnwise.train import dagger, warmstart
from turnwise.train.dagger import corrections
from turnwise.train.demonstrate import Teaching
from turnwise.train.warmstart import warm_policy

WARM = {"steps": 3, "games": 12, "batch_size": 4}
ROUNDS = {**WARM, "dagger_rounds": 2, "dagger_steps": 2}


class Lanes(Colors):
    """Two colors to name; after a wrong first one, a text that no demonstration shows asks for pink as the second."""

    seen: ClassVar[list[tuple[int, list[str]]]] = []

    def __init__(self, seed: int):
        super().__init__(seed, turns=2)
        self.lost = False

    def step(self, response: str) -> Step:
        if self.lost:
            right = response.split()[:1] == ["pink"]
            return Step(observation="say red", reward=float(right), terminated=True, info={"success": right})
        self.lost = not self.played and response.split()[:1] != [self.color(self.seed, 0)]
        if self.lost:
            return Step(observation="say say")
        return super().step(response)

    @staticmethod
    def demonstrate(task: int, *, noise: float, seed: int, turns: int = 2) -> list[str]:
        return [Colors.color(task, turn) for turn in range(2)]

    @staticmethod
    def correct(task: int, played: Sequence[str], *, seed: int) -> list[Demonstrated]:
        Lanes.seen.append((task, list(played)))
        right = Colors.color(task, 0)
        first = played[0] if played else right
        second = Colors.color(task, 1) if first == right else "pink"
        return [Demonstrated(first, first == right), Demonstrated(second, True)]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TURNWISE_CACHE", str(tmp_path / "cache"))
    Lanes.seen = []
    return tmp_path / "cache"


def lanes(folder: Path, **warm: Any):
    return small_config(folder, environment={"name": "tests.train.test_dagger:Lanes"}, warmstart={**WARM, **warm})


def corrected(config, number: int = 1):
    suite = cast(CorrectingSuite, make_suite(config.environment))
    policy = tiny_policy(Colors.words(), config.model, seed=0)
    return policy, corrections(Teaching.of(config), policy, suite, number)


def test_the_expert_goes_on_from_a_turn_of_the_policys_own_trajectory(tmp_path, monkeypatch):
    config, played = lanes(tmp_path, games=40), []
    plain = dagger.play

    async def watched(*args: Any, **kwargs: Any):
        played.extend(await plain(*args, **kwargs))
        return played

    monkeypatch.setattr(dagger, "play", watched)
    corrected(config)
    assert len(Lanes.seen) == len(played) == 40
    for (_, given), trajectory in zip(Lanes.seen, played, strict=True):
        own = [turn.response.removesuffix("<end>").strip() for turn in trajectory.turns]
        assert given == own[: len(given)]
        assert len(given) < len(own)  # so a turn is left for the expert
    assert {len(given) for _, given in Lanes.seen} == {0, 1}  # from the first turn on, and from the second


@pytest.mark.parametrize("imitate_noise", [False, True])
def test_a_mistake_of_the_policy_is_context_and_never_imitated(tmp_path, imitate_noise):
    config = lanes(tmp_path, games=40, imitate_noise=imitate_noise, observation_weight=0.0)
    policy, demos = corrected(config)
    told = {True: 0, False: 0}
    for (ids, weights), (task, given) in zip(demos, Lanes.seen, strict=True):
        words = policy.tokenizer.convert_ids_to_tokens(ids.tolist())
        ends = [place for place, word in enumerate(words) if word == "<end>"]
        first, second = weights[words.index("<act>") + 1 : ends[0] + 1], weights[ends[0] + 1 :]
        right = not given or given[0] == Colors.color(task, 0)
        assert (first == float(right)).all()
        assert second[-1] == 1
        told[right] += 1
    assert min(told.values()) > 3


def test_rounds_draw_anew_and_repeat_with_their_seed(tmp_path):
    config = lanes(tmp_path, games=30)
    one, again, two = (corrected(config, number)[1] for number in (1, 1, 2))
    assert all(np.array_equal(a[0], b[0]) for a, b in zip(one, again, strict=True))
    assert not all(np.array_equal(a[0], b[0]) for a, b in zip(one, two, strict=True))


def test_tasks_are_played_in_parts_and_none_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(dagger, "AT_ONCE", 7)
    _, demos = corrected(lanes(tmp_path, games=30))
    assert len(demos) == len({task for task, _ in Lanes.seen}) == 30


def recovers(policy, config) -> float:
    """Probability of the right word after a wrong first response, mean over tasks."""
    suite, fmt, chances = make_suite(config.environment), policy.format, []
    for task in suite.tasks("valid")[:8]:
        world, context = suite.environment(task), make_context(policy.format, 0, window=None, stride=1)
        wrong = COLORS[(task + 1) % 4]
        context.observe(as_step(world.start()))
        context.respond(fmt.response_ids(wrong))
        context.observe(as_step(world.step(wrong)))
        with torch.no_grad():
            logits_V = policy.model(torch.tensor([context.ids])).logits[0, -1]
        chances.append(float(torch.softmax(logits_V, -1)[fmt.response_ids("pink")[0]]))
    return float(np.mean(chances))


def test_a_policy_learns_to_recover_which_no_demonstration_shows(tmp_path):
    warm = {"steps": 10, "games": 64, "batch_size": 8, "learning_rate": 0.01, "observation_weight": 0.0}
    without = lanes(tmp_path, **warm)
    imitating, _ = warm_policy(without, make_suite(without.environment))
    more = lanes(tmp_path, **{**warm, "steps": 310})
    longer, _ = warm_policy(more, make_suite(more.environment))
    within = lanes(tmp_path, **warm, dagger_rounds=2, dagger_steps=150)
    taught, _ = warm_policy(within, make_suite(within.environment))
    chances = [recovers(policy, within) for policy in (imitating, longer, taught)]
    assert chances[2] > 0.9 > 0.6 > max(chances[:2]), chances


def test_each_round_is_kept_and_begins_from_what_is_there(cache, tmp_path, monkeypatch):
    made, plain = [], warmstart.imitate

    def watched(*args: Any, number: int = 0, **kwargs: Any) -> None:
        made.append(number)
        plain(*args, number=number, **kwargs)

    monkeypatch.setattr(warmstart, "imitate", watched)

    def warm(**changed: Any) -> tuple[torch.Tensor, bool]:
        config = lanes(tmp_path, **changed)
        policy, cached = warm_policy(config, make_suite(config.environment))
        return torch.cat([weight.detach().flatten() for weight in policy.model.parameters()]), cached

    warm()
    first, cached = warm(**ROUNDS)
    assert (made, cached) == ([0, 1, 2], False)  # the imitation was there
    again, cached = warm(**ROUNDS)
    assert (made, cached) == ([0, 1, 2], True)
    assert torch.equal(first, again)
    warm(**{**ROUNDS, "dagger_rounds": 3})
    assert made == [0, 1, 2, 3]
    warm(**{**ROUNDS, "dagger_steps": 3})
    assert made == [0, 1, 2, 3, 1, 2]
    monkeypatch.setenv("TURNWISE_CACHE", str(tmp_path / "other"))
    whole, cached = warm(**ROUNDS)
    assert not cached
    assert torch.equal(first, whole)  # as in parts


def test_progress_goes_on_through_the_rounds(tmp_path):
    steps, tasks, turns = [], [], []
    config = lanes(tmp_path, **ROUNDS)
    warm_policy(
        config,
        make_suite(config.environment),
        on_demonstration=lambda done, total: tasks.append((done, total)),
        on_step=lambda done, total, loss: steps.append((done, total)),
        on_turn=lambda live, total: turns.append(total),
    )
    assert steps == [(done, 7) for done in range(1, 8)]
    assert tasks == [(done, 12) for done in range(1, 13)] * 3
    assert set(turns) == {12}


def test_rounds_without_imitation_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"dagger_rounds=2 follows imitation, and warmstart.steps=0 leaves that out"):
        small_config(tmp_path, warmstart={"dagger_rounds": 2})


def test_an_environment_whose_expert_cannot_go_on_is_refused_before_anything_is_played(tmp_path, monkeypatch):
    config = small_config(tmp_path, warmstart=ROUNDS)
    with pytest.raises(ConfigError, match=r"tests\.toys:Colors.* correct\(task, played.*warmstart.dagger_rounds=0"):
        warm_policy(config, make_suite(config.environment), on_demonstration=lambda *_: pytest.fail("too late"))
    config = small_config(tmp_path, environment={"name": "crossroads"}, warmstart=ROUNDS)
    with pytest.raises(ConfigError, match=r"'crossroads' has no correct\(\): add it .*warmstart.dagger_rounds=0"):
        warm_policy(config, make_suite(config.environment))
    monkeypatch.setattr(Lanes, "correct", staticmethod(lambda *_, **__: None))
    with pytest.raises(ConfigError, match=r"none of 12 tasks that the policy played was corrected"):
        corrected(lanes(tmp_path))


def test_a_window_without_a_response_to_imitate_teaches_nothing(tmp_path):
    """Batches of these alone would divide by zero."""
    config = lanes(tmp_path, games=40, observation_weight=0.0)
    config = override_config(config, ["rollout.context=window", "rollout.window=1"])
    _, demos = corrected(config)
    wrong = sum(bool(given) and given[0] != Colors.color(task, 0) for task, given in Lanes.seen)
    assert wrong > 3
    assert len(demos) == 2 * 40 - wrong
    assert all(weights[1:].any() for _, weights in demos)


class Stringly(Lanes):
    """Does not say which turns are to be imitated."""

    @staticmethod
    def correct(task: int, played: Sequence[str], *, seed: int) -> list[Demonstrated]:
        return ["red", *played]  # pyright: ignore[reportReturnType]


def test_turns_without_whether_they_are_imitated_are_refused(tmp_path):
    config = small_config(tmp_path, environment={"name": "tests.train.test_dagger:Stringly"}, warmstart=WARM)
    with pytest.raises(ConfigError, match=r"correct\(\) of the environment returned 'red', expected \(response, imit"):
        corrected(config)


@pytest.mark.parametrize(
    "overrides",
    [["environment.name=tests.train.test_dagger:Stringly"], ["rollout.context=window", "rollout.window=3"]],
)
def test_rounds_of_other_environments_and_windows_are_not_mistaken_for_each_other(tmp_path, overrides):
    """Their demonstrations are the same: the conversation that a policy makes may be longer."""
    config = lanes(tmp_path, **ROUNDS)
    policy, demos = corrected(config)
    keys, others = (
        warmstart._keys(Teaching.of(each), policy, demos) for each in (config, override_config(config, overrides))
    )
    assert keys[0] == others[0]
    assert not {*keys[1:]} & {*others[1:]}


WORLDS = {
    "household": {"options": {"size": "tiny", "num_train": 6}},
    "frozen_lake": {"options": {"num_train": 6}},
    "sokoban": {"options": {"num_train": 6}},
}


@pytest.mark.parametrize("name", ["household", pytest.param("frozen_lake", marks=needs("gymnasium")), "sokoban"])
def test_shipped_experts_go_on_after_anything_and_win(name):
    settings = EnvironmentConfig.model_validate({"name": name, "max_steps": 60, **WORLDS[name]})
    suite = cast(CorrectingSuite, make_suite(settings))
    gone_on = 0
    for task in suite.tasks("train")[:6]:
        noisy = suite.demonstrate(task, noise=0.5, seed=3) or []
        for until in range(0, len(noisy), 3):
            played = [turn.response for turn in noisy[:until]]
            turns = suite.correct(task, played, seed=5)
            assert turns is not None  # noise leaves these games winnable
            assert [turn.response for turn in turns[:until]] == played
            assert all(turn.imitate for turn in turns[until:])
            world = suite.environment(task)
            world.start()
            ends = [cast(Step, world.step(turn.response)) for turn in turns]
            assert not any(step.ended for step in ends[:-1])
            assert ends[-1].info["success"]
            gone_on += until > 0
    assert gone_on > 3
