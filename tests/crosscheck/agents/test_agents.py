"""The agents of examples/agents, with their real packages, play and learn through our gateway.

    make crosscheck-agents

First a script answers, so that each agent takes a known course; then a small policy does, which makes every mistake.
"""

import json
import sys
from pathlib import Path

import pytest
from tests.needs import skip_without
from tests.toys import ScriptedEngine

from turnwise.config import parse_config
from turnwise.engines.models import Models, NamedModel
from turnwise.extensions.gateway.agents import Harnesses
from turnwise.extensions.gateway.settings import HarnessConfig
from turnwise.models.settings import ModelConfig, PromptConfig
from turnwise.models.tiny_chat import tiny_chat_policy
from turnwise.rollout.collectors import make_collector
from turnwise.rollout.plays import play_tasks
from turnwise.rollout.record import read_rollouts
from turnwise.rollout.settings import RolloutConfig
from turnwise.train.loop import train
from turnwise.worlds.storeroom.stock import DEPOTS, Stock, expert

pytestmark = [pytest.mark.crosscheck, pytest.mark.filterwarnings("ignore")]  # the packages' own
FOLDER = Path(__file__).parents[3] / "examples" / "agents"
STOREROOM = {
    "with_openai:agent": "openai",
    "with_openai:responses_agent": "openai",
    "with_anthropic:agent": "anthropic",
    "with_openai_agents:agent": "agents",
    "with_smolagents:agent": "smolagents",
    "with_pydantic_ai:agent": "pydantic_ai",
    "with_langgraph:agent": "langgraph",
}
"""Agents that keep the storeroom, and the module of their package."""
COMMAND = f"{sys.executable} {FOLDER / 'with_command_line.py'}"
BASH = ("with_mini_swe_agent:agent", COMMAND)
"""Agents that add up numbers with bash."""


@pytest.fixture
def settings(monkeypatch):
    """Return the settings of an agent, whose package must be there."""
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin")

    def make(run: str) -> HarnessConfig:
        skip_without(STOREROOM.get(run, "minisweagent"))
        return HarnessConfig(run=run, timeout_s=100.0)

    return make


def written(message: dict) -> str:
    """Return a message of the assistant as the policy writes it."""
    calls = "".join(f"<tool_call>{json.dumps(call)}</tool_call>" for call in message.get("calls", ()))
    return (message["content"] or "") + calls


def storeroom_script(run: str, seed: int, *, right: bool = True) -> list[str]:
    """Answer a task: look in a wrong depot, then in the right one, then tell; or look in wrong ones only."""
    stock, results, texts = Stock(seed), list[str](), list[str]()
    part = stock.request.strip(".").split()[-1]
    here = next(depot for depot, parts in DEPOTS.items() if part in parts)
    wrong = [depot for depot in DEPOTS if depot != here]
    depots = [wrong[0], here] if right else wrong
    while len(texts) < 3 and "tool_calls" in (answer := expert(stock.request, results, depots)):
        function = answer["tool_calls"][0]["function"]
        results.append(stock.call(function["name"], function["arguments"]))
        texts.append(written({"content": "", "calls": [{**function, "arguments": json.loads(function["arguments"])}]}))
    if right:
        said = expert(stock.request, results, depots)["content"]
        last = {"content": "", "calls": [{"name": "final_answer", "arguments": {"answer": said}}]}
        texts.append(written(last) if "smolagents" in run else said)
    stock.close()
    return texts


def play_scripts(settings: HarnessConfig, tasks: list[int], scripts: list[list[str]]) -> list:
    policy = tiny_chat_policy(
        [text for script in scripts for text in script],
        ModelConfig(name="tiny-chat", hidden_size=16, max_context=30_000),
        PromptConfig(),
        seed=0,
    )
    fmt, left = policy.format, [iter(script) for script in scripts]

    def respond(number: int, turn: int) -> list[int]:
        # one id or more per character: not those that the tokenizer would make of the text
        return [*(each for letter in next(left[number % len(left)]) for each in fmt.encode(letter)), fmt.stop_id]

    models = Models(policy=NamedModel(policy, ScriptedEngine(respond)))
    models.publish()
    rollout = RolloutConfig(groups=len(tasks), group_size=1, max_new_tokens=64)
    played = play_tasks(make_collector(rollout, Harnesses(settings), str), models, tasks, seed=0)
    assert [each.failure for each in played] == [None] * len(tasks)
    return played


@pytest.mark.parametrize("run", STOREROOM)
def test_an_agent_is_rewarded_and_continues_every_turn(run, settings):
    seeds = {Stock(seed).request.split()[0]: seed for seed in range(20)}
    tasks = [*seeds.values()]
    assert len(tasks) == 3, "each kind of request"
    for played in play_scripts(settings(run), tasks, [storeroom_script(run, seed) for seed in tasks]):
        assert (played.reward, played.success, len(played.turns)) == (1.0, True, 3)
        assert all(turn.valid for turn in played.turns)
        rewrites = "smolagents" in run  # it tells calls and results in words of its own
        assert [turn.fresh for turn in played.turns] == [True, rewrites, rewrites]
        assert "not in this depot" in played.turns[1].observation
        assert "not in this depot" not in played.turns[2].observation


@pytest.mark.parametrize("run", STOREROOM)
def test_an_agent_that_comes_to_its_limit_earns_nothing_and_is_not_lost(run, settings):
    (played,) = play_scripts(settings(run), [3], [storeroom_script(run, 3, right=False)])
    assert (played.reward, played.success, len(played.turns)) == (0.0, False, 3)


@pytest.mark.parametrize("run", BASH, ids=("function", "command"))
def test_an_agent_with_bash_is_rewarded(run, settings):
    commands = ["cat numbers.txt", "awk '{s+=$1} END {print s}' numbers.txt > sum.txt"]
    commands.append("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")
    script = [
        written({"content": "", "calls": [{"name": "bash", "arguments": {"command": each}}]}) for each in commands
    ]
    (played,) = play_scripts(settings(run), [5], [script])
    assert (played.reward, len(played.turns)) == (1.0, 3)
    assert [turn.fresh for turn in played.turns] == [True, False, False]
    assert "0\n1\n2\n3\n4" in played.turns[1].observation


@pytest.mark.parametrize("run", [*STOREROOM, *BASH], ids=lambda run: run.split("/")[-1])
def test_a_small_policy_learns_from_an_agent(run, settings, tmp_path):
    settings(run)
    tasks = "with_mini_swe_agent:Tasks" if run in BASH else "turnwise.worlds.storeroom.stock:Tasks"
    long = "smolagents" in run
    folder = train(
        parse_config(
            {
                "method": "grpo",
                "run": {"folder": str(tmp_path), "name": "run", "steps": 1, "threads": 1, "device": "cpu"},
                "harness": {"run": run, "timeout_s": 100.0},
                "environment": {"name": tasks},
                "model": {"name": "tiny-chat", "max_context": 16_384 if long else 2048, "hidden_size": 32},
                "warmstart": {
                    "demonstrations": "turnwise.worlds.storeroom.stock:conversations",
                    "games": 60,
                    "steps": 30,
                    "learning_rate": 5e-3,
                    "observation_weight": 0.0,
                },
                "rollout": {"groups": 2, "group_size": 2, "max_new_tokens": 32},
                "evaluate": {"episodes": 0, "final_episodes": 0},
            }
        )
    )
    played, columns = read_rollouts(folder.rollouts / "step-000001.parquet")
    assert [each.failure for each in played] == [None] * 4
    assert all(each.turns for each in played)
    assert len(columns["advantage"]) == sum(len(each.turns) for each in played)
