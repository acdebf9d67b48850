"""Methods from plain data, as a recipe gives them."""

import importlib
import sys

import numpy as np
import pytest
from tests.test_conformance import SHAPES, make_batch

import turnwise as tw
from turnwise.base.errors import ConfigError
from turnwise.credit.methods.build import build_method, named_method
from turnwise.credit.methods.names import as_table, as_written, label_of, modifiers

BATCH = make_batch(SHAPES["many groups"])
OWN = """
from __future__ import annotations
import turnwise as tw

def late(*, discount: float = 0.9, over="responses") -> tw.Transform:
    return tw.chain(tw.discounted_return(discount=discount), tw.center_by_group(over=over, same="turn"))

def halved(base: tw.Transform | None = None, *, by: float = 0.5) -> tw.Transform:
    return tw.mix(base or tw.grpo(), weights=[by])

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
    np.testing.assert_array_equal(build_method("own_methods:late", options)(BATCH), chain(BATCH))
    modulated = build_method("own_methods:late+aem", {**options, "temperature": 2.0})
    np.testing.assert_array_equal(modulated(BATCH), tw.aem(chain, temperature=2.0)(BATCH))
    nested = build_method("empg", {"base": {"name": "own_methods:late", **options}})
    np.testing.assert_array_equal(nested(BATCH), tw.empg(chain)(BATCH))


def test_a_function_of_ones_own_may_follow_a_plus(own_methods):
    built = build_method("gigpo+own_methods:halved+aem", {"by": 0.25, "discount": 0.5})
    same = tw.aem(tw.mix(tw.gigpo(discount=0.5), weights=[0.25]))
    np.testing.assert_array_equal(built(BATCH), same(BATCH))


@pytest.mark.parametrize(
    ("name", "options", "same"),
    [
        ("hgpo+aem", {"depth": 4}, tw.aem(tw.hgpo(depth=4))),
        ("trloo+aem", {"temperature": 2}, tw.aem(tw.trloo(), temperature=2.0)),
        ("aem", {"base": "hgpo"}, tw.aem(tw.hgpo())),
        (
            "aem", {"base": {"name": "gigpo", "discount": 0.5}, "scope": "batch"},
            tw.aem(tw.gigpo(discount=0.5), scope="batch"),
        ),
        ("empg", {"base": {"name": "aem", "base": "rloo"}, "bonus": 0}, tw.empg(tw.aem(tw.rloo()), bonus=0.0)),
        (
            "mix", {"parts": ["grpo", {"name": "gigpo"}], "weights": [0.25, 0.75]},
            tw.mix(tw.grpo(), tw.gigpo(), weights=[0.25, 0.75]),
        ),
        ("mix+aem", {"parts": ["grpo", "mica"][:1]}, tw.aem(tw.mix(tw.grpo()))),
        ("gigpo+aem", {"discount": 0.5, "temperature": 2}, tw.aem(tw.gigpo(discount=0.5), temperature=2.0)),
        ("gigpo(discount=0.5)+aem(temperature=2.0)", {}, tw.aem(tw.gigpo(discount=0.5), temperature=2.0)),
        ("gigpo(discount=0.5)+aem", {"discount": 0.25}, tw.aem(tw.gigpo(discount=0.25))),
        ("hgpo + empg", {"bonus": 0.5}, tw.empg(tw.hgpo(), bonus=0.5)),
        ("rloo+aem+grpo_n", {}, tw.grpo_n(tw.aem(tw.rloo()))),
        ("empg(temperature=2.0)+aem(temperature=0.5)", {}, tw.aem(tw.empg(temperature=2.0), temperature=0.5)),
        ("aem(temperature=5e-1)+grpo_n", {"base": "rloo"}, tw.grpo_n(tw.aem(tw.rloo(), temperature=0.5))),
        ("aem", {"base": "gigpo+empg"}, tw.aem(tw.empg(tw.gigpo()))),
        ("mix", {"parts": ["grpo+aem", "gigpo"]}, tw.mix(tw.aem(tw.grpo()), tw.gigpo())),
        ("gae(discount=1e+0)+aem", {}, tw.aem(tw.gae(discount=1.0))),
        ("mica", {"discount": 1}, tw.mica(discount=1.0)),
        ("v05", {"unseen": None}, tw.v05(unseen=None)),
    ],
)  # fmt: skip
def test_a_recipe_builds_what_the_call_builds(name, options, same):
    built = build_method(name, options)
    assert (built.name, built.needs) == (same.name, same.needs)
    credits = [m.update(BATCH.reward_R, m.init() if m.init else None, BATCH)[0] for m in (built, same)]
    np.testing.assert_array_equal(*credits)


@pytest.mark.parametrize(
    ("name", "options", "complaint"),
    [
        ("hgop", {}, r"unknown method 'hgop'. Did you mean 'hgpo'\?"),
        ("mixx", {}, r"Did you mean 'mix'\?"),
        ("hgpo+aem", {"deth": 4}, r"method 'hgpo\+aem' has no option 'deth'. Did you mean 'depth'\?"),
        ("hgpo", {"scope": "batch"}, r"has no option 'scope'; aem and empg have it, as in method = .hgpo\+aem."),
        ("gigpo+eam", {}, r"method 'gigpo\+eam': nothing named 'eam' may follow a \+. Did you mean 'aem'\?"),
        (
            "gigpo+hgpo",
            {},
            "'hgpo' does not modify another method's advantage, so it cannot follow a \\+; these can: aem, ",
        ),
        ("gigpo+", {}, r"nothing named '' may follow a \+. Known: a_grae, "),
        ("gipo+aem", {}, r"unknown method 'gipo'. Did you mean 'gigpo'\?"),
        ("gigpo+own_methods:late", {}, "'own_methods:late' does not modify another method's advantage"),
        ("gigpo+own_methods:nowhere", {}, "'own_methods' has no 'nowhere'"),
        ("mica", {}, "method 'mica' needs the option 'discount'; no value is published"),
        (
            "empg+aem",
            {"temperature": 2.0},
            "'empg' and 'aem' both have an option 'temperature'; say whose, as in method",
        ),
        ("hgpo", {"depth": 2.5}, "method option hgpo.depth=2.5: expected int"),
        ("hgpo", {"depth": True}, "method option hgpo.depth=True: expected int"),
        ("hgpo", {"scale": 1}, "method option hgpo.scale=1: expected bool"),
        ("v05", {"unseen": "low"}, r"method option v05.unseen='low': expected float \| None"),
        ("aem", {"base": 3}, "expected a method, as a name or a table with a name, got 3"),
        ("aem", {"base": {"depth": 4}}, "expected a method, as a name or a table with a name"),
        ("aem", {"base": {"name": "hgpo", "dept": 4}}, r"Did you mean 'depth'\?"),
        ("mix", {"parts": ["grpo"], "weight": [1]}, r"method 'mix' takes parts = \[methods\] and weights"),
        ("mix", {}, r"method 'mix' takes parts"),
        ("mix", {"parts": ["grpo"], "weights": [1, 2]}, "mix.. got 1 transforms and 2 weights"),
        ("no_such_module_here:late", {}, "cannot import 'no_such_module_here'"),
        ("own_methods:lat", {}, r"'own_methods' has no 'lat'. Did you mean 'late'\?"),
        (
            "own_methods:late",
            {"discont": 1.0},
            r"'own_methods:late' has no option 'discont'. Did you mean 'discount'\?",
        ),
        ("own_methods:late", {"discount": "high"}, "own_methods:late.discount='high': expected float"),
        ("own_methods:built", {}, "is not a function; write one that returns a Transform"),
        ("own_methods:nothing", {}, "returned NoneType, expected a Transform"),
        ("canon", {"metric": "entropi"}, r"Did you mean 'entropy'\?"),
    ],
)
def test_a_mistake_is_said_in_one_line(name, options, complaint, own_methods):
    with pytest.raises(ConfigError, match=complaint) as caught:
        build_method(name, options)
    assert "\n" not in str(caught.value)


def test_a_name_may_hold_options():
    assert named_method("gae(decay=0.7, unfinished='next')").name == "gae(discount=1.0, decay=0.7, unfinished='next')"
    assert named_method("gigpo(weight=0.5)+aem").name == build_method("gigpo+aem", {"weight": 0.5}).name
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


def test_every_modifier_of_the_register_may_follow_a_plus():
    assert {"aem", "empg", "spae", "ace"} <= set(modifiers())
    for name in modifiers():
        options = tw.card_of(tw.METHODS[name]).trial
        built, same = build_method(f"rloo+{name}", options), tw.METHODS[name](tw.rloo(), **options)
        assert (built.name, built.needs) == (same.name, same.needs)


def without_name(table):
    return {option: value for option, value in table.items() if option != "name"}


@pytest.mark.parametrize(
    ("table", "written"),
    [
        ({"name": "gigpo", "discount": 0.5}, {"name": "gigpo", "discount": 0.5}),
        ({"name": "aem"}, {"name": "aem"}),
        ({"name": "aem", "base": "rloo"}, {"name": "rloo+aem"}),
        (
            {"name": "aem", "base": {"name": "gigpo", "discount": 0.5}, "temperature": 2.0},
            {"name": "gigpo+aem", "discount": 0.5, "temperature": 2.0},
        ),
        ({"name": "grpo_n", "base": {"name": "aem", "base": {"name": "grpo"}}}, {"name": "grpo+aem+grpo_n"}),
        ({"name": "aem", "base": {"name": "mix", "parts": ["grpo"]}}, {"name": "mix+aem", "parts": ["grpo"]}),
    ],
)
def test_a_table_is_written_in_its_shortest_form_and_read_again(table, written):
    assert as_written(table) == written
    built, again = (build_method(each["name"], without_name(each)) for each in (table, written))
    assert built.name == again.name


def test_an_option_that_two_parts_have_keeps_the_table_nested():
    table = as_table("empg(temperature=2.0)+aem(scope='batch')", {})
    assert table == {"name": "aem", "base": {"name": "empg", "temperature": 2.0}, "scope": "batch"}
    assert as_written(table) == table
    assert label_of(table) == "empg + aem"
