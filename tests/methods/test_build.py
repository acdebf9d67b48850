"""Methods from plain data, as a recipe gives them."""

import importlib
import sys

import numpy as np
import pytest
from tests.test_conformance import SHAPES, make_batch

import turnwise as tw
from turnwise.errors import ConfigError
from turnwise.methods.build import build_method, named_method

BATCH = make_batch(SHAPES["many groups"])
OWN = """
from __future__ import annotations
import turnwise as tw

def late(*, discount: float = 0.9, over="responses") -> tw.Transform:
    return tw.chain(tw.discounted_return(discount=discount), tw.center_by_group(over=over, same="turn"))

def nothing():
    pass

built = late()
"""


@pytest.fixture
def own_methods(tmp_path, monkeypatch) -> None:
    """A module of a user, in the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "own_methods", raising=False)
    (tmp_path / "own_methods.py").write_text(OWN)
    importlib.invalidate_caches()


def test_a_method_of_ones_own_is_named_like_an_environment(own_methods):
    chain = tw.chain(tw.discounted_return(discount=0.5), tw.center_by_group(over="responses", same="turn"))
    options = {"discount": 0.5, "over": "responses"}
    np.testing.assert_array_equal(build_method("own_methods:late", options, with_aem=False)(BATCH), chain(BATCH))
    modulated = build_method("own_methods:late", {**options, "temperature": 2.0}, with_aem=True)
    np.testing.assert_array_equal(modulated(BATCH), tw.aem(chain, temperature=2.0)(BATCH))
    nested = build_method("empg", {"base": {"name": "own_methods:late", **options}}, with_aem=False)
    np.testing.assert_array_equal(nested(BATCH), tw.empg(chain)(BATCH))


@pytest.mark.parametrize(
    ("name", "options", "with_aem", "same"),
    [
        ("hgpo", {"depth": 4}, True, tw.aem(tw.hgpo(depth=4))),
        ("trloo", {"temperature": 2}, True, tw.aem(tw.trloo(), temperature=2.0)),
        ("aem", {"base": "hgpo"}, False, tw.aem(tw.hgpo())),
        (
            "aem", {"base": {"name": "gigpo", "discount": 0.5}, "scope": "batch"}, True,
            tw.aem(tw.gigpo(discount=0.5), scope="batch"),
        ),
        ("empg", {"base": {"name": "aem", "base": "rloo"}, "bonus": 0}, False, tw.empg(tw.aem(tw.rloo()), bonus=0.0)),
        (
            "mix", {"parts": ["grpo", {"name": "gigpo"}], "weights": [0.25, 0.75]}, False,
            tw.mix(tw.grpo(), tw.gigpo(), weights=[0.25, 0.75]),
        ),
        ("mix", {"parts": ["grpo", "mica"][:1]}, True, tw.aem(tw.mix(tw.grpo()))),
        ("mica", {"discount": 1}, False, tw.mica(discount=1.0)),
        ("v05", {"unseen": None}, False, tw.v05(unseen=None)),
    ],
)  # fmt: skip
def test_a_recipe_builds_what_the_call_builds(name, options, with_aem, same):
    built = build_method(name, options, with_aem=with_aem)
    assert (built.name, built.needs) == (same.name, same.needs)
    credits = [m.update(BATCH.reward_R, m.init() if m.init else None, BATCH)[0] for m in (built, same)]
    np.testing.assert_array_equal(*credits)


@pytest.mark.parametrize(
    ("name", "options", "with_aem", "complaint"),
    [
        ("hgop", {}, False, r"unknown method 'hgop'. Did you mean 'hgpo'\?"),
        ("mixx", {}, False, r"Did you mean 'mix'\?"),
        ("hgpo", {"deth": 4}, True, r"method 'hgpo' has no option 'deth'. Did you mean 'depth'\?"),
        ("hgpo", {"scope": "batch"}, False, "belongs to aem, which is off"),
        ("mica", {}, False, "method 'mica' needs the option 'discount'; no value is published"),
        ("empg", {"temperature": 2.0}, True, "'empg' and 'aem' both have an option 'temperature'; say whose"),
        ("hgpo", {"depth": 2.5}, False, "method option hgpo.depth=2.5: expected int"),
        ("hgpo", {"depth": True}, False, "method option hgpo.depth=True: expected int"),
        ("hgpo", {"scale": 1}, False, "method option hgpo.scale=1: expected bool"),
        ("v05", {"unseen": "low"}, False, r"method option v05.unseen='low': expected float \| None"),
        ("aem", {"base": 3}, False, "expected a method, as a name or a table with a name, got 3"),
        ("aem", {"base": {"depth": 4}}, False, "expected a method, as a name or a table with a name"),
        ("aem", {"base": {"name": "hgpo", "dept": 4}}, False, r"Did you mean 'depth'\?"),
        ("mix", {"parts": ["grpo"], "weight": [1]}, False, r"method 'mix' takes parts = \[methods\] and weights"),
        ("mix", {}, False, r"method 'mix' takes parts"),
        ("mix", {"parts": ["grpo"], "weights": [1, 2]}, False, "mix.. got 1 transforms and 2 weights"),
        ("no_such_module_here:late", {}, False, "cannot import 'no_such_module_here'"),
        ("own_methods:lat", {}, False, r"'own_methods' has no 'lat'. Did you mean 'late'\?"),
        (
            "own_methods:late",
            {"discont": 1.0},
            False,
            r"'own_methods:late' has no option 'discont'. Did you mean 'discount'\?",
        ),
        ("own_methods:late", {"discount": "high"}, False, "own_methods:late.discount='high': expected float"),
        ("own_methods:built", {}, False, "is not a function; write one that returns a Transform"),
        ("own_methods:nothing", {}, False, "returned NoneType, expected a Transform"),
        ("canon", {"metric": "entropi"}, False, r"Did you mean 'entropy'\?"),
    ],
)
def test_a_mistake_is_said_in_one_line(name, options, with_aem, complaint, own_methods):
    with pytest.raises(ConfigError, match=complaint) as caught:
        build_method(name, options, with_aem=with_aem)
    assert "\n" not in str(caught.value)


def test_a_name_may_hold_options():
    assert named_method("gae(decay=0.7, unfinished='next')").name == "gae(discount=1.0, decay=0.7, unfinished='next')"
    assert named_method("gigpo(weight=0.5)+aem").name == build_method("gigpo", {"weight": 0.5}, with_aem=True).name
    assert named_method("gae()").name == named_method("gae").name


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gae(decay=0.7", "method 'gae(decay=0.7': expected options as in gae(option=1.0, other='word')"),
        ("gae(0.7)", "expected options as in gae"),
        ("gae(dekay=0.7)", "method 'gae' has no option 'dekay'. Did you mean 'decay'?"),
        ("gea(decay=0.7)", "unknown method 'gea'. Did you mean 'gae'?"),
    ],
)
def test_a_mistake_in_a_name_is_explained(name, message):
    with pytest.raises(ConfigError) as caught:
        named_method(name)
    assert message in str(caught.value)
