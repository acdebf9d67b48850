"""Parts that play around a collector leave its state to the checkpoint."""

import pytest

from tests.combinations.table import config_of
from turnwise.environments.suites import make_suite
from turnwise.extensions.gateway.choose import choose_collector, choose_environments
from turnwise.extensions.stores.build import make_store
from turnwise.train.checkpoint import Part


@pytest.mark.parametrize("around", [["slea_rl"], ["turn_budget"], ["turn_budget", "slea_rl"]], ids=str)
def test_the_state_of_a_collector_is_part_of_the_checkpoint(around):
    config = config_of(["v0", *around])
    suite = make_suite(config.environment)
    store = make_store(config.store, suite, suite.tasks("train"))
    environments = choose_environments(config.harness, config.environment, suite)
    name = config.environment.name
    one, other = (choose_collector(config.rollout, name, suite, environments, store) for _ in range(2))
    assert isinstance(one, Part)
    assert isinstance(other, Part)
    one.load_state_dict({"pairs": [["say red", True]], "counts": [1, 2]})
    other.load_state_dict(one.state_dict())
    assert other.state_dict()["pairs"] == [["say red", True]]
    assert other.state_dict().get("counts", [1, 2]) == [1, 2]
