"""All loss terms together: their sum does not depend on how a step is cut, whatever unit a term has."""

import copy
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from tests.invariants.test_objectives import PAST
from tests.invariants.test_update import Frozen, assert_same, difference, experience, flat_gradient, make_config
from tests.steps import measured, updated, with_column

from turnwise.base.errors import ConfigError
from turnwise.objective.build import TERMS, make_objective
from turnwise.objective.settings import UpdateConfig
from turnwise.objective.terms import Pass, Stateless, StepView, TermLoss, as_tensor

EVERYTHING: dict[str, Any] = {
    "kl": 0.2,
    "entropy_bonus": 0.05,
    "entropy": {"name": "epo", "beta_decay": 1.0},
    "tokens": {"name": "hapo"},
    "mismatch_cap": 1.5,
    "dual_clip": 1.05,
    "preference": {"name": "dpo"},
}


class PairTerm(Stateless):
    """A term of one's own on pairs of neighbouring trajectories: their mean log-probabilities shall not differ."""

    name: ClassVar[str] = "pairs"
    unit = "pair"
    needs = ("logprob_T",)

    def __init__(self, weight: float = 1.0, split: bool = False):
        self.weight, self.split = weight, split

    def prepare(self, step: StepView) -> TermLoss:
        trajectories = step.batch.trajectories.of(step.batch.tokens)
        mean_T = as_tensor(1 / trajectories.broadcast(trajectories.lengths.astype(float)))
        owner_T, num = torch.tensor(trajectories.ids), len(trajectories)
        pair_N = np.arange(num) // 2

        def loss(given: Pass):
            owner, scaled = owner_T[given.where], given.logprob * given.here(mean_T)
            mean_N = torch.zeros(num).index_add(0, owner, scaled)
            there_N = torch.zeros(num).index_add(0, owner, torch.ones(len(owner))) > 0
            total = torch.zeros(())
            for pair in range(pair_N.max() + 1):
                first, second = 2 * pair, 2 * pair + 1
                if second < num and there_N[first] and there_N[second]:
                    total = total + (mean_N[first] - mean_N[second]) ** 2
            return self.weight * step.mini_batches * total / num, {}

        return TermLoss(loss, np.ones(num, dtype=bool), pair_N=None if self.split else pair_N)


def gradient(**update: Any) -> torch.Tensor:
    policy, old, reference, trajectories, advantage_R = experience()
    config = make_config(**update)
    step = measured(old.model, trajectories, config, reference=reference.model)
    logprob_T = step.batch.columns["logprob_T"]  # the engine's differ: ratios from 0.5 to 2
    noise_T = np.random.default_rng(4).uniform(-np.log(2), np.log(2), len(logprob_T))
    step = with_column(step, behavior_logprob_T=logprob_T + noise_T)
    model = copy.deepcopy(policy.model)
    updated(model, Frozen(model.parameters()), step, advantage_R, config, step=1, state=PAST)
    return flat_gradient(model)


PAIRS = {"name": "tests.invariants.test_terms:PairTerm", "weight": 0.5}


@pytest.mark.parametrize("importance", ["token", "response", "trajectory"])
@pytest.mark.parametrize("terms", [[], [PAIRS]], ids=["", "pairs"])
def test_the_sum_of_all_terms_does_not_depend_on_micro_batches(importance, terms):
    options = {**EVERYTHING, "importance": importance, "terms": terms}
    whole = gradient(**options)
    assert whole.abs().max() > 0
    for max_tokens in (1, 60, 200):
        assert_same(gradient(**options, max_tokens=max_tokens), whole)


@pytest.mark.parametrize("name", EVERYTHING)
def test_every_term_counts(name):
    without = {key: value for key, value in EVERYTHING.items() if key != name}
    assert difference(gradient(**without), gradient(**EVERYTHING))[0] > 1e-4


def test_a_pair_that_is_torn_apart_is_rejected():
    """Known wrong: the two trajectories of a pair in different micro-batches."""
    torn = {**PAIRS, "split": True}
    whole = gradient(terms=[torn])
    assert difference(gradient(terms=[torn], max_tokens=1), whole)[0] > 1e-3


def test_terms_are_named_once_and_in_order():
    update = UpdateConfig(**EVERYTHING, terms=(PAIRS,))  # pyright: ignore[reportArgumentType]
    assert list(make_objective(update).terms) == [*TERMS, "preference", "pairs"]
    assert list(make_objective(UpdateConfig()).terms) == ["policy"]
    needs = make_objective(update).needs
    assert needs["loss term 'kl'"] == ("ref_logprob_T",)
    assert needs["loss term 'pairs'"] == ("logprob_T",)
    for terms, message in (
        ([PAIRS, PAIRS], "a loss term 'pairs' exists already"),
        ([{**PAIRS, "wieght": 1}], r"has no option 'wieght'. Did you mean 'weight'\?"),
        (["tests.toys:Colors"], "needs seed to be set"),
        (["tests.toys:COLORS"], "expected a class or function"),
    ):
        with pytest.raises(ConfigError, match=message):
            make_objective(UpdateConfig(terms=terms))
    with pytest.raises(ConfigError, match="a loss term 'pairs' exists already"):
        make_objective(UpdateConfig(terms=(PAIRS,)), PairTerm())  # pyright: ignore[reportArgumentType]


def test_the_name_of_a_shipped_term_is_taken_though_the_recipe_does_not_use_it(monkeypatch):
    """A checkpoint of version 0.1 has the states "tokens" and "entropy", and nothing else."""
    monkeypatch.setattr(PairTerm, "name", "kl")
    with pytest.raises(ConfigError, match="a loss term 'kl' exists already"):
        make_objective(UpdateConfig(terms=(PAIRS,)))  # pyright: ignore[reportArgumentType]
    monkeypatch.setattr(PairTerm, "name", "tokens")
    objective = make_objective(UpdateConfig(terms=(PAIRS,)))  # pyright: ignore[reportArgumentType]
    objective.load_state_dict(objective.state_dict())


def test_rounding_gives_no_gradient_to_an_absolute_ratio():
    """C8: with one optimiser step a step, the sign of rounding noise decided KL-Cov's gradient."""
    from turnwise.objective.losses import policy_loss

    logprob = torch.tensor([-1.0 + 1e-6, -2.0 - 1e-6], requires_grad=True)
    old, ones = torch.tensor([-1.0, -2.0]), torch.ones(2)
    policy_loss(logprob, old, 0.5 * ones, ones, clip="none", penalty=ones).loss.backward()
    assert logprob.grad is not None
    torch.testing.assert_close(logprob.grad, -0.5 * ones, atol=1e-4, rtol=0)
    moved = torch.tensor([-1.2, -1.8], requires_grad=True)
    policy_loss(moved, old, 0 * ones, ones, clip="none", penalty=ones).loss.backward()
    assert moved.grad is not None
    assert moved.grad.tolist() == [-1.0, 1.0]
