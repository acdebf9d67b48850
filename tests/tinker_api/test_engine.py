"""The engine and the learner against our own server, over HTTP: the same numbers as in this process."""

import asyncio
import functools
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.tinker_api.serving import UNAVAILABLE, Serving, new_policy, recipe, serving
from turnwise.base.errors import ConfigError, EngineFault, EngineLost
from turnwise.credit.methods.build import build_method
from turnwise.engines.base import Sampling
from turnwise.engines.local import LocalEngine
from turnwise.extensions.gateway.http import HttpResponse
from turnwise.extensions.tinker.client import PassResult
from turnwise.extensions.tinker.learner import TinkerLearner
from turnwise.extensions.tinker.model import TinkerModel, fill
from turnwise.measures.base import Played
from turnwise.measures.plan import plan_measures
from turnwise.objective.build import make_objective
from turnwise.objective.gradient import Budget
from turnwise.objective.scorer import Scorer
from turnwise.objective.tokens import Sequences
from turnwise.rollout.trajectory import Trajectory, Turn
from turnwise.train.parts import make_optimizer
from turnwise.train.update import Learner, Measured

SAMPLING = Sampling(max_new_tokens=4, seed=3)


def connected(served: Serving, config: Any = None, **options: Any) -> tuple[TinkerModel, Any]:
    """A model on a server, and its engine."""
    config = config or recipe(engine={"name": "tinker", "url": served.url, **options})
    policy = new_policy(config)
    model = TinkerModel()
    remote = type(policy)(model, policy.format, policy.max_context)  # pyright: ignore[reportArgumentType]
    return model, config.engine.make(remote)


def generate(engine: Any, prompts: list[list[int]], sampling: Sampling = SAMPLING) -> list[Any]:
    async def all_of_them() -> list[Any]:
        try:
            return await asyncio.gather(*(engine.generate(n, prompt, sampling) for n, prompt in enumerate(prompts)))
        finally:
            await engine.aclose()

    return asyncio.run(all_of_them())


def rollouts(policy: Any) -> list[Trajectory]:
    """Trajectories of two turns that a policy has sampled, in groups of three with different rewards."""
    engine = LocalEngine(policy.model)
    found = []
    for number in range(6):
        ids, turns = [5, 6, 2 + number // 3], []
        for turn in range(2):
            made = asyncio.run(engine.generate(10 * number + turn, ids, Sampling(max_new_tokens=3, seed=1)))
            new = ids[sum(len(t.prompt_ids) + len(t.response_ids) for t in turns) :]
            turns.append(Turn("", "", list(new), made.token_ids, made.logprobs, "", True))
            ids = [*ids, *made.token_ids, 2, 3]
        turns[-1].reward = float(number % 3 == 1) + 0.5 * (number == 3)
        found.append(Trajectory(number // 3, "task", turns))
    return found


def measure(model: Any, trajectories: list[Trajectory], config: Any, models: dict[str, Any] | None = None) -> Measured:
    sequences = Sequences.from_trajectories(trajectories)
    objective = make_objective(config.update)
    transform = build_method(config.method.name, config.method.model_extra or {})
    plan = plan_measures({"method": transform.needs, **objective.needs}, engine_reports=())
    score = Scorer(sequences, config.model, 1.0, Budget(4096))
    batch, _ = plan.take(Played(trajectories, models={"policy": model, **(models or {})}, score=score))
    return Measured(batch, sequences)


UPDATES: dict[str, dict[str, Any]] = {
    "ppo": {"clip_low": 0.05, "clip_high": 0.1},
    "cispo": {"clip": "cispo", "aggregate": "response-mean"},
    "none": {"clip": "none", "aggregate": "constant"},
    "kl in the reward": {"kl": 0.5, "kl_in": "reward", "epochs": 2},
    "icepop": {"mismatch_cap": 2.0, "mismatch_floor": 0.5, "mismatch": "mask"},
    "three_steps": {"epochs": 3, "clip_low": 0.01, "clip_high": 0.01, "aggregate": "trajectory-mean"},
    "mini_batches": {"mini_batches": 2, "epochs": 2},
    "more mini-batches than trajectories": {"mini_batches": 1000, "max_grad_norm": 100.0},
    "mismatch": {"mismatch_cap": 1.5},
    "behavior": {"old_policy": "behavior"},
    "weight_decay": {"weight_decay": 0.1, "max_grad_norm": 0.01},
}
BY_GRADIENT: dict[str, dict[str, Any]] = {
    "gspo": {"importance": "trajectory", "clip_low": 0.01, "epochs": 2},
    "dual_clip": {"dual_clip": 1.1, "epochs": 2},
    "kl": {"kl": 0.5, "epochs": 2, "kl_estimator": "k3+"},
    "verl's bounds": {"log_ratio": "verl", "kl": 0.5},
}


def updated(config: Any, policy: Any, model: Any, learner: type[Learner], played: list[Trajectory], **more: Any) -> Any:
    """Update a model on trajectories; returns what the update tells."""
    measured = measure(model, played, config, **more)
    trace = build_method(config.method.name, {}).trace(measured.batch)[0]
    optimizer = make_optimizer(type(policy)(model, policy.format, policy.max_context), config.update)
    made = learner(make_objective(config.update), config.update, config.model, Budget(4096), steps=3, max_new_tokens=3)
    return made.update(model, optimizer, measured, trace, 1)


@pytest.mark.parametrize(
    ("name", "loss"), [*((each, "named") for each in UPDATES), *((each, "gradient") for each in UPDATES | BY_GRADIENT)]
)
def test_an_update_on_the_server_is_the_update_in_this_process(tmp_path: Path, name: str, loss: str):
    update = {"learning_rate": 0.01, **{**UPDATES, **BY_GRADIENT}[name]}
    config = recipe(update=update)
    policy, reference = new_policy(config), new_policy(config)
    with torch.no_grad():
        for weight in reference.model.parameters():
            weight += 0.02
    played = rollouts(policy)
    models = {"models": {"reference": reference.model}}
    with serving(config, tmp_path) as served:
        config = recipe(update=update, engine={"name": "tinker", "url": served.url, "loss": loss})
        model, _ = connected(served, config)
        metrics = updated(config, policy, model, TinkerLearner, played, **models)
        local = updated(config, policy, policy.model, Learner, played, **models)
        (remote,) = served.models
        for (where, ours), theirs in zip(policy.model.named_parameters(), remote.model.parameters(), strict=True):
            torch.testing.assert_close(theirs, ours, atol=2e-5, rtol=1e-3, msg=where)
    for metric in ("clipped_frac", "kl_old", "log_ratio_abs", "grad_norm", "kl_reference"):
        assert metrics[metric] == pytest.approx(local[metric], abs=2e-4, rel=1e-2), metric


def test_the_kl_of_a_named_loss_is_a_term_of_the_reward(tmp_path: Path):
    """Its gradient is that of `advantage - kl * (log pi - log pi_ref)`, per token."""
    config = recipe(update={"learning_rate": 0.01, "kl": 0.7, "clip": "none"})
    policy, reference = new_policy(config), new_policy(config)
    with torch.no_grad():
        for weight in reference.model.parameters():
            weight += 0.02 * torch.randn(weight.shape, generator=torch.manual_seed(0))
    played, seen = rollouts(policy), []
    with serving(config, tmp_path) as served:
        config = recipe(update=config.update.model_dump(), engine={"name": "tinker", "url": served.url})
        model, _ = connected(served, config)
        run = model.run
        model.run = lambda *requests: seen.extend(requests) or run(*requests)
        updated(config, policy, model, TinkerLearner, played, models={"reference": reference.model})
    measured = measure(policy.model, played, config, {"reference": reference.model})
    trace = build_method(config.method.name, {}).trace(measured.batch)[0]
    batch = measured.batch
    assert batch.tokens is not None
    kl_T = batch.columns["logprob_T"] - batch.columns["ref_logprob_T"]
    expected_T = (trace.advantage_T(batch.tokens) - 0.7 * kl_T) / batch.tokens.num_elements
    (asked,) = (body["forward_backward_input"] for name, body in seen if name == "forward_backward")
    assert asked["loss_fn"] == "importance_sampling"
    sent = [value for each in asked["data"] for value in each["loss_fn_inputs"]["advantages"]["data"] if value]
    np.testing.assert_allclose(np.sort(sent), np.sort(expected_T), atol=1e-6)


def test_samples_have_the_log_probabilities_of_the_scoring_pass_and_repeat(tmp_path: Path):
    config = recipe()
    with serving(config, tmp_path) as served:
        model, engine = connected(served)
        asyncio.run(engine.update_weights(4))
        prompts = [[5, 6, 2 + number] for number in range(4)]
        made, again = generate(engine, prompts), generate(engine, prompts)
        other = generate(engine, prompts, Sampling(max_new_tokens=4, seed=4))
        turns = [
            Turn("", "", prompt, each.token_ids, each.logprobs, "", True)
            for prompt, each in zip(prompts, made, strict=True)
        ]
        trajectories = [Trajectory(0, "", [turn]) for turn in turns]
        logprob_T, entropy_T = model.score(Sequences.from_trajectories(trajectories), 1.0)
    assert [each.version for each in made] == [4] * 4
    assert [each.token_ids for each in made] == [each.token_ids for each in again]
    assert [each.token_ids for each in made] != [each.token_ids for each in other]
    np.testing.assert_allclose(logprob_T, np.concatenate([each.logprobs for each in made]), atol=1e-5)
    np.testing.assert_array_equal(entropy_T, -logprob_T)


def test_a_response_ends_with_its_stop_token_or_text(tmp_path: Path):
    config = recipe()
    with serving(config, tmp_path) as served:
        _, engine = connected(served)
        asyncio.run(engine.update_weights())
        (free,) = generate(engine, [[5, 6, 2]])
        second = free.token_ids[1]
        (stopped,) = generate(engine, [[5, 6, 2]], Sampling(max_new_tokens=4, seed=3, stop_ids=(second,)))
        text = new_policy(config).tokenizer.decode([second])
        assert isinstance(text, str)
        (cut,) = generate(engine, [[5, 6, 2]], Sampling(max_new_tokens=4, seed=3, stop=(text,)))
    end = free.token_ids.index(second) + 1
    assert free.truncated
    assert stopped.token_ids == cut.token_ids == free.token_ids[:end]
    assert not stopped.truncated
    assert not cut.truncated


CRASHES = {
    "before_a_pass": ("forward_backward", False, 1),
    "after_a_pass": ("forward_backward", True, 2),
    "before_a_step": ("optim_step", False, 2),
    "after_a_step": ("optim_step", True, 1),
    "after_a_later_step": ("optim_step", True, 4),
    "after_a_state": ("save_weights", True, 2),
    "after_a_sampler": ("save_weights_for_sampler", True, 2),
}
"""The request around which the server loses its memory, whether it is carried out first, and which one of its kind."""


def lose(served: Serving, name: str, done: bool, number: int = 1) -> list[str]:
    """Have the server lose its memory around a request; returns the names of those that were lost."""
    lost, count = list[str](), [0]

    def watch(asked: str, request: Any) -> Any:
        count[0] += asked == name
        if asked != name or lost or count[0] < number:
            return None
        lost.append(asked)

        async def crash() -> Any:
            if done:
                await served.server.answer(request)
                await asyncio.gather(*served.server._results.values())
            served.forget()
            return UNAVAILABLE

        return crash()

    served.watch = watch
    return lost


def updated_twice(folder: Path, played: list[Trajectory], *crash: Any) -> list[torch.Tensor]:
    """Weights on a server after two updates, one of which a crash may interrupt."""
    update = {"learning_rate": 0.01, "epochs": 2}
    with serving(recipe(update=update), folder) as served:
        config = recipe(update=update, engine={"name": "tinker", "url": served.url})
        model, engine = connected(served, config)
        asyncio.run(engine.update_weights(0))
        lost = lose(served, *crash) if crash else []
        for step in range(2):
            updated(config, new_policy(config), model, TinkerLearner, played)
            asyncio.run(engine.update_weights(step + 1))
        assert len(lost) == bool(crash)
        return [each.detach().clone() for each in served.models[-1].model.parameters()]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Trajectory], list[torch.Tensor]]:
    """Trajectories, and the weights of a server that learns from them twice and is never lost."""
    played = rollouts(new_policy(recipe(update={"learning_rate": 0.01, "epochs": 2})))
    return played, updated_twice(tmp_path_factory.mktemp("undisturbed"), played)


@pytest.mark.parametrize("crash", CRASHES)
def test_a_server_that_is_lost_in_an_update_makes_it_once(
    tmp_path: Path,
    crash: str,
    undisturbed: tuple[list[Trajectory], list[torch.Tensor]],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("turnwise.engines.connection.FIRST_WAIT_S", 0.01)
    played, weights = undisturbed
    for ours, theirs in zip(updated_twice(tmp_path, played, *CRASHES[crash]), weights, strict=True):
        torch.testing.assert_close(ours, theirs, atol=0, rtol=0)


def test_a_server_that_is_lost_while_it_samples_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("turnwise.engines.connection.FIRST_WAIT_S", 0.01)
    with serving(recipe(), tmp_path) as served:
        _, engine = connected(served)
        asyncio.run(engine.update_weights())
        prompts = [[5, 6, 2 + number] for number in range(3)]
        made = generate(engine, prompts)
        lost = lose(served, "asample", done=True)
        again = generate(engine, prompts)
        served.kill()
        served.start()
        third = generate(engine, prompts)
    assert lost
    assert [each.token_ids for each in made] == [each.token_ids for each in again] == [e.token_ids for e in third]


def test_a_server_that_stays_away_ends_the_run_in_one_line(tmp_path: Path):
    with serving(recipe(), tmp_path) as served:
        model, engine = connected(served, patience_s=0.2)
        asyncio.run(engine.update_weights())
        served.kill()
        for work in (functools.partial(generate, engine, [[5, 6]]), functools.partial(model.imitate, [], 0.1)):
            with pytest.raises(EngineLost, match=r"gave no usable answer for 0\.2 s .*\); start it again$"):
                work()
        served.start()


@pytest.mark.parametrize(
    ("name", "answer", "wrong"),
    [
        ("get_server_capabilities", {"supported_models": [{}]}, "supported_models.0.model_name: Field required"),
        ("create_session", {"session_id": 3}, "session_id: Input should be a valid string"),
        ("create_model", [], "the answer: Input should be"),
        ("retrieve_future", {"type": ["ready"]}, "type: Input should be a valid string"),
        ("retrieve_future after save_weights", {"type": "ready"}, "path: Field required"),
        ("create_sampling_session", {}, "sampling_session_id: Field required"),
        ("asample", {"request_id": None}, "request_id: Input should be a valid string"),
    ],
)
def test_an_answer_of_another_form_is_said_in_a_line(tmp_path: Path, name: str, answer: Any, wrong: str):
    name, _, earlier = name.partition(" after ")
    seen = [""]

    def watch(asked: str, request: Any) -> HttpResponse | None:
        seen.append(asked)
        return HttpResponse(answer) if asked == name and earlier in seen else None

    def play() -> None:
        _, engine = connected(served, patience_s=0.5)
        asyncio.run(engine.update_weights())
        generate(engine, [[5, 6]])

    with serving(recipe(), tmp_path) as served:
        served.watch = watch
        with pytest.raises(EngineLost, match=re.escape(f"does not answer as the Tinker API says ({wrong}")) as raised:
            play()
    assert "\n" not in str(raised.value)


def test_a_result_that_is_not_ready_is_asked_for_again_and_nothing_is_made_anew(tmp_path: Path):
    """Servers end a long poll with 408."""
    seen = []

    def watch(asked: str, request: Any) -> HttpResponse | None:
        seen.append(asked)
        return HttpResponse({"detail": "timeout"}, status=408) if seen[-2:] == ["asample", "retrieve_future"] else None

    with serving(recipe(), tmp_path) as served:
        _, engine = connected(served, patience_s=0.5)
        asyncio.run(engine.update_weights())
        served.watch = watch
        assert generate(engine, [[5, 6]])[0].token_ids
    assert (seen.count("asample"), seen.count("create_model")) == (1, 0)
    assert seen.count("retrieve_future") >= 2


def test_a_long_poll_may_outlast_the_patience_with_a_server_that_is_away(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("turnwise.extensions.tinker.client.LONG_POLL_S", 0.3)
    seen = []

    def watch(asked: str, request: Any) -> HttpResponse | None:
        seen.append(asked)
        if asked != "retrieve_future" or seen.count(asked) > 2:
            return None
        time.sleep(0.4)
        return HttpResponse({"detail": "timeout"}, status=408)

    with serving(recipe(), tmp_path) as served:
        _, engine = connected(served, patience_s=0.2)
        asyncio.run(engine.update_weights())
        served.watch = watch
        seen.clear()
        assert generate(engine, [[5, 6]])[0].token_ids
    assert seen.count("asample") == 1


def test_a_server_that_has_no_result_at_once_again_and_again_is_lost(tmp_path: Path):
    def watch(asked: str, request: Any) -> HttpResponse | None:
        return HttpResponse({"detail": "timeout"}, status=408) if asked == "retrieve_future" else None

    with serving(recipe(), tmp_path) as served:
        _, engine = connected(served, patience_s=0.5)
        asyncio.run(engine.update_weights())
        served.watch = watch
        with pytest.raises(EngineLost, match=r"gave no usable answer for 0\.5 s"):
            generate(engine, [[5, 6]])


@pytest.mark.parametrize("wrong", [[-1.0], [-1.0, float("nan"), -1.0], [0.5, -1.0, -1.0, -1.0]])
def test_a_pass_of_other_tokens_is_not_taken(wrong):
    turn = Turn("", "", [5, 6], [7, 8], [-1.0, -1.0], "", True)
    sequences = Sequences.from_trajectories([Trajectory(0, "", [turn])])
    told = {"logprobs": {"data": wrong, "dtype": "float32", "shape": [len(wrong)]}}
    answer = PassResult.model_validate({"loss_fn_outputs": [told], "metrics": {}})
    with pytest.raises(EngineLost, match=r"expected finite ones of \[3\]"):
        fill(sequences, np.arange(1), answer, np.zeros(2))


@pytest.mark.parametrize(
    ("tokens", "logprobs"),
    [([], []), ([5], None), ([5, 6], [-1.0]), ([5] * 9, [-1.0] * 9)],
)
def test_tokens_without_their_log_probabilities_are_no_response(tmp_path: Path, tokens: Any, logprobs: Any):
    seen = []

    def watch(asked: str, request: Any) -> HttpResponse | None:
        seen.append(asked)
        sample = {"tokens": tokens, "logprobs": logprobs, "stop_reason": "length"}
        told = asked == "retrieve_future" and "asample" in seen
        return HttpResponse({"type": "sample", "sequences": [sample]}) if told else None

    with serving(recipe(), tmp_path) as served:
        served.watch = watch
        _, engine = connected(served)
        asyncio.run(engine.update_weights())
        told = f"{len(tokens)} token ids with {len(logprobs or [])} log-probabilities"
        with pytest.raises(EngineFault, match=told):
            generate(engine, [[5, 6]])
    assert seen.count("asample") == 1  # the same seed would give the same


def test_what_the_server_lacks_is_named(tmp_path: Path):
    with serving(recipe(), tmp_path) as served:
        url = f"engine.url='{served.url}'"
        with pytest.raises(ConfigError, match=r"has no model 'other': set engine.base_model to one of 'stairs'"):
            connected(served, base_model="other")
        with pytest.raises(ConfigError, match=r"'stairs' .* reads 128 tokens; lower model.max_context=512"):
            connected(served, recipe(model={"max_context": 512}, engine={"name": "tinker", "url": served.url}))
        model, engine = connected(served)
        asyncio.run(engine.update_weights())
        with pytest.raises(EngineFault, match=r"token 9999 is not in the model's vocabulary of \d+"):
            generate(engine, [[9999]])
        with pytest.raises(EngineFault, match=r"loss_fn='dro' is not served; this server has cross_entropy, .*cispo"):
            model.run(("forward_backward", {"forward_backward_input": {"data": [], "loss_fn": "dro"}}))
        served.kill()
        with pytest.raises(ConfigError, match="no server of the Tinker API answers") as refused:
            recipe(engine={"name": "tinker", "url": served.url}).engine.check()
        served.start()
    assert url in str(refused.value)
