"""One adapter per role: the planner's and the worker's weights, optimiser states and credit are their own."""

import asyncio
import urllib.error
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.gateway.asking import post, user
from tests.needs import needs
from tests.rollout.chat_models import chat_model
from tests.toys import trajectory
from turnwise.base.errors import ConfigError
from turnwise.commands.cli import main
from turnwise.config import parse_config
from turnwise.credit.methods.build import build_method
from turnwise.engines.base import Sampling
from turnwise.engines.build import make_engine
from turnwise.engines.settings import EngineConfig
from turnwise.models.adapters import adapter_weights, roles_of
from turnwise.models.policy import choose_trainable, load_policy
from turnwise.models.pretrained import pretrained_policy
from turnwise.models.settings import ModelConfig, PromptConfig
from turnwise.objective.tokens import Sequences, generated_logprobs
from turnwise.rollout.experience import Experience
from turnwise.rollout.record import read_rollouts
from turnwise.rollout.trajectory import Turn
from turnwise.train.checkpoint import checkpoint_at, latest_checkpoint, load_checkpoint
from turnwise.train.loop import train
from turnwise.train.recorded import read_step, recorded_batch
from turnwise.train.roles import by_role

pytestmark = needs("peft")
ROLES = ("planner", "worker")


class Tasks:
    """Four tasks."""

    def __init__(self, config):
        pass

    def tasks(self, split):
        return range(4)

    def task_name(self, task):
        return str(task)


def say(endpoint, text: str, actor: str) -> str:
    messages = [user(text)]
    try:
        answer = post(endpoint, "chat/completions", {"messages": messages}, **{"X-Turnwise-Actor": actor})
    except urllib.error.HTTPError as error:
        with error:
            raise RuntimeError(error.read()) from None
    return answer["choices"][0]["message"]["content"]


def both(task, endpoint) -> float:
    """Let a planner say what to do, a worker do it, and the planner look at it."""
    plan = say(endpoint, f"say {task}", "planner")
    done = say(endpoint, f"go to {plan}", "worker")
    say(endpoint, f"you said {done}", "planner")
    return float(len(plan) + len(done)) % 5


def planner_alone(task, endpoint) -> float:
    return float(len(say(endpoint, f"say {task}", "planner"))) % 5


def stranger(task, endpoint) -> float:
    say(endpoint, "say", "critic")
    return 1.0


def config(folder: Path, harness: str, **more: Any):
    return parse_config(
        {
            "method": "grpo",
            "run": {"folder": str(folder), "name": harness, "steps": 2, "threads": 1, "device": "cpu", **more},
            "harness": {"run": f"tests.gateway.test_roles:{harness}"},
            "environment": {"name": "tests.gateway.test_roles:Tasks"},
            "model": {
                "name": str(chat_model("qwen2_5")),
                "train": "lora",
                "lora_rank": 4,
                "adapters": ROLES,
                "max_context": 256,
            },
            "warmstart": {"steps": 0},
            "rollout": {"groups": 2, "group_size": 3, "max_new_tokens": 6},
            "update": {"learning_rate": 0.01, "warmup_steps": 0},
            "evaluate": {"episodes": 0, "final_episodes": 0},
            "checkpoint": {"every": 1},
        }
    )


def weights(folder, step: int, role: str) -> list[torch.Tensor]:
    return adapter_weights(load_checkpoint(checkpoint_at(folder, step))[1].model, role)


def equal(one, other) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_each_role_learns_with_credit_of_its_own_and_a_run_resumes(tmp_path, capsys):
    run = train(config(tmp_path / "a", "both"))
    assert main(["recredit", str(run.path)]) == 2
    assert "learned from the turns of each role" in capsys.readouterr().err
    for role in ROLES:
        assert not equal(weights(run, 0, role), weights(run, 1, role))
        assert not equal(weights(run, 1, role), weights(run, 2, role))
    played, columns = read_rollouts(run.rollouts / "step-000001.parquet")
    assert [each.failure for each in played] == [None] * 6
    turns = [turn for each in played for turn in each.turns]
    assert [turn.extras["actor"] for turn in turns] == ["planner", "worker", "planner"] * 6
    group = np.array([each.group for each in played for _ in each.turns])
    actor, advantage = np.array([turn.extras["actor"] for turn in turns]), columns["advantage"].astype(float)
    assert len({each.reward for each in played}) > 1
    for number in range(2):
        for role in ROLES:
            own = advantage[(group == number) & (actor == role)]
            assert own.sum() == pytest.approx(0.0, abs=1e-9), "compared with its own kind alone"
    returns = np.array([each.reward for each in played for _ in each.turns])
    for number in range(2):
        own = group == number
        assert ((advantage[own] > 0) == (returns[own] > returns[own].mean())).all(), "the whole return is that of both"
    again = train(config(tmp_path / "b", "both", steps=1))
    resumed = train(config(tmp_path / "b", "both"), resume=again.path)
    for role in ROLES:
        one, other = weights(run, 2, role), weights(resumed, 2, role)
        assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(one, other, strict=True))


class Roled(Tasks):
    """The same tasks, of an agent whose calls name who asks."""

    gives = ("role",)


def silent(task, endpoint) -> float:
    post(endpoint, "chat/completions", {"messages": [user(f"say {task}")]})
    return 1.0


@pytest.mark.parametrize(
    ("harness", "tasks", "told"),
    [
        ("silent", "Roled", "a response has no role, .* X-Turnwise-Actor in each call of an agent"),
        ("both", "Tasks", r"let yours fill it \(an agent: by X-Turnwise-Actor in each call\) and set the class attri"),
    ],
)
def test_an_agent_without_roles_is_told_how_to_name_them(harness, tasks, told, tmp_path):
    with pytest.raises(ConfigError, match=told):
        train(compared_by_role(tmp_path, harness, tasks))


def test_a_method_compares_the_turns_of_an_agents_role_with_each_other(tmp_path):
    run = train(compared_by_role(tmp_path, "both", "Roled"))
    batch = recorded_batch(read_step(run.rollouts / "step-000001.parquet"), invalid_penalty=0.1)
    role_R = np.array(batch.column("player", needed_by="the test"))
    assert role_R.tolist() == ["planner", "worker", "planner"] * 6
    advantage_R = read_rollouts(run.rollouts / "step-000001.parquet")[1]["advantage"].astype(float)
    assert advantage_R.any()
    for group in range(2):
        for role in ROLES:
            assert advantage_R[np.repeat([0, 1], 9) == group][role_R[:9] == role].sum() == pytest.approx(0.0, abs=1e-6)
    assert build_method("mars", {}).trace(batch)[0].advantage_R == pytest.approx(advantage_R, abs=1e-6)


def compared_by_role(folder: Path, harness: str, tasks: str):
    base = config(folder, harness, steps=1).model_dump(mode="json")
    base["model"] |= {"train": "top", "adapters": []}
    base["environment"]["name"] = f"tests.gateway.test_roles:{tasks}"
    return parse_config({**base, "method": "mars"})


def test_a_role_that_says_nothing_keeps_weights_and_optimiser_state(tmp_path):
    run = train(config(tmp_path, "planner_alone"))
    assert not equal(weights(run, 0, "planner"), weights(run, 2, "planner"))
    assert equal(weights(run, 0, "worker"), weights(run, 2, "worker"))
    _, policy, states = load_checkpoint(latest_checkpoint(run))
    sizes = [len(group["params"]) for group in states["optimizer"]["param_groups"]]
    assert sizes == [len(adapter_weights(policy.model, role)) for role in ROLES]
    assert sorted(states["optimizer"]["state"]) == [*range(sizes[0])], "only the planner's"


def test_an_actor_without_an_adapter_is_named(tmp_path):
    from turnwise.base.errors import RunError

    with pytest.raises(RunError, match=r"a call names the actor 'critic', and model.adapters has planner, worker"):
        train(config(tmp_path, "stranger"))


def adapted(seed: int = 0):
    """A policy whose two adapters differ in what they do."""
    settings = ModelConfig(name=str(chat_model("qwen2_5")), train="lora", lora_rank=4, adapters=ROLES, max_context=256)
    policy = pretrained_policy(settings, PromptConfig(), seed=seed)
    choose_trainable(policy.model, settings)
    torch.manual_seed(1)
    for role in ROLES:
        for weight in adapter_weights(policy.model, role):
            weight.data.normal_(0, 0.2)
    return policy


@pytest.mark.parametrize("apart", [False, True])
def test_each_role_is_sampled_from_its_own_adapter(apart):
    policy = adapted()
    engine = make_engine(EngineConfig(), "fp32", policy, apart=apart)

    async def play():
        await engine.update_weights()
        sampling = {role: Sampling(max_new_tokens=8, actor=role) for role in ROLES}
        told = {role: await engine.generate(number, [5, 6, 7], sampling[role]) for number, role in enumerate(ROLES)}
        longer = [5, 6, 7, *told["planner"].token_ids, 8]
        changed = await engine.generate(0, longer, sampling["worker"])  # in the planner's conversation
        await engine.aclose()
        return told, longer, changed

    told, longer, changed = asyncio.run(play())
    asked = [([5, 6, 7], told[role], role) for role in ROLES] + [(longer, changed, "worker")]
    for prompt, given, role in asked:
        for other in ROLES:
            turn = Turn("o", "o", prompt, given.token_ids, given.logprobs, "r", False).put(actor=other)
            made = trajectory(0)
            made.turns = [turn]
            sequences = Sequences.from_trajectories([made])
            with torch.no_grad():
                logprob, _ = generated_logprobs(policy.model, sequences, np.arange(1))
            close = np.allclose(logprob.numpy(), given.logprobs, atol=1e-4)
            assert close == (other == role)


def test_a_pass_over_both_roles_is_that_of_each_alone():
    policy, made = adapted(), []
    for number, role in enumerate((*ROLES, *reversed(ROLES))):
        one = trajectory(number)
        one.turns = [Turn("o", "o", [5, 6 + number], [9, 10, 11][: number + 1], [-1.0] * 3, "r", False).put(actor=role)]
        made.append(one)
    sequences = Sequences.from_trajectories(made)
    whole = generated_logprobs(policy.model, sequences, np.array([2, 0, 3, 1]))
    alone = [generated_logprobs(policy.model, sequences, np.array([each])) for each in (2, 0, 3, 1)]
    for column, parts in zip(whole, zip(*alone, strict=True), strict=True):
        assert torch.allclose(column, torch.cat(parts), atol=1e-5)
    whole[0].sum().backward()
    assert all(weight.grad is not None for role in ROLES for weight in adapter_weights(policy.model, role))


def test_adapters_are_saved_and_loaded(tmp_path):
    policy = adapted()
    policy.save(tmp_path)
    loaded = load_policy(tmp_path)
    assert roles_of(loaded.model) == ROLES
    assert sorted(path.parent.name for path in tmp_path.glob("*/adapter_model.safetensors")) == [*ROLES]
    for role in ROLES:
        assert equal(adapter_weights(loaded.model, role), adapter_weights(policy.model, role))


def test_a_step_is_divided_by_roles():
    def turn(actor: str, reward: float = 0.0) -> Turn:
        return Turn("o", "o", [1], [2], [-1.0], "r", False, reward=reward).put(actor=actor)

    played = [trajectory(0) for _ in range(2)] + [trajectory(1)]
    played[0].turns = [turn("planner", 1.0), turn("worker", 2.0), turn("planner"), turn("worker", 4.0)]
    played[1].turns = [turn("worker"), turn("planner", 8.0)]
    played[2].turns = [turn("worker", 16.0)]
    divided, order = by_role(Experience(played, np.array([True] * 3), {}, ["a", "b"], [7, 8]), ROLES)
    told = [(each.group, [(t.extras["actor"], t.reward) for t in each.turns]) for each in divided.used]
    assert told == [
        (0, [("planner", 3.0), ("planner", 4.0)]),
        (0, [("planner", 8.0)]),
        (1, [("worker", 3.0), ("worker", 4.0)]),
        (1, [("worker", 8.0)]),
        (3, [("worker", 16.0)]),
    ]
    assert [divided.tasks[each.group] for each in divided.used] == ["a", "a", "a", "a", "b"]
    flat = [t.extras["actor"] for each in divided.used for t in each.turns]
    assert [flat[place] for place in order] == [t.extras["actor"] for each in played for t in each.turns]
    assert sorted(order.tolist()) == [*range(7)]


ROLES_OF_AN_AGENT: dict[str, Any] = {
    "model": {"name": "x", "train": "lora", "adapters": ["a"]},
    "harness": {"run": "a:b"},
}


@pytest.mark.parametrize("names", [("0", "1"), ("layers", "self_attn"), ("lora_A", "lora_B")])
def test_a_role_may_have_the_name_of_a_part_of_the_model(names):
    settings = ModelConfig(name=str(chat_model("qwen2_5")), train="lora", lora_rank=4, adapters=names)
    model = pretrained_policy(settings, PromptConfig(), seed=0).model
    of_each = [adapter_weights(model, name) for name in names]
    assert len(of_each[0]) == len(of_each[1]) > 0
    every = {id(weight) for name, weight in model.named_parameters() if "lora_" in name}
    assert every == {id(weight) for own in of_each for weight in own}
    assert len(every) == sum(map(len, of_each))


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"model": {"adapters": ["a"]}}, "model.adapters needs model.train='lora'"),
        ({"model": {"name": "x", "train": "lora", "adapters": ["a", "a"]}}, "once each"),
        ({"model": {"name": "x", "train": "lora", "adapters": ["a/b"]}}, "expected names of letters"),
        ({"model": {"name": "x", "train": "lora", "adapters": ["a"]}}, "only an agent of your own names who asks"),
        (
            {"model": {"name": "x", "train": "lora", "adapters": ["a"]}, "harness": {"run": "a:b"}, "critic": {}},
            "a critic would read the states of all roles",
        ),
        ({**ROLES_OF_AN_AGENT, "monitor": {}}, r"and \[monitor\] scores all responses with one model"),
        (
            {**ROLES_OF_AN_AGENT, "update": {"passes": {"name": "seeupo"}}},
            "and update.passes.name='seeupo' makes a pass with them for every turn",
        ),
        ({"model": {"name": "x", "train": "lora", "adapters": ["default"]}}, "not 'default'"),
        (
            {
                "model": {"name": "x", "train": "lora", "adapters": ["a"]},
                "harness": {"run": "a:b"},
                "method": "vine_ppo",
                "continuations": {"number": 2},
            },
            "model.adapters learns from the turns of each role apart",
        ),
    ],
)
def test_settings_that_cannot_work_are_refused(more, told):
    with pytest.raises(ConfigError, match=told):
        parse_config(more)
