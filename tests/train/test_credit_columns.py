"""The coefficient that is recorded and shown is the one that AEM multiplied by, however AEM was asked for."""

import numpy as np
import pytest
from tests.test_conformance import SHAPES, make_batch
from tests.toys import small_config

import turnwise as tw
from turnwise.config import parse_config
from turnwise.rollout.record import read_rollouts
from turnwise.train.credit import Credit, make_transform
from turnwise.train.loop import train

BATCH = make_batch(SHAPES["many groups"])


def coefficients(data):
    return Credit(make_transform(parse_config(data).method)).update(BATCH).coefficient_R


def test_the_recorded_coefficient_is_the_methods():
    expected = tw.entropy_coefficient(BATCH, temperature=2.0, scope="batch")
    options = {"temperature": 2.0, "scope": "batch"}
    for data in (
        {"method": {"name": "grpo+aem", **options}},
        {"method": {"name": "aem", **options}},
        {"method": {"name": "aem", "base": "rloo", **options}},
        {"method": {"name": "mix", "parts": [{"name": "aem", **options}]}},
    ):
        np.testing.assert_allclose(coefficients(data), expected, rtol=1e-12)
    np.testing.assert_array_equal(coefficients({"method": "grpo"}), 1.0)
    assert expected.std() > 0.01


@pytest.mark.parametrize(
    "method",
    [
        {"name": "grpo+aem", "keep": "positive", "min_range": 0.0},
        {"name": "mix", "parts": ["grpo", {"name": "aem", "min_range": 0.0}]},
    ],
)
def test_a_record_adds_up(tmp_path, method):
    """Base, coefficient and the result of each block stand in the record, also where a part of a mix is modulated (T1,
    T2).
    """
    folder = train(small_config(tmp_path, method=method))
    _, columns = read_rollouts(folder.rollouts / "step-000002.parquet")
    last = [name for name in columns if name.startswith("trace.") and name.endswith("add_penalty")]
    np.testing.assert_array_equal(columns[last[0]], columns["advantage"])
    first = next(name for name in columns if name.startswith("trace.0."))
    assert first.endswith("modulate_by_entropy")
    if method["name"] != "mix":
        np.testing.assert_allclose(columns[first], columns["base"] * columns["alpha"], atol=1e-12)
    else:
        before_penalty = next(name for name in columns if ".mix" in name and not name.endswith("coefficient"))
        np.testing.assert_allclose(columns[before_penalty], columns["base"] * columns["alpha"], atol=1e-12)
    assert np.nanstd(columns["alpha"]) > 0


def test_a_method_without_state_saves_none_and_reads_what_earlier_versions_saved():
    """Theirs was a tuple with a None per block, which a method of another number of blocks could not read."""
    plain = Credit(make_transform(parse_config({"method": "grpo"}).method))
    advantage_R = plain.update(BATCH).advantage_R
    assert plain.state_dict() is None
    plain.load_state_dict((None, (None, None, None)))
    np.testing.assert_array_equal(plain.update(BATCH).advantage_R, advantage_R)
    running = Credit(make_transform(parse_config({"method": "rae"}).method))
    assert running.state_dict() is not None
    _, (stateless, kept) = tw.mix(tw.tree_grpo(), tw.rae()).trace(make_batch(SHAPES["many groups"]))
    assert stateless is None
    assert kept is not None
