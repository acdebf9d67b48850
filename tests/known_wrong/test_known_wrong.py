"""The check suites accept the real methods and reject every bug that this field is known to have made."""

import importlib
from pathlib import Path

import pytest
from tests.known_wrong import checks, variants
from tests.known_wrong.checks import Check
from tests.known_wrong.variants import Variant

PARCELS = [
    importlib.import_module(f"tests.known_wrong.{path.stem}")
    for path in sorted(Path(__file__).parent.glob("variants_*.py"))
]
SUITES = {name: suite for module in (checks, *PARCELS) for name, suite in module.SUITES.items()}
REAL = {name: credit for module in (variants, *PARCELS) for name, credit in module.REAL.items()}
VARIANTS = {name: variant for module in (variants, *PARCELS) for name, variant in module.VARIANTS.items()}


def failing(variant: Variant) -> list[Check]:
    """The checks that a bug fails."""
    result = []
    for check in SUITES[variant.suite]:
        try:
            check(variant.credit)
        except AssertionError:
            result.append(check)
    return result


@pytest.mark.parametrize(
    ("suite", "check"), [pytest.param(s, c, id=f"{s}: {c.__name__}") for s, checks in SUITES.items() for c in checks]
)
def test_the_real_method_passes_every_check(suite, check):
    check(REAL[suite])


@pytest.mark.parametrize("name", VARIANTS)
def test_the_known_bug_is_rejected(name):
    variant = VARIANTS[name]
    failed = {check.__name__ for check in failing(variant)}
    assert set(variant.rejected_by) <= failed, f"rejected only by {sorted(failed)}"
    assert variant.source


@pytest.mark.parametrize("suite", SUITES)
def test_every_suite_has_a_bug_to_reject_and_a_method_to_accept(suite):
    assert suite in REAL
    assert suite in {variant.suite for variant in VARIANTS.values()}


def test_every_check_rejects_some_bug():
    """A check that never rejects anything proves nothing. The same function in several suites is one check."""
    rejecting = {check for variant in VARIANTS.values() for check in failing(variant)}
    idle = [f"{suite}: {c.__name__}" for suite, checks in SUITES.items() for c in checks if c not in rejecting]
    assert not idle, "no known bug fails these"
