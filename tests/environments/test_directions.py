"""Directions: several rewards become one, and a policy that is told the direction follows it."""

import asyncio
import math
import pickle
from typing import Any

import numpy as np
import pytest
from tests.needs import needs
from tests.toys import Colors, small_config

from turnwise.base.errors import ConfigError, EnvironmentFault
from turnwise.config import parse_config
from turnwise.environments.base import Step, checked_step
from turnwise.environments.settings import DirectionConfig, EnvironmentConfig
from turnwise.environments.suites import Seeded, SuiteEnvironments, make_suite
from turnwise.rollout.record import read_rollouts
from turnwise.train.loop import train
from turnwise.worlds.directions import DirectedSuite


class Verbose:
    """Pays 1 for an answer, and for its style 1 if it is long, -1 if it is short; the scalar reward is another."""

    objectives = ("help", "style")

    def __init__(self, seed: int):
        self.seed = seed

    @staticmethod
    def words(**options: Any) -> list[str]:
        return ["answer", "long", "short"]

    @staticmethod
    def demonstrate(task: int, *, noise: float, seed: int) -> list[str]:
        """Answer in either style, whatever the direction."""
        return [("long", "short")[seed % 2]]

    def start(self) -> Any:
        return Step(observation="answer", state_key="asked")

    def step(self, response: str) -> Any:
        said = response.split()[:1]
        rewards = {"help": 1.0, "style": float(said == ["long"]) - float(said == ["short"])}
        return Step(observation="", reward=7.0, rewards=rewards, terminated=True, info={"success": True})


class Later(Verbose):
    """Answers by coroutines, and never promises to repeat."""

    repeats = False

    async def start(self) -> Step:
        return super().start()

    async def step(self, response: str) -> Step:
        await asyncio.sleep(0)
        return super().step(response)


class Wrong(Verbose):
    """Pays for something that is no objective."""

    def step(self, response: str) -> Step:
        return Step(observation="", rewards={"hepl": 1.0}, terminated=True)


HERE = "tests.environments.test_directions"
SAMPLED = {"name": "sampled", "low": -45.0, "high": 45.0}


def fixed(weights: dict[str, float], name: str = "Verbose", **options: Any) -> Any:
    return directed(name, DirectionConfig(name="fixed", weights=weights, **options))


def sampled(name: str = "Verbose", **options: Any) -> Any:
    return directed(name, DirectionConfig.model_validate(SAMPLED | options))


def directed(name: str, direction: DirectionConfig) -> Any:
    return make_suite(EnvironmentConfig(name=f"{HERE}:{name}", direction=direction))


# -- rewards -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("weights", "long", "short"), [({"help": 1.0, "style": -0.5}, 0.5, 1.5), ({"style": 2.0}, 2.0, -2.0)]
)
def test_a_fixed_direction_weighs_the_rewards(weights, long, short):
    made = fixed(weights)
    for word, expected in (("long", long), ("short", short)):
        environment = made.environment(made.tasks("train")[0])
        assert environment.start().observation == "answer"
        assert environment.start().state_key == "asked"
        end = environment.step(word)
        assert end.reward == pytest.approx(expected)
        assert end.info["objectives"] == {"help": 1.0, "style": 1.0 if word == "long" else -1.0}
        assert end.info["success"] is True


def test_sampled_directions_are_unit_vectors_in_the_cone_and_belong_to_the_task():
    made = sampled()
    tasks = [made.tasks("train")[number] for number in range(400)]
    v = np.array([list(task.direction.values()) for task in tasks])
    np.testing.assert_allclose(np.linalg.norm(v, axis=1), 1)
    angles = np.degrees(np.arctan2(v[:, 1], v[:, 0]))
    assert -45 <= angles.min() < -43
    assert 43 < angles.max() <= 45
    assert abs(angles.mean()) < 4
    again = sampled()
    assert [again.tasks("train")[number] for number in range(400)] == tasks
    assert pickle.loads(pickle.dumps(tasks[0])) == tasks[0]
    assert made.tasks("valid")[0].direction != made.tasks("train")[0].direction
    assert len({made.task_name(task) for task in tasks}) == 400
    config = EnvironmentConfig(name=f"{HERE}:Verbose", direction=DirectionConfig.model_validate(SAMPLED))
    copied = pickle.loads(pickle.dumps(SuiteEnvironments(config)))
    assert copied(tasks[3]).step("long").reward == pytest.approx(v[3].sum()), "workers weigh as the trainer does"


def test_a_task_may_have_several_directions():
    made, single = sampled(per_task=3), sampled()
    tasks, once = made.tasks("valid"), single.tasks("valid")
    assert len(tasks) == 3 * len(once)
    same = [tasks[number] for number in (5, 5 + len(once), 5 + 2 * len(once))]
    assert len({task.task for task in same}) == 1
    assert len({task.direction["help"] for task in same}) == 3
    assert tasks[-1] == tasks[len(tasks) - 1]
    assert tasks[2:4] == [tasks[2], tasks[3]]


def test_a_direction_is_told_in_hundredths_and_its_words_are_known():
    made = sampled(told=True)
    task = made.tasks("train")[0]
    step = made.environment(task).start()
    told, asked = step.observation.split("\n")
    help_, style = (round(100 * weight) for weight in task.direction.values())
    assert (told, asked) == (f"help: {help_}, style: {style}", "answer")
    assert step.state_key == "asked", "states are compared without the direction"
    assert {"help", "style", ":", ",", "-", "0", "100", "71", "long"} <= set(made.words())
    assert set(sampled().words()) == {"answer", "long", "short"}
    given = fixed({"help": 1.5, "style": -0.25}, told=True)
    assert given.environment(given.tasks("train")[0]).start().observation.startswith("help: 150, style: -25\n")
    assert {"150", "25", "-"} <= set(given.words())


def test_coroutines_and_the_lack_of_repeats_pass_through():
    made = sampled("Later")
    environment = made.environment(made.tasks("train")[0])
    assert environment.repeats is False
    assert asyncio.run(environment.start()).observation == "answer"
    direction = made.tasks("train")[0].direction
    assert asyncio.run(environment.step("short")).reward == pytest.approx(direction["help"] - direction["style"])


@needs("gymnasium")
def test_frozen_lake_pays_for_the_goal_and_for_steps():
    settings = DirectionConfig(name="fixed", weights={"goal": 1.0, "steps": -0.5})
    made: Any = make_suite(
        EnvironmentConfig(name="frozen_lake", max_steps=10, direction=settings, options={"num_train": 4})
    )
    task = made.tasks("train")[0]
    environment = made.environment(task)
    environment.start()
    turns = made.demonstrate(task, noise=0.0, seed=0)
    ends = [environment.step(turn.response) for turn in turns]
    assert sum(step.reward for step in ends) == pytest.approx(1 - 0.05 * len(turns))
    assert ends[-1].info["objectives"] == {"goal": 1.0, "steps": pytest.approx(0.1 * len(turns))}
    played = [turn.response for turn in turns]
    assert made.correct(task, played[:1], seed=0) == turns


def test_a_suite_has_an_expert_that_goes_on_only_if_that_below_has():
    below = type("Plain", (), {"objectives": ("help",)})()
    assert not hasattr(DirectedSuite(below, DirectionConfig(name="fixed", weights={"help": 1.0}), "plain"), "correct")
    with pytest.raises(ConfigError, match=r"Verbose has no correct\(\): add correct"):
        _ = fixed({"help": 1.0}).correct


# -- refused -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("direction", "message"),
    [
        ({"name": "fixed"}, "'fixed' needs finite weights"),
        ({"name": "fixed", "weights": {"goal": 0.0}}, "not all of them 0"),
        ({"name": "fixed", "weights": {"goal": 1.0}, "low": 0}, "low, high and per_task are for name='sampled'"),
        ({"name": "fixed", "weights": {"goal": 1.0}, "per_task": 2}, "low, high and per_task are for name='sampled'"),
        ({"name": "sampled"}, r"low=None and high=None; 'sampled' needs two angles"),
        ({"name": "sampled", "low": 45, "high": -45}, "low below high"),
        ({"name": "sampled", "low": -200, "high": 0}, "greater than or equal to -180"),
        (SAMPLED | {"weights": {"goal": 1.0}}, "weights are for name='fixed'"),
        ({"name": "drawn"}, "'fixed' or 'sampled'"),
    ],
)
def test_directions_that_cannot_work_are_refused(direction, message):
    with pytest.raises(ConfigError, match=message) as refused:
        parse_config({"environment": {"name": "frozen_lake", "direction": direction}})
    assert "\n" not in str(refused.value)


def test_an_environment_with_one_reward_or_other_objectives_is_refused(tmp_path):
    config = small_config(tmp_path, environment={"direction": SAMPLED})
    with pytest.raises(
        ConfigError, match=r"'tests\.toys:Colors' names no objectives; remove it, or pay Step\(rewards="
    ):
        train(config)
    assert not config.run_folder.exists()
    with pytest.raises(ConfigError, match=r"no objective 'stile'. Did you mean 'style'\? It has help, style"):
        fixed({"stile": 1.0})
    three: Any = Seeded(Colors, {})
    three.objectives = ("a", "b", "c")
    with pytest.raises(ConfigError, match="is an angle between two objectives, and 'three' has 3"):
        DirectedSuite(three, DirectionConfig.model_validate(SAMPLED), "three")


def test_rewards_that_are_no_numbers_by_name_are_faults():
    for rewards in ([1.0], {"help": math.nan}, {"help": "much"}, {1: 1.0}):
        with pytest.raises(EnvironmentFault, match=r"returned a reward of|expected a dict such as"):
            checked_step(Step(observation="", rewards=rewards))  # pyright: ignore[reportArgumentType]
    numpys: Any = {"help": np.float32(1)}
    assert type((checked_step(Step(observation="", rewards=numpys)).rewards or {})["help"]) is float
    made = sampled("Wrong")
    environment = made.environment(made.tasks("train")[0])
    environment.start()
    with pytest.raises(EnvironmentFault, match="paid a reward for 'hepl', and its objectives are help, style"):
        environment.step("long")


# -- learned -----------------------------------------------------------------------------------------------------------


class Eight(Seeded):
    """Eight tasks, five of whose directions favour long answers: (42, 40, 24, 41, -2, -32, -21, 45) degrees."""

    def __init__(self, config: EnvironmentConfig):
        super().__init__(Verbose, {})

    def tasks(self, split: str) -> range:
        return range(8)


DPA = {"policy": False, "terms": [{"name": "turnwise.extensions.preference.rejection:BestOfGroup"}]}


@pytest.mark.parametrize(
    ("told", "update", "follows"),
    [(True, {}, True), (True, DPA, True), (False, {}, False)],
    ids=("rloo", "dpa", "untold"),
)
def test_a_policy_follows_the_direction_that_it_is_told(told, update, follows, tmp_path, monkeypatch):
    """Who follows it gets the mean of |sin th| for style, 0.50; who always answers long, of sin th, 0.27."""
    monkeypatch.setenv("TURNWISE_CACHE", str(tmp_path / "cache"))
    config = small_config(
        tmp_path,
        environment={"name": f"{HERE}:Eight", "eval_split": "train", "direction": {**SAMPLED, "told": told}},
        run={"steps": 30, "seed": 1},
        rollout={"groups": 8, "group_size": 8, "max_new_tokens": 2},
        evaluate={"every": 0, "final_episodes": 8, "temperature": 0.0},
        model={"hidden_size": 64},
        warmstart={"games": 8, "steps": 30, "observation_weight": 0.0},
        update={"learning_rate": 5e-3, "scoring": "engine", **update},
        method="rloo",
    )
    folder = train(config)
    trajectories, _ = read_rollouts(folder.rollouts / "step-000001.parquet")
    for group in range(8):
        assert len({one.info["direction"]["style"] for one in trajectories if one.group == group}) == 1
    assert len({one.info["direction"]["style"] for one in trajectories}) == 8
    made: Any = make_suite(config.environment)
    help_, style = np.array([list(task.direction.values()) for task in made.tasks("train")]).T
    followed, blind = (help_ + np.abs(style)).mean(), (help_ + style).mean()
    last = folder.metrics()[-1]
    assert last["eval/objective/help"] == 1.0
    assert (last["eval/reward"] > (followed + blind) / 2) == follows
    assert last["eval/reward"] < followed + 1e-9
