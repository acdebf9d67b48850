"""What every method and every block owes its user. New entries of METHODS and of `transforms` join by themselves."""

import functools
import inspect
import json
import pickle
import re

import numpy as np
import pytest

import turnwise as tw
from tests.catalogue import ALL, BLOCK_TRIAL
from tests.columns import make_columns, test_every_column_has_values  # noqa: F401, collected here
from tests.properties.strategies import advantage
from turnwise.base.errors import BatchError
from turnwise.credit import transforms

BLOCKS = {
    name: getattr(transforms, name)(**BLOCK_TRIAL.get(name, {}))
    for name in transforms.__all__
    if hasattr(getattr(transforms, name), "function")
}
OVER_RESPONSES = {
    f"{name}(over=responses, same={same})": getattr(transforms, name)(over="responses", same=same)
    for name in BLOCKS
    if {"over", "same"} <= inspect.signature(getattr(transforms, name)).parameters.keys()
    for same in (None, "turn", "state_key", "role")
}
EVERYTHING = ALL | BLOCKS | OVER_RESPONSES
each = pytest.mark.parametrize("name", sorted(EVERYTHING))
unchecked = pytest.mark.usefixtures("array_types_unchecked")
"""For what runs the methods on batches that `test_credit_is_one_finite_float64_a_response` checks array types of."""


def make_batch(lengths, *, seed=0, leave_out=()) -> tw.Batch:
    """`lengths[g][n]` turns; the same reward at every turn of a trajectory, so that all blocks accept it."""
    generator = np.random.default_rng(seed)
    trajectories = tw.Segments.from_lengths([turns for group in lengths for turns in group])
    groups = tw.Segments.from_lengths([len(group) for group in lengths])
    identity = np.arange(trajectories.num_elements) + 1000 * seed
    columns = make_columns(
        [name for name in tw.COLUMNS if name not in leave_out],
        identity,
        trajectories.ids,
        groups.ids[trajectories.ids],
        groups.positions[trajectories.ids],
    )
    by_token = [name for name in columns if name.endswith("_T")]
    tokens = tw.Segments.from_lengths([len(values) for values in columns[by_token[0]]]) if by_token else None
    return tw.Batch(
        groups,
        trajectories,
        trajectories.broadcast(generator.normal(size=len(trajectories))),
        columns | {name: np.concatenate(columns[name]) for name in by_token},
        tokens,
    )


SHAPES = {
    "many groups": [[1, 3, 2], [4, 1], [2, 2, 2, 2]],
    "one group": [[2, 3, 1]],
    "one trajectory": [[5]],
    "one response": [[1]],
    "lone trajectories": [[2], [1], [3]],
    "one long among short": [[1, 1, 50]],
}


@functools.cache
def batch_of(shape: str, *, seed: int = 0, leave_out: frozenset[str] = frozenset()) -> tw.Batch:
    """Made once for all methods: a batch is read-only."""
    return make_batch(SHAPES[shape], seed=seed, leave_out=leave_out)


@each
def test_credit_is_one_finite_float64_a_response(name):
    for shape in SHAPES:
        batch = batch_of(shape)
        credit_R = advantage(EVERYTHING[name], batch)
        assert credit_R.shape == (batch.num_responses,), shape
        assert credit_R.dtype == np.float64, shape
        assert np.isfinite(credit_R).all(), shape


@each
@unchecked
def test_the_same_batch_gives_the_same_credit(name):
    batch = batch_of("many groups")
    np.testing.assert_array_equal(advantage(EVERYTHING[name], batch), advantage(EVERYTHING[name], batch))


@each
@unchecked
def test_state_survives_a_checkpoint(name):
    method = EVERYTHING[name]
    kept = pickled = as_json = method.init() if method.init else None
    for seed in range(3):
        batch = batch_of("many groups", seed=seed)
        kept_R, kept = method.update(batch.reward_R, kept, batch)
        pickled_R, pickled = method.update(batch.reward_R, pickle.loads(pickle.dumps(pickled)), batch)
        as_json_R, as_json = method.update(batch.reward_R, json.loads(json.dumps(as_json)), batch)
        np.testing.assert_array_equal(kept_R, pickled_R)
        np.testing.assert_array_equal(kept_R, as_json_R)


@each
@unchecked
def test_the_declared_needs_suffice(name):
    needs = EVERYTHING[name].needs
    batch = batch_of("many groups", leave_out=frozenset(tw.COLUMNS) - frozenset(needs))
    advantage(EVERYTHING[name], batch)


@each
def test_every_declared_need_is_truly_needed(name):
    for column in EVERYTHING[name].needs:
        also = {each for each in tw.COLUMNS if each.endswith("_T") and column == "length"}  # tokens tell the length
        batch = batch_of("many groups", leave_out=frozenset({column} | also))
        with pytest.raises(BatchError, match=f"needs column '{column}', which this batch does not have"):
            advantage(EVERYTHING[name], batch)


def test_a_formula_that_was_not_read_in_its_source_is_not_called_exact():
    """AEM and HCAPO: notes and transcriptions agree. TP-GRPO and GraphGPO: the code was read, the paper was not."""
    labels = {name: tw.card_of(tw.METHODS[name]).confidence for name in ("aem", "hcapo", "tp_grpo", "graph_gpo")}
    assert labels == dict.fromkeys(labels, "near-exact")


@pytest.mark.parametrize("name", sorted(tw.METHODS))
def test_a_published_method_says_what_it_is(name):
    method, constructor = tw.trial(tw.METHODS[name]), tw.METHODS[name]
    card = tw.card_of(constructor)
    assert constructor.__name__ == name
    assert method.gradient is not None
    assert method.card == card
    assert card.title
    assert card.arxiv or name == "reinforce" or card.confidence == "ours", "REINFORCE is older than arXiv"
    assert method.name.startswith(f"{name}(")
    doc = inspect.getdoc(constructor) or ""
    assert "Expected gradient:" in doc, "the help should say what it does to the expected gradient"
    assert "Reference:" in doc
    effect = doc.split("Expected gradient:")[1].split("Use it when")[0]
    assert re.search(rf"\b{method.gradient.kind}\b", effect)
    parameters = inspect.signature(constructor).parameters.values()
    assert all(p.kind is p.KEYWORD_ONLY or p.name == "base" for p in parameters)
    required = {p.name for p in parameters if p.default is p.empty}
    assert required == set(card.trial), "trial values are for options without a default, and for all of them"


@pytest.mark.parametrize("name", sorted(BLOCKS))
def test_a_block_takes_its_options_by_keyword_and_documents_itself(name):
    constructor = getattr(transforms, name)
    assert constructor.__doc__
    parameters = inspect.signature(constructor).parameters.values()
    assert all(parameter.kind is parameter.KEYWORD_ONLY for parameter in parameters)
    assert BLOCKS[name].name.startswith(f"{name}(")


def test_methods_and_blocks_are_public():
    for name in sorted(tw.METHODS) + sorted(transforms.__all__):
        assert name in tw.__all__
        assert getattr(tw, name) is tw.METHODS.get(name, getattr(transforms, name, None))
