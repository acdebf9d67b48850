"""Rejection sampling: which trajectories are imitated, and the gradient by hand."""

import numpy as np
import pytest
import torch
from tests.toys import small_config
from tests.train.test_preference import LOGPROB, batch

from turnwise.base.errors import ConfigError
from turnwise.credit.trace import Trace
from turnwise.extensions.preference.rejection import BestOfGroup
from turnwise.objective.terms import Pass, StepView
from turnwise.train.loop import train


def loss_of(*, mini_batches: int = 1, **options) -> tuple[float, list[float], dict[str, float]]:
    given = batch()
    prepared = BestOfGroup(**options).prepare(
        StepView(given, Trace(np.zeros(given.num_responses)), mini_batches=mini_batches)
    )
    logprob = torch.tensor(LOGPROB, requires_grad=True)
    loss, told = prepared.loss(Pass(logprob, logprob * 0, torch.arange(7)))
    loss.backward()
    assert logprob.grad is not None
    return loss.item(), logprob.grad.tolist(), {**told, **prepared.metrics}


def test_the_best_of_a_group_is_imitated_and_no_other():
    """b is best in the first group, with the tokens -1.0 and -3.0; all are equal in the second."""
    loss, slope, told = loss_of()
    assert loss == pytest.approx(2.0)
    assert slope == pytest.approx([0, 0, -0.5, -0.5, 0, 0, 0])
    assert told == {"winners": 1.0, "winners_loss": pytest.approx(2.0)}


def test_of_equals_the_first_is_imitated_on_request():
    loss, slope, told = loss_of(equal=True, weight=3.0)
    assert slope == pytest.approx([0, 0, -1, -1, 0, -1, 0])
    assert loss == pytest.approx(3 * (1.0 + 3.0 + 0.1) / 3)
    assert told["winners"] == 2.0


def test_mini_batches_weigh_up_to_the_step():
    assert loss_of(mini_batches=4)[0] == pytest.approx(4 * loss_of()[0])


def test_rejection_sampling_trains_and_impossible_weights_are_refused(tmp_path):
    term = {"name": "turnwise.extensions.preference.rejection:BestOfGroup"}
    folder = train(small_config(tmp_path, update={"policy": False, "terms": [term]}, method="grpo"))
    lines = [line for line in folder.metrics() if "update/winners" in line]
    assert len(lines) == 2
    for weight in (0.0, -1.0, float("nan")):
        with pytest.raises(ConfigError, match="expected a finite number above 0"):
            BestOfGroup(weight)
    with pytest.raises(ConfigError, match="has no option 'wait'"):
        train(small_config(tmp_path, update={"terms": [{**term, "wait": 1}]}, run={"name": "refused"}))


def test_winners_among_trajectories_that_are_half_played_are_refused(tmp_path):
    """Fails if only `update.preference`, which compares the same returns, says that it needs whole trajectories."""
    term = {"name": "turnwise.extensions.preference.rejection:BestOfGroup"}
    budget = {"step_budget": {"turns": 12, "learn": "played"}}
    sections = {"critic": {"target": "return"}, "method": {"name": "egae", "decay": 0.9}, "rollout": budget}
    with pytest.raises(ConfigError, match=r"BestOfGroup' compares .*; set rollout.step_budget.learn='complete'"):
        small_config(tmp_path, update={"terms": [term]}, **sections)
    small_config(tmp_path, update={"terms": [{"name": "turnwise.objective.terms:Stateless"}]}, **sections)
