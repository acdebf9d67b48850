"""The coefficient that is recorded and shown is the one that AEM multiplied by, however AEM was asked for."""

import numpy as np
from tests.test_conformance import SHAPES, make_batch

import turnwise as tw
from turnwise.config import parse_config
from turnwise.train.credit import coefficients

BATCH = make_batch(SHAPES["many groups"])


def test_the_recorded_coefficient_is_the_methods():
    expected = tw.modulate_by_entropy(temperature=2.0, scope="batch").update(np.ones(BATCH.num_responses), None, BATCH)[
        0
    ]
    options = {"temperature": 2.0, "scope": "batch"}
    for data in (
        {"method": {"name": "grpo", **options}, "aem": True},
        {"method": {"name": "aem", **options}, "aem": False},
        {"method": {"name": "aem", "base": "rloo", **options}, "aem": True},
    ):
        np.testing.assert_array_equal(coefficients(BATCH, parse_config(data)), expected)
    np.testing.assert_array_equal(coefficients(BATCH, parse_config({"method": "grpo", "aem": False})), 1.0)
    assert expected.std() > 0.01
