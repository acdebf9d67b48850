"""The warm start imitates recorded conversations: what the assistant says, and nothing else."""

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest

from turnwise.base.errors import ConfigError, DataError
from turnwise.config import parse_config
from turnwise.engines.base import Sampling
from turnwise.engines.local import LocalEngine
from turnwise.environments.suites import make_suite
from turnwise.extensions.gateway.taught import read_conversations
from turnwise.models.tiny_chat import tiny_chat_policy
from turnwise.train.demonstrate import Teaching, of_conversations
from turnwise.train.warmstart import warm_policy

COLORS = ("red", "green", "blue")


def written(folder: Path, number: int = 30, name: str = "log.jsonl") -> str:
    lines = []
    for index in range(number):
        said = COLORS[index % 3]
        messages = [{"role": "user", "content": f"say {said}"}, {"role": "assistant", "content": said}]
        lines.append(json.dumps({"messages": messages}))
    (folder / name).write_text("\n".join(lines))
    return str(folder / name)


def config_of(log: str | None, **more):
    warmstart = {"demonstrations": log, "steps": 40, "games": 30, "observation_weight": 0.25} | more.pop(
        "warmstart", {}
    )
    model = {"name": "tiny-chat", "hidden_size": 32, "num_layers": 1, "max_context": 64} | more.pop("model", {})
    return parse_config({"environment": {"name": "tests.toys:Colors"}, "model": model, "warmstart": warmstart, **more})


def test_responses_weigh_1_and_all_else_as_observations_do(tmp_path):
    log = written(tmp_path, 3)
    config, recorded = config_of(log), read_conversations(log)
    policy = tiny_chat_policy([text for each in recorded for text in each.texts], config.model, config.prompt, seed=0)
    for ids, weights in of_conversations(Teaching.of(config), policy, recorded):
        assert set(weights.tolist()) == {0.25, 1.0}
        assert policy.tokenizer.decode(ids[weights == 0.25]).startswith("<|user|>say ")
        assert policy.tokenizer.decode(ids[weights == 1.0]) in [f"{color}<|end|>" for color in COLORS]


@pytest.fixture(scope="module")
def warm(tmp_path_factory):
    config = config_of(written(tmp_path_factory.mktemp("log")))
    return warm_policy(config, make_suite(config.environment))[0]


async def answer(policy, text: str) -> str:
    engine = LocalEngine(policy.model)
    sampling = Sampling(max_new_tokens=4, temperature=0.0, stop_ids=(policy.format.stop_id,))
    generation = await engine.generate(0, policy.format.prompt_ids(text, first=True), sampling)
    await engine.aclose()
    return policy.format.text(generation.token_ids)


@pytest.mark.parametrize("color", COLORS)
def test_a_policy_says_what_the_recorded_assistant_would_have_said(warm, color):
    assert asyncio.run(answer(warm, f"say {color}")) == color


def test_the_same_conversations_in_another_file_are_not_imitated_again(tmp_path):
    one, other = (config_of(written(tmp_path, name=name)) for name in ("one.jsonl", "other.jsonl"))
    suite = make_suite(one.environment)
    warm_policy(one, suite)
    assert warm_policy(other, suite)[1], "it came from the cache"
    more = config_of(written(tmp_path, 33, "more.jsonl"), warmstart={"games": 33})
    assert not warm_policy(more, suite)[1]


def test_games_limit_the_conversations_and_the_seed_chooses_them(tmp_path):
    log = written(tmp_path)
    recorded = read_conversations(log)

    def chosen(seed: int) -> list[list[int]]:
        config = config_of(log, warmstart={"games": 5}, run={"seed": seed})
        policy = tiny_chat_policy([*COLORS], config.model, config.prompt, seed=0)
        return [ids.tolist() for ids, _ in of_conversations(Teaching.of(config), policy, recorded)]

    assert len(chosen(0)) == 5
    assert chosen(0) == chosen(0) != chosen(1)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"model": {"max_context": 16}, "rollout": {"max_new_tokens": 2}, "long": True}, "none of 3 recorded conv"),
        ({"log": None}, "model.name='tiny-chat' has the vocabulary of warmstart.demonstrations"),
    ],
)
def test_what_cannot_be_imitated_is_refused(settings, told, tmp_path):
    long, log = settings.pop("long", False), settings.pop("log", written(tmp_path, 3))
    if long:
        line = {"messages": [{"role": "user", "content": "1 " * 40}, {"role": "assistant", "content": "red"}]}
        Path(log).write_text("\n".join([json.dumps(line)] * 3))
    config = config_of(log, **settings)
    with pytest.raises(ConfigError, match=told):
        warm_policy(config, make_suite(config.environment))


class Tasks:
    """What an agent is asked to do."""

    def __init__(self, config):
        pass

    def tasks(self, split):
        return COLORS


@pytest.mark.parametrize(
    ("model", "told"),
    [
        ("tiny-chat", "model.name='tiny-chat' has the vocabulary of warmstart.demonstrations"),
        ("smollm2", r"has no demonstrate\(\): set warmstart.demonstrations to a file of conversations, or set w"),
    ],
)
def test_an_agent_without_conversations_is_told_to_set_them(model, told):
    agent = {"environment": {"name": f"{__name__}:Tasks"}, "harness": {"run": "agent:play"}, "method": "grpo"}
    config = parse_config({"model": {"name": model}, **agent})
    with pytest.raises(ConfigError, match=told):
        warm_policy(config, make_suite(config.environment))


def test_a_file_that_is_missing_is_named(tmp_path):
    config = config_of(str(tmp_path / "none.jsonl"))
    with pytest.raises(DataError, match=r"none.jsonl.*No such file"):
        warm_policy(config, make_suite(config.environment))


def test_dagger_needs_more_than_recorded_conversations():
    with pytest.raises(ConfigError, match=r"warmstart.dagger_rounds=1 needs an expert that corrects the policy"):
        config_of("log.jsonl", warmstart={"dagger_rounds": 1})


def test_sizes_are_those_of_the_tiny_models():
    assert config_of("log.jsonl").model.hidden_size == 32
    with pytest.raises(ConfigError, match=r"model.train='lora' needs a pretrained model"):
        config_of("log.jsonl", model={"train": "lora"})
    assert np.isclose(config_of("log.jsonl").warmstart.observation_weight, 0.25)


def test_reasoning_of_its_own_is_imitated_with_what_is_said(tmp_path):
    said = {"role": "assistant", "content": "red", "reasoning_content": "it is red"}
    path = tmp_path / "log.jsonl"
    path.write_text(json.dumps({"messages": [{"role": "user", "content": "?"}, said]}) + "\n")
    (found,) = read_conversations(str(path))
    assert found.messages[1]["content"] == "<think>\nit is red\n</think>\n\nred"
