"""A packed tree has the gradient of its unpacked paths, and computes every token once."""

import copy
import dataclasses

import numpy as np
import pytest
import torch
from tests.steps import measured, updated
from tests.toys import color_policy, small_config
from tests.trees.growing import binary_tree, unpacked
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from turnwise.objective import packing, tokens
from turnwise.objective.output import linear_logprobs
from turnwise.objective.tokens import Sequences, generated_logprobs, score
from turnwise.rollout.trajectory import distinct_turns

TREE = binary_tree(words=9)
EXACT = 1e-6  # logits are float32 in any case


def grouped_model(make: type = LlamaForCausalLM, config: type = LlamaConfig, **options):
    """The shape of SmolLM2, small: six heads that share two heads of keys and values."""
    shape = {"hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 2, "intermediate_size": 64}
    torch.manual_seed(0)
    made = config(vocab_size=9, num_hidden_layers=2, max_position_embeddings=256, pad_token_id=0, **shape, **options)
    made._attn_implementation = "sdpa"
    return make(made).double()


MODELS = {"tiny": lambda: color_policy(layers=2, context=256, seed=3).model.double(), "grouped": grouped_model}


def gradients(model, trajectories) -> list[torch.Tensor]:
    sequences = Sequences.from_trajectories(trajectories)
    logprob, entropy = generated_logprobs(model, sequences, np.arange(len(sequences)))
    weights = torch.linspace(-1, 1, len(logprob), dtype=logprob.dtype)
    loss = (weights * logprob).mean() + (weights.flip(0) * entropy).mean()
    return list(torch.autograd.grad(loss, list(model.parameters())))


def difference(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> float:
    """Largest difference, relative to the largest entry."""
    largest = max(float(one.abs().max()) for one in theirs)
    return max(float((one - other).abs().max()) for one, other in zip(ours, theirs, strict=True)) / largest


@pytest.mark.parametrize("name", MODELS)
def test_the_gradient_of_a_tree_is_that_of_its_paths(name):
    model = MODELS[name]()
    assert difference(gradients(model, TREE), gradients(model, unpacked(TREE))) < EXACT


@pytest.mark.parametrize("broken", ["positions", "mask"])
def test_wrong_positions_or_a_wrong_mask_change_the_gradient(broken, monkeypatch):
    model, paths_of, packed_hidden = grouped_model(), packing.paths_of, packing.packed_hidden

    def without_mask(packed, device):
        return [dataclasses.replace(path, places=None, mask=None) for path in paths_of(packed, device)]

    def in_a_row(model, packed):
        return packed_hidden(model, dataclasses.replace(packed, positions=np.arange(len(packed.token_ids))))

    if broken == "mask":
        monkeypatch.setattr(packing, "paths_of", without_mask)
    else:
        monkeypatch.setattr("turnwise.objective.tokens.packed_hidden", in_a_row)
    assert difference(gradients(model, TREE), gradients(model, unpacked(TREE))) > 1e-3


def test_layers_that_are_computed_again_give_the_same_gradient():
    model = grouped_model()
    plain = gradients(model, TREE)
    model.activation_checkpointing_enable({"use_reentrant": False})
    model.train()
    assert difference(gradients(model, TREE), plain) < EXACT


class Counted:
    """Tokens that the decoder and the output layer compute."""

    def __init__(self, model, monkeypatch=None):
        self.decoder = self.output = 0
        model.get_decoder().register_forward_pre_hook(self._decode, with_kwargs=True)
        if monkeypatch:
            monkeypatch.setattr(tokens, "linear_logprobs", self._put_out)

    def _decode(self, module, args, kwargs):
        self.decoder += kwargs["input_ids"].numel()

    def _put_out(self, hidden, *rest):
        self.output += len(hidden)
        return linear_logprobs(hidden, *rest)


def test_a_tree_of_eight_leaves_trains_75_turns_instead_of_160(monkeypatch):
    assert len(distinct_turns(TREE[:1])) == 20
    model = color_policy(layers=1, context=256).model
    counted = Counted(model, monkeypatch)
    gradients(model, TREE)
    # `binary_tree` copies the last turn of each path; the tree has 5 + 2 * 5 + 4 * 5 + 8 * 5 turns of 3 + 2 tokens
    assert (counted.decoder, counted.output) == (75 * 5, 75 * 2)
    other = color_policy(layers=1, context=256).model
    counted = Counted(other, monkeypatch)
    gradients(other, unpacked(TREE))
    assert (counted.decoder, counted.output) == (160 * 5, 160 * 2)


def test_scores_are_computed_once_per_step_however_small_micro_batches_are():
    model = color_policy(layers=1, context=256, seed=1).model
    trees = [*binary_tree(words=9, seed=1), *binary_tree(words=9, seed=2)]
    expected = score(copy.deepcopy(model), Sequences.from_trajectories(unpacked(trees)))
    for max_tokens in (1, 400, 10_000):
        counted = Counted(model)
        found = score(model, Sequences.from_trajectories(trees), max_tokens=max_tokens)
        assert counted.decoder == 2 * 75 * 5
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-5)


SETTINGS = {
    "default": {},
    "sequence ratios": {"importance": "trajectory", "aggregate": "nested-mean", "clip_low": 3e-4, "clip_high": 4e-4},
    "two passes": {"epochs": 2},
}


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("fresh", [False, True])
def test_an_update_by_trees_is_that_by_paths(name, fresh, tmp_path):
    """All loss terms, ratios over trajectories, several epochs; a prompt per trajectory or per response."""
    trees = [*binary_tree(words=9, turns=4, forks=(1, 3), seed=1), *binary_tree(words=9, turns=4, forks=(2,), seed=2)]
    for turn in distinct_turns(trees):
        turn.fresh = fresh
    config = small_config(tmp_path, update={"learning_rate": 0.01, "warmup_steps": 0, **SETTINGS[name]})
    weights, told = [], []
    for trajectories in (trees, unpacked(trees)):
        model = color_policy(layers=2, context=256, seed=3).model.double()
        step = measured(model, trajectories, config)
        advantage = np.linspace(-1, 1, step.batch.num_responses)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        metrics, _ = updated(model, optimizer, step, advantage, config, step=1)
        weights.append([weight.detach() for weight in model.parameters()])
        told.append(metrics)
    assert difference(*weights) < EXACT
    assert told[0].keys() == told[1].keys()
    for key in told[0]:
        assert told[0][key] == pytest.approx(told[1][key], abs=1e-5), key


def test_trees_stay_together_with_what_their_trajectories_belong_to():
    trees = [*binary_tree(words=9, turns=3, forks=(1,)), *binary_tree(words=9, turns=3, forks=(1,), seed=1)]
    sequences = Sequences.from_trajectories([*trees, *unpacked(trees[:1])])
    units = sequences.whole_trees(None)
    assert units is not None
    assert units.tolist() == [0, 0, 1, 1, 2]
    paired = sequences.whole_trees(np.array([0, 1, 2, 3, 3]))
    assert paired is not None
    assert paired.tolist() == [0, 0, 1, 1, 1]
    assert Sequences.from_trajectories(unpacked(trees)).whole_trees(None) is None


def test_mini_batches_do_not_part_a_tree(tmp_path):
    trees = [path for seed in range(4) for path in binary_tree(words=9, turns=4, forks=(1, 3), seed=seed)]
    model = color_policy(layers=1, context=256).model
    config = small_config(tmp_path, update={"mini_batches": 3})
    step, counted = measured(model, trees, config), Counted(model)
    updated(model, torch.optim.SGD(model.parameters(), lr=0.1), step, np.ones(step.batch.num_responses), config, step=1)
    assert counted.decoder == 5 * len(distinct_turns(trees))


def test_a_model_with_a_sliding_window_reads_the_paths_one_by_one():
    sliding = grouped_model(MistralForCausalLM, MistralConfig, sliding_window=8)
    assert not packing.can_pack(sliding)
    counted = Counted(sliding)
    gradients(sliding, TREE)
    assert counted.decoder == 160 * 5
    assert packing.can_pack(grouped_model())


def test_sequences_that_are_equal_or_part_at_once_are_packed():
    ids = [np.array([1, 2, 3]), np.array([1, 2, 3]), np.array([4, 5]), np.array([1, 2, 4, 4])]
    packed = packing.pack(ids, np.zeros(4, dtype=int))
    assert packed.token_ids.tolist() == [1, 2, 3, 4, 5, 4, 4]
    assert packed.positions.tolist() == [0, 1, 2, 0, 1, 2, 3]
    assert [places.tolist() for places in packed.places] == [[0, 1, 2], [0, 1, 2], [3, 4], [0, 1, 5, 6]]
    assert packed.num_added.tolist() == [3, 0, 2, 2]
    assert [path.added for path in packing.paths_of(packed, torch.device("cpu"))] == [
        slice(0, 3),
        slice(3, 5),
        slice(5, 7),
    ]
    apart = packing.pack(ids, np.arange(4))
    assert apart.num_added.tolist() == [3, 3, 2, 4]
