"""Whole runs with the server engine: log-probs agree, and a server that dies costs nothing but time."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.needs import needs
from tests.rollout.fake_vllm import FakeVllm
from tests.toys import Colors, small_config
from tests.train.test_chat_models import with_settings
from tests.train.test_loop import assert_same_run, steps

from turnwise.base.errors import ConfigError, EngineLost
from turnwise.commands.cli import main
from turnwise.config import Config, load_config
from turnwise.models.pretrained import pretrained_policy
from turnwise.models.settings import ModelConfig, PromptConfig
from turnwise.models.tiny import tiny_policy
from turnwise.train.checkpoint import latest_checkpoint, load_checkpoint
from turnwise.train.folder import RunFolder
from turnwise.train.loop import train

AGREEMENT = 1e-4
"""Nats; both sides compute in float32."""


def run_config(folder, fake: FakeVllm, **sections: Any) -> Config:
    engine = {"name": "server", "url": fake.url, "patience_s": 0.3, "timeout_s": 5.0}
    settings = {
        "run": {"steps": 4},
        "environment": {"options": {"turns": 2}},
        "rollout": {"groups": 2, "group_size": 3},
        "evaluate": {"final_episodes": 2},
        "checkpoint": {"every": 1},
    }
    return small_config(folder, engine=engine, **settings | sections)


@pytest.fixture
def fake(tmp_path):
    config = small_config(tmp_path)
    with FakeVllm(tiny_policy(Colors.words(), config.model, seed=9).model, max_model_len=64) as server:
        yield server


def test_a_run_samples_from_the_weights_that_it_trains(tmp_path, fake):
    folder = train(run_config(tmp_path, fake))
    records = steps(folder)
    assert len(records) == 4
    for record in records:
        assert record["rollout/failed_frac"] == 0
        assert record["credit/mismatch_max"] < AGREEMENT
        assert record["update/grad_norm"] > 0
    versions = [body["new_version"] for path, body in fake.asked if path == "/update_weight_version"]
    assert len(versions) == 5  # at the start, and after each step


def test_dagger_plays_on_the_server_with_the_weights_that_imitation_made(tmp_path, fake, monkeypatch):
    monkeypatch.setenv("TURNWISE_CACHE", str(tmp_path / "cache"))
    warm = {"steps": 2, "games": 6, "batch_size": 4, "dagger_rounds": 2, "dagger_steps": 2}
    options = {"name": "tests.train.test_dagger:Lanes", "options": {}}
    folder = train(run_config(tmp_path, fake, environment=options, warmstart=warm, run={"steps": 1}))
    paths = [path for path, _ in fake.asked]
    loads = [place for place, path in enumerate(paths) if path == "/update_weight_version"]
    assert len(loads) == 4  # before each round, at the start, and after the step
    assert all("/inference/v1/generate" in paths[loads[number] : loads[number + 1]] for number in range(3))
    assert steps(folder)[0]["credit/mismatch_max"] < AGREEMENT


def test_a_server_cannot_measure_entropies_which_is_said_first(tmp_path, fake):
    config = run_config(tmp_path, fake, update={"scoring": "engine"})
    with pytest.raises(ConfigError, match=r"add update.scoring=trainer"):
        train(config)
    assert not config.run_folder.exists()


def test_a_run_whose_weights_stay_behind_is_seen_in_its_metrics(tmp_path, fake):
    """The check above can fail: here the server says that it has loaded weights, and has not."""
    reload, first = fake.reload, []

    def once(body):
        first.extend([body] if body["method"] == "reload_weights" else [])
        return reload(body) if len(first) < 2 else (200, {"results": [None]})

    fake.reload = once
    records = steps(train(run_config(tmp_path, fake)))
    assert records[0]["credit/mismatch_max"] < AGREEMENT
    assert all(record["credit/mismatch_max"] > 10 * AGREEMENT for record in records[1:])


def test_a_run_whose_server_dies_goes_on_as_if_it_had_not(tmp_path, fake, capsys):
    whole = train(run_config(tmp_path / "whole", fake))
    asked = sum("generate" in path for path, _ in fake.asked)
    config = run_config(tmp_path / "half", fake)
    fake.faults.extend([None] * (asked // 2) + ["die"])
    with pytest.raises(EngineLost, match="gave no usable answer"):
        train(config)
    half = RunFolder(config.run_folder)
    done = steps(half)
    assert 0 < len(done) < 4
    assert done == steps(whole)[: len(done)]
    assert load_checkpoint(latest_checkpoint(half))[0] == len(done)
    fake.start()
    fake.faults.extend([None] * 3 + ["die"])
    assert main(["train", "--resume", str(half.path)]) == 2
    saved = f"; resume from the checkpoint of step {len(steps(half))} with `turnwise train --resume {half.path}`"
    assert capsys.readouterr().err.endswith(f"; start it again{saved}\n")
    fake.start()
    assert_same_run(train(config, resume=config.run_folder), whole)


def test_a_server_that_is_not_there_is_said_before_anything_is_done(tmp_path, fake, capsys):
    fake.stop()
    config = run_config(tmp_path, fake)
    with pytest.raises(ConfigError, match="no server is ready"):
        train(config)
    assert not config.run_folder.exists()


def test_a_checkpoint_is_evaluated_by_the_server(tmp_path, fake, capsys):
    sections = {"run": {"steps": 1}, "environment": {"options": {"turns": 1}}}
    evaluate = {"final_episodes": 12, "temperature": 1.0}
    folder = train(run_config(tmp_path, fake, evaluate=evaluate, **sections))
    *_, last = (record for record in folder.metrics() if "eval/success" in record)
    final = {name.removeprefix("eval/"): value for name, value in last.items() if name.startswith("eval/")}
    assert 0 < final["success"] < 1
    fake.asked.clear()
    assert main(["eval", str(folder.path)]) == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert {name: told[name] for name in final} == final
    assert sum("generate" in path for path, _ in fake.asked) >= 12
    fake.stop()
    assert main(["eval", str(folder.path), "--episodes", "2"]) == 2
    assert "no server is ready" in capsys.readouterr().err


@pytest.mark.data
@needs("ALFWORLD_DATA", "peft")
@pytest.mark.parametrize("size", ["0.5b", "1.5b"])
def test_the_recipes_for_one_gpu_train_on_real_games_with_a_server(tmp_path, monkeypatch, size):
    """Their own settings, but a tiny model of Qwen's architecture, two games, a step, and a server in its place."""
    monkeypatch.chdir(tmp_path)
    recipe = Path(f"alfworld-qwen2.5-{size}-aem")
    whole = load_config(recipe)
    assert whole.model.name == f"Qwen/Qwen2.5-{size.upper()}-Instruct"
    assert (whole.model.train, whole.model.precision, whole.engine.name) == ("lora", "bf16", "server")
    name = str(with_settings(tmp_path / "model", "qwen2_5", max_position_embeddings=8192))
    model = pretrained_policy(ModelConfig(name=name, max_context=8192), PromptConfig(system="Play."), seed=0).model
    small = "model.max_context=8192 model.precision=fp32 environment.max_steps=2 warmstart.steps=0"
    small += " rollout.groups=1 rollout.group_size=2 run.steps=1 run.device=cpu"
    small += " evaluate.episodes=1 evaluate.final_episodes=1"
    with FakeVllm(model, max_model_len=8192) as server:
        server.options["hf_overrides"] = {"tie_word_embeddings": False}  # as a server on a CPU must be started
        folder = train(load_config(recipe, [f"model.name={name}", f"engine.url={server.url}", *small.split()]))
        versions = [body["new_version"] for path, body in server.asked if path == "/update_weight_version"]
    record = steps(folder)[0]
    assert record["rollout/failed_frac"] == 0
    assert record["credit/mismatch_max"] < AGREEMENT
    assert len(versions) == 2  # what the server gets has the adapters merged into it
    assert (folder.checkpoints / "step-000001" / "adapter_model.safetensors").exists()
