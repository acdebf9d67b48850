"""A server gets adapters alone, one per role, and is seen to use them at every update."""

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from tests.gateway.test_roles import ROLES, adapted, config, weights
from tests.needs import needs
from tests.rollout.chat_models import chat_model
from tests.rollout.fake_vllm import GENERATE, FakeLora, FakeVllm
from tests.toys import trajectory

from turnwise.base.errors import ConfigError, EngineFault, EngineLost
from turnwise.config import override_config
from turnwise.engines.base import Sampling
from turnwise.engines.server import ServerEngine
from turnwise.engines.server_adapters import Adapters
from turnwise.engines.settings import EngineConfig
from turnwise.models.adapters import adapter_weights
from turnwise.models.policy import load_model
from turnwise.models.pretrained import pretrained_policy
from turnwise.models.settings import ModelConfig, PromptConfig
from turnwise.objective.tokens import Sequences, generated_logprobs
from turnwise.rollout.trajectory import Turn
from turnwise.train.loop import train

pytestmark = needs("peft")


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnwise.engines.connection.FIRST_WAIT_S", 0.02)


@pytest.fixture
def fake() -> Iterator[FakeLora]:
    with FakeLora(load_model(str(chat_model("qwen2_5")))) as server:
        yield server


def engine_of(fake: FakeVllm, policy) -> ServerEngine:
    settings = EngineConfig(name="server", url=fake.url, timeout_s=5.0, patience_s=5.0)
    return ServerEngine(policy.model, settings, max_context=64)


async def sampled(engine: ServerEngine, **more):
    """A response of each role to the same prompt, after an update of the weights."""
    try:
        ask = {role: Sampling(max_new_tokens=8, actor=role) for role in ROLES}
        return {role: await engine.generate(number, [5, 6, 7], ask[role]) for number, role in enumerate(ROLES)}
    finally:
        await engine.aclose()


def own_logprobs(policy, role: str, given) -> np.ndarray:
    made = trajectory(0)
    made.turns = [Turn("o", "o", [5, 6, 7], given.token_ids, given.logprobs, "r", False).put(actor=role)]
    with torch.no_grad():
        return generated_logprobs(policy.model, Sequences.from_trajectories([made]), np.arange(1))[0].numpy()


def test_each_role_is_answered_with_its_own_adapter_before_and_after_updates(fake):
    policy = adapted()
    engine = engine_of(fake, policy)
    for _ in range(2):
        asyncio.run(engine.update_weights())
        told = asyncio.run(sampled(engine))
        for role, other in zip(ROLES, reversed(ROLES), strict=True):
            assert np.allclose(own_logprobs(policy, role, told[role]), told[role].logprobs, atol=1e-4)
            assert not np.allclose(own_logprobs(policy, other, told[role]), told[role].logprobs, atol=1e-2)
        for role in ROLES:
            for weight in adapter_weights(policy.model, role):
                weight.data.mul_(0.5)
    assert len(fake.adapted) == 2, "those of earlier updates are unloaded"
    assert not [path for path, _ in fake.asked if path in ("/collective_rpc", "/pause")]


def test_a_server_that_does_not_use_an_adapter_ends_the_run_with_a_reason(fake):
    fake.used, policy = False, adapted()
    told = r"with the adapter 'planner': .* differ by \d\.\d+ nats .*, and by 0.000 from .* without it.*--enable-lora"
    with pytest.raises(EngineLost, match=told):
        asyncio.run(engine_of(fake, policy).update_weights())
    fake.used = True
    engine = engine_of(fake, policy)
    asyncio.run(engine.update_weights())
    fake.used = False
    with pytest.raises(EngineLost, match="does not compute what the trainer does"):
        asyncio.run(engine.update_weights())


def test_a_response_that_is_aborted_is_not_compared(fake, monkeypatch):
    """It says nothing of the adapters; another one is asked for."""
    policy, asked = adapted(), []
    generate = Adapters.generate

    async def first_is_aborted(self, body, actor):
        choice = await generate(self, body, actor)
        asked.append(actor)
        return choice.model_copy(update={"finish_reason": "abort", "logprobs": None}) if len(asked) == 1 else choice

    monkeypatch.setattr(Adapters, "generate", first_is_aborted)
    asyncio.run(engine_of(fake, policy).update_weights())
    assert len(asked) == 1 + len(ROLES)


def test_another_base_model_is_seen_even_if_adapters_change_nothing():
    settings = ModelConfig(name=str(chat_model("qwen2_5")), train="lora", adapters=ROLES, max_context=64)
    policy, other = pretrained_policy(settings, PromptConfig(), seed=0), load_model(str(chat_model("qwen2_5")))
    for weight in other.parameters():
        weight.data.add_(torch.randn_like(weight), alpha=0.1)
    with FakeLora(other) as fake, pytest.raises(EngineLost, match="does not compute what the trainer does"):
        asyncio.run(engine_of(fake, policy).update_weights())


def test_a_server_that_was_started_again_gets_the_adapters_again(fake):
    policy = adapted()
    engine = engine_of(fake, policy)
    asyncio.run(engine.update_weights())
    before = asyncio.run(sampled(engine))
    fake.stop()
    fake.start()
    assert not fake.adapted
    assert asyncio.run(sampled(engine)) == before


@pytest.mark.parametrize("lora", [None, {"max_lora_rank": 2, "max_loras": 4}, {"max_lora_rank": 16, "max_loras": 1}])
def test_a_server_without_room_for_adapters_is_told_its_options(fake, lora):
    fake.lora = lora
    with pytest.raises(ConfigError, match=r"--model .* --enable-lora --max-lora-rank 4 --max-loras 2, and VLLM_ALLOW"):
        asyncio.run(engine_of(fake, adapted()).update_weights())


def test_an_actor_without_an_adapter_is_named(fake):
    engine = engine_of(fake, adapted())

    async def ask():
        await engine.update_weights()
        try:
            await engine.generate(0, [5], Sampling(max_new_tokens=2, actor="critic"))
        finally:
            await engine.aclose()

    with pytest.raises(EngineFault, match=r"the actor 'critic', and model.adapters has planner, worker"):
        asyncio.run(ask())


def test_the_one_adapter_of_a_run_is_loaded_alone_too_if_the_server_can(fake):
    settings = ModelConfig(name=str(chat_model("qwen2_5")), train="lora", lora_rank=4, max_context=64)
    policy = pretrained_policy(settings, PromptConfig(), seed=0)
    for weight in adapter_weights(policy.model, "default"):
        weight.data.normal_(0, 0.2)
    engine = engine_of(fake, policy)
    asyncio.run(engine.update_weights())
    told = asyncio.run(sampled(engine))["planner"]
    assert np.allclose(own_logprobs(policy, "", told), told.logprobs, atol=1e-4)
    assert [name.rpartition("-")[2] for name in fake.adapted] == ["default"]


def test_a_run_with_roles_trains_on_a_server(tmp_path, fake):
    run = train(
        override_config(
            config(tmp_path, "both"),
            ["engine.name=server", f"engine.url={fake.url}", "engine.patience_s=5", "update.scoring=trainer"],
        )
    )
    steps = [record for record in run.metrics() if "credit/mismatch_max" in record]
    assert len(steps) == 2
    assert all(record["credit/mismatch_max"] < 1e-4 for record in steps)
    for role in ROLES:
        assert any(not torch.equal(a, b) for a, b in zip(weights(run, 0, role), weights(run, 2, role), strict=True))
    asked = [body["model"].rpartition("-")[2] for path, body in fake.asked if path == GENERATE]
    assert {*asked} == {*ROLES}
