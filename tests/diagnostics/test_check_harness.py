"""A harness that is played twice with the same answers: what varies, what it costs, and what that allows."""

import itertools
import json
import random
import time
import uuid
from typing import Any

import pytest
from tests.gateway.asking import ask, post, user
from tests.gateway.late import Late, play
from tests.gateway.test_agents import models_of
from tests.rollout import chat_models
from tests.toys import ScriptedEngine

from turnwise.base.errors import RunError
from turnwise.commands.cli import main
from turnwise.engines.models import Models, NamedModel
from turnwise.extensions.gateway.settings import HarnessConfig
from turnwise.lab.diagnostics.harness_check import KINDS, HarnessReport, around, check_harness, kind_of
from turnwise.lab.diagnostics.harness_show import allowed
from turnwise.models.pretrained import pretrained_policy
from turnwise.models.settings import ModelConfig, PromptConfig
from turnwise.rollout.settings import RolloutConfig

HERE = "tests.diagnostics.test_check_harness"
MODELS = models_of("tiny")
ROLLOUT = RolloutConfig(max_new_tokens=4)


def checked(name: str, tasks: int = 3, **more: Any) -> HarnessReport:
    settings = HarnessConfig(run=name if ":" in name else f"{HERE}:{name}", concurrent=1, **more)
    return check_harness(settings, range(tasks), [f"number {task}" for task in range(tasks)], MODELS, ROLLOUT)


def two_calls(endpoint: Any, seen: str) -> float:
    messages = [user("look")]
    messages += [ask(endpoint, messages), user(seen)]
    ask(endpoint, messages)
    return 0.5


def tell_the_time(task: Any, endpoint: Any) -> float:
    return two_calls(
        endpoint, f"ls gave a.txt, changed {time.strftime('%Y-%m-%d %H:%M:%S')}.{time.time_ns() % 10**9:09d}"
    )


def tell_an_id(task: Any, endpoint: Any) -> float:
    return two_calls(endpoint, f"made the order {uuid.uuid4()}")


def tell_in_any_order(task: Any, endpoint: Any) -> float:
    rows = [f"row {number}" for number in range(9)]
    random.shuffle(rows)
    return two_calls(endpoint, json.dumps(rows))


COUNT = itertools.count()


def name_the_rooms(task: Any, endpoint: Any) -> float:
    """Texts vary, and the header says that the states do not."""
    for number in range(2):
        content = {"messages": [user(f"It is {uuid.uuid4()} in room {number}")]}
        post(endpoint, "chat/completions", content, **{"X-Turnwise-State-Key": f"room {number}"})
    return 0.5


def count_up(task: Any, endpoint: Any) -> float:
    return two_calls(endpoint, f"there are {next(COUNT)} rows now")


def ask_more_often(task: Any, endpoint: Any) -> float:
    for _ in range(1 + (next(COUNT) > 2)):
        ask(endpoint, [user("look")])
    return 0.5


def pay_less(task: Any, endpoint: Any) -> float:
    ask(endpoint, [user("look")])
    return float(next(COUNT) < 3)


def fail_again(task: Any, endpoint: Any) -> float:
    ask(endpoint, [user("look")])
    if next(COUNT) > 2:
        raise ValueError("the table exists already")
    return 0.5


def ask_in_any_order(task: Any, endpoint: Any) -> float:
    for text in ("go", "look") if next(COUNT) < 3 else ("look", "go"):
        ask(endpoint, [user(text)])
    return 0.5


@pytest.mark.parametrize(
    ("name", "kind", "where"),
    [
        ("tell_the_time", "time", "message 3 (user)"),
        ("tell_an_id", "id", "message 3 (user)"),
        ("tell_in_any_order", "order", "message 3 (user)"),
        ("count_up", "number", "message 3 (user)"),
        ("ask_more_often", "calls", "the number of calls"),
        ("fail_again", "failure", "the end"),
    ],
)
def test_what_varies_is_named_with_its_place_and_replays_are_closed(name, kind, where):
    global COUNT
    COUNT = itertools.count()
    found = checked(name)
    assert (found.repeated, found.rate, found.played) == (0, 0.0, 3)
    assert found.varies == {kind: 3}
    first = found.differences[0]
    assert (first.task, first.where, first.kind) == ("number 0", where, kind)
    assert first.before != first.after
    assert kind in KINDS
    told = dict(allowed(found))
    assert told["analyse fidelity"] == "no: 0% of the trajectories repeat, at least 50% must"
    assert told["methods that compare trajectories: grpo, rloo, trloo, ..."].startswith(
        "they run, but all rewards are 0.5"
    )


def test_calls_in_another_order_are_said_and_open_replays_all_the_same():
    global COUNT
    COUNT = itertools.count()
    found = checked("ask_in_any_order")
    assert [(each.where, each.kind) for each in found.differences] == [("the order of calls", "order")] * 3
    assert (found.repeated, found.prompts_again, found.prompts) == (3, 6, 6)
    assert dict(allowed(found))["analyse fidelity"] == "yes"


def test_a_history_that_is_sent_again_counts_its_difference_once():
    found = checked("tell_in_any_order")
    assert (found.prompts, found.prompts_again, found.states) == (6, 3, 3)
    assert len(found.differences) == 3


def test_rewards_that_differ_are_said_though_all_prompts_came_again():
    global COUNT
    COUNT = itertools.count()
    found = checked("pay_less")
    assert (found.prompts_again, found.prompts, found.rewards_agree, found.repeated) == (3, 3, 0, 0)
    assert found.rewards == [1.0, 1.0, 1.0]


def test_a_harness_that_repeats_opens_everything_and_its_costs_are_counted():
    found = checked("tests.gateway.late:play", tasks=4)
    assert (found.repeated, found.played, found.failed, found.differences) == (4, 4, 0, [])
    assert (found.prompts, found.prompts_again, found.states, found.rewards_agree) == (12, 12, 12, 4)
    assert found.seconds_alone > 0
    assert 3 <= found.written <= 12
    lengths = [len(MODELS.policy.policy.format.prompt_ids(Late(0).start(), first=True))]
    assert found.read > 3 * lengths[0]
    assert {answer for what, answer in allowed(found) if "trajectories" not in what} == {
        "yes",
        "yes: 100% of the state keys came again",
    }


def play_all_but_one(task: Any, endpoint: Any) -> Any:
    if task == 1:
        raise OSError("no such file")
    return play(task, endpoint)


def refuse(task: Any, endpoint: Any) -> Any:
    raise OSError("the data base is gone")


def test_tasks_that_fail_are_counted_and_none_that_plays_is_an_error():
    found = checked("play_all_but_one")
    assert (found.tasks, found.failed, found.played, found.repeated) == (3, 1, 2, 2)
    assert "no such file" in found.cause
    with pytest.raises(RunError, match=r"no task of 3 could be played: .*the data base is gone"):
        checked("refuse")


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        ("it took 0.31 s", "it took 0.29 s", "time"),
        ("at 12:03:10, ok", "at 12:03:11, ok", "time"),
        ('{"created": 1764244800}', '{"created": 1764244923}', "time"),
        ("in /tmp/tmpab12xyz/db", "in /tmp/tmpq9_1xyz/db", "id"),
        ("<db.Row at 0x7f12ab34>", "<db.Row at 0x7f12cd56>", "id"),
        ("{'b', 'a'}", "{'a', 'b'}", "order"),
        ("balance -12.50", "balance -13.50", "number"),
        ("ann", "bob", "text"),
        ("", "x", "text"),
    ],
)
def test_kinds_of_differences(before, after, kind):
    assert kind_of(before, after) == kind_of(after, before) == kind


def test_what_is_shown_of_a_long_text_is_where_it_differs():
    shown = around("x" * 500 + "red" + "y" * 500, "x" * 500 + "blue")
    assert shown.startswith("...")
    assert "xxred" in shown
    assert len(shown) < 60


TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
CALL = '<tool_call>{"name": "look", "arguments": {"at": "red"}}</tool_call>'


def show_the_ids_of_calls(task: Any, endpoint: Any) -> float:
    """As some packages do, with the history as text."""
    messages = [user(f"task {task}")]
    for _ in range(2):
        answer = ask(endpoint, messages, tools=[TOOL])
        called = " ".join(each["id"] for each in answer["tool_calls"])
        messages += [{**answer, "tool_calls": None, "content": f"called {called}"}, user(f"{called} gave a cat")]
    return 1.0


def test_calls_have_the_ids_that_they_had_when_they_are_answered_from_the_record():
    settings = ModelConfig(name=str(chat_models.chat_model("qwen2_5")), max_context=1000)
    policy = pretrained_policy(settings, PromptConfig(), seed=0)
    ids = [*policy.format.encode(CALL * 2), policy.format.stop_id]
    models = Models(policy=NamedModel(policy, ScriptedEngine(lambda conversation, turn: ids)))
    models.publish()
    settings = HarnessConfig(run=f"{HERE}:show_the_ids_of_calls", concurrent=1)
    found = check_harness(settings, [0, 1], ["0", "1"], models, ROLLOUT)
    assert [str(each) for each in found.differences] == []
    assert (found.repeated, found.prompts) == (2, 4)


def test_states_that_the_harness_names_are_compared_by_their_names():
    found = checked("name_the_rooms")
    assert (found.states, found.prompts_again, found.prompts) == (6, 0, 6)


SIZES = ("model.hidden_size=16", "model.num_layers=1", "model.num_heads=2", "model.max_context=128")


def test_the_command_prints_one_screen_or_json(capsys, tmp_path):
    options = ["environment.name=tests.gateway.late:FewLate", *SIZES, "run.threads=1", "--tasks", "3"]
    assert main(["check-harness", "tests.gateway.late:play", *options]) == 0
    page = capsys.readouterr().out
    assert "tests.gateway.late:play: 3 of 8 tasks" in page
    assert "3 of 3 trajectories (100%), 9 of 9 prompts word for word" in page
    assert len(page.splitlines()) < 30
    recipe = tmp_path / "late.toml"
    recipe.write_text('harness = { run = "tests.gateway.late:play" }\nwarmstart = { steps = 0 }\n')
    assert main(["check-harness", str(recipe), *options, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["rate"], told["prompts"], told["varies"]) == (1.0, 9, {})
    assert told["allowed"]["prefix_sampling"] == "yes"


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        (["frozen-lake-tiny-grpo"], "frozen-lake-tiny-grpo has no [harness], so turnwise plays its environment"),
        (["no_such_agent:play"], "cannot import 'no_such_agent'"),
        (["no_such_agent:play", "environment.name=no_such_game"], "cannot import 'no_such_agent'"),
        ([f"{HERE}:refuse", "environment.name=tests.gateway.late:FewLate", *SIZES], "no task of 8 could be played"),
    ],
)
def test_mistakes_are_one_line(arguments, cause, capsys):
    assert main(["check-harness", *arguments]) == 2
    told = capsys.readouterr().err.strip().splitlines()
    assert cause in told[-1]
    assert not any("Traceback" in line for line in told)
