"""Numbers that turnwise did not produce: each case carries where its formula comes from and how it was computed."""

import ast
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.golden import derive
from tests.properties.strategies import advantage

import turnwise as tw
from turnwise.methods.build import build_method

HERE = Path(__file__).parent
CASES = [
    pytest.param(case, id=f"{file.stem}: {case['name']}")
    for file in sorted(HERE.glob("*.json"))
    for case in json.loads(file.read_text())
]


@pytest.mark.parametrize("case", CASES)
def test_credit_equals_the_golden_numbers(case):
    batch = tw.Batch.from_trajectories(case["groups"])
    method = build_method(case["method"], case["options"], with_aem=False)
    np.testing.assert_allclose(advantage(method, batch), case["expected"], rtol=case["rtol"], atol=1e-15)
    if batch.tokens is not None and "expected_T" in case:
        advantage_T = method.trace(batch)[0].advantage_T(batch.tokens)
        np.testing.assert_allclose(advantage_T, case["expected_T"], rtol=case["rtol"], atol=1e-15)


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
    stored, derived = json.loads((HERE / f"{name}.json").read_text()), json.loads(derive.derive()[name])
    for old, new in zip(stored, derived, strict=True):
        # exp and sqrt of another C library may differ in the last place
        np.testing.assert_allclose(old.pop("expected"), new.pop("expected"), rtol=1e-14, atol=1e-16)
        assert old == new


@pytest.mark.parametrize("name", sorted(tw.METHODS))
def test_every_published_method_has_golden_numbers(name):
    assert (HERE / f"{name}.json").exists()
