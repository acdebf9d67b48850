"""vLLM loads an adapter per role, answers each role with its own, and one that it does not use ends the run.

VLLM_PYTHON=<python with vllm> <python with turnwise and peft> -m pytest tests/crosscheck/vllm -m crosscheck
"""

import asyncio
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.gateway.test_roles import ROLES, config, weights
from tests.rollout.chat_models import tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

from turnwise.base.errors import ConfigError, EngineLost
from turnwise.config import override_config
from turnwise.engines.base import Sampling
from turnwise.engines.server import ServerEngine
from turnwise.engines.settings import EngineConfig
from turnwise.models.adapters import adapter_weights
from turnwise.models.pretrained import pretrained_policy
from turnwise.models.settings import ModelConfig, PromptConfig
from turnwise.objective.tokens import Sequences, generated_logprobs
from turnwise.rollout.trajectory import Trajectory, Turn
from turnwise.train.loop import train

sys.path.insert(0, str(Path(__file__).parent))
from test_vllm import PYTHON, Server

pytestmark = [
    pytest.mark.crosscheck,
    pytest.mark.skipif(not PYTHON, reason="VLLM_PYTHON names no python with vllm; see CONTRIBUTING.md"),
]
LORA = ("--enable-lora", "--max-lora-rank", "16", "--max-loras", "2", "--max-model-len", "256")
RUNTIME = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True"}


def with_base(folder: Path) -> Path:
    """Write a base model with a chat template, as large as vLLM wants on a CPU."""
    words, sizes = tokenizer("qwen2_5"), {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 2}
    torch.manual_seed(0)
    settings = LlamaConfig(
        vocab_size=len(words),
        **sizes,
        num_hidden_layers=2,
        max_position_embeddings=256,
        initializer_range=0.2,
        eos_token_id=words.eos_token_id,
        pad_token_id=words.pad_token_id,
    )
    LlamaForCausalLM(settings).save_pretrained(folder / "model")
    words.save_pretrained(folder / "model")
    return folder


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Server(with_base(tmp_path_factory.mktemp("lora")), more=LORA, variables=RUNTIME) as started:
        yield started


def adapted(server: Server):
    settings = ModelConfig(name=str(server.folder / "model"), train="lora", lora_rank=4, adapters=ROLES, max_context=64)
    policy = pretrained_policy(settings, PromptConfig(), seed=0)
    torch.manual_seed(1)
    for role in ROLES:
        for weight in adapter_weights(policy.model, role):
            weight.data.normal_(0, 0.1)
    return policy


def engine_of(server: Server, policy) -> ServerEngine:
    settings = EngineConfig(name="server", url=server.url, timeout_s=60.0, patience_s=120.0)
    return ServerEngine(policy.model, settings, max_context=64)


def test_each_role_is_answered_with_its_own_adapter_before_and_after_updates(server):
    policy = adapted(server)
    engine = engine_of(server, policy)

    async def sampled():
        await engine.update_weights()
        try:
            ask = {role: Sampling(max_new_tokens=8, actor=role) for role in ROLES}
            return {role: await engine.generate(n, [5, 6, 7], ask[role]) for n, role in enumerate(ROLES)}
        finally:
            await engine.aclose()

    for _ in range(2):
        told = asyncio.run(sampled())
        for role, given in told.items():
            for other in ROLES:
                turn = Turn("o", "o", [5, 6, 7], given.token_ids, given.logprobs, "r", False).put(actor=other)
                sequences = Sequences.from_trajectories([Trajectory(0, "", [turn])])
                with torch.no_grad():
                    own, _ = generated_logprobs(policy.model, sequences, np.arange(1))
                apart = float(np.abs(own.numpy() - given.logprobs).max())
                print(f"{role} as {other}: {apart:.2e} nats")
                assert (apart < 1e-3) == (other == role)
        for role in ROLES:
            for weight in adapter_weights(policy.model, role):
                weight.data.mul_(1.3)


def test_a_base_model_that_is_not_the_trainers_ends_the_run(server):
    policy = adapted(server)
    for name, weight in policy.model.named_parameters():
        if "lora_" not in name:
            weight.data.mul_(1.2)
    with pytest.raises(EngineLost, match="does not compute what the trainer does with the adapter 'planner'"):
        asyncio.run(engine_of(server, policy).update_weights())


def test_a_run_with_roles_trains_on_vllm(server, tmp_path):
    told = [
        "engine.name=server",
        f"engine.url={server.url}",
        "update.scoring=trainer",
        f"model.name={server.folder / 'model'}",
        "model.max_context=200",
    ]
    run = train(override_config(config(tmp_path, "both"), told))
    steps = [record for record in run.metrics() if "credit/mismatch_max" in record]
    print([record["credit/mismatch_max"] for record in steps])
    assert len(steps) == 2
    assert all(record["credit/mismatch_max"] < 1e-3 for record in steps)
    for role in ROLES:
        assert any(not torch.equal(a, b) for a, b in zip(weights(run, 0, role), weights(run, 2, role), strict=True))


def test_a_server_without_adapters_is_told_its_options(tmp_path):
    with Server(with_base(tmp_path)) as plain:
        settings = ModelConfig(name=str(plain.folder / "model"), train="lora", adapters=ROLES, max_context=64)
        engine = engine_of(plain, pretrained_policy(settings, PromptConfig(), seed=0))
        with pytest.raises(ConfigError, match=r"--enable-lora --max-lora-rank 16"):
            asyncio.run(engine.update_weights())
