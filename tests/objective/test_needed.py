"""In the last layer only what is read is computed; results and gradients are those of computing everything."""

import contextlib
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from tests.rollout.models import GREEDY, MODELS, generate, make_model, same, with_adapters
from tests.toys import trajectory
from transformers import Gemma2Config, Gemma2ForCausalLM

from turnwise.engines.local import LocalEngine
from turnwise.models import needed
from turnwise.models.below import keep_states
from turnwise.models.joined import join
from turnwise.models.policy import choose_trainable, frozen_copy
from turnwise.models.settings import ModelConfig
from turnwise.objective.tokens import Sequences, generated_logprobs
from turnwise.rollout.trajectory import Trajectory

EXACT = 1e-12  # float64: the same sums in another order
ONE = trajectory(0, ([1, 2, 3, 4, 5, 6], [4, 5]), ([1, 5, 2, 7], [3]))
OTHER = trajectory(0, ([8, 7, 6, 5, 4, 3, 2], [1, 2]))
APART = Sequences.from_trajectories([ONE, OTHER])
SHARED = Sequences.from_trajectories([ONE, Trajectory(0, "", [ONE.turns[0], *OTHER.turns])])


def with_frozen_layers():
    model = make_model("qwen2")
    choose_trainable(model, ModelConfig(train="top", top_layers=1))
    keep_states(model)
    return model


def recomputing():
    model = make_model("llama").train()  # transformers recomputes in training mode only
    choose_trainable(model, ModelConfig(gradient_checkpointing=True))
    return model


def other():
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "head_dim": 8, "vocab_size": 23}
    settings = Gemma2Config(**sizes, num_attention_heads=2, num_key_value_heads=1)  # pyright: ignore
    torch.manual_seed(0)
    return Gemma2ForCausalLM(settings).eval()


@contextlib.contextmanager
def computed(model) -> Iterator[list[int]]:
    """Note how many tokens the last feed-forward layer computes in each pass."""
    noted: list[int] = []
    inner = model.get_decoder().layers[-1].mlp.down_proj
    hook = inner.register_forward_pre_hook(lambda _, inputs: noted.append(inputs[0].shape[:-1].numel()))
    yield noted
    hook.remove()


def gradients(model, sequences: Sequences) -> list[torch.Tensor]:
    """Return the log-probability and the entropy of each token, and the gradient of a weighted sum of all of them."""
    values = generated_logprobs(model, sequences, np.arange(len(sequences)))
    weights = torch.linspace(-1, 1, len(values[0]), dtype=values[0].dtype)
    loss = (weights * values[0]).sum() + (weights.flip(0) * values[1]).sum()
    learns = [weight for weight in model.parameters() if weight.requires_grad]
    return [*values, *torch.autograd.grad(loss, learns)]


@pytest.mark.parametrize(
    ("sequences", "read", "tokens"),
    [(APART, 8, 26), (SHARED, 8, 22)],  # responses and the tokens before them; with padding, and what is shared once
    ids=["apart", "shared"],
)
@pytest.mark.parametrize(
    "make", [*MODELS.values(), with_adapters, with_frozen_layers], ids=[*MODELS, "adapters", "top"]
)
def test_an_update_is_that_of_all_tokens(make, sequences, read, tokens, monkeypatch):
    model = make().double()
    with computed(model) as seen:
        ours = gradients(model, sequences)
        monkeypatch.setattr(needed, "MOST", -1)
        plain = gradients(model, sequences)
    assert seen == [read, tokens]
    torch.testing.assert_close(ours, plain, rtol=EXACT, atol=EXACT)


@pytest.mark.parametrize("make", [recomputing, other])
def test_a_pass_that_cannot_leave_tokens_out_computes_all(make):
    model = make()
    with computed(model) as seen:
        gradients(model, APART)
    assert set(seen) == {26}


def test_few_tokens_are_not_selected_from_few():
    model, short = make_model(), Sequences.from_trajectories([trajectory(0, ([1, 2], [3, 4, 5]))])
    with computed(model) as seen:
        gradients(model, short)
    assert seen == [5]  # four are read


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_a_prompt_is_read_for_its_last_token(name, graphs, joined, monkeypatch):
    model = make_model(name)
    twin = join(frozen_copy(model, torch.float32)) if joined else model
    prompts = {0: [1, 2, 3], 1: [4, 5, 6, 7, 8, 9, 1, 2, 3, 4], 2: [5, 1]}
    with computed(twin) as seen:
        ours = generate(LocalEngine(twin, graphs=graphs), prompts, GREEDY)
    assert max(seen) <= 4  # one for each prompt, and padding to a power of two
    monkeypatch.setattr(needed, "MOST", -1)
    plain = generate(LocalEngine(model), prompts, GREEDY)
    assert all(same(ours[number], plain[number]) for number in prompts)


def test_other_places_are_another_gradient(monkeypatch):
    """What would be seen if the tokens themselves were read in place of those before them."""
    from turnwise.objective import tokens

    model = make_model().double()
    right = gradients(model, APART)
    monkeypatch.setattr(tokens, "_read", lambda after, before: np.unique(after))
    with pytest.raises(AssertionError):
        torch.testing.assert_close(gradients(model, APART), right, rtol=EXACT, atol=EXACT)
