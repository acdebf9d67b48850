"""The server engine against an HTTP server in a thread: responses equal a plain forward pass."""

import asyncio
import gc
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from safetensors.torch import load_file
from tests.needs import needs
from tests.rollout.fake_vllm import GENERATE, FakeVllm
from tests.rollout.models import (
    GREEDY,
    STOPS,
    TOLERANCE,
    VOCABULARY,
    generate,
    make_model,
    plain_greedy,
    plain_logits,
    together,
)
from tests.rollout.test_local import nucleus

from turnwise.base.errors import ConfigError, EngineFault, EngineLost, TurnwiseError
from turnwise.config import load_config
from turnwise.engines.base import Sampling
from turnwise.engines.server import ServerEngine
from turnwise.engines.settings import ServerEngineConfig
from turnwise.engines.vllm import check_server


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnwise.engines.connection.FIRST_WAIT_S", 0.02)


@pytest.fixture
def fake() -> Iterator[FakeVllm]:
    """Serves other weights than the trainer's, as it does at the start of a run."""
    with FakeVllm(make_model(seed=7)) as server:
        yield server


def make_engine(fake: FakeVllm, model=None, *, ready: bool = True, max_context: int = 64, **settings) -> ServerEngine:
    model = make_model() if model is None else model
    settings = {"timeout_s": 5.0, "patience_s": 5.0, **settings}
    engine = ServerEngine(model, ServerEngineConfig(name="server", url=fake.url, **settings), max_context=max_context)
    if ready:
        asyncio.run(engine.update_weights())
    return engine


async def closing(engine, prompts, sampling):
    try:
        return await together(engine, prompts, sampling)
    finally:
        await engine.aclose()


def play(engine, prompts, sampling=GREEDY):
    """In an event loop of its own, as each rollout has one."""
    return asyncio.run(closing(engine, prompts, sampling))


def assert_plain(model, prompts, got) -> None:
    for number, prompt in prompts.items():
        ids, logprobs, truncated = plain_greedy(model, prompt, 6)
        assert got[number].token_ids == ids
        assert got[number].logprobs == pytest.approx(logprobs, abs=TOLERANCE)
        assert got[number].truncated == truncated


def test_turns_equal_a_plain_forward_pass(fake):
    model = make_model()
    engine = make_engine(fake, model)
    prompts = {number: [1 + (3 * number + at) % (VOCABULARY - 1) for at in range(2 + number)] for number in range(9)}
    endings = set()
    for _ in range(3):
        got = play(engine, prompts)
        assert_plain(model, prompts, got)
        endings |= {generation.truncated for generation in got.values()}
        prompts = {number: [*prompt, *got[number].token_ids, 3, 4] for number, prompt in prompts.items()}
    assert endings == {True, False}


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.5, 1.0), (1.0, 0.6), (0.7, 0.8)])
def test_logprobs_are_those_of_the_distribution_sampled_from(fake, temperature, top_p):
    model = make_model(seed=2)
    sampling = Sampling(max_new_tokens=6, stop_ids=STOPS, temperature=temperature, top_p=top_p, seed=11)
    for generation in play(make_engine(fake, model), dict.fromkeys(range(8), (4, 9, 1)), sampling).values():
        ids = [4, 9, 1]
        for token, logprob in zip(generation.token_ids, generation.logprobs, strict=True):
            probability = nucleus(torch.softmax(plain_logits(model, ids).double() / temperature, -1), top_p)
            assert logprob == pytest.approx(float(probability[token].log()), abs=TOLERANCE)
            ids.append(token)


def test_seeds_reproduce_and_differ(fake):
    engine = make_engine(fake)
    sampling = [Sampling(max_new_tokens=8, seed=seed) for seed in (1, 2)]
    alone = play(engine, {5: [1, 2, 3]}, sampling[0])[5]
    beside = play(engine, dict.fromkeys(range(8), (1, 2, 3)), sampling[0])
    assert beside[5] == alone
    assert len({tuple(generation.token_ids) for generation in beside.values()}) > 4  # each conversation its own
    assert play(engine, {5: [1, 2, 3]}, sampling[1])[5] != alone
    seeds = [body["sampling_params"]["seed"] for path, body in fake.asked if path == GENERATE]
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_a_schema_reaches_the_server_and_nothing_else_does(fake):
    schema = {"type": "object"}
    for given in (schema, None):
        play(make_engine(fake), {5: [1, 2, 3]}, Sampling(max_new_tokens=2, schema=given))
    asked = [body["sampling_params"].get("structured_outputs") for path, body in fake.asked if path == GENERATE]
    assert asked == [{"json": schema}, None]


def test_an_update_takes_effect_and_leaves_nothing_of_the_old_weights(fake):
    model, prompts = make_model(), {number: [1, 2, 3 + number] for number in range(6)}
    engine = make_engine(fake, model)
    before = play(engine, prompts)
    assert_plain(model, prompts, before)
    model.load_state_dict(make_model(seed=1).state_dict())
    assert_plain(make_model(), prompts, play(engine, prompts))  # not before it is told
    asyncio.run(engine.update_weights())
    after = play(engine, prompts)
    assert_plain(make_model(seed=1), prompts, after)
    assert all(before[number].token_ids != after[number].token_ids for number in prompts)


@needs("peft")
def test_adapters_are_merged_into_what_the_server_gets(fake):
    from peft import LoraConfig, inject_adapter_in_model  # takes seconds

    model, prompts = make_model(), {number: [1, 2, 3 + number] for number in range(6)}
    inject_adapter_in_model(LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False), model)
    engine = make_engine(fake, model)
    assert_plain(model, prompts, play(engine, prompts))
    assert any("lora_" in name for name in model.state_dict())  # the trainer keeps them apart
    with pytest.raises(AssertionError):
        assert_plain(make_model(), prompts, play(engine, prompts))


def test_weights_are_kept_once_and_not_for_ever(fake, tmp_path):
    engine = make_engine(fake, sync_folder=tmp_path / "shared")
    for _ in range(3):
        asyncio.run(engine.update_weights())
    assert len(list(tmp_path.rglob("model.safetensors"))) == 1
    del engine
    gc.collect()
    assert not list((tmp_path / "shared").iterdir())


def test_what_killed_runs_have_left_is_removed(fake, tmp_path):
    """A held lock marks a live run, whatever its process id, because containers can share a host name."""
    here = f"turnwise-weights-{socket.gethostname()}"
    for name in (
        f"{here}-1-killed",
        f"{here}-999999-alive",
        "turnwise-weights-elsewhere-1-c",
        f"{here}-1-no-lock",
        "mine",
    ):
        (tmp_path / name).mkdir()
    hold = (
        "import sys, time; from filelock import FileLock; lock = FileLock(sys.argv[1]); lock.acquire(); "
        "print(1, flush=True); time.sleep(100)"
    )
    holders = []
    for name in (f"{here}-1-killed", f"{here}-999999-alive", "turnwise-weights-elsewhere-1-c"):
        holder = subprocess.Popen([sys.executable, "-c", hold, tmp_path / name / ".lock"], stdout=subprocess.PIPE)
        assert holder.stdout.readline() == b"1\n"
        holders.append(holder)
        if not name.endswith("alive"):
            holder.kill()
            holder.wait()
    engine = make_engine(fake, sync_folder=tmp_path)
    asyncio.run(engine.update_weights())
    left = {path.name for path in tmp_path.iterdir()}
    for holder in holders:
        holder.kill()
        holder.communicate()
    assert left - {engine._folder.name} == {
        f"{here}-999999-alive",
        "turnwise-weights-elsewhere-1-c",
        f"{here}-1-no-lock",
        "mine",
    }
    asyncio.run(make_engine(fake, sync_folder=tmp_path).update_weights())
    assert engine._folder.exists()


def test_requests_at_one_time_are_bounded(fake):
    engine = make_engine(fake, max_concurrent=3)
    fake.delay_s = 0.02
    play(engine, {number: [1, 2] for number in range(12)})
    assert fake.most == 3


def test_weights_that_cannot_be_loaded_are_said_so(fake):
    wider = make_model("llama-gqa")
    with pytest.raises(EngineLost, match=r"cannot load the weights .*Worker failed .*engine.sync_folder"):
        make_engine(fake, wider)


def test_a_server_too_old_to_name_its_weights_is_said_so(fake, monkeypatch):
    def older(body, generate=fake.generate):
        status, answer = generate(body)
        del answer["choices"][0]["weight_versions"]
        return status, answer

    engine = make_engine(fake)
    monkeypatch.setattr(fake, "generate", older)
    with pytest.raises(EngineLost, match=r"as vLLM 0\.32 and newer do \(choices\.0\.weight_versions: Field required\)"):
        play(engine, {0: [1, 2]})


def test_options_of_the_server_are_checked(fake):
    with pytest.raises(ConfigError, match="must be started with --max-model-len 300: it allows 256 tokens"):
        make_engine(fake, max_context=300)
    fake.options["logprobs_mode"] = "raw_logprobs"
    with pytest.raises(ConfigError, match="must be started with --logprobs-mode processed_logprobs"):
        make_engine(fake)


def test_an_output_layer_that_shares_weights_gets_its_own():
    model, prompts = make_model("qwen3"), {number: [1, 2, 3 + number] for number in range(6)}
    assert model.config.tie_word_embeddings
    with FakeVllm(make_model("qwen3", seed=7)) as fake:
        with pytest.raises(ConfigError, match=r"--hf-overrides '\{\"tie_word_embeddings\": false\}'"):
            make_engine(fake, model)
        fake.options["hf_overrides"] = {"tie_word_embeddings": False}
        engine = make_engine(fake, model)
        assert engine._weights is not None
        written = load_file(engine._weights / "model.safetensors")
        assert torch.equal(written["lm_head.weight"], written["model.embed_tokens.weight"])
        assert_plain(model, prompts, play(engine, prompts))


def test_a_server_is_looked_for_at_once(fake):
    check_server(fake.url)
    check_server(fake.url + "/")
    fake.stop()
    with pytest.raises(
        ConfigError, match=rf"no server is ready at engine.url='{fake.url}' \(ConnectionRefusedError.*how-to/vllm"
    ):
        check_server(fake.url)
    with pytest.raises(ConfigError, match=r"no server is ready at engine.url='http://\[' \("):
        check_server("http://[")


def test_closed_conversations_are_lost_and_no_others(fake):
    engine = make_engine(fake)
    fake.delay_s = 0.2

    async def close_one():
        tasks = [asyncio.ensure_future(engine.generate(number, [1, 2], GREEDY)) for number in range(3)]
        await asyncio.sleep(0.05)
        with pytest.raises(EngineFault, match="still waits"):
            await engine.generate(2, [1, 2], GREEDY)
        engine.close([1, 17])
        with pytest.raises(EngineFault, match="closed before"):
            await tasks[1]
        again = await engine.generate(1, [1, 2], GREEDY)
        first, last = await tasks[0], await tasks[2]
        lost = asyncio.ensure_future(engine.generate(4, [1, 2], GREEDY))
        await asyncio.sleep(0.05)
        await engine.aclose()
        with pytest.raises(EngineFault, match="closed before"):
            await lost
        return first, again, last

    assert len({tuple(generation.token_ids) for generation in asyncio.run(close_one())}) == 1


def test_a_cancelled_request_is_withdrawn(fake):
    engine = make_engine(fake)
    fake.delay_s = 0.2

    async def cancel():
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(engine.generate(0, [1, 2], GREEDY), 0.05)
        assert len(asyncio.all_tasks()) == 1
        got = await engine.generate(0, [1, 2], GREEDY)
        await engine.aclose()
        return got

    assert asyncio.run(cancel()).token_ids


def test_weights_come_before_responses(fake):
    engine = make_engine(fake, ready=False)
    with pytest.raises(TurnwiseError, match=r"call update_weights\(\)"):
        generate(engine, {0: [1]}, GREEDY)


@pytest.mark.parametrize(
    ("override", "where"),
    [
        ("engine.url=localhost:8000", r'engine.url: .*pattern.*, got "localhost:8000"'),
        ("engine.name=vllm", r"unknown engine.name 'vllm'. Known: local, server"),
        ("engine.max_concurrent=0", r"engine.max_concurrent: .*, got 0"),
        ("engine.patience=3", r"unknown key 'engine.patience'. Did you mean 'patience_s'\?"),
    ],
)
def test_a_wrong_setting_is_one_clear_line(override, where):
    with pytest.raises(ConfigError, match=where) as caught:
        load_config(None, [override])
    assert "\n" not in str(caught.value)


def test_a_stop_text_ends_a_response(fake):
    model, prompt, decode = make_model(), [1, 2, 3], lambda ids: "".join(chr(97 + token) for token in ids)
    engine = make_engine(fake, model)
    whole = play(engine, {0: prompt}, Sampling(max_new_tokens=6, temperature=0.0))[0]
    text = decode(whole.token_ids)
    stopping = Sampling(max_new_tokens=6, temperature=0.0, stop=(text[1:3], "never"))
    with pytest.raises(EngineFault, match="decode="):
        play(engine, {0: prompt}, stopping)
    engine.decode = decode
    cut = play(engine, {0: prompt}, stopping)[0]
    end = text.index(text[1:3]) + 2
    assert (cut.token_ids, cut.logprobs, cut.truncated) == (whole.token_ids[:end], whole.logprobs[:end], False)
    assert whole.truncated
