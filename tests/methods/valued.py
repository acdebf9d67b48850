"""Batches with values, drawn at random."""

import numpy as np

import turnwise as tw

CLOSE = {"rtol": 1e-12, "atol": 1e-12}


def make_batch(lengths, reward, **columns) -> tw.Batch:
    """`lengths[g][n]` turns."""
    groups = tw.Segments.from_lengths([len(group) for group in lengths])
    trajectories = tw.Segments.from_lengths([turns for group in lengths for turns in group])
    return tw.Batch(groups, trajectories, reward, columns)


LENGTHS = [[3, 1, 4], [2, 5, 1, 1]]
NUM_RESPONSES = 17


def random_batch(seed=0, **columns) -> tw.Batch:
    generator = np.random.default_rng(seed)
    names = ("value", "value_next", "value_low", "value_high", "value_switch")
    drawn = {name: generator.normal(size=NUM_RESPONSES) for name in names}
    drawn["finished"] = generator.integers(0, 2, NUM_RESPONSES)
    drawn["switch"] = generator.integers(0, 2, NUM_RESPONSES)
    return make_batch(LENGTHS, generator.normal(size=NUM_RESPONSES), **(drawn | columns))
