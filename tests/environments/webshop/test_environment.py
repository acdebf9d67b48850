"""WebShop behind the environment protocol."""

import pytest
from tests.environments.webshop.conftest import item, write
from tests.needs import needs

from turnwise.base.errors import ConfigError, EnvironmentFault
from turnwise.environments.base import Environment
from turnwise.worlds.webshop.environment import WebshopEnvironment
from turnwise.worlds.webshop.shop import load_shop

pytestmark = needs("Stemmer", "rapidfuzz")

PERFECT = ("search[kettle]", "click[b0kettle01]", "click[black | white]", "click[3 l]", "click[buy now]")
NEARLY = ("search[kettle]", "click[b0kettle01]", "click[3 l]", "click[buy now]")  # 4 of 5 parts


@pytest.fixture
def make_environment(shop, kettle):
    return lambda **options: WebshopEnvironment(shop, kettle, **options)


def play(environment, actions):
    return [environment.start(), *map(environment.step, actions)]


def test_it_follows_the_protocol(make_environment):
    assert isinstance(make_environment(), Environment)


def test_the_start_shows_the_instruction(make_environment, kettle):
    start = make_environment().start()
    assert start.observation == f"WebShop [SEP] Instruction: [SEP] {kettle.instruction} [SEP] Search"
    assert start.admissible == [f"search[{kettle.instruction.lower()}]"]
    assert (start.reward, start.ended, start.valid, start.state_key) == (0, False, True, None)
    assert start.info == {"success": False, "score": 0.0, "task_type": "garden"}


def test_a_perfect_purchase_earns_the_reward_and_ends(make_environment):
    steps = play(make_environment(), PERFECT)
    assert [step.reward for step in steps] == [0, 0, 0, 0, 0, 10]
    assert [step.terminated for step in steps] == [False] * 5 + [True]
    assert steps[-1].info == {
        "success": True,
        "score": 1.0,
        "task_type": "garden",
        "bought": "B0KETTLE01",
        "score_type": 1.0,
        "score_attributes": 1.0,
        "score_options": 1.0,
        "score_price": True,
    }


@pytest.mark.parametrize(("reward", "earned"), [("success", 0.0), ("score", 2.0)])
def test_another_purchase_earns_nothing_or_its_score(make_environment, reward, earned):
    last = play(make_environment(reward=reward, success_reward=2.5), NEARLY)[-1]
    assert (last.reward, last.terminated) == (earned, True)
    assert (last.info["success"], last.info["score"], last.info["score_options"]) == (False, 0.8, 0.5)


@pytest.mark.parametrize("response", ["dance", "", "click[buy now]", "<action>search[mug]</action>"])
def test_what_is_not_admitted_is_invalid_and_counts_as_a_step(make_environment, response):
    environment = make_environment(max_steps=2)
    start = environment.start()
    step = environment.step(response)
    assert (step.observation, step.valid, step.reward) == (start.observation, False, 0)
    assert step.admissible == start.admissible
    assert environment.step("search[mug]").truncated


def test_white_space_around_an_action_is_ignored(make_environment):
    assert play(make_environment(), ["  search[kettle]\n"])[-1].valid


def test_the_last_step_truncates_unless_it_buys(make_environment):
    last = play(make_environment(max_steps=5), PERFECT)[-1]
    assert (last.terminated, last.truncated) == (True, False)
    last = play(make_environment(max_steps=4), PERFECT[:4])[-1]
    assert (last.terminated, last.truncated, last.reward) == (False, True, 0)
    assert not last.info["success"]


def test_nothing_can_be_done_before_the_start_or_after_the_end(make_environment):
    with pytest.raises(EnvironmentFault, match=r"step\(\) before start\(\) of goal \d"):
        make_environment().step("search[mug]")
    environment = make_environment()
    play(environment, PERFECT)
    with pytest.raises(EnvironmentFault, match=r"step\(\) after the end of goal \d"):
        environment.step("search[mug]")


def test_everything_admissible_is_valid(make_environment):
    for seen in (
        PERFECT[:0],
        PERFECT[:1],
        PERFECT[:2],
        [*PERFECT[:2], "click[features]"],
        ["search[mug]", "click[next >]"],
    ):
        admissible = play(make_environment(), seen)[-1].admissible
        assert admissible
        for action in admissible:
            assert play(make_environment(), [*seen, action])[-1].valid, action


def test_options_that_the_original_cannot_click_are_not_offered(tmp_path, kettle):
    note = {"B0": {"instruction": "a mug", "instruction_attributes": ["x"]}}
    odd = item("B0", "Mug", options={"Color": ["a[b", "search", "c]"]})
    environment = WebshopEnvironment(load_shop(write(tmp_path, [odd], note))[0], kettle)
    admissible = play(environment, ["search[mug]", "click[b0]"])[-1].admissible
    assert admissible is not None
    assert admissible[-2:] == ["click[buy now]", "click[c]]"]
    assert [environment.step(f"click[{value}]").valid for value in ("a[b", "search", "c]")] == [False, False, True]


def test_a_choice_is_another_state_though_the_text_is_the_same(make_environment):
    seen, chosen = play(make_environment(state_key="state"), PERFECT[:3])[-2:]
    assert seen.observation == chosen.observation
    assert seen.state_key != chosen.state_key
    assert play(make_environment(state_key="state"), PERFECT[:3])[-1].state_key == chosen.state_key


def test_the_rich_text_and_the_page_of_attributes_can_be_had(make_environment):
    step = play(make_environment(observation="text_rich", attributes_page=True), PERFECT[:3])[-1]
    assert step.observation.startswith("You have clicked black | white.\n")
    assert "click[attributes]" in step.admissible
    assert "click[attributes]" not in play(make_environment(), PERFECT[:3])[-1].admissible


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reward": "scores"}, r"environment.options.reward='scores': no such choice. Did you mean 'score'\?"),
        ({"observation": "html"}, "environment.options.observation='html': no such choice. Known: text, text_rich"),
        ({"state_key": "page"}, "environment.options.state_key='page': no such choice. Known: observation, state"),
        ({"max_steps": 0}, "max_steps is 0; it must be at least 1"),
    ],
)
def test_an_option_that_is_wrong_is_named(make_environment, options, message):
    with pytest.raises(ConfigError, match=message):
        make_environment(**options)
