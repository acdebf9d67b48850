"""Tasks with the tools of MCP servers: one of a page, and a real one of the index."""

import asyncio
import importlib.metadata
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.needs import needs, reason

from turnwise.base.errors import ConfigError, EnvironmentFault
from turnwise.commands.cli import main
from turnwise.environments.base import Step
from turnwise.environments.settings import EnvironmentConfig
from turnwise.environments.suites import make_suite
from turnwise.environments.tamper_apart import tamper

pytest.importorskip("mcp", reason=reason("mcp"))

SERVER = """
import json, os, sys, time

notes = []
TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
TOOLS = [
    {"name": "add", "description": "Add a note.", "inputSchema": TEXT},
    {"name": "show", "description": "Show all notes.", "inputSchema": {"type": "object", "properties": {}}},
]

def told(text, wrong=False):
    return {"content": [{"type": "text", "text": text}], "isError": wrong}

def call(name, arguments):
    if name == "show":
        return told(" ".join(notes))
    text = arguments.get("text")
    if text == "die":
        print("out of paper", file=sys.stderr, flush=True)
        os._exit(3)
    if text == "hang":
        time.sleep(60)
    if not isinstance(text, str) or text == "raise":
        return told("text: expected a text", True)
    notes.append(text)
    open(os.path.join(sys.argv[1], "notes.txt"), "a").write(text)
    return told(f"{len(notes)} notes")

for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    method, given = asked["method"], asked.get("params") or {}
    if method == "initialize":
        info = {"name": "notes", "version": "1"}
        answer = {"protocolVersion": given["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": info}
    elif method == "tools/list":
        answer = {"tools": TOOLS}
    else:
        answer = call(given["name"], given.get("arguments") or {}) if method == "tools/call" else {}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": answer}), flush=True)
"""
RUN_SQLITE = "import mcp_server_sqlite; mcp_server_sqlite.main()"
REWARDS = """
async def kept(played):
    if played.answer == "boom":
        raise KeyError("x")
    shown = await played.call("show")
    in_file = (played.folder / "notes.txt").exists()
    return {"reward": float(shown == played.task["want"]) + 0.5 * in_file, "success": shown == played.task["want"]}

def answered(played):
    return float(played.task["want"] in " ".join(call["result"] for call in played.calls))
"""


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


@pytest.fixture
def config(tmp_path, monkeypatch) -> EnvironmentConfig:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mcp_rewards", raising=False)
    Path("server.py").write_text(SERVER)
    Path("mcp_rewards.py").write_text(REWARDS)
    tasks = [
        {"name": f"{number}", "prompt": f"note {number}", "want": f"{number}", "split": "train"} for number in "ab"
    ]
    Path("tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    return make_config(f"{sys.executable} server.py {{folder}}", "mcp_rewards:kept")


def make_config(command: str | list[str], reward: str, **more: Any) -> EnvironmentConfig:
    options = {"command": command, "tasks": "tasks.jsonl", "reward": reward, **more.pop("options", {})}
    return EnvironmentConfig(name="mcp", max_steps=4, options=options, **more)


def play(config: EnvironmentConfig, *responses: str, task: int = 0) -> list[Step]:
    async def played() -> list[Step]:
        suite = make_suite(config)
        environment: Any = suite.environment(suite.tasks("train")[task])
        steps = [await environment.start()]
        for response in responses:
            steps.append(await environment.step(response))
        return steps

    return asyncio.run(played())


def test_a_response_calls_tools_or_answers(config):
    first, *steps = play(config, call("add", text="a"), f"<think>{call('add', text='b')}</think>{call('show')}", "done")
    assert '"name": "add"' in first.observation
    assert first.observation.endswith("\n\nnote a")
    assert [step.observation for step in steps] == ["1 notes", "a", ""]
    assert [step.ended for step in steps] == [False, False, True]
    assert (steps[-1].reward, steps[-1].info, steps[-1].terminated) == (1.5, {"success": True}, True)


def test_each_trajectory_has_a_server_and_a_folder_of_its_own(config):
    async def both() -> list[Step]:
        suite = make_suite(config)
        pair: list[Any] = [suite.environment(task) for task in suite.tasks("train")]
        for each in pair:
            await each.start()
        await pair[0].step(call("add", text="a"))
        return [await each.step("done") for each in pair]

    assert [step.reward for step in asyncio.run(both())] == [1.5, 0.0]


def test_calls_that_are_wrong_take_their_turn_and_turns_end(config):
    _, *steps = play(config, "<tool_call>{</tool_call>", call("ad"), call("add", text="raise"), call("add", text="a"))
    assert [step.valid for step in steps] == [False, False, True, True]
    assert steps[0].observation == "The call cannot be read."
    assert steps[1].observation == "There is no tool 'ad'. Did you mean 'add'?"
    assert steps[2].observation.startswith("text: expected a text")
    assert (steps[3].truncated, steps[3].terminated, steps[3].reward) == (True, False, 1.5)


def test_a_long_result_is_cut(config):
    short = config.model_copy(update={"max_observation_chars": 700, "options": {**config.options, "explain": False}})
    _, step = play(short, call("add", text="x" * 9) + call("x" * 900))
    assert step.observation.endswith(" ... (cut off)")
    assert len(step.observation) <= 700


@pytest.mark.parametrize(
    ("response", "said"),
    [
        (call("add", text="die"), "the tool 'add': out of paper|the tool 'add': .*|.* has ended"),
        (call("add", text="hang"), "the tool 'add' did not answer in 2 s"),
        ("boom", "the reward function raised KeyError: 'x'"),
    ],
)
def test_what_fails_is_the_fault_of_its_trajectory(config, response, said):
    with pytest.raises(EnvironmentFault, match=said):
        play(config.model_copy(update={"step_timeout_s": 2.0}), response)


@pytest.mark.parametrize(
    ("command", "said"), [("no-such-program", "No such file"), (f"{sys.executable} -c 1/0", "ZeroDivisionError")]
)
def test_a_server_that_does_not_start_is_said(config, command, said):
    with pytest.raises(EnvironmentFault, match=said):
        play(make_config(command, "mcp_rewards:kept"))


OTHER_MCP = {
    "'Server' object has no attribute 'list_resources'": "import mcp.server; mcp.server.Server('x').list_resources()",
    "cannot import name 'FastMCP' from 'mcp.server": "from mcp.server import FastMCP",
    "No module named 'mcp.server.fastmcp'": "import mcp.server.fastmcp",
}


@pytest.mark.parametrize("said", OTHER_MCP)
def test_a_server_that_is_written_for_another_mcp_is_named(config, said):
    if importlib.metadata.version("mcp").startswith("1."):
        pytest.skip("mcp 1 has what these servers ask for")
    with pytest.raises(EnvironmentFault) as raised:
        play(make_config([sys.executable, "-c", OTHER_MCP[said]], "mcp_rewards:kept"))
    assert said in str(raised.value)
    assert "the server was written for another version of the package mcp" in str(raised.value)
    assert "its own environment with 'mcp<2'" in str(raised.value)


@needs("mcp_server_sqlite")
def test_the_server_of_databases_is_refused_under_mcp_2(config):
    """Its release of 2025.4.25 asks for mcp without a bound, and calls what mcp 2 does not have."""
    real = make_config(f"{sys.executable} -c {RUN_SQLITE!r} --db-path {{folder}}/x.db", "mcp_rewards:answered")
    with pytest.raises(EnvironmentFault, match="written for another version of the package mcp"):
        play(real)


@needs("SQLITE_SERVER")
def test_the_server_of_databases(config):
    Path("tasks.jsonl").write_text(json.dumps({"prompt": "How many?", "want": "2", "split": "train"}))
    real = make_config(f"{os.environ['SQLITE_SERVER']} --db-path {{folder}}/x.db", "mcp_rewards:answered")
    made, _, read, last = play(
        real,
        call("create_table", query="create table cats (name text)"),
        call("write_query", query="insert into cats values ('Tom'), ('Kit')"),
        call("read_query", query="select count(*) as n from cats"),
        "Two.",
    )[1:]
    assert (made.observation, read.observation) == ("Table created successfully", "[{'n': 2}]")
    assert (last.reward, last.info["success"]) == (1.0, True)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"command": 3}, "options.command=3: expected a text, or a list of texts"),
        ({"command": ["x", 3]}, r"options.command=\['x', 3\]: expected a text, or a list of texts"),
        ({"command": []}, "environment.options.command is missing"),
        ({"reward": ""}, "environment.options.reward is missing"),
        ({"reward": "mcp_rewards:kpt"}, "Did you mean 'kept'"),
        ({"tasks": "none.jsonl"}, "none.jsonl"),
        ({"rewards": "x"}, "has no option 'rewards'. Did you mean 'reward'"),
    ],
)
def test_options_that_are_wrong_are_said_at_first(config, more, said):
    with pytest.raises((ConfigError, ValueError), match=said):
        make_suite(config.model_copy(update={"options": {**config.options, **more}}))


def test_a_split_without_tasks_is_said(config):
    with pytest.raises(ConfigError, match=r"tasks\.jsonl has no tasks of the split 'valid'"):
        make_suite(config).tasks("valid")


def test_splits_stay_where_a_line_is_added(config):
    """Tasks without names are split by what they say, not by the number of their line."""
    told = [{"prompt": f"note {number}", "want": "x"} for number in range(60)]

    def splits(lines: list[dict[str, str]]) -> dict[str, str]:
        Path("tasks.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        suite = make_suite(config)
        return {task["prompt"]: split for split in ("train", "valid", "test") for task in suite.tasks(split)}

    before, after = splits(told), splits([{"prompt": "first", "want": "x"}, *told])
    assert len(before) == 60
    assert {prompt: after[prompt] for prompt in before} == before
    assert len(make_suite(config).tasks("all")) == 61


def test_all_tasks_are_all_whatever_split_they_name(config):
    assert [task["name"] for task in make_suite(config).tasks("all")] == ["a", "b"]


def as_arguments(config: EnvironmentConfig) -> list[str]:
    return [f"environment.options.{name}={json.dumps(value)}" for name, value in config.options.items()]


def test_check_env_finds_no_problem(config, capsys):
    assert main(["check-env", "mcp", *as_arguments(config), "environment.max_steps=4"]) == 0, capsys.readouterr().out


def test_attacks_do_not_succeed(config):
    assert [finding for finding in tamper(config) if finding.succeeded] == []


@needs("mcp_server_time")
def test_the_server_of_times(config):
    Path("tasks.jsonl").write_text(json.dumps({"prompt": "When?", "want": "T13:30:00+09:00", "split": "train"}))
    real = make_config(f"{sys.executable} -m mcp_server_time", "mcp_rewards:answered")
    asked = {"source_timezone": "UTC", "time": "04:30", "target_timezone": "Asia/Tokyo"}
    _, step, last = play(real, call("convert_time", **asked), "At half past one.")
    assert json.loads(step.observation)["time_difference"] == "+9.0h"
    assert (last.reward, last.info["success"]) == (1.0, True)
