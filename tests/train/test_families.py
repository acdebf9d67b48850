"""Models that scale their logits, or whose layers drop keywords, have the numbers of transformers."""

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.rollout.chat_models import tokenizer
from tests.toys import small_config
from transformers import (
    AutoModelForCausalLM,
    Cohere2Config,
    Cohere2ForCausalLM,
    FalconConfig,
    FalconForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    NemotronConfig,
    NemotronForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    StableLmConfig,
    StableLmForCausalLM,
)

from turnwise.base.errors import ConfigError, DataError
from turnwise.config import parse_config
from turnwise.engines.base import Sampling
from turnwise.engines.local import LocalEngine
from turnwise.extensions.tinker.served import longest_of
from turnwise.models.logits import logit_factor
from turnwise.models.policy import SETTINGS, load_model, load_policy
from turnwise.models.pretrained import pretrained_policy
from turnwise.models.settings import ModelConfig, PromptConfig
from turnwise.objective.packing import can_pack
from turnwise.rollout.record import read_rollouts
from turnwise.train.loop import train
from turnwise.train.warmstart import _cross_entropy

WORDS = tokenizer("qwen2_5")
SIZES: dict[str, Any] = {
    "vocab_size": len(WORDS),
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "initializer_range": 0.4,
    "bos_token_id": None,
    "eos_token_id": WORDS.eos_token_id,
    "pad_token_id": WORDS.pad_token_id,
}
SCALED = {
    "granite": lambda: GraniteForCausalLM(GraniteConfig(**SIZES, logits_scaling=8.0, embedding_multiplier=12.0)),
    "cohere2": lambda: Cohere2ForCausalLM(
        Cohere2Config(**SIZES, logit_scale=0.25, layer_types=["full_attention"] * 2, tie_word_embeddings=False)
    ),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
}
FACTORS = {"granite": 1 / 8, "cohere2": 0.25, "llama": 1.0}
PACKS = {
    "llama": (True, SCALED["llama"]),
    "granite": (True, SCALED["granite"]),
    "stablelm": (False, lambda: StableLmForCausalLM(StableLmConfig(**SIZES))),
    "nemotron": (False, lambda: NemotronForCausalLM(NemotronConfig(**SIZES))),
    "falcon": (False, lambda: FalconForCausalLM(FalconConfig(**SIZES))),
}


def saved(folder: Path, make: Any) -> str:
    torch.manual_seed(0)
    make().save_pretrained(folder)
    WORDS.save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("family", SCALED)
def test_sampled_and_imitated_tokens_have_the_probabilities_of_the_model(tmp_path, family):
    name = saved(tmp_path / "model", SCALED[family])
    model, theirs = load_model(name), AutoModelForCausalLM.from_pretrained(name).eval()
    assert logit_factor(model) == pytest.approx(FACTORS[family], rel=1e-4)
    prompt = [5, 9, 11]

    async def sample() -> Any:
        engine = LocalEngine(model)
        sampling = Sampling(max_new_tokens=8, stop_ids=(), temperature=0.7)
        made = await engine.generate(0, prompt, sampling)
        await engine.aclose()
        return made

    made = asyncio.run(sample())
    with torch.no_grad():
        logits = theirs(input_ids=torch.tensor([[*prompt, *made.token_ids]])).logits[0].float()
    expected = torch.log_softmax(logits[2:-1] / 0.7, -1)[range(8), made.token_ids]
    np.testing.assert_allclose(made.logprobs, expected, atol=2e-5)
    ids = np.array([*prompt, *made.token_ids])
    weights = np.array([0.0] * 3 + [1.0] * 8, dtype=np.float32)
    told = torch.log_softmax(logits[2:-1], -1)[range(8), made.token_ids].sum()
    assert -_cross_entropy(model, [(ids, weights)]).item() == pytest.approx(told.item(), rel=1e-4)


@pytest.mark.parametrize("family", PACKS)
def test_trees_are_packed_only_where_every_layer_follows_their_paths(tmp_path, family):
    """A run that branches has the probabilities that its own checkpoint has in transformers."""
    packs, make = PACKS[family]
    name = saved(tmp_path / "model", make)
    model = load_model(name)
    assert can_pack(model) is packs
    assert can_pack(model) is packs, "kept"
    collector = {"name": "branching", "rule": "tree_grpo", "trees": 2, "expand": 2}
    environment = {"name": "tests.train.test_chat_models:Graded"}
    sections = {"rollout": {"collector": collector, "groups": 2, "group_size": 6}, "environment": environment}
    data = small_config(tmp_path, **sections, run={"steps": 1}).model_dump(mode="json")
    run = train(parse_config({**data, "model": {"name": name, "max_context": 400}}))
    (record,) = [each for each in run.metrics() if "rollout/success" in each]
    assert record["credit/mismatch_max"] < 1e-4
    theirs = AutoModelForCausalLM.from_pretrained(run.path / "checkpoints" / "step-000000").eval()
    differences = []
    for trajectory in read_rollouts(run.table("rollouts", 1))[0]:
        ids: list[int] = []
        for turn in trajectory.turns:
            ids = [*([] if turn.fresh else ids), *turn.prompt_ids, *turn.response_ids]
            with torch.no_grad():
                logprobs = torch.log_softmax(theirs(input_ids=torch.tensor([ids])).logits[0].float(), -1)
            count = len(turn.response_ids)
            expected = logprobs[-count - 1 : -1][range(count), turn.response_ids]
            differences += (expected - torch.tensor(turn.behavior_logprobs)).abs().tolist()
    assert max(differences) < 1e-4


def test_logits_that_are_no_multiple_are_refused(tmp_path):
    capped = Gemma3TextConfig(**SIZES, head_dim=8, final_logit_softcapping=30.0)
    name = saved(tmp_path / "capped", lambda: Gemma3ForCausalLM(capped))
    with pytest.raises(ConfigError, match=r"caps its logits \(final_logit_softcapping\), which is not supported"):
        load_model(name)


def longrope(most: int) -> Any:
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
    return Phi3ForCausalLM(
        Phi3Config(**{**SIZES, "max_position_embeddings": 400}, original_max_position_embeddings=most,
                   rope_parameters={**rope, "original_max_position_embeddings": most})
    )  # fmt: skip


def test_a_context_in_which_conversations_change_each_other_is_refused(tmp_path):
    """With longrope a longer row turns the keys of all rows by other factors."""
    name = saved(tmp_path / "model", lambda: longrope(64))
    with pytest.raises(ConfigError, match=r"exceeds the 64 tokens of the original context.*max_context=64 or less"):
        pretrained_policy(ModelConfig(name=name, max_context=100), PromptConfig(), seed=0)
    assert pretrained_policy(ModelConfig(name=name, max_context=64), PromptConfig(), seed=0).max_context == 64
    pretrained_policy(ModelConfig(name=name, max_context=64), PromptConfig(), seed=0).save(tmp_path / "policy")
    assert load_policy(tmp_path / "policy").max_context == 64
    settings = json.loads((tmp_path / "policy" / SETTINGS).read_text())
    (tmp_path / "policy" / SETTINGS).write_text(json.dumps({**settings, "max_context": 100}))  # as of earlier versions
    with pytest.raises(DataError, match="exceeds the 64 tokens of the original context"):
        load_policy(tmp_path / "policy")
    assert longest_of(load_model(name)) == 64
    llama = saved(tmp_path / "llama", SCALED["llama"])
    with pytest.raises(ConfigError, match=r"exceeds the 1024 tokens that .* can read; lower it"):
        pretrained_policy(ModelConfig(name=llama, max_context=2000), PromptConfig(), seed=0)


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("family", ["gpt2", "dynamic", "longrope"])
def test_padding_is_at_no_position_that_the_model_does_not_have(tmp_path, family, static):
    """A long conversation beside short ones: the cache has places beyond what any of them uses."""
    most = 100
    dynamic = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}
    small = {**SIZES, "max_position_embeddings": most}
    make = {
        "gpt2": lambda: GPT2LMHeadModel(
            GPT2Config(vocab_size=len(WORDS), n_embd=32, n_layer=2, n_head=4, n_positions=most, initializer_range=0.4)
        ),
        "dynamic": lambda: LlamaForCausalLM(LlamaConfig(**small, rope_parameters=dynamic)),
        "longrope": lambda: longrope(most),
    }[family]
    model = load_model(saved(tmp_path / "model", make))
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "model").eval()

    async def play() -> list[tuple[list[int], Any]]:
        engine, told = LocalEngine(model, graphs=static, patience=0), []

        async def converse(number: int, wait: int, first: int, turns: int) -> None:
            ids = np.random.default_rng(number).integers(3, 97, first).tolist()
            for _ in range(wait):
                await asyncio.sleep(0)
            for _ in range(turns):
                made = await engine.generate(number, ids, Sampling(max_new_tokens=4, stop_ids=(), seed=3))
                told.append((ids, made))
                ids = [*ids, *made.token_ids, 7, 8]

        for wait in range(0, 30, 3 if static else 1):
            lengths = ((0, 0, 76, 3), (1, wait, 30, 2), (2, wait, 40, 2), (3, wait, 30, 2))
            await asyncio.gather(*(converse(10 * wait + place, *each) for place, *each in lengths))
            engine.close()
        await engine.aclose()
        return told

    for ids, made in asyncio.run(play()):
        with torch.no_grad():
            logits = theirs(input_ids=torch.tensor([[*ids, *made.token_ids]])).logits[0].float()
        expected = torch.log_softmax(logits[len(ids) - 1 : -1], -1)[range(4), made.token_ids]
        np.testing.assert_allclose(made.logprobs, expected, atol=2e-4)
