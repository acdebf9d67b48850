"""RTMC reads signatures that a measure of one's own provides."""

import numpy as np
import pyarrow.parquet as pq
from tests.toys import small_config
from tests.train.test_every_method_trains import batches  # noqa: F401

import turnwise as tw
from turnwise.measures import Played, measure
from turnwise.measures.played import action_of
from turnwise.train.loop import train


@measure(provides=("folded", "call"), recorded=False)
def signatures(step: Played, columns):
    """A state is the set of what was done so far, in any order."""
    done = [
        frozenset(action_of(turn.response) for turn in one.turns[:at])
        for one in step.trajectories
        for at in range(len(one.turns))
    ]
    return {"folded": done, "call": [action_of(turn.response)[:3] for turn in step.turns]}


def test_a_measure_of_ones_own_says_what_is_the_same_state(tmp_path, batches):  # noqa: F811
    config = small_config(
        tmp_path,
        method={"name": "rtmc", "state": "folded", "action": "call"},
        measures=["tests.train.test_signatures:signatures", "played"],
        environment={"options": {"turns": 3}, "invalid_penalty": 0.0},
        rollout={"group_size": 8},
        run={"steps": 1},
    )
    folder = train(config)
    batch = batches[-1]
    first = batch.column("folded", needed_by="the test")[batch.turn_R == 0]
    assert len(set(first.tolist())) == 1, "nothing was done before a first response"
    assert len(set(batch.column("folded", needed_by="the test").tolist())) > 2
    recorded = pq.read_table(folder.rollouts / "step-000001.parquet").column("advantage").to_numpy()
    np.testing.assert_allclose(recorded, tw.rtmc(state="folded", action="call")(batch), atol=1e-12)
    assert np.abs(recorded - tw.rtmc()(batch)).max() > 0.1, "by the environment's states it would be another"
