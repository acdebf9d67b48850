"""The server engine against a server that fails: what is asked again, what is lost, and what ends the run."""

import asyncio
import re
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.rollout.fake_vllm import GENERATE, FakeVllm
from tests.rollout.models import GREEDY, make_model
from tests.rollout.test_server import assert_plain, make_engine, play

from turnwise.base.blocking import ThreadLoop
from turnwise.base.errors import ConfigError, EngineFault, EngineLost
from turnwise.engines.base import Sampling


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeVllm]:
    """Serves other weights than the trainer's; waits between two tries are short."""
    monkeypatch.setattr("turnwise.engines.connection.FIRST_WAIT_S", 0.02)
    with FakeVllm(make_model(seed=7)) as server:
        yield server


@pytest.mark.parametrize("fault", [500, 502, 503, 429, "drop", "garbage", "abort"])
def test_a_request_that_fails_is_made_again(fake, fault):
    model, prompts = make_model(), {number: [1, 2, 3 + number] for number in range(4)}
    engine = make_engine(fake, model)
    fake.faults.extend([None, fault, fault])
    assert_plain(model, prompts, play(engine, prompts))
    assert not fake.faults


def test_a_slow_server_is_asked_again(fake):
    model, prompts = make_model(), {0: [1, 2, 3]}
    engine = make_engine(fake, model, timeout_s=1.0)
    fake.faults.append("slow")
    assert_plain(model, prompts, play(engine, prompts))
    assert [path for path, _ in fake.asked[-2:]] == [GENERATE, GENERATE]


def test_patience_ends_in_one_line(fake):
    engine = make_engine(fake, timeout_s=1.0, patience_s=0.5)
    fake.faults.extend(["slow"] * 20)
    start = time.monotonic()
    with pytest.raises(
        EngineLost, match=rf"{fake.url} gave no usable answer for 0.5 s \(SocketTimeoutError.*\); start it again$"
    ) as caught:
        play(engine, {0: [1, 2]})
    assert 1.5 < time.monotonic() - start < 20
    assert "\n" not in str(caught.value)


def test_a_server_that_is_gone_ends_the_rollout_for_all(fake):
    engine = make_engine(fake, patience_s=0.3)
    fake.faults.extend([None, None, "die"])
    with pytest.raises(EngineLost, match="gave no usable answer"):
        play(engine, {number: [1, 2, 3] for number in range(12)})
    with pytest.raises(EngineLost, match="ClientConnectorError"):
        asyncio.run(engine.update_weights())


def test_a_server_that_comes_back_gets_the_weights_anew(fake):
    model, prompts = make_model(), {number: [1, 2, 3 + number] for number in range(6)}
    engine = make_engine(fake, model)
    fake.faults.extend([None, None, "die"])
    back = threading.Timer(0.7, fake.start)
    back.start()
    got = play(engine, prompts)
    back.join()
    assert_plain(model, prompts, got)
    with pytest.raises(AssertionError):
        assert_plain(make_model(seed=7), prompts, got)  # what it began with


def test_an_update_waits_for_the_server(fake):
    model, prompts = make_model(), {0: [1, 2, 3]}
    engine = make_engine(fake, model, ready=False)
    fake.stop()
    back = threading.Timer(0.5, fake.start)
    back.start()
    asyncio.run(engine.update_weights())
    back.join()
    assert_plain(model, prompts, play(engine, prompts))


def test_a_server_with_the_weights_of_another_run_is_not_used(fake):
    ours, theirs = make_engine(fake), make_engine(fake, make_model(seed=1))
    with pytest.raises(EngineLost, match="another run has loaded its weights"):
        play(ours, {0: [1, 2]})
    assert play(theirs, {0: [1, 2]})


def test_a_rejected_request_is_a_fault_of_its_own(fake):
    engine = make_engine(fake)

    async def both():
        try:
            return await asyncio.gather(
                engine.generate(0, [1] * 300, GREEDY), engine.generate(1, [1, 2], GREEDY), return_exceptions=True
            )
        finally:
            await engine.aclose()

    fault, response = asyncio.run(both())
    assert isinstance(fault, EngineFault)
    assert "HTTP 400" in str(fault)
    assert "maximum model length of 256" in str(fault)
    assert response == play(engine, {1: [1, 2]})[1]


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_server_that_does_not_offer_it_is_a_mistake_of_the_user(fake, status):
    engine = make_engine(fake)
    fake.faults.append(status)
    with pytest.raises(ConfigError, match=rf"HTTP {status} at {GENERATE}.*docs/how-to/vllm.md"):
        play(engine, {0: [1]})


@pytest.mark.parametrize("logprobs", [[-1.0, float("nan")], [-1.0, float("inf")], [0.7, -1.0]])
def test_log_probabilities_that_are_none_are_a_fault_wherever_they_stand(fake, logprobs):
    engine = make_engine(fake)
    with pytest.raises(EngineFault, match="not finite"):
        engine._made([1, 2], logprobs, [3], Sampling(max_new_tokens=4))
    with pytest.raises(EngineFault, match="expected 1 to 1"):
        engine._made([1, 2], [-1.0, -1.0], [3], Sampling(max_new_tokens=1))


@pytest.mark.parametrize(
    ("fault", "message"), [("not finite", "not finite: the weights diverged"), ("other ids", "token ids are not those")]
)
def test_an_answer_that_cannot_be_learned_from_is_a_fault_of_its_own(fake, fault, message):
    engine = make_engine(fake)
    fake.faults.append(fault)
    with pytest.raises(EngineFault, match=message):
        play(engine, {0: [1, 2]})
    assert play(engine, {0: [1, 2]})


@pytest.mark.parametrize(
    ("path", "answer", "wrong"),
    [
        (
            "/server_info",
            {"vllm_config": {"model_config": {}}},
            "vllm_config.model_config.max_model_len: Field required",
        ),
        ("/server_info", [], "the answer: Input should be"),
        ("/weight_info", {"weight_version": 3}, "weight_version: Input should be a valid string"),
        ("/reset_prefix_cache", {}, "success: Field required"),
        ("/inference/v1/generate", {"choices": []}, "choices: List should have at least 1 item"),
        ("/inference/v1/generate", {"choices": [{"token_ids": ["1"]}]}, "choices.0.token_ids.0: Input should be"),
    ],
)
def test_an_answer_of_another_form_is_said_in_a_line(fake, path, answer, wrong, monkeypatch):
    real = fake.answer
    monkeypatch.setattr(fake, "answer", lambda asked, body: (200, answer) if asked == path else real(asked, body))
    with pytest.raises(EngineLost, match=re.escape(f"does not answer as vLLM 0.32 and newer do ({wrong}")) as raised:
        play(make_engine(fake), {0: [1, 2]})
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("path", ["/pause", "/collective_rpc", "/update_weight_version", "/resume"])
def test_an_update_of_which_one_request_fails_is_made_whole(fake, path, monkeypatch):
    """A server that had the version, and was still paused, would have been taken for ready."""
    real, failed = fake.answer, []

    def once(asked: str, body: Any) -> Any:
        if asked == path and not failed:
            failed.append(asked)
            return 503, {"error": "busy"}
        return real(asked, body)

    engine = make_engine(fake)
    monkeypatch.setattr(fake, "answer", once)
    asyncio.run(engine.update_weights())
    assert failed
    assert not fake.paused
    assert play(engine, {0: [1, 2]})


def test_an_update_waits_until_the_cache_is_emptied(fake):
    model, prompts = make_model(), {0: [1, 2, 3]}
    engine = make_engine(fake, model)
    assert_plain(model, prompts, play(engine, prompts))
    model.load_state_dict(make_model(seed=1).state_dict())
    fake.busy = 2
    asyncio.run(engine.update_weights())
    assert not fake.busy
    assert_plain(model, prompts, play(engine, prompts))


def test_connections_end_with_their_loop_whoever_forgot_to_close_them(fake):
    engine = make_engine(fake)
    clients = []

    async def forget() -> None:
        await engine.update_weights()
        await engine.generate(0, [1, 2], GREEDY)
        clients.append(engine._server._session.client)
        assert not clients[-1].closed

    asyncio.run(forget())
    assert clients[0].closed
    loop = ThreadLoop()
    loop.run(forget())
    loop.close()
    assert clients[1].closed
