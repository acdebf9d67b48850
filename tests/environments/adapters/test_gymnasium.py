"""Gymnasium environments as ours, with the real package."""

import gc
import pickle
import sys
from typing import Any

import numpy as np
import pytest
from tests.needs import reason

from turnwise.base.errors import ConfigError, EnvironmentFault
from turnwise.environments.check import check_environment
from turnwise.environments.settings import EnvironmentConfig
from turnwise.environments.suites import make_suite
from turnwise.worlds.adapters.gymnasium import plain_ansi

gymnasium = pytest.importorskip("gymnasium", reason=reason("gymnasium"))

ICE = {"id": "FrozenLake-v1", "kwargs": {"is_slippery": False}, "actions": ["left", "down", "right", "up"]}
# gymnasium's 4x4 map, row by row: SFFF FHFH FFFH HFFG
WAY = ["down", "down", "right", "right", "down", "right"]


def suite(max_steps: int = 20, **options: Any) -> Any:
    return make_suite(EnvironmentConfig(name="gymnasium", max_steps=max_steps, options=options))


def play(made: Any, responses: list[str], task: int = 0) -> tuple[Any, list[Any]]:
    environment = made.environment(task)
    return environment, [environment.start(), *map(environment.step, responses)]


class Letters(gymnasium.Env):
    """Texts as actions: 'win' ends it well, anything of two letters ends it badly; info says so."""

    def __init__(self):
        self.action_space = gymnasium.spaces.Text(max_length=3, charset="inw")
        self.observation_space = gymnasium.spaces.Discrete(100)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return int(self.np_random.integers(100)), {}

    def step(self, action):
        return 0, -1.0, len(action) > 1, action == "nn", {"solved": action == "win"}


gymnasium.register("turnwise-tests/Letters-v0", Letters)


def place_in_words(env: Any, observation: Any) -> str:
    return f"you stand on {observation} of {env.nrow * env.ncol}"


def test_an_environment_is_closed_once_at_its_end_or_when_it_is_let_go(monkeypatch):
    closed = []
    monkeypatch.setattr(Letters, "close", lambda self: closed.append(self))
    made = suite(id="turnwise-tests/Letters-v0")
    closed.clear()
    environment, _ = play(made, ["win"])
    assert len(closed) == 1
    del environment
    for _ in range(3):
        play(made, ["n"])
    gc.collect()
    assert len(closed) == 4


def test_a_way_to_the_goal_wins():
    environment, steps = play(suite(**ICE), WAY)
    assert [step.state_key for step in steps] == ["0", "4", "8", "9", "10", "14", "15"]
    assert [step.reward for step in steps] == [0, 0, 0, 0, 0, 0, 1]
    assert [step.terminated for step in steps] == [False] * 6 + [True]
    assert [step.info["success"] for step in steps] == [False] * 6 + [True]
    assert all(step.admissible == ("left", "down", "right", "up") for step in steps)
    assert not any(step.truncated for step in steps)
    with pytest.raises(EnvironmentFault, match=r"step\(\) after the end of seed 0"):
        environment.step("left")


def test_a_hole_ends_without_success():
    _, steps = play(suite(**ICE), ["down", "right"])
    assert steps[-1].terminated
    assert (steps[-1].reward, steps[-1].info["success"]) == (0.0, False)


@pytest.mark.parametrize("response", ["", "Left", "4", "left left", "go left"])
def test_what_is_no_action_changes_nothing(response):
    _, steps = play(suite(**ICE), ["down", response, " right\n"])
    assert [step.valid for step in steps] == [True, True, False, True]
    assert steps[2].state_key == steps[1].state_key == "4"
    assert steps[2].observation == steps[1].observation
    assert (steps[2].reward, steps[2].ended) == (0.0, False)
    assert steps[3].terminated  # place 5 is a hole: the environment stood on 4


def test_invalid_responses_count_as_steps():
    _, steps = play(suite(max_steps=3, **ICE), ["down", "what", "what"])
    assert [step.truncated for step in steps] == [False, False, False, True]
    _, steps = play(suite(max_steps=6, **ICE), WAY)
    assert (steps[-1].terminated, steps[-1].truncated) == (True, False)  # won with the last step


def test_the_environments_own_limit_truncates():
    _, steps = play(suite(**{**ICE, "kwargs": {"is_slippery": False, "max_episode_steps": 2}}), ["left", "left"])
    assert [step.truncated for step in steps] == [False, False, True]


def test_the_seed_decides_what_is_drawn():
    made = suite(id="FrozenLake-v1", kwargs={"is_slippery": True})
    ends = [[step.state_key for step in play(made, ["1", "2"], task)[1]] for task in range(12)]
    again = [[step.state_key for step in play(made, ["1", "2"], task)[1]] for task in range(12)]
    assert ends == again
    assert len({tuple(end) for end in ends}) > 1


def test_splits_share_no_seed():
    splits = [set(suite(**ICE).tasks(split)) for split in ("train", "valid", "test")]
    assert not splits[0] & splits[1]
    assert not (splits[0] | splits[1]) & splits[2]
    with pytest.raises(ConfigError, match=r"no split 'vald'. Did you mean 'valid'\?"):
        suite(**ICE).tasks("vald")


def test_ansi_marks_the_place_of_the_agent():
    _, steps = play(suite(render="ansi", **ICE), ["down"])
    assert steps[0].observation == "[S]FFF\nFHFH\nFFFH\nHFFG\nActions: left, down, right, up"
    assert steps[1].observation == "  (Down)\nSFFF\n[F]HFH\nFFFH\nHFFG"
    assert steps[1].state_key == "4"


def test_ansi_tells_grounds_from_letters():
    assert plain_ansi("\n|\x1b[43mR\x1b[0m: |\x1b[35mB\x1b[0m|\x1b[1;42m_\x1b[0m\n") == "|[R]: |(B)|[_]"


def test_a_place_may_be_marked_twice():
    twice = "\x1b[34;1m\x1b[43mR\x1b[0m\x1b[0m|\x1b[35m\x1b[34;1mG\x1b[0m\x1b[0m|\x1b[34;1mB\x1b[mY"
    assert plain_ansi(twice) == "[{R}]|{G}|{B}Y"


def newest(name: str) -> str:
    """The newest version of an environment, since older ones cannot be made without a warning."""
    return max((id for id in gymnasium.registry if id.startswith(f"{name}-v")), key=lambda id: int(id.split("-v")[1]))


@pytest.mark.parametrize("id", [newest("Taxi"), "FrozenLake-v1", newest("CliffWalking")])
def test_a_bare_number_comes_with_the_environments_own_text(id):
    made, plain = suite(id=id), suite(id=id, render="observation")
    for task in range(3):
        (_, steps), (_, numbers) = play(made, ["1", "0"], task), play(plain, ["1", "0"], task)
        assert [step.state_key for step in steps] == [step.state_key for step in numbers]
        assert all("\n" in step.observation and "\x1b" not in step.observation for step in steps)
        assert all(step.observation.split("\n")[0].isdecimal() for step in numbers)
    assert steps[0].observation == play(suite(id=id, render="ansi"), [], 2)[1][0].observation


def test_other_observations_stay_as_they_are():
    assert play(suite(id="CartPole-v1"), [])[1][0].observation.startswith("[")
    assert play(suite(id="turnwise-tests/Letters-v0"), [])[1][0].observation.isdecimal()  # has no text
    given = suite(id="FrozenLake-v1", kwargs={"render_mode": "ansi"})
    assert "[S]FFF" in play(given, [])[1][0].observation


def test_taxis_text_tells_all_its_states_apart():
    env = gymnasium.make(newest("Taxi"), render_mode="ansi").unwrapped
    texts = {}
    for state in range(500):
        env.s, env.lastaction = state, None
        taxi = tuple(env.decode(state))
        texts.setdefault(plain_ansi(env.render()), []).append(taxi)
    assert all(len(states) == 1 for states in texts.values()), [s for s in texts.values() if len(s) > 1][:3]


def test_a_flag_of_info_that_is_no_flag_is_a_fault(monkeypatch):
    monkeypatch.setattr(Letters, "step", lambda self, action: (0, 0.0, True, False, {"solved": "no"}))
    with pytest.raises(EnvironmentFault, match="info\\['solved'\\] = 'no'"):
        play(suite(id="turnwise-tests/Letters-v0", success="solved"), ["win"])


def test_a_function_may_say_what_is_seen():
    _, steps = play(suite(render=f"{__name__}:place_in_words", **ICE), ["down"])
    assert steps[1].observation == "you stand on 4 of 16"


def test_texts_are_actions_where_the_space_is_of_texts():
    made = suite(id="turnwise-tests/Letters-v0", success="solved")
    assert [made.environment(task).start().observation for task in (1, 1, 2)] == ["47", "47", "83"]
    _, steps = play(made, ["w", "xyz", "win"])
    assert [step.valid for step in steps] == [True, True, False, True]
    assert steps[-1].info["success"]
    assert steps[0].admissible is None
    _, steps = play(made, ["nn"])
    assert (steps[-1].terminated, steps[-1].truncated, steps[-1].info["success"]) == (True, False, False)


@pytest.mark.parametrize(
    ("options", "won"),
    [
        ({}, False),
        ({"threshold": -1.5}, True),  # the last reward is -1
        ({"success": "return", "threshold": -1.5}, False),  # their sum is -2
        ({"success": "return", "threshold": -2.5}, True),
    ],
)
def test_success_is_a_reward_or_a_return_above_a_threshold(options, won):
    _, steps = play(suite(id="turnwise-tests/Letters-v0", **options), ["w", "win"])
    assert steps[-1].info["success"] is won
    assert steps[-1].info["return"] == -2.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"environment.options.id is missing: name a gymnasium environment"),
        ({"id": "FrozenLake-v99"}, r"gymnasium cannot make 'FrozenLake-v99' with {}: .*`v99`"),
        ({**ICE, "kwargs": {"slip": 1}}, r"cannot make 'FrozenLake-v1' with {'slip': 1}: TypeError"),
        ({**ICE, "actions": ["left", "right"]}, r"FrozenLake-v1 has 4 actions, expected as many different names"),
        ({**ICE, "actions": ["a", "b", "c", "a"]}, r"expected as many different names"),
        ({**ICE, "actions": ["a", "b", "c", " d"]}, r"expected a list"),
        ({**ICE, "actions": "ludr"}, r"expected a list"),
        ({**ICE, "render": "ansy"}, r"environment.options.render='ansy'. Did you mean 'ansi'\? Your own is"),
        ({"id": "turnwise-tests/Letters-v0", "actions": ["win"]}, r"are texts: remove environment.options.actions"),
        ({"id": "turnwise-tests/Letters-v0", "render": "ansi"}, r"does not render as 'ansi'|cannot make"),
        ({"id": "Pendulum-v1"}, r"actions of Pendulum-v1 are Box\(.*expected Discrete or Text"),
        ({"ids": "FrozenLake-v1"}, r"has no option 'ids'. Did you mean 'id'\?"),
    ],
)
def test_what_is_wrong_is_said_before_a_run(options, message):
    with pytest.raises(ConfigError, match=message) as caught:
        suite(**options)
    assert "\n" not in str(caught.value)


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium", None)  # as if it were not installed
    with pytest.raises(
        ConfigError, match=r"'FrozenLake-v1' needs the module 'gymnasium'; pip install 'turnwise-rl\[gymnasium\]'"
    ):
        suite(**ICE)


def test_a_step_before_the_start_is_a_fault():
    with pytest.raises(EnvironmentFault, match=r"step\(\) before start\(\) of seed 7"):
        suite(**ICE).environment(7).step("left")


@pytest.mark.parametrize(
    "options", [{"render": "ansi", **ICE}, {"id": "CartPole-v1"}, {"id": "Blackjack-v1"}, {"id": newest("Taxi")}]
)
def test_the_environments_are_sound(options):
    made = suite(max_steps=30, **options)
    problems = check_environment(made)
    if options["id"] == "FrozenLake-v1":  # one map for all seeds
        [problem] = problems
        assert problem.what.endswith("the seed may be ignored")
        assert not problem.severe
    else:
        assert problems == []
    assert pickle.loads(pickle.dumps(made.tasks("train")[3])) == 3


class Wide(gymnasium.Env):
    """A row of 2,000 places, one of which is marked."""

    def __init__(self):
        self.action_space = gymnasium.spaces.Discrete(2)
        self.observation_space = gymnasium.spaces.Box(0, 1, (2000,), np.int8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = 1000
        return self.row(), {}

    def row(self):
        return (np.arange(2000) == self.at).astype(np.int8)

    def step(self, action):
        self.at += 2 * int(action) - 1
        return self.row(), 0.0, self.at > 1010, False, {}


gymnasium.register("turnwise-tests/Wide-v0", Wide)


def test_a_large_array_is_read_whole_so_that_states_differ():
    """NumPy prints the first and the last three of more than 1,000 numbers."""
    _, (first, left, right) = play(suite(id="turnwise-tests/Wide-v0"), ["0", "1"])
    assert first.observation.count("0") >= 1999
    assert "..." not in first.observation
    assert first.state_key != left.state_key
    assert right.state_key != left.state_key
