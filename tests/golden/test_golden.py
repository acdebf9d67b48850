"""Numbers that turnwise did not produce: each case carries where its formula comes from and how it was computed."""

import ast
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.golden import derive
from tests.properties.strategies import advantage

import turnwise as tw
from turnwise.credit.methods.build import build_method
from turnwise.credit.trace import Trace
from turnwise.environments.base import Step
from turnwise.extensions.preference.rejection import BestOfGroup
from turnwise.objective.terms import Pass, StepView
from turnwise.worlds.directions import DirectedEnvironment

HERE = Path(__file__).parent
CASES = [
    pytest.param(case, id=f"{file.stem}: {case['name']}")
    for file in sorted(HERE.glob("*.json"))
    for case in json.loads(file.read_text())
]
OF_TERMS = [case for case in CASES if "expected_loss" in case.values[0]]


@pytest.mark.parametrize("case", [case for case in CASES if case not in OF_TERMS])
def test_credit_equals_the_golden_numbers(case):
    batch = tw.Batch.from_trajectories(case["groups"])
    method = build_method(case["method"], case["options"])
    np.testing.assert_allclose(advantage(method, batch), case["expected"], rtol=case["rtol"], atol=1e-15)
    if batch.tokens is not None and "expected_T" in case:
        advantage_T = method.trace(batch)[0].advantage_T(batch.tokens)
        np.testing.assert_allclose(advantage_T, case["expected_T"], rtol=case["rtol"], atol=1e-15)


@pytest.mark.parametrize("case", OF_TERMS)
def test_a_loss_and_its_slopes_equal_the_golden_numbers(case):
    """The rewards of several objectives go through the environment of a direction, as in a run."""
    rewards = [
        directed_rewards(turns, direction)
        for group, direction in zip(case["rewards"], case["directions"], strict=True)
        for turns in group
    ]
    batch = tw.Batch.from_trajectories(case["groups"])
    np.testing.assert_allclose(batch.reward_R, np.concatenate(rewards), rtol=case["rtol"], atol=1e-15)
    assert batch.tokens is not None
    term = BestOfGroup(**case["options"]).prepare(StepView(batch, Trace(np.zeros(batch.num_responses))))
    logprob = torch.tensor(batch.columns["logprob_T"], dtype=torch.float64, requires_grad=True)
    loss, _ = term.loss(Pass(logprob, logprob * 0, torch.arange(len(logprob))))
    loss.backward()
    assert logprob.grad is not None
    rtol = 1e-6  # a term holds its weights in single precision
    np.testing.assert_allclose(loss.item(), case["expected_loss"], rtol=rtol)
    np.testing.assert_allclose(logprob.grad.numpy(), case["expected"], rtol=rtol, atol=1e-15)


def directed_rewards(turns, direction):
    """What an environment that pays these rewards pays along a direction, one value per response."""

    class Paying:
        def __init__(self):
            self.left = list(turns)

        def start(self):
            return Step(observation="")

        def step(self, response):
            paid = dict(enumerate(self.left.pop(0)))
            return Step(observation="", rewards={str(name): reward for name, reward in paid.items()})

    names = [str(number) for number in range(len(direction))]
    environment: Any = DirectedEnvironment(Paying(), dict(zip(names, direction, strict=True)), names, "")
    environment.start()
    return [environment.step("").reward for _ in turns]


@pytest.mark.parametrize("case", CASES)
def test_every_case_says_where_it_comes_from(case):
    for field in ("source", "equation", "computed_by", "date"):
        assert case[field], field
    assert 0 < case["rtol"] <= 1e-12


def test_the_numbers_are_derived_without_turnwise():
    for file in [HERE / "exact.py", *HERE.glob("derive*.py")]:
        tree = ast.parse(file.read_text())
        imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        imported |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
        outside = imported - sys.stdlib_module_names - {"tests.golden.exact"}
        assert not outside, f"{file.name} imports {outside}: a golden number may not come from the code it judges"


@pytest.mark.parametrize("name", sorted(derive.TABLES))
def test_the_files_are_what_the_derivation_gives(name):
    stored, derived = json.loads((HERE / f"{name}.json").read_text()), json.loads(derive.derive(name))
    for old, new in zip(stored, derived, strict=True):
        # exp and sqrt of another C library may differ in the last place
        np.testing.assert_allclose(old.pop("expected"), new.pop("expected"), rtol=1e-14, atol=1e-16)
        assert old == new


@pytest.mark.parametrize("name", sorted(tw.METHODS))
def test_every_published_method_has_golden_numbers(name):
    assert (HERE / f"{name}.json").exists()
