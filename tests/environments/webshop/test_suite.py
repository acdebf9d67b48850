"""The suite: splits, settings, demonstrations, words."""

import json
import pickle
import random
from typing import Any

import pytest
from tests.environments.webshop.conftest import NOTES, item, write
from tests.needs import needs

from turnwise.base.errors import ConfigError, DataError
from turnwise.environments.check import check_environment
from turnwise.environments.settings import EnvironmentConfig
from turnwise.environments.suites import SuiteEnvironments, make_suite
from turnwise.environments.words import split_words
from turnwise.models.tiny import word_tokenizer
from turnwise.worlds.webshop.shop import Visit, load_shop
from turnwise.worlds.webshop.suite import Buyer, Webshop, noise_action

HUMAN = {
    "instruction": "i want a kettle.",
    "instruction_attributes": ["easy clean"],
    "instruction_options": ["copper", "2 l"],
}


@pytest.fixture
def many(tmp_path):
    """Return a folder with more goals than the test split takes: 600 for one product."""
    options = {"color": [f"c{number}" for number in range(30)], "size": [f"s{number}" for number in range(20)]}
    tray = item("B0TRAY0001", "Serving Tray", description="Carried daily.", bullets=["Bamboo"], options=options)
    note = {"instruction": "Find me trays", "instruction_attributes": ["easy clean"], "attributes": ["easy clean"]}
    return str(write(tmp_path, [tray, item("B0MUG00000", "Coffee Mug")], {**NOTES, "B0TRAY0001": note}))


def suite(data: str, max_steps: int = 15, **options) -> Any:
    return make_suite(EnvironmentConfig(name="webshop", max_steps=max_steps, options={"data": data, **options}))


@needs("Stemmer", "rapidfuzz")
def test_the_settings_reach_the_environment(many):
    made = suite(many, max_steps=2, reward="score", observation="text_rich", state_key="state")
    assert isinstance(made, Webshop)
    task = made.tasks("train")[0]
    environment: Any = made.environment(task)
    assert (environment.max_steps, environment.success_reward, environment.reward) == (2, 10.0, "score")
    assert (environment.observation, environment.state_key) == ("text_rich", "state")
    assert environment.start().state_key is not None
    assert made.task_name(task) == "500-B0TRAY0001"


@needs("Stemmer", "rapidfuzz")
@pytest.mark.parametrize("attributes_page", [True, False])
def test_the_page_of_attributes_is_offered_if_asked_for(many, attributes_page):
    made = suite(many, attributes_page=attributes_page)
    environment = made.environment(made.tasks("train")[0])
    environment.start()
    environment.step("search[serving tray]")
    step = environment.step("click[b0tray0001]")
    assert "click[description]" in step.admissible
    assert ("click[attributes]" in step.admissible) == attributes_page


@needs("Stemmer", "rapidfuzz")
def test_the_splits_of_the_original_have_validation_goals(many):
    made = suite(many, splits="original")
    assert made.tasks("valid") == suite(many).tasks("train"), "goals 500 to 1,499"
    assert made.tasks("test") == suite(many).tasks("test")
    with pytest.raises(DataError):
        made.tasks("train")


@needs("Stemmer", "rapidfuzz")
def test_splits_do_not_overlap_and_stay(many):
    train, test = (suite(many).tasks(split) for split in ("train", "test"))
    assert (len(train), len(test)) == (100, 500)
    assert not set(train) & set(test)
    assert suite(many).tasks("train") == train


@needs("Stemmer", "rapidfuzz")
def test_the_starter_of_workers_loads_the_shop(many):
    config = EnvironmentConfig(name="webshop", options={"data": many})
    copied = pickle.loads(pickle.dumps(SuiteEnvironments(config)))
    copied.preload_suite()
    assert copied.suite._shop.cache_info().currsize == 1


def test_nothing_is_read_before_it_is_needed(monkeypatch):
    monkeypatch.delenv("WEBSHOP_DATA", raising=False)
    made = make_suite(EnvironmentConfig(name="webshop"))
    with pytest.raises(DataError, match="set WEBSHOP_DATA"):
        made.tasks("train")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reward": "points"}, "environment.options.reward='points': no such choice"),
        ({"catalog": "small"}, r"environment 'webshop' has no option 'catalog'. Did you mean 'catalogue'\?"),
        ({"seed": "a"}, "environment.options.seed='a': expected a whole number, such as 0"),
    ],
)
def test_what_is_wrong_is_said_at_once(many, options, message):
    with pytest.raises(ConfigError, match=message):
        suite(many, **options)


@needs("Stemmer", "rapidfuzz")
def test_it_passes_the_conformance_check(many):
    for options in ({}, {"observation": "text_rich", "state_key": "state", "reward": "score", "attributes_page": True}):
        assert check_environment(suite(many, **options)) == []


@needs("Stemmer", "rapidfuzz")
@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_demonstrations_win_and_say_what_to_imitate(many, noise):
    made = suite(many, max_steps=30)
    played = [made.demonstrate(task, noise=noise, seed=number) for number, task in enumerate(made.tasks("train"))]
    won = [(task, turns) for task, turns in zip(made.tasks("train"), played, strict=True) if turns]
    assert len(won) >= 95
    for task, turns in won:
        environment = made.environment(task)
        environment.start()
        steps = [environment.step(turn.response) for turn in turns]
        assert steps[-1].info["success"]
        assert all(step.valid for step, turn in zip(steps, turns, strict=True) if turn.imitate)
        assert noise or all(turn.imitate for turn in turns)
    noise_actions = [not turn.imitate for _, turns in won for turn in turns]
    assert abs(sum(noise_actions) / len(noise_actions) - noise) < 0.1


@needs("Stemmer", "rapidfuzz")
@pytest.mark.parametrize("observation", ["text", "text_short"])
def test_the_buyer_goes_on_after_what_a_policy_did(many, observation):
    made = suite(many, max_steps=30, observation=observation)
    done = 0
    for number, task in enumerate(made.tasks("train")[:20]):
        noisy = made.demonstrate(task, noise=0.5, seed=number) or []
        played = [f" {turn.response} " for turn in noisy[: len(noisy) // 2]]  # white space, as a tokenizer may add it
        turns = made.correct(task, played, seed=0)
        assert turns is not None
        assert [turn.response for turn in turns[: len(played)]] == played
        assert all(turn.imitate for turn in turns[len(played) :])
        environment = made.environment(task)
        environment.start()
        assert [environment.step(turn.response) for turn in turns][-1].info["success"]
        done += bool(played)
    assert done > 10


@needs("Stemmer", "rapidfuzz")
def test_a_tiny_policys_right_responses_are_imitated(many):
    """Its words come back with spaces between them: "click [ buy now ]"."""
    made = suite(many, max_steps=30, observation="text_short")
    tokenizer = word_tokenizer(made.words(), [])
    right = 0
    for number, task in enumerate(made.tasks("train")[:5]):
        clean = made.demonstrate(task, noise=0.0, seed=number)
        spaced = [tokenizer.decode(tokenizer(turn.response)["input_ids"]) for turn in clean]
        turns = made.correct(task, spaced[:-1], seed=0)
        right += sum(turn.imitate for turn in turns)
        assert all(turn.imitate for turn in turns)
        assert spaced != [turn.response for turn in clean]
        other = made.correct(task, ["click[nothing]"], seed=0)
        assert [turn.imitate for turn in other] == [False] + [True] * len(clean)
    assert right > 10


@needs("Stemmer", "rapidfuzz")
def test_a_demonstration_depends_on_its_seed_only(many):
    made = suite(many)
    task = made.tasks("train")[0]
    assert made.demonstrate(task, noise=0.5, seed=1) == made.demonstrate(task, noise=0.5, seed=1)
    assert made.demonstrate(task, noise=0.5, seed=1) != made.demonstrate(task, noise=0.5, seed=2)


@needs("Stemmer", "rapidfuzz")
def test_a_demonstration_that_cannot_win_is_none(many):
    made = suite(many, max_steps=3)
    assert made.demonstrate(made.tasks("train")[0], noise=0.0, seed=0) is None


@needs("Stemmer", "rapidfuzz")
def test_what_the_reward_does_not_recognise_is_no_demonstration(tmp_path):
    note = {"B0": {"instruction": "Find me mugs", "instruction_attributes": ["mug"]}}
    made = suite(str(write(tmp_path, [item("B0", "Mug", options={"color": ["blue137", "blue"]})], note)))
    played = {task.options: made.demonstrate(task, noise=0.0, seed=0) for task in made.tasks("test")}
    assert played[("color", "blue137"),] is None
    assert [turn.response for turn in played[("color", "blue"),] or ()][-2:] == ["click[blue]", "click[buy now]"]


@needs("Stemmer", "rapidfuzz")
def test_the_buyer_searches_with_the_customers_words_without_the_price(small, kettle):
    visit = Visit(small[0], kettle)
    buyer = Buyer(small[0], kettle)
    actions = []
    while visit.score is None:
        actions.append(buyer.act(visit))
        visit.act(actions[-1])
    assert actions == [
        "search[easy clean kettles with stainless steel with color: black | white, and size: 3 l]",
        *("click[b0kettle01]", "click[black | white]", "click[3 l]", "click[buy now]"),
    ]
    assert visit.score.total == 1


@needs("Stemmer", "rapidfuzz")
def test_the_buyer_goes_on_from_wherever_it_is(small, kettle):
    shop = small[0]
    buyer = Buyer(shop, kettle)
    for wrong in (
        ["search[lamp]"],
        ["search[mug]", "click[b0mug00000]", "click[features]"],
        ["search[mug tea]", "click[next >]", "click[next >]"],
        ["search[kettle]", "click[b0kettle01]", "click[copper]", "click[description]"],
        ["search[unheard of]", "click[next >]"],
    ):
        visit = Visit(shop, kettle)
        for action in wrong:
            assert visit.act(action)
        for _ in range(10):
            if visit.score is None:
                assert visit.act(buyer.act(visit))
        assert visit.score is not None
        assert visit.score.total == 1, wrong


@needs("Stemmer", "rapidfuzz")
def test_an_option_with_a_bracket_is_searched_without_and_not_clicked(tmp_path):
    note = {"B0": {"instruction": "Find me mugs [new]", "instruction_attributes": ["mug"]}}
    data = str(write(tmp_path, [item("B0", "Mug", options={"color": ["black [2 pack]", "blue"]})], note))
    made = suite(data)
    goals = {task.options: task for task in made.tasks("test")}
    for task in goals.values():
        assert "[" in task.instruction
        environment = made.environment(task)
        (offered,) = environment.start().admissible
        assert environment.step(offered).valid
    blue, black = goals[("color", "blue"),], goals[("color", "black [2 pack]"),]
    turns = made.correct(blue, [], seed=0)
    assert [turn.response for turn in turns][1:] == ["click[b0]", "click[blue]", "click[buy now]"]
    assert made.correct(black, [], seed=0) is None, "the right colour cannot be chosen"
    visit = Visit(load_shop(data)[0], black)
    buyer = Buyer(visit.shop, visit.goal)
    while visit.score is None:
        assert visit.act(buyer.act(visit))
    assert visit.chosen == {}


@needs("Stemmer", "rapidfuzz")
def test_the_buyer_turns_pages(tmp_path):
    mugs = [item(f"B0A{number:07}", "mug mug") for number in range(25)]
    wanted = item("B0Z0000000", "Nothing in common", bullets="a mug that is so long in words that it comes last of all")
    shop, [goal] = load_shop(
        write(
            tmp_path, [*mugs, wanted], {"B0Z0000000": {"instruction": "Find me mug", "instruction_attributes": ["mug"]}}
        )
    )
    visit, buyer = Visit(shop, goal), Buyer(shop, goal)
    actions = []
    while visit.score is None:
        actions.append(buyer.act(visit))
        assert visit.act(actions[-1])
    assert actions == ["search[mug]", "click[next >]", "click[next >]", "click[b0z0000000]", "click[buy now]"]


@needs("Stemmer", "rapidfuzz")
def test_the_buyer_searches_for_the_title_where_the_customers_words_do_not_lead_there(tmp_path):
    note = {"B0": {"instruction": "Find me mugs", "instruction_attributes": ["x"]}}
    shop, [goal] = load_shop(write(tmp_path, [item("B0", "Nothing like it"), item("B1", "Mug")], note))
    assert Buyer(shop, goal).act(Visit(shop, goal)) == "search[nothing like it]"


@needs("Stemmer", "rapidfuzz")
def test_the_buyer_finds_the_options_that_people_name_without_a_name(folder):
    (folder / "items_human_ins.json").write_text(json.dumps({"B0KETTLE01": [HUMAN]}))
    shop, [goal] = load_shop(folder)
    visit, buyer = Visit(shop, goal), Buyer(shop, goal)
    while visit.score is None:
        assert visit.act(buyer.act(visit))
    assert visit.chosen == {"color": "copper", "size": "2 l"}
    assert visit.score.total == 1


@needs("Stemmer", "rapidfuzz")
def test_a_noise_action_never_ends_a_visit(shop, kettle):
    rng = random.Random(0)
    for _ in range(20):
        visit = Visit(shop, kettle)
        for _ in range(30):
            visit.act(noise_action(visit, rng))
        assert visit.score is None


@needs("Stemmer", "rapidfuzz")
def test_every_word_that_is_shown_or_played_is_known(many):
    for options in ({}, {"observation": "text_rich", "attributes_page": True}):
        made = suite(many, **options)
        known, rng = set(made.words()), random.Random(0)
        assert {"Carried", "Bamboo"} <= known
        for task in made.tasks("test")[:30]:
            step = made.environment(task).start()
            environment = made.environment(task)
            step = environment.start()
            while not step.ended:
                action = rng.choice(step.admissible)
                assert set(split_words(f"{step.observation} {action}")) - known == set()
                step = environment.step(action)


@needs("Stemmer", "rapidfuzz")
def test_a_policy_of_words_cannot_shop(many):
    """It writes spaces between words, and the original understands no action with a space before the bracket."""
    made = suite(many)
    tokenizer = word_tokenizer(made.words())
    environment = made.environment(made.tasks("train")[0])
    for action in [*environment.start().admissible, "search[serving tray]"]:
        written = str(tokenizer.decode(tokenizer.encode(action, add_special_tokens=False)))
        assert split_words(written) == split_words(action)
        assert " [ " in written
        assert not environment.step(written).valid
        assert environment.step(action).valid
