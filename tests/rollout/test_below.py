"""Frozen lower layers: the update starts from the states that generation has computed, and learns the same."""

import asyncio
import contextlib

import numpy as np
import pytest
import torch
from tests.toys import color_policy, small_config, trajectory

from turnwise.engines.base import Sampling
from turnwise.engines.local import LocalEngine
from turnwise.models.below import Below, keep_states, kept_states, num_frozen
from turnwise.models.policy import choose_trainable, load_policy, trainable
from turnwise.models.settings import ModelConfig
from turnwise.objective.contexts import Contexts
from turnwise.objective.tokens import Sequences, generated_logprobs, score
from turnwise.train.checkpoint import latest_checkpoint
from turnwise.train.loop import train

CLOSE = 1e-5  # float32: the same sums in another order
TOP = ModelConfig(train="top", top_layers=1)


def top_model(seed: int = 1, *, keep: bool = True):
    """A model of three layers, of which the upper one learns."""
    model = color_policy(layers=3, seed=seed).model
    choose_trainable(model, TOP)
    if keep:
        keep_states(model)
    return model


def play(model, conversations: int = 5, turns: int = 3, **options) -> Sequences:
    """Play conversations of which some begin alike, each with its own length."""
    engine = LocalEngine(model, **options)

    async def one(number: int):
        ids, parts = [], []
        for turn in range(turns):
            prompt = [1 + (number // 2 + turn) % 4] * (number % 3 + 1) + [5]
            made = await engine.generate(number, ids + prompt, Sampling(seed=4, max_new_tokens=3 + number))
            parts.append((prompt, made.token_ids))
            ids = ids + prompt + made.token_ids
        engine.close([number])
        return trajectory(number, *parts)

    async def every():
        await engine.update_weights(1)
        return await asyncio.gather(*map(one, range(conversations)))

    return Sequences.from_trajectories(asyncio.run(every()))


@contextlib.contextmanager
def lower_tokens(model):
    """Count the tokens that the lowest layer computes."""
    seen: list[int] = []
    layer = model.get_decoder().layers[0]
    hook = layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape[:2].numel()))
    try:
        yield seen
    finally:
        hook.remove()


def learned(model, sequences: Sequences) -> list[torch.Tensor]:
    logprob, entropy = generated_logprobs(model, sequences, np.arange(len(sequences)))
    weights = torch.linspace(-1, 1, len(logprob))
    loss = (weights * logprob).sum() + (weights.flip(0) * entropy).sum()
    return [logprob, entropy, *torch.autograd.grad(loss, trainable(model))]


@pytest.mark.parametrize("options", [{}, {"apart": True}, {"graphs": True}, {"max_rows": 2}, {"patience": 0}])
def test_an_update_from_kept_states_is_that_of_all_layers(options):
    model, plain = top_model(), top_model(keep=False)
    sequences = play(model, **options)
    with lower_tokens(model) as computed:
        found = learned(model, sequences)
    assert not computed, "generation has computed all states"
    for ours, expected in zip(found, learned(plain, sequences), strict=True):
        torch.testing.assert_close(ours, expected, rtol=CLOSE, atol=CLOSE)
    assert max(gradient.abs().max() for gradient in found[2:]) > 0.1


def test_what_is_not_kept_is_computed_per_sequence_once():
    """Edited tokens, a response from elsewhere, and sequences dropped for room."""
    model, plain = top_model(), top_model(keep=False)
    sequences, below = play(model), kept_states(model)
    assert below is not None
    sequences.token_ids[1][0] += 1
    below._drop(sequences.token_ids[3][:-1].tobytes())
    with lower_tokens(model) as computed:
        found = learned(model, sequences)
    assert computed == [2 * max(len(sequences.token_ids[k]) for k in (1, 3))]
    for ours, expected in zip(found, learned(plain, sequences), strict=True):
        torch.testing.assert_close(ours, expected, rtol=CLOSE, atol=CLOSE)
    with lower_tokens(model) as computed:
        learned(model, sequences)
    assert not computed, "a second epoch shares what the first has computed"


def test_states_stay_valid_while_the_upper_layer_learns():
    model = top_model()
    sequences = play(model)
    with torch.no_grad():
        for weight in trainable(model):
            weight.add_(0.1 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)))
    plain = top_model(keep=False)
    plain.load_state_dict(model.state_dict())
    for ours, expected in zip(score(model, sequences), score(plain, sequences), strict=True):
        np.testing.assert_allclose(ours, expected, atol=CLOSE)


def test_a_pass_that_keeps_contexts_and_the_update_start_from_the_same_states():
    model = top_model()
    sequences = play(model)
    below = kept_states(model)
    assert below is not None
    for _, states in below._kept.values():
        states.mul_(1.01)  # as if generated with rounded weights
    scored, _ = score(model, sequences, contexts=Contexts(model))
    np.testing.assert_allclose(score(model, sequences)[0], scored, atol=CLOSE)


def test_states_are_bounded_and_the_oldest_go_first():
    model = top_model(keep=False)
    below = Below(model, 2, most_bytes=4000)
    sequences = [np.full(n, n) for n in (20, 21, 22)]
    for ids in sequences:
        below.put(ids, torch.ones(len(ids), 16))
        assert below.num_bytes <= 4000
    assert [below.get(ids) is not None for ids in sequences] == [False, True, True]
    assert below.num_bytes == 43 * (16 * 4 + 8)
    below.put(sequences[2], torch.ones(22, 16))
    assert below.num_bytes == 43 * (16 * 4 + 8), "the same again takes no room"
    below.put(np.arange(1000), torch.ones(1000, 16))
    assert not below.num_bytes, "larger than the room"


def test_states_are_kept_for_as_many_updates_as_rollouts_run_ahead():
    below, ids = Below(top_model(keep=False), 2, updates=2), np.arange(5)
    below.put(ids, torch.ones(5, 16))
    below.end_update()
    below.put(ids + 1, torch.ones(5, 16))
    assert below.get(ids) is not None
    below.end_update()
    assert below.get(ids) is None
    assert below.get(ids + 1) is not None
    below.end_update()
    assert not below.num_bytes


def test_models_without_frozen_lower_layers_keep_nothing():
    full = color_policy(layers=3).model
    all_layers = color_policy(layers=1).model
    choose_trainable(all_layers, TOP)
    frozen = color_policy(layers=3).model.requires_grad_(False)
    for model in (full, all_layers, frozen):
        keep_states(model)
        assert num_frozen(model) == 0
        assert kept_states(model) is None
    assert num_frozen(top_model()) == 2


def test_a_run_learns_the_same_with_and_without(tmp_path, monkeypatch):
    def run(name: str):
        config = small_config(
            tmp_path / name,
            model={"num_layers": 3, "train": "top", "top_layers": 1, "precision": "fp32"},
            environment={"options": {"turns": 2}},
            update={"epochs": 2, "mini_batches": 2},
        )
        return load_policy(latest_checkpoint(train(config))).model.state_dict()

    computed = []
    put_all = Below.put_all
    monkeypatch.setattr(Below, "put_all", lambda *given: (computed.append(given), put_all(*given)))
    kept = run("kept")
    assert not computed, "each sequence was played in one go"
    monkeypatch.setattr("turnwise.train.prepare.keep_states", lambda *_, **__: None)
    for ours, expected in zip(kept.values(), run("plain").values(), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)
