"""The help desk: questions that its tools answer, and turn rewards that its reference gives."""

import json
import random

import numpy as np
import pytest
from tests.toys import small_config

from turnwise.base.errors import ConfigError, EnvironmentFault
from turnwise.credit.shaping.tool_calls import ToolCall
from turnwise.environments.check import check_environment
from turnwise.environments.settings import EnvironmentConfig
from turnwise.environments.suites import make_suite
from turnwise.environments.words import split_words
from turnwise.train.loop import train
from turnwise.worlds.helpdesk.desk import MOST_TURNS, QUESTIONS, draw_desk
from turnwise.worlds.helpdesk.suite import TOOLS, HelpdeskEnvironment, call_tool, read_call, written

ALL = tuple(QUESTIONS)


def suite(max_steps: int = 10, **options):
    return make_suite(EnvironmentConfig(name="helpdesk", max_steps=max_steps, options=options))


def play(desk, responses, **settings):
    environment = HelpdeskEnvironment(desk, **settings)
    environment.start()
    return [environment.step(response) for response in responses]


def solution(desk) -> list[str]:
    return [written(call) for call in (*desk.calls, ToolCall("answer", {"value": desk.answer}))]


@pytest.mark.parametrize("kind", ALL)
def test_the_reference_answers_every_question_and_gets_the_full_turn_rewards(kind):
    answers = set()
    for seed in range(40):
        desk = draw_desk(seed, (kind,))
        assert len(desk.calls) < MOST_TURNS[kind]
        steps = play(desk, solution(desk))
        assert [step.ended for step in steps] == [False] * len(desk.calls) + [True]
        assert (steps[-1].reward, steps[-1].info["success"]) == (10.0, True)
        np.testing.assert_allclose(steps[-1].info["step_rewards"], 1.0)
        assert all("error" not in step.observation and step.valid for step in steps)
        answers.add(desk.answer)
    assert len(answers) > 3


@pytest.mark.parametrize("kind", ALL)
def test_a_question_has_one_answer_which_its_calls_tell(kind):
    """Worked out again from what the tools say, without the rows."""
    for seed in range(40):
        desk = draw_desk(seed, (kind,))
        told = [call_tool(desk, call) for call in desk.calls]
        day = int(desk.question.split(" of day ")[1].rstrip("?"))
        (number,) = [row["order"] for row in told[1]["orders"] if row["day"] == day]
        order = told[2]
        assert desk.calls[2].arguments == {"order": number}
        if kind == "status":
            expected = order["status"]
        elif kind == "cheapest":
            prices = {row["price"]: row["name"] for row in told[3:]}
            assert len(prices) == len(order["lines"])
            expected = prices[min(prices)]
        else:
            most = max(order["lines"], key=lambda line: line["quantity"])
            assert desk.calls[3].arguments == {"product": most["product"]}
            assert sum(line["quantity"] == most["quantity"] for line in order["lines"]) == 1
            expected = str(told[3][kind])
        assert desk.answer == expected
        people = [(row.name, row.city) for row in desk.customers.values()]
        assert len(set(people)) == len(people)


def test_turn_rewards_follow_the_reference_and_not_the_outcome():
    desk = draw_desk(3, ("status",))
    first, second, third, answer = solution(desk)
    guess = 'answer {"value": "unknown"}'
    # the card of MatchTIR: one of two arguments right is (1 + 1 + 1) / (2 + 2)
    half = json.dumps({**desk.calls[0].arguments, "city": "nowhere"})
    steps = play(desk, [f"customer {half}", first, 'product {"product": 1}', guess])
    np.testing.assert_allclose(steps[-1].info["step_rewards"], [0.0, 1.0, 0.0, 0.0])
    steps = play(desk, [f"customer {half}", second, third, answer])
    np.testing.assert_allclose(steps[-1].info["step_rewards"], [0.75, 1.0, 1.0, 1.0])
    assert [len(step.info["step_rewards"]) for step in steps] == [1, 2, 3, 4]


MALFORMED = {
    "": "expected one tool call",
    "hello": "expected one tool call",
    "order 5": "expected one tool call",
    "order {5}": "the arguments are not JSON",
    "order {" + "[" * 100_000: "expected one tool call",
    'order {"order": ' + "[" * 5000 + "]" * 5000 + "}": "the arguments are not JSON",
    'order {"order": ' + "9" * 10_000 + "}": "the arguments are not JSON",
    'order {"order": "5"}': "order must be of type integer",
    'order {"order": true}': "order must be of type integer",
    'order {"order": 1e999}': "the arguments are not JSON",
    'order {"orders": 5}': "order takes order",
    'order {"order": 5, "day": 1}': "order takes order",
    'customer {"name": "ann"}': "customer takes name and city",
    'customer {"name": "ann", "city": ["oslo"]}': "city must be of type string",
    'cancel {"order": 5}': "no tool cancel",
    'answer {"value": null}': "value must be of type string",
    '<tool_call>{"name": "order", "arguments": {"order": 5}}</tool_call>' * 2: "expected one tool call",
    '<tool_call>{"name": "order"}</tool_call>': "order takes order",
    "<tool_call>{</tool_call>": "expected one tool call",
}


@pytest.mark.parametrize("response", MALFORMED, ids=[said[:30] for said in MALFORMED])
def test_a_malformed_call_is_invalid_takes_its_turn_and_says_what_is_wrong(response):
    (step,) = play(draw_desk(0, ALL), [response])
    assert not step.valid
    assert not step.ended
    assert json.loads(step.observation) == {"error": MALFORMED[response]}
    assert step.info["step_rewards"] == [0.0]


@pytest.mark.parametrize(
    "response",
    [
        'order {"order": 5}',
        ' order { " order " : 5 } ',
        'Let me see. <tool_call>{"name": "order", "arguments": {"order": 5}}</tool_call>',
        '<tool_call>{"name": "order", "arguments": {"order": 5}}',
    ],
)
def test_calls_are_read_in_the_forms_that_policies_write(response):
    assert read_call(response) == ToolCall("order", {"order": 5})


def test_an_answer_may_be_a_number():
    desk = draw_desk(0, ("price",))
    for value in (f'"{desk.answer}"', desk.answer):
        (step,) = play(desk, [f'answer {{"value": {value}}}'])
        assert step.info["success"]
        assert step.terminated
    (step,) = play(desk, ['answer {"value": "100"}'])
    assert (step.reward, step.observation) == (0.0, "wrong")


def test_the_limit_of_turns_truncates():
    desk = draw_desk(0, ALL)
    steps = play(desk, ["hello", "hello"], max_steps=2)
    assert [(step.truncated, step.terminated) for step in steps] == [(False, False), (True, False)]
    environment = HelpdeskEnvironment(desk)
    with pytest.raises(EnvironmentFault, match="before start"):
        environment.step("hello")
    environment.start()
    environment.step('answer {"value": "100"}')
    with pytest.raises(EnvironmentFault, match="after the end"):
        environment.step("hello")


def test_it_is_sound():
    assert check_environment(suite()) == []


def test_states_are_what_has_been_looked_up_in_any_order():
    desk = draw_desk(0, ALL)
    one = play(desk, ['order {"order": 5}', 'product {"product": 6}'])
    other = play(desk, ['product {"product": 6}', 'order {"order": 5}'])
    assert one[1].state_key == other[1].state_key != one[0].state_key
    assert one[1].state_key == (desk.question, ("order [('order', 5)]", "product [('product', 6)]"))  # texts in order
    assert one[1].observation != other[1].observation


def test_random_play_says_no_word_that_a_tiny_policy_does_not_know():
    made, chance = suite(), random.Random(0)
    known = set(made.words())
    for task in [*made.tasks("train")[:60], *made.tasks("valid")[:20]]:
        environment = made.environment(task)
        texts = [environment.start().observation]
        texts += [turn.response for turn in made.demonstrate(task, noise=0.3, seed=1)]
        for _ in range(9):
            tool = chance.choice(["orders", "order", "product", "nothing"])
            (key,) = TOOLS[tool]["parameters"]["properties"] if tool in TOOLS else ("x",)
            texts.append(environment.step(f'{tool} {{"{key}": {chance.randrange(100)}}}').observation)
        unknown = {word for text in texts for word in split_words(text)} - known - {"nothing"}
        assert not unknown


def test_demonstrations_win_and_imitate_the_reference_only():
    made = suite(max_steps=8)
    noisy = 0
    for task in made.tasks("train")[:40]:
        desk = draw_desk(task, ALL)
        turns = made.demonstrate(task, noise=0.4, seed=task)
        steps = play(desk, [turn.response for turn in turns], max_steps=8)
        assert steps[-1].info["success"]
        assert [turn.response for turn in turns if turn.imitate] == solution(desk)
        noisy += sum(not turn.imitate for turn in turns)
    assert noisy > 10
    assert made.demonstrate(5, noise=0.4, seed=1) == made.demonstrate(5, noise=0.4, seed=1)


def test_a_chat_model_reads_the_tools():
    first = suite(reading="text").environment(0).start().observation
    assert all(json.dumps(tool) in first for tool in TOOLS.values())
    assert first.endswith(suite().environment(0).start().observation)


def test_kinds_and_splits():
    only = suite(kinds="status, price", num_train=20, num_valid=10)
    assert {draw_desk(task, ("status", "price")).kind for task in only.tasks("train")} == {"status", "price"}
    assert not {*only.tasks("train")} & {*only.tasks("valid")}
    for options, said in (
        ({"kinds": "price,prize"}, "environment.options.kinds='prize': no such choice. Did you mean 'price'"),
        ({"reading": "long"}, "environment.options.reading='long': no such choice"),
        ({"matching": "best"}, "environment.options.matching='best': no such choice"),
        ({"max_steps": 6}, "environment.max_steps=6 is less than the 7 turns that a question of kind 'cheapest' takes"),
        ({"num_train": 0}, "expected a whole number of questions, 1 or more"),
    ):
        with pytest.raises(ConfigError, match=said):
            suite(**options)


def test_matchtir_trains_here_and_refuses_an_environment_without_a_reference(tmp_path):
    sections = {"method": "matchtir"}
    desk = {"name": "helpdesk", "max_steps": 5, "options": {"kinds": "status,price", "num_train": 8, "num_valid": 8}}
    folder = train(
        small_config(
            tmp_path,
            **sections,
            environment=desk,
            model={"max_context": 400},
            rollout={"max_new_tokens": 20},
            warmstart={"steps": 40, "games": 30},
        )
    )
    assert {record["step"] for record in folder.metrics()} >= {1, 2}
    with pytest.raises(ConfigError, match="does not provide; let yours fill it"):
        train(small_config(tmp_path / "other", **sections))
