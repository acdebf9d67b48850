"""`TurnwiseGRPOTrainer` with vLLM on the CPU, in both of TRL's modes (see benchmarks/requirements-trl-vllm.txt).

    PYTHONPATH=src <python with trl and vllm> -m pytest tests/crosscheck/trl-vllm -m crosscheck

Two things stand in for what a GPU has. In TRL's own process, vLLM does not pack its weights, which TRL then could not
replace. To a server,
weights travel by files: TRL sends them over NCCL alone. Generation, log-probabilities and all else are vLLM's and
TRL's.
"""

import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import warnings

import numpy as np
import pytest

import turnwise as tw
from turnwise.integrations.trl_environments import environment_factory, rows

pytest.importorskip("trl", reason="TRL is not installed; see benchmarks/requirements-trl-vllm.txt")
pytestmark = [pytest.mark.crosscheck, pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

import torch  # noqa: E402

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of vLLM's imports
    vllm = pytest.importorskip("vllm", reason="vLLM is not installed; see benchmarks/requirements-trl-vllm.txt")
    import requests
    from safetensors.torch import save_file
    from transformers import Qwen2Config, Qwen2ForCausalLM
    from trl.generation import vllm_client, vllm_generation
    from vllm import _custom_ops as vllm_ops

from tests.crosscheck.trl.trainers import (  # noqa: E402  # after the checks that TRL is there
    HOUSE,
    OBSERVED,
    Ours,
    Scripted,
    by_hand,
    distribution,
    lottery,
    make,
    rewards_of,
)

CONTEXT, ROWS = 1024, 8
AGREEMENT = 1e-4
"""Largest difference of a token's log-probability between vLLM and the trainer, both in float32 (nats)."""
SETTINGS = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_SERVER_DEV_MODE": "1",
    "HF_HUB_OFFLINE": "1",
}
PROMPTS = rows(HOUSE, prompt="Play.\n", limit=2)


def spoken(batch, words):
    """Each row as pieces of text, with whether the policy said them."""
    generated = batch["completion_mask"] * batch["tool_mask"]
    for n, (prompt, completion) in enumerate(zip(batch["prompt_ids"], batch["completion_ids"], strict=True)):
        tokens = zip(completion[batch["completion_mask"][n].bool()].tolist(), generated[n].tolist(), strict=False)
        runs = itertools.groupby(tokens, key=lambda token: token[1])
        said = [(bool(mine), words.decode([token for token, _ in run])) for mine, run in runs]
        yield [(False, words.decode(prompt[batch["prompt_mask"][n].bool()])), *said]


@pytest.fixture(scope="module")
def policies(tmp_path_factory):
    """Folders of a policy that calls tools as the scripted player does, more or less, and of the same before it learned
    that.
    """
    folder = tmp_path_factory.mktemp("policies")
    player = make(
        Scripted,
        folder,
        method=tw.grpo(),
        environments=environment_factory(HOUSE),
        prompts=PROMPTS,
        reward_funcs=[lottery],
        max_completion_length=400,
    )
    player._generate_and_score_completions(next(iter(player.get_train_dataloader())))
    texts = list(spoken(player.batches[0], player.processing_class))
    words = player.processing_class.train_new_from_iterator(["".join(text for _, text in row) for row in texts], 700)
    ids, labels = [], []
    for row in texts:
        pieces = [(words.encode(text), mine) for mine, text in row]
        ids.append(torch.tensor([token for piece, _ in pieces for token in piece]))
        labels.append(torch.tensor([token if mine else -100 for piece, mine in pieces for token in piece]))
    ids = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True, padding_value=words.pad_token_id)
    labels = torch.nn.utils.rnn.pad_sequence(labels, batch_first=True, padding_value=-100)

    torch.manual_seed(0)
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(words),
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=4096,
            tie_word_embeddings=False,
            eos_token_id=words.eos_token_id,
            bos_token_id=None,
            pad_token_id=words.pad_token_id,
        )
    )
    for name in ("new", "player"):
        if name == "player":
            optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 200)
            for step in range(200):
                half = slice(step % 2, None, 2)
                optimizer.zero_grad()
                model(input_ids=ids[half], labels=labels[half]).loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
        model.save_pretrained(folder / name)
        words.save_pretrained(folder / name)
    return {name: folder / name for name in ("new", "player")}


@pytest.fixture(scope="module", params=["server", "colocate"])  # the latter leaves its process in a group of one
def serving(request, policies, tmp_path_factory):
    """TRL's settings for vLLM, which starts with the weights of `new`: all others, it gets from TRL."""
    folder = tmp_path_factory.mktemp(request.param)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SETTINGS.items():
            patch.setenv(name, value)
        if request.param == "colocate":
            yield colocated(patch, policies["new"])
        else:
            yield from served(patch, policies["new"], folder)


def colocated(patch, model):
    patch.setattr(vllm_ops, "_supports_onednn", False)
    engines = []

    def engine(**options):
        if not engines:  # one for all trainers
            own = {"model": str(model), "dtype": "float32", "enforce_eager": True}
            engines.append(vllm.LLM(**{**options, **own}))
        return engines[0]

    patch.setattr(vllm_generation, "LLM", engine)
    return {"vllm_mode": "colocate", "vllm_max_model_length": CONTEXT}


def served(patch, model, folder):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [
        sys.executable,
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        str(model),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--dtype",
        "float32",
        "--logprobs-mode",
        "processed_logprobs",
        "--max-logprobs",
        "-1",
        "--max-model-len",
        str(CONTEXT),
        "--max-num-seqs",
        str(ROWS),
        "--enforce-eager",
        "--weight-transfer-config",
        '{"backend": "nccl"}',
    ]
    with open(folder / "server.log", "wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, start_new_session=True)
    try:
        deadline = time.monotonic() + 900
        while not ready(url):
            if server.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"vLLM did not start:\n{(folder / 'server.log').read_text()[-3000:]}")
            time.sleep(0.5)
        patch.setattr(vllm_client.VLLMClient, "init_communicator", refused(vllm_client.VLLMClient.init_communicator))
        patch.setattr(vllm_client.VLLMClient, "update_named_params", through_files(model, folder))
        yield {"vllm_mode": "server", "vllm_server_base_url": url}
    finally:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def ready(url):
    try:
        return requests.get(f"{url}/health", timeout=10).status_code == 200
    except requests.RequestException:
        return False


def refused(original):
    def init_communicator(client, device):
        with pytest.raises(NotImplementedError, match="needs a CUDA device"):  # else nothing need stand in for it
            original(client, device)

    return init_communicator


def through_files(model, folder):
    numbers = itertools.count()

    def update_named_params(client, metadata, named_params):
        weights = {name: weight.contiguous() for name, weight in named_params}
        assert [(name, list(weight.shape)) for name, weight in weights.items()] == [
            (name, shape) for name, _, shape in metadata
        ]
        own = folder / f"weights-{next(numbers)}"
        shutil.copytree(model, own)
        save_file(weights, own / "model.safetensors", metadata={"format": "pt"})
        client._post(f"{client.base_url}/pause", params={"mode": "abort"})
        client._post(
            f"{client.base_url}/collective_rpc", json={"method": "reload_weights", "kwargs": {"weights_path": str(own)}}
        )
        client._post(f"{client.base_url}/resume")

    return update_named_params


def play_turns(prompts, trainer):
    """A rollout function: one to three turns that vLLM generates, an observation between them."""
    words = trainer.processing_class
    observed = words.encode(OBSERVED)
    start = [words.encode(prompt[0]["content"]) for prompt in prompts]
    ids, mask, logprobs = ([[] for _ in prompts] for _ in range(3))
    for turn in range(3):
        playing = [number for number in range(len(prompts)) if turn <= number % 3]
        for number in playing if turn else []:
            ids[number] += observed
            mask[number] += [0] * len(observed)
            logprobs[number] += [0.0] * len(observed)
        _, new, sampled, _ = trainer.vllm_generation.generate(
            prompts=[start[number] + ids[number] for number in playing], images=None, num_generations=1
        )
        for number, tokens, token_logprobs in zip(playing, new, sampled, strict=True):
            ids[number] += tokens
            mask[number] += [1] * len(tokens)
            logprobs[number] += [token[0] for token in token_logprobs]
    return {"prompt_ids": start, "completion_ids": ids, "env_mask": mask, "logprobs": logprobs}


def with_vllm(kind, folder, model, serving, **options):
    return make(kind, folder, model=model, use_vllm=True, temperature=0.8, learning_rate=1e-4, **serving, **options)


def check_samples(trainer):
    """vLLM sampled from the trainer's policy of the moment, not from that of a step before."""
    assert len(trainer.batches) == 2
    for step, batch in enumerate(trainer.batches):
        generated = (batch["completion_mask"] * batch.get("tool_mask", 1)).bool()
        assert generated.sum() > 2 * ROWS
        sampled = batch["sampling_per_token_logps"][generated]
        policies = [distribution(trainer, batch, state) for state in trainer.states]
        drift = [
            (policy.log_prob(batch["completion_ids"])[generated] - sampled).abs().max().item() for policy in policies
        ]
        print(f"step {step + 1}: largest difference to the policies of the two steps {drift}")
        assert drift[step] < AGREEMENT
        assert drift[1 - step] > 100 * AGREEMENT, "so the check can tell old weights from new ones"
        if trainer.vllm_importance_sampling_correction:
            ratio = batch["importance_sampling_ratio"]
            torch.testing.assert_close(ratio, torch.ones_like(ratio), rtol=0, atol=100 * AGREEMENT)


MODES = {
    "plain": {},
    "without correction": {"vllm_importance_sampling_correction": False},  # so TRL makes no pass of its own
    "rollout_func": {"rollout_func": play_turns},
}


@pytest.mark.parametrize("mode", MODES)
def test_samples_and_advantages(mode, serving, policies, tmp_path):
    method = tw.aem(tw.grpo(convention="trl"), min_range=0.0)
    trainer = with_vllm(Ours, tmp_path, policies["player"], serving, method=method, **MODES[mode])
    trainer.train()
    check_samples(trainer)
    for batch in trainer.batches:
        completions = zip(batch["completion_ids"], batch["completion_mask"].bool(), strict=True)
        expected = by_hand(method, batch, rewards_of([row[keep].tolist() for row, keep in completions]))
        np.testing.assert_allclose(batch["advantages"].numpy(), expected, rtol=2e-4, atol=1e-5)
        assert abs(expected).max() > 0.1
        assert ("old_per_token_logps" in batch) == (mode != "without correction")
    turns = 15 / 8 if mode == "rollout_func" else 1
    assert [step["credit/turns"] for step in trainer.state.log_history[:2]] == [turns, turns]


class Kept(Ours):
    """Keeps what the environments recorded of each batch, too."""

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        self.batches[-1] |= {"played": self._played, "rewards": self._rewards.nansum(1)}
        return output


def test_environments(serving, policies, tmp_path):
    method = tw.aem(tw.gigpo(), min_range=0.0)
    trainer = with_vllm(
        Kept,
        tmp_path,
        policies["player"],
        serving,
        method=method,
        environments=environment_factory(HOUSE),
        prompts=PROMPTS,
        reward_funcs=[lottery],
        max_completion_length=400,
        max_tool_calling_iterations=3,
    )
    trainer.train()
    check_samples(trainer)
    for batch in trainer.batches:
        said = [[text for mine, text in row if mine] for row in spoken(batch, trainer.processing_class)]
        assert sum(len(turns) > 1 for turns in said) >= ROWS // 2, said
        assert not any("tool_response" in text for turns in said for text in turns)
        states = [row["state_key"] for row in batch["played"]]
        assert [len(row) for row in states] == [len(turns) for turns in said]
        paid = [list(row["reward"]) for row in batch["played"]]
        for row, reward in zip(paid, batch["rewards"].tolist(), strict=True):
            row[-1] += reward - sum(row)
        expected = by_hand(method, batch, batch["rewards"], states=states, paid=paid)
        np.testing.assert_allclose(batch["advantages"].numpy(), expected, rtol=2e-4, atol=1e-5)
        assert abs(expected).max() > 0.1
