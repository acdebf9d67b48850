"""From responses to tokens: chunked scoring equals direct scoring, and every value stays with its token."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import linear

from tests.toys import color_policy, output_layer, trajectory
from turnwise.base.errors import BatchError
from turnwise.credit.segments import Segments
from turnwise.objective import output
from turnwise.objective.gradient import Budget
from turnwise.objective.tokens import Sequences, chunked_logprobs, generated_logprobs, score

EXACT = 1e-6  # float32 log-probabilities of size 1 to 10: the same sums in another order


def some_sequences() -> Sequences:
    """Sequences of different lengths, one to three turns."""
    return Sequences.from_trajectories(
        [
            trajectory(0, ([1, 2, 3], [4, 5])),
            trajectory(0, ([1, 2], [6]), ([7, 8, 1], [2, 3, 4, 5]), ([6], [7])),
            trajectory(1, ([1], [2, 3, 4]), ([5, 6], [7, 8])),
            trajectory(1, ([8, 7, 6, 5, 4, 3], [2])),
            trajectory(2, ([1, 2], [6]), ([7, 8, 1], [2, 3, 4, 5]), ([6], [8])),
        ]
    )


def direct(model, ids: np.ndarray, positions: np.ndarray, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """One sequence, all logits at once."""
    logits = model(input_ids=torch.tensor(ids)[None], use_cache=False).logits[0].float() / temperature
    logprobs = torch.log_softmax(logits[positions - 1], -1)
    return logprobs[torch.arange(len(positions)), ids[positions]], -(logprobs.exp() * logprobs).sum(-1)


def test_the_loss_mask_covers_exactly_the_generated_tokens():
    sequences = some_sequences()
    assert sequences.token_ids[1].tolist() == [1, 2, 6, 7, 8, 1, 2, 3, 4, 5, 6, 7]
    assert sequences.generated[1].tolist() == [2, 6, 7, 8, 9, 11]
    assert sequences.token_ids[1][sequences.generated[1]].tolist() == [6, 2, 3, 4, 5, 7]
    assert sequences.tokens.lengths.tolist() == [2, 6, 5, 1, 6]
    assert len(sequences) == 5


@pytest.mark.parametrize("temperature", [1.0, 0.4])
@pytest.mark.parametrize("chunk_tokens", [1, 3, 1000])
def test_chunked_equals_direct_values_and_gradients(chunk_tokens, temperature):
    sequences, indices = some_sequences(), np.array([3, 1, 0, 4, 2])
    weights = torch.linspace(-1, 1, sequences.tokens.num_elements)

    def gradients(logprob: torch.Tensor, entropy: torch.Tensor) -> list[torch.Tensor]:
        loss = (weights * logprob).sum() + (weights.flip(0) * entropy).sum()
        return list(torch.autograd.grad(loss, list(model.parameters())))

    model = color_policy(layers=2, seed=1).model
    chunked = generated_logprobs(model, sequences, indices, temperature=temperature, chunk_tokens=chunk_tokens)
    parts = [direct(model, sequences.token_ids[i], sequences.generated[i], temperature) for i in indices]
    plain = tuple(torch.cat(column) for column in zip(*parts, strict=True))
    for ours, reference in zip(chunked, plain, strict=True):
        torch.testing.assert_close(ours, reference, rtol=EXACT, atol=EXACT)
    for ours, reference in zip(gradients(*chunked), gradients(*plain), strict=True):
        torch.testing.assert_close(ours, reference, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("max_tokens", [1, 13, 24, 10_000])
def test_scores_stay_with_their_tokens_however_they_are_batched(max_tokens):
    """Known bug of verl-agent: log-probabilities are put back in order after dynamic batching, entropies are not."""
    sequences, model = some_sequences(), color_policy(layers=2, seed=2).model
    with torch.no_grad():
        parts = [direct(model, ids, at, 1.0) for ids, at in zip(sequences.token_ids, sequences.generated, strict=True)]
    logprob_T, entropy_T = score(model, sequences, max_tokens=max_tokens)
    np.testing.assert_allclose(logprob_T, torch.cat([part[0] for part in parts]).numpy(), atol=EXACT)
    np.testing.assert_allclose(entropy_T, torch.cat([part[1] for part in parts]).numpy(), atol=EXACT)
    assert np.ptp(entropy_T) > 0.1  # else any order would do


def test_a_score_that_does_not_restore_the_order_is_seen():
    """The mutation of the test above: entropies in the order of the micro-batches."""
    sequences, model = some_sequences(), color_policy(layers=2, seed=2).model
    _, entropy_T = score(model, sequences, max_tokens=24)
    drifted_T = entropy_T[np.concatenate([sequences.token_index(part) for part in sequences.micro_batches(24)])]
    assert np.abs(drifted_T - entropy_T).max() > 0.1


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=20),
    max_tokens=st.integers(1, 200),
    data=st.data(),
)
def test_micro_batches_keep_to_the_budget_and_cover_every_sequence_once(lengths, max_tokens, data):
    sequences = Sequences(
        [np.zeros(1 + length, dtype=int) for length in lengths],
        [np.array([length]) for length in lengths],
        Segments.from_lengths([1] * len(lengths)),
        np.arange(len(lengths)),
    )
    only = np.array(data.draw(st.lists(st.sampled_from(range(len(lengths))), unique=True)), dtype=int)
    for chosen, batches in (
        (range(len(lengths)), list(sequences.micro_batches(max_tokens))),
        (only, list(sequences.micro_batches(max_tokens, only=only))),
    ):
        assert sorted(index for batch in batches for index in batch) == sorted(chosen)
        for batch in batches:
            assert len(batch) == 1 or len(batch) * max(1 + lengths[index] for index in batch) <= max_tokens


@pytest.mark.parametrize("grad", [True, False])
def test_logits_of_more_than_a_chunk_never_exist(grad, monkeypatch):
    policy, sequences, rows = color_policy(), some_sequences(), []
    monkeypatch.setattr(output, "linear", lambda states, matrix: rows.append(len(states)) or linear(states, matrix))
    with torch.set_grad_enabled(grad):
        logprob, entropy = generated_logprobs(policy.model, sequences, np.arange(5), chunk_tokens=3)
        if grad:
            (logprob.sum() + entropy.sum()).backward()
    assert max(rows) <= 3
    assert sum(rows) == sequences.tokens.num_elements * (2 if grad else 1)  # once more on the way back


def test_only_a_chunk_of_logits_is_kept_for_the_backward_pass():
    """Without recomputation the saved log-probabilities of all chunks would add up to tokens x vocabulary."""
    hidden, layer = torch.randn(40, 8, requires_grad=True), torch.nn.Linear(8, 500, bias=False)
    kept = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(0 if tensor is layer.weight else tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        chunked_logprobs(hidden, layer, torch.zeros(40, dtype=torch.long), 1.0, chunk_tokens=4)
    assert max(kept, default=0) < 4 * 500


def test_uniform_logits_have_the_entropy_log_of_the_vocabulary():
    layer = torch.nn.Linear(4, 7, bias=False)
    torch.nn.init.zeros_(layer.weight)
    logprob, entropy = chunked_logprobs(torch.randn(5, 4), layer, torch.arange(5), 1.0, 2)
    torch.testing.assert_close(logprob, torch.full((5,), -np.log(7.0)), check_dtype=False)
    torch.testing.assert_close(entropy, torch.full((5,), np.log(7.0)), check_dtype=False)


def test_diverged_weights_are_named_and_not_trained_on():
    policy = color_policy()
    with torch.no_grad():
        output_layer(policy).weight.fill_(torch.nan)
    with pytest.raises(BatchError, match=r"20 of 20 sampled tokens is not finite: .* lower update.learning_rate"):
        score(policy.model, some_sequences())


def test_a_pass_has_as_many_tokens_as_an_update_unless_told_otherwise(monkeypatch):
    model, given, batches = color_policy().model, [], Sequences.micro_batches
    monkeypatch.setattr(Sequences, "micro_batches", lambda *how: (given.append(how[1]), batches(*how))[1])
    score(model, some_sequences())
    assert given == [Budget.on(model.device).tokens]
