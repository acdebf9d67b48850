"""Our server of the Tinker API: the published client trains with it, and bad requests end in one line."""

import asyncio
import contextlib
import json
import os
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.needs import needs, skip_without
from tests.tinker_api.serving import NAME, Serving, new_policy, recipe, serving
from turnwise.base.errors import EngineFault
from turnwise.extensions.tinker.served import LOSSES, Samplers, Trained
from turnwise.extensions.tinker.wire import read_forward_backward, write_losses, write_samples


@pytest.mark.parametrize("number", [0, 1])
def test_the_published_client_trains_and_samples(tmp_path: Path, number: int):
    skip_without("TINKER_PYTHON", "peft")
    pythons = os.environ["TINKER_PYTHON"].split(":")
    if number >= len(pythons):
        pytest.skip("needs TINKER_PYTHON: a second Python, with another version of the client")
    script = Path(__file__).with_name("client.py")
    with serving(recipe(), tmp_path, full=False) as served:
        command = [pythons[number], str(script), served.url, NAME]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert min(np.array(told["after"][-3:]) - told["before"][-3:]) > 0  # what was rewarded is likelier
    np.testing.assert_allclose(told["again"], told["after"], atol=1e-5)
    assert sum(told["moved"]) > sum(told["after"])
    assert told["samples"][0] == told["samples"][1]
    assert "loss_fn='dro' is not served; this server has cross_entropy" in told["refused"]


def datum(ids: list[int], **given: Any) -> dict[str, Any]:
    inputs = {"target_tokens": {"data": ids[1:]}, **{name: {"data": value} for name, value in given.items()}}
    return {"model_input": {"chunks": [{"type": "encoded_text", "tokens": ids[:-1]}]}, "loss_fn_inputs": inputs}


FORMULAS = {
    "cross_entropy": lambda p, old, a, w: -(w * p),
    "importance_sampling": lambda p, old, a, w: -w * (p - old).exp() * a,
    "ppo": lambda p, old, a, w: -w * torch.minimum((p - old).exp() * a, (p - old).exp().clamp(0.9, 1.3) * a),
    "cispo": lambda p, old, a, w: -w * (p - old).exp().clamp(0.9, 1.3).detach() * a * p,
}


@pytest.mark.parametrize("name", LOSSES)
def test_each_loss_has_the_gradient_of_its_formula(name: str):
    model = new_policy(recipe()).model
    data = [
        datum([2, 5, 6, 3], logprobs=[-2.0, -2.2, -1.0], advantages=[0.0, 1.0, -2.0], weights=[0.0, 1.0, 0.5]),
        datum([2, 7, 3], logprobs=[-1.0, -3.0], advantages=[1.0, -1.0], weights=[1.0, 2.0]),
    ]
    trained = Trained(model, 0, 0)
    config = {"clip_low_threshold": 0.9, "clip_high_threshold": 1.3} if name in ("ppo", "cispo") else None
    told = trained.passed({"data": data, "loss_fn": name, "loss_fn_config": config}, backward=True)
    total = torch.zeros(())
    for each, out in zip(data, told["loss_fn_outputs"], strict=True):
        ids = torch.tensor([each["model_input"]["chunks"][0]["tokens"]])
        given = {key: torch.tensor(value["data"]) for key, value in each["loss_fn_inputs"].items()}
        p = model(ids).logits[0].log_softmax(-1).gather(-1, given["target_tokens"][:, None])[:, 0]
        np.testing.assert_allclose(out["logprobs"]["data"], p.detach(), atol=1e-5)
        total = total + FORMULAS[name](p, given["logprobs"], given["advantages"], given["weights"]).sum()
    total.backward()
    assert told["metrics"]["loss:sum"] == pytest.approx(total.item(), rel=1e-5)
    for ours, theirs in zip(model.parameters(), trained.model.parameters(), strict=True):
        torch.testing.assert_close(theirs.grad, ours.grad, atol=1e-6, rtol=1e-4)


@needs("peft")
def test_adapters_begin_at_the_model_and_are_saved_alone(tmp_path: Path):
    base, asked = (
        new_policy(recipe()).model,
        {"data": [datum([2, 5, 6], weights=[1.0, 1.0])], "loss_fn": "cross_entropy"},
    )
    trained, full = Trained(base, 4, 0), Trained(base, 0, 0)
    told = [each.passed(asked, backward=True)["loss_fn_outputs"] for each in (trained, full)]
    assert told[0] == told[1]
    trained.step({"learning_rate": 0.01})
    moved = trained.passed(asked, backward=False)["loss_fn_outputs"]
    trained.save(tmp_path / "a.pt")
    again = Trained(base, 4, 1)
    again.load(tmp_path / "a.pt", optimizer=True)
    assert again.passed(asked, backward=False)["loss_fn_outputs"] == moved != told[0]
    assert all("lora_" in name for name in torch.load(tmp_path / "a.pt", weights_only=True)["weights"])
    with pytest.raises(EngineFault, match="the saved weights have rank 4, the model has 8"):
        Trained(base, 8, 0).load(tmp_path / "a.pt", optimizer=True)


def ask(served: Serving, name: str, body: Any, *, method: str = "POST", kind: str = "application/json") -> Any:
    """The status and the content of an answer."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(f"{served.url}/api/v1/{name}", data=data, method=method)
    request.add_header("content-type", kind)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def result(served: Serving, name: str, body: Any) -> Any:
    status, told = ask(served, name, body)
    return ask(served, "retrieve_future", {"request_id": told["request_id"]})[1] if status == 200 else told


def new_model(served: Serving) -> str:
    session = ask(served, "create_session", {})[1]["session_id"]
    asked = {"session_id": session, "model_seq_id": 0, "base_model": NAME}
    return result(served, "create_model", asked)["model_id"]


SAMPLE = {"prompt": {"chunks": [{"tokens": [2, 5]}]}, "base_model": NAME, "sampling_params": {"max_tokens": 3}}
BAD = [
    ("forward_backward", {"loss_fn": "dro", "data": []}, "loss_fn='dro' is not served"),
    (
        "forward_backward",
        {"loss_fn": "ppo", "data": [datum([2, 5, 999])]},
        "token 999 is not in the model's vocabulary",
    ),
    ("forward_backward", {"loss_fn": "ppo", "data": [datum([2, 5], advantages=[1.0, 2.0])]}, "advantages has 2 values"),
    ("forward_backward", {"loss_fn": "ppo", "data": [datum([5])]}, "an input has 0 tokens"),
    ("forward_backward", {"loss_fn": "ppo", "data": [datum([5] * 200)]}, "an input has 199 tokens, expected 1 to 128"),
    ("forward_backward", {"loss_fn": "ppo", "data": [], "loss_fn_config": {"beta": 1}}, "loss_fn_config=['beta']"),
    ("forward_backward", {"loss_fn": "cross_entropy", "data": [datum([2, 5], weights=[1e400])]}, "is "),
    ("forward_backward", {}, "KeyError: 'data'"),
    ("optim_step", {"adam_params": {"learning_rate": "much"}}, "could not convert"),
    ("save_weights", {"path": "../../out", "type": "save_weights"}, "is not a path; expected tinker://MODEL"),
    ("save_weights", {"path": "..", "type": "save_weights"}, "is not a path; expected tinker://MODEL"),
    ("load_weights", {"path": "tinker://none/weights/none"}, "nothing is saved as tinker://none/weights/none"),
    ("asample", {**SAMPLE, "num_samples": 10**12}, "num_samples=1000000000000: expected 1 to 256"),
    (
        "asample",
        {**SAMPLE, "sampling_params": {"max_tokens": 3, "top_p": 0}},
        "top_p=0: expected a number above 0",
    ),
    (
        "asample",
        {**SAMPLE, "sampling_params": {"max_tokens": 3, "temperature": -1}},
        "temperature=-1: expected a number",
    ),
    ("asample", {**SAMPLE, "sampling_params": {"max_tokens": 500}}, "at most 128 tokens in all"),
    ("asample", {**SAMPLE, "sampling_params": {"max_tokens": 3, "top_k": 4}}, "top_k is not served"),
    ("asample", {**SAMPLE, "base_model": "other"}, "there is no model 'other'; this server has 'stairs'"),
    ("asample", {**SAMPLE, "prompt": {"chunks": [{"type": "image"}]}}, "only chunks of tokens are served"),
]


def test_bad_requests_end_in_one_line_and_change_nothing(tmp_path: Path):
    with serving(recipe(), tmp_path / "served") as served:
        model = new_model(served)
        before = [each.clone() for each in served.models[0].model.parameters()]
        for name, body, expected in BAD:
            inner = {"forward_backward_input": body} if name == "forward_backward" else body
            told = result(served, name, inner if name == "asample" else {"model_id": model, **inner})
            text = str(told.get("error") or told.get("detail"))
            assert expected in text, (name, body, told)
            assert "\n" not in text
        assert ask(served, "optim_step", {"model_id": "other", "adam_params": {}})[0] == 404
        assert ask(served, "retrieve_future", {"request_id": "none"})[0] == 404
        assert ask(served, "nothing", {})[0] == 404
        assert ask(served, "create_session", b"{")[0] == 422
        assert ask(served, "create_session", b"[]")[0] in (200, 422)
        assert ask(served, "create_model", {"session_id": "s"})[0] == 422
        assert ask(served, "create_sampling_session", {"base_model": "other"})[0] == 400
        assert ask(served, "training_runs/a/checkpoints/../../b", b"", method="DELETE")[0] == 400
        assert ask(served, "forward_backward", b"\xff\xff", kind="application/x-protobuf")[0] == 400
        for ours, theirs in zip(before, served.models[0].model.parameters(), strict=True):
            assert torch.equal(ours, theirs)
        assert [path.name for path in tmp_path.rglob("*.pt")] == []


def test_one_caller_neither_breaks_the_batch_nor_takes_the_memory(tmp_path: Path):
    """Logits divided by 1e-45 are infinite, and the error would be everybody's."""
    with serving(recipe(), tmp_path, full=False) as served:
        cold = {**SAMPLE, "sampling_params": {"max_tokens": 3, "temperature": 1e-45, "top_p": 1e-45, "seed": 1}}
        greedy = {**SAMPLE, "sampling_params": {"max_tokens": 3, "temperature": 0.0, "seed": 2}}
        made = [result(served, "asample", asked)["sequences"][0]["tokens"] for asked in (cold, greedy)]
        assert made[0] == made[1]
        session = ask(served, "create_session", {})[1]["session_id"]
        asked = {"session_id": session, "model_seq_id": 0, "base_model": NAME, "lora_config": {"rank": 10**9}}
        assert result(served, "create_model", asked)["error"] == "lora_config.rank=1000000000: expected at most 1024"


def test_a_repeated_request_is_carried_out_once(tmp_path: Path):
    with serving(recipe(), tmp_path) as served:
        model = new_model(served)
        data = [datum([2, 5, 6], weights=[1.0, 1.0])]
        asked = {"model_id": model, "seq_id": 1, "forward_backward_input": {"loss_fn": "cross_entropy", "data": data}}
        numbers = {ask(served, "forward_backward", asked)[1]["request_id"] for _ in range(3)}
        ask(served, "retrieve_future", {"request_id": numbers.pop()})
        once = [weight.grad.clone() for weight in served.models[0].model.parameters()]
        result(served, "forward_backward", {**asked, "seq_id": 2})
        assert not numbers
        for weight, gradient in zip(served.models[0].model.parameters(), once, strict=True):
            torch.testing.assert_close(weight.grad, 2 * gradient)


def test_weights_that_are_saved_under_a_name_again_are_those_that_sample(tmp_path: Path):
    """As clients save "latest" after every step."""
    with serving(recipe(), tmp_path) as served:
        model, told = new_model(served), []
        for _ in range(2):
            asked = {"model_id": model, "path": "latest", "type": "save_weights_for_sampler"}
            path = result(served, "save_weights_for_sampler", asked)["path"]
            greedy = {**SAMPLE, "model_path": path, "sampling_params": {"max_tokens": 3, "temperature": 0.0}}
            told.append(result(served, "asample", greedy)["sequences"][0]["logprobs"])
            data = {"loss_fn": "cross_entropy", "data": [datum([2, 5, 6], weights=[1.0, 1.0])]}
            result(served, "forward_backward", {"model_id": model, "forward_backward_input": data})
            result(served, "optim_step", {"model_id": model, "adam_params": {"learning_rate": 0.05}})
    assert told[0] != told[1]


def test_a_pass_that_is_refused_leaves_no_part_of_its_gradient():
    """The first micro-batch was computed before the last datum was found to be wrong."""
    trained = Trained(new_policy(recipe()).model, 0, 0)
    good = datum([2, 5, 6] * 20, logprobs=[-1.0] * 59, advantages=[1.0] * 59)
    bad = datum([2, 5, 6], logprobs=[-1.0] * 2, advantages=[float("nan")] * 2)
    for before in ([], [good]):
        if before:
            trained.passed({"data": before, "loss_fn": "importance_sampling"}, backward=True)
        kept = [None if each.grad is None else each.grad.clone() for each in trained.model.parameters()]
        with pytest.raises(EngineFault, match="is nan"):
            trained.passed({"data": [good] * 90 + [bad], "loss_fn": "importance_sampling"}, backward=True)
        for each, grad in zip(trained.model.parameters(), kept, strict=True):
            assert (each.grad is None) == (grad is None)
            assert grad is None or torch.equal(each.grad, grad)


def test_what_is_held_is_bounded(tmp_path: Path):
    policy = new_policy(recipe())
    with serving(recipe(), tmp_path) as served:
        served.server.most = 2
        served.server.saved = 3
        models = [new_model(served) for _ in range(3)]
        assert len(served.models) == 2
        assert ask(served, "get_info", {"model_id": models[0]})[0] == 404
        saved = [
            result(served, "save_weights", {"model_id": models[2], "path": f"n{n}", "type": "save_weights"})
            for n in range(4)
        ]
        assert [("error" in each) for each in saved] == [False, False, False, True]
        assert ask(served, f"training_runs/{models[2]}/checkpoints/weights/n0", b"", method="DELETE")[0] == 200
        assert len([*tmp_path.rglob("*.pt")]) == 2
    samplers, trained = Samplers(policy.model, str, 2), Trained(policy.model, 0, 0)
    for number in range(4):
        trained.save(tmp_path / f"{number}.pt", to_sample=True)
        asyncio.run(samplers.sample(tmp_path / f"{number}.pt", SAMPLE))
    assert len(samplers._engines) == 2
    with pytest.raises(EngineFault, match="nothing is saved as"):
        asyncio.run(samplers.sample(tmp_path / "none.pt", SAMPLE))


def varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + varint(value >> 7)


def message(*fields: tuple[int, int | bytes]) -> bytes:
    """The binary form of a message, from its numbers and values."""
    parts = []
    for number, value in fields:
        whole = isinstance(value, int)
        parts.append(
            varint(number << 3 | (0 if whole else 2)) + (varint(value) if whole else varint(len(value)) + value)
        )  # pyright: ignore
    return b"".join(parts)


def test_the_binary_form_is_read_and_written():
    tokens = np.array([2, 5], "<i4").tobytes()
    target = message((1, np.array([5, 300], "<i8").tobytes()), (3, 2), (4, b"\x02"))
    weights = message((1, np.array([0.5, 1.0], "<f4").tobytes()), (3, 1), (4, 2))
    data = message(
        (1, message((1, message((1, tokens))))),
        (2, message((1, b"target_tokens"), (2, target))),
        (2, message((1, b"weights"), (2, weights))),
    )
    body = message((1, b"model"), (2, 300), (3, data), (4, b"cross_entropy"), (6, 1))
    asked = read_forward_backward(body)
    (read,) = asked["forward_backward_input"]["data"]
    assert (asked["model_id"], asked["seq_id"], asked["forward_only"]) == ("model", 300, True)
    assert read["model_input"]["chunks"][0]["tokens"] == [2, 5]
    assert {name: each["data"] for name, each in read["loss_fn_inputs"].items()} == {
        "target_tokens": [5, 300],
        "weights": [0.5, 1.0],
    }
    for cut in range(1, len(body)):
        with contextlib.suppress(EngineFault):  # and nothing else
            read_forward_backward(body[:cut])
    sequence = {"tokens": [1, 2], "logprobs": [-1.0, -2.0], "stop_reason": "length"}
    row = np.array([-1.0, -2.0], "<f4").tobytes()
    inner = message((1, 1), (2, np.array([1, 2], "<i4").tobytes()), (3, row))
    assert write_samples({"sequences": [sequence]}) == message((1, inner))
    written = write_losses({"loss_fn_outputs": [{"logprobs": {"data": [-1.0, -2.0]}}], "metrics": {}})
    tensor = message((1, row), (2, np.array([0, 8], "<i8").tobytes()), (3, 1))
    record = message((2, message((1, b"logprobs"), (2, tensor))), (3, 1))
    assert written == message((1, b"ArrayRecord"), (2, record))
