"""Environments as TRL's environments; TRL itself is not needed."""

import pytest

from turnwise.base.errors import ConfigError
from turnwise.environments.base import Step
from turnwise.environments.settings import EnvironmentConfig
from turnwise.environments.suites import make_suite
from turnwise.integrations.trl_environments import OVER, environment_factory, rows

HOUSE = EnvironmentConfig(name="household", max_steps=30, success_reward=10.0, options={"size": "tiny", "num_train": 3})


def said(*texts):
    return [{"role": "assistant", "content": text} for text in texts]


def answered(text):
    return {"role": "tool", "name": "play", "content": text}


def test_a_world_plays_the_suites_task_word_for_word():
    suite, world = make_suite(HOUSE), environment_factory(HOUSE)()
    for task in (1, 2, 1):  # TRL uses its environments again
        own = suite.environment(suite.tasks("train")[task])
        assert world.reset(task=task, split="train", prompt="left alone") == own.start().observation
        for turn in suite.demonstrate(suite.tasks("train")[task], noise=0.0, seed=0):
            assert world.get_reward() == 0
            assert world.play(turn.response) == own.step(turn.response).observation
        assert world.get_reward() == 10.0
        assert world.play("look") == OVER
        assert world.get_reward() == 10.0


def test_rows_name_the_tasks_of_a_split():
    got = rows(HOUSE, prompt="go")
    assert [row["task"] for row in got] == [0, 1, 2]
    assert got[0] == {"prompt": [{"role": "user", "content": "go"}], "split": "train", "task": 0}
    assert len(rows(HOUSE, split="valid", limit=2)) == 2
    with pytest.raises(ConfigError, match=r"task 3: split 'train' has 3 tasks"):
        environment_factory(HOUSE)().reset(task=3, split="train")


def test_the_record_says_which_response_earned_what_in_which_state():
    world = environment_factory(HOUSE)()
    start = world.reset(task=0)
    one, two, three = world.play("look"), world.play("inventory"), world.play("look")
    messages = [
        *said("two calls"),
        answered(one),
        answered(two),
        *said("a wrong call"),
        answered("{'error': 'unexpected argument'}"),
        *said("another"),
        answered(three),
        *said("good bye"),
    ]
    assert world._record(messages) == {"reward": [0.0] * 4, "state_key": [start, two, two, three]}


def test_a_reward_whose_answer_was_dropped_is_the_last_responses():
    world = environment_factory(HOUSE)()
    world.reset(task=0)
    world._steps += [Step(observation="a", reward=1.0), Step(observation="b", reward=2.0)]
    assert world._record([*said("x"), answered("a"), *said("y")])["reward"] == [1.0, 2.0]


class Fragile:
    """A world of one's own that breaks where told."""

    def __init__(self, seed, *, at=""):
        self.at = at
        if at == "init":
            raise RuntimeError("boom")

    async def start(self):
        if self.at == "start":
            raise RuntimeError("boom")
        return "hello"

    async def step(self, response):
        if self.at == "step":
            raise RuntimeError("boom")
        return Step(observation="bye", reward=1.0, terminated=True)


@pytest.mark.parametrize("at", ["", "init", "start", "step"])
def test_a_broken_world_has_no_reward_and_harms_nobody(at, caplog):
    config = EnvironmentConfig(name=f"{__name__}:Fragile", options={"at": at})
    world = environment_factory(config)()
    observation = world.reset(task=0)
    answer = world.play("x")
    if at:
        assert answer == OVER
        assert world.get_reward() is None
        assert "RuntimeError: boom" in caplog.text
        assert len(world._record(said("x"))["state_key"]) == 1
        world._suite._options["at"] = ""
        assert world.reset(task=1) == "hello"
        world.play("x")
    else:
        assert (observation, answer) == ("hello", "bye")
    assert world.get_reward() == 1.0


@pytest.mark.parametrize(("own", "level"), [({"workers": 2}, "worker"), ({"isolation": "bubblewrap"}, "bubblewrap")])
def test_environments_that_should_be_kept_apart_are_refused(own, level):
    with pytest.raises(ConfigError, match=f"isolation='{level}': TRL plays environments in its own process"):
        environment_factory(EnvironmentConfig(name="household", **own))


@pytest.mark.parametrize("command", [3, None, ["x"], {"a": 1}, True])
def test_a_command_of_another_type_costs_that_call_alone(command):
    """A policy may write any JSON; TRL shows it the error."""
    world = environment_factory(EnvironmentConfig(name=f"{__name__}:Fragile"))()
    world.reset(task=0)
    with pytest.raises(TypeError, match="expected a text"):
        world.play(command)
    assert world.play("x") == "bye"
    assert world.get_reward() == 1.0
