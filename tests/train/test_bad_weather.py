"""Memory that runs out changes nothing but time; numbers that are not finite stop the run before they reach the
weights.
"""

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from tests.toys import has_gradient, small_config, trajectory

import turnwise.train.update as step_module
from turnwise.base.errors import RunError
from turnwise.objective.gradient import Budget, Diverged
from turnwise.objective.tokens import generated_logprobs
from turnwise.rollout.experience import Experience
from turnwise.train.checkpoint import latest_checkpoint, load_checkpoint
from turnwise.train.diverged import kept_for_inspection
from turnwise.train.folder import RunFolder
from turnwise.train.loop import train

ERRORS = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    RuntimeError(
        "[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: you tried to allocate"
    ),
    MemoryError(),
]


def weights_of(folder) -> list[torch.Tensor]:
    return list(load_checkpoint(latest_checkpoint(folder))[1].model.parameters())


def metrics_of(folder, *left_out: str) -> list[dict]:
    return [
        {key: value for key, value in record.items() if not key.startswith(("time/", "memory/", *left_out))}
        for record in folder.metrics()
    ]


@pytest.mark.parametrize("error", ERRORS, ids=["cuda", "cpu", "python"])
def test_out_of_memory_halves_the_micro_batch_and_keeps_the_gradient(error, tmp_path, monkeypatch):
    """More than 60 padded tokens are too many, and more than 20 once some of the gradient has been accumulated."""
    sections = {"rollout": {"groups": 6}, "update": {"learning_rate": 0.01, "max_tokens": 1000, "epochs": 2}}
    undisturbed = train(small_config(tmp_path, run={"name": "undisturbed"}, **sections))
    failures = []

    def limited(model, sequences, indices, **options):
        result = generated_logprobs(model, sequences, indices, **options)
        accumulated = torch.is_grad_enabled() and has_gradient(model)
        if len(indices) * max(len(sequences.token_ids[i]) for i in indices) > (20 if accumulated else 60):
            failures.append(accumulated)
            raise error
        return result

    monkeypatch.setattr(step_module, "generated_logprobs", limited)
    monkeypatch.setattr("turnwise.objective.tokens.generated_logprobs", limited)
    disturbed = train(small_config(tmp_path, run={"name": "disturbed"}, **sections))
    assert set(failures) == {False, True}
    for one, other in zip(weights_of(undisturbed), weights_of(disturbed), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    halvings = [
        record["update/memory_halvings"] for record in disturbed.metrics() if "update/memory_halvings" in record
    ]
    assert halvings[0] > 0
    assert halvings[-1] == halvings[0], "a budget that was found too large once is not tried again"


def test_a_pass_that_runs_out_of_memory_begins_from_nothing():
    """Each attempt adds to a sum, as a backward pass adds to gradients; what a failed one has added must not count."""
    seen = []

    def run(tokens):
        total = 0
        for part in range(0, 8, max(1, tokens)):
            if tokens > 2 and part:
                raise torch.OutOfMemoryError
            total += len(range(part, min(8, part + tokens)))
        seen.append(tokens)
        return total

    budget = Budget(7)
    assert budget.spend(run, shortest=1) == 8
    assert (budget.tokens, budget.halvings, seen) == (1, 2, [1])


def test_no_memory_for_one_sequence_is_one_line():
    def run(tokens):
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(RunError, match="micro-batches of one sequence") as caught:
        Budget(100).spend(run, shortest=9)
    assert "\n" not in str(caught.value)


def test_other_errors_pass():
    def run(tokens):
        raise RuntimeError("shapes do not match")

    with pytest.raises(RuntimeError, match="shapes do not match"):
        Budget(100).spend(run, shortest=9)


@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_what_is_not_finite_stops_the_run_before_the_weights_change(where, tmp_path, monkeypatch):
    """The trajectories of step 2 that hold a certain response give NaN, in the loss or only in its gradient."""
    config = small_config(tmp_path, run={"steps": 3}, checkpoint={"every": 1, "keep": 9})
    calls, poisoned = [], set()

    class Poison(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):  # pyright: ignore[reportIncompatibleMethodOverride]
            return gradient * float("nan")

    def poisoning(model, sequences, indices, **options):
        logprob, entropy = generated_logprobs(model, sequences, indices, **options)
        calls.append(len(indices))
        if len(calls) > 1:  # the update of the first step is the first call
            poisoned.add(int(sequences.trajectory[indices].max()))
            last = torch.from_numpy(np.repeat(sequences.trajectory[indices], sequences.tokens.lengths[indices]))
            bad = last == min(poisoned)
            wrong = logprob * float("nan") if where == "loss" else Poison.apply(logprob)
            logprob = torch.where(bad, wrong, logprob)
        return logprob, entropy

    monkeypatch.setattr(step_module, "generated_logprobs", poisoning)
    with pytest.raises(RunError, match=f"step 2: the {where} of trajectories") as caught:
        train(config)
    text = str(caught.value)
    assert "\n" not in text
    assert "step-000001 is intact" in text
    step, policy, _ = load_checkpoint(
        latest_checkpoint(
            type("Folder", (), {"checkpoints": config.run_folder / "checkpoints", "path": config.run_folder})
        )
    )
    assert step == 1
    assert all(torch.isfinite(weight).all() for weight in policy.model.parameters())
    kept = pq.read_table(config.run_folder / "rollouts" / "diverged-000002.parquet")
    assert kept.num_rows


def test_a_demonstration_that_is_not_finite_is_told_apart(tmp_path):
    """Demonstrations of a step come after its trajectories, and have no number among them."""
    folder = RunFolder.create(small_config(tmp_path))
    (folder.checkpoints / "step-000000").mkdir(parents=True)
    played = [trajectory(0, ([1], [2])), trajectory(0, ([1], [3]))]
    experience = Experience(played, np.array([False, True]), {})
    for indices, named in (([0, 1], r"trajectories 1 \(tasks 0\)"), ([1], "demonstrations")):
        with (
            pytest.raises(RunError, match=rf"step 1: the loss of {named} is not finite"),
            kept_for_inspection(folder, 1, experience, {}),
        ):
            raise Diverged(indices, finite=False)
