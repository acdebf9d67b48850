"""The storeroom's tasks, its expert, and its agent, which plays and learns through the gateway."""

import json
import random
import sys
from pathlib import Path

import pytest
from tests.needs import needs, skip_without
from tests.toys import ScriptedEngine

from turnwise.base.errors import ConfigError
from turnwise.base.imports import import_named
from turnwise.commands.cli import main
from turnwise.config import load_config
from turnwise.engines.models import Models, NamedModel
from turnwise.environments.settings import EnvironmentConfig
from turnwise.extensions.gateway.agents import Harnesses
from turnwise.extensions.gateway.settings import HarnessConfig
from turnwise.models.settings import ModelConfig, PromptConfig
from turnwise.models.tiny_chat import tiny_chat_policy
from turnwise.rollout.collectors import make_collector
from turnwise.rollout.plays import play_tasks
from turnwise.rollout.settings import RolloutConfig
from turnwise.train.loop import train
from turnwise.worlds.storeroom.stock import DEPOTS, Stock, Tasks, conversations, expert

AGENT = "turnwise.worlds.storeroom.agent"


def test_tasks_are_200_of_every_kind_and_train_and_held_out_have_none_in_common():
    tasks = Tasks(EnvironmentConfig())
    train_, valid = tasks.tasks("train"), tasks.tasks("valid")
    assert (len(train_), len(valid), set(train_) & set(valid)) == (150, 50, set())
    requests = [Stock(seed).request for seed in [*train_, *valid]]
    assert {request.split()[0] for request in requests} == {"Reserve", "Release", "Count"}
    assert len({request.split()[-1] for request in requests}) == sum(map(len, DEPOTS.values()))


def test_a_seed_draws_the_same_task_and_another_seed_another():
    one, same, other = Stock(3), Stock(3), Stock(4)
    rows = [stock._data.execute("SELECT * FROM stock").fetchall() for stock in (one, same, other)]
    assert one.request == same.request
    assert rows[0] == rows[1] != rows[2]


def requested(kind: str) -> tuple[Stock, str, str, int]:
    """A task of a kind, with depot, part and pieces that it is about; 0 pieces where it names none."""
    stock = next(stock for stock in map(Stock, range(99)) if stock.request.startswith(kind))
    _, *pieces, part = stock.request.strip(".").split()
    depot = next(depot for depot, parts in DEPOTS.items() if part in parts)
    return stock, depot, part, int(pieces[0]) if pieces else 0


@pytest.mark.parametrize("kind", ["Reserve", "Release"])
def test_a_change_counts_if_it_is_made_once_and_nothing_else_is(kind):
    def played(*amounts: int, part: str = "") -> bool:
        stock, depot, asked, pieces = requested(kind)
        arguments = {"depot": depot, "part": part or asked}
        for amount in amounts:
            stock.call(kind.lower(), json.dumps(arguments | {"pieces": pieces + amount}))
        return stock.solved("Done.")

    _, depot, part, _ = requested(kind)
    assert played(0)
    assert not played()
    assert not played(1)
    assert not played(0, 0)
    assert not played(0, part=next(other for other in DEPOTS[depot] if other != part))


def test_a_count_is_right_in_the_last_answer_and_with_nothing_changed():
    stock, depot, part, _ = requested("Count")
    pieces = json.loads(stock.call("count", json.dumps({"depot": depot, "part": part})))["pieces"]
    assert stock.solved(f" {pieces}\n")
    assert not stock.solved(f"{pieces + 1}")
    stock.call("reserve", json.dumps({"depot": depot, "part": part, "pieces": 1}))
    assert not stock.solved(f"{pieces}")


@pytest.mark.parametrize(
    ("name", "arguments", "told"),
    [
        ("count", '{"depot": "moon", "part": "bolt"}', "not in this depot"),
        ("reserve", '{"depot": "south", "part": "bolt", "pieces": 1}', "not in this depot"),
        ("count", '{"depot": "north"}', "wrong arguments"),
        ("count", "no JSON", "wrong arguments"),
        ("count", '["north", "bolt"]', "wrong arguments"),
        ("reserve", '{"depot": {}, "part": "bolt", "pieces": 1}', "wrong arguments"),
        ("solved", '{"answer": "1"}', "no such tool"),
    ],
)
def test_mistakes_are_results_of_a_tool(name, arguments, told):
    stock = Stock(0)
    assert json.loads(stock.call(name, arguments)) == {"error": told}


def test_recorded_conversations_try_depots_in_all_orders_and_do_not_tell_where_parts_are():
    recorded = [*conversations(60)]
    firsts, lengths, right = set(), set(), []
    for line in recorded:
        calls = [message["tool_calls"][0]["function"] for message in line["messages"] if "tool_calls" in message]
        firsts.add(json.loads(calls[0]["arguments"])["depot"])
        lengths.add(len(calls))
        last = json.loads(calls[-1]["arguments"])
        right.append(last["part"] in DEPOTS[last["depot"]])
    assert firsts == {*DEPOTS}
    assert lengths == {1, 2, 3, 4, 5, 6}
    assert sum(right) / len(right) < 0.35  # by chance a sixth
    held_out = {Stock(seed).request for seed in Tasks(EnvironmentConfig()).tasks("valid")}
    assert not held_out <= {line["messages"][0]["content"] for line in recorded}


def play_patiently(task, endpoint):
    return import_named(f"{AGENT}:play")(task, endpoint, calls=7)


@pytest.mark.parametrize(
    ("function", "least", "most"), [(f"{__name__}:play_patiently", 1, 1), (f"{AGENT}:play", 0.1, 0.6)]
)
def test_the_expert_solves_every_task_through_the_gateway_with_calls_enough(function, least, most):
    skip_without("openai")
    texts = [message["content"] or "" for line in conversations(20) for message in line["messages"]]
    policy = tiny_chat_policy(texts, ModelConfig(name="tiny-chat", max_context=1024), PromptConfig(), seed=0)
    fmt, tasks = policy.format, list(Tasks(EnvironmentConfig()).tasks("valid"))[:30]

    def respond(conversation: int, turn: int) -> list[int]:
        asked = str(fmt.tokenizer.decode(engine.calls[-1][1], skip_special_tokens=False))
        request = asked.split("<|user|>")[1].split("<|end|>")[0]
        results = [piece.split("<|end|>")[0] for piece in asked.split("<|tool|>")[1:]]
        message = expert(request, results, random.Random(request).sample([*DEPOTS], len(DEPOTS)))
        if message["content"] is not None:
            return [*fmt.encode(message["content"]), fmt.stop_id]
        function = message["tool_calls"][0]["function"]
        call = json.dumps({"name": function["name"], "arguments": json.loads(function["arguments"])})
        return [*fmt.encode(f"<tool_call>{call}</tool_call>"), fmt.stop_id]

    engine = ScriptedEngine(respond)
    models = Models(policy=NamedModel(policy, engine))
    models.publish()
    rollout = RolloutConfig(groups=1, group_size=1, max_new_tokens=200)
    played = play_tasks(make_collector(rollout, Harnesses(HarnessConfig(run=function)), str), models, tasks, seed=0)
    assert {each.failure for each in played} == {None}
    assert least <= sum(each.success for each in played) / len(played) <= most


def small_run(tmp_path, *overrides):
    own = [f"run.folder={tmp_path}", "run.name=run", "run.steps=2", "warmstart.steps=3", "warmstart.games=20"]
    small = ["rollout.groups=2", "rollout.group_size=2", "evaluate.final_episodes=4", "evaluate.every=0"]
    return load_config(Path("storeroom-agent"), [*own, *small, *overrides])


def play_for_luck(task, endpoint):
    return import_named(f"{AGENT}:play")(task, endpoint) + random.random()


def test_the_recipe_takes_two_steps(tmp_path):
    """The policy is hardly warmed up, so its rewards are drawn: those of a group would be equal."""
    skip_without("openai")
    folder = train(small_run(tmp_path, f"harness.run={__name__}:play_for_luck"))
    steps = [record for record in folder.metrics() if "rollout/success" in record]
    assert [record["rollout/failed_frac"] for record in steps] == [0.0, 0.0]
    assert all(record["update/grad_norm"] > 0 for record in steps)


@pytest.mark.slow
@needs("openai")
def test_the_recipe_raises_the_success_on_held_out_tasks(tmp_path):
    folder = train(load_config(Path("storeroom-agent"), [f"run.folder={tmp_path}"]))
    before, *_, after = [record["eval/success"] for record in folder.metrics() if "eval/success" in record]
    assert 0.1 <= before <= 0.4
    assert after >= before + 0.15


def test_a_missing_package_is_one_line_that_says_how_to_install_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "openai", None)  # importing it fails
    monkeypatch.delitem(sys.modules, AGENT, raising=False)
    assert main(["train", "storeroom-agent", f"run.folder={tmp_path}"]) == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert told.endswith("needs the package openai; pip install 'turnwise-rl[agent]'")
    assert not [*tmp_path.iterdir()]


def test_a_package_that_an_agent_of_ones_own_imports_is_named(tmp_path, monkeypatch):
    (tmp_path / "agent_without_package.py").write_text("import no_such_package.part\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"No module named 'no_such_package'; .* `pip install no_such_package`"):
        import_named("agent_without_package:play")
    with pytest.raises(ConfigError, match="No module named 'no_such_agent'; it must be in the working directory"):
        import_named("no_such_agent:play")
