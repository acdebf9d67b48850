"""On the tasks of a folder, SWE_DATA: the right answer earns all, nothing and half of it nothing, the same each time.

SWE_TASKS: how many, evenly over the file ("all": every one; default: 6). SWE_REPEATS: of each grading (default: 5).
"""

import os
from collections import Counter

import pytest
from tests.environments.swe.conftest import suite
from tests.environments.swe.prove import prove
from tests.needs import skip_without

from turnwise.worlds.swe.suite import Swe
from turnwise.worlds.swe.tasks import SweTask

REPEATS = int(os.environ.get("SWE_REPEATS", "5"))
pytestmark = pytest.mark.data


@pytest.fixture(scope="module")
def made(sandboxed) -> Swe:
    skip_without("SWE_DATA")
    return suite(os.environ["SWE_DATA"])


@pytest.fixture(scope="module")
def some(made) -> list[SweTask]:
    every, number = list(made.tasks("all")), os.environ.get("SWE_TASKS", "6")
    return every if number == "all" else every[:: -(-len(every) // int(number))]


def test_gold_earns_all_and_nothing_or_half_of_it_nothing(made, some):
    assert prove(made, some, repeats=REPEATS) == []


def test_the_scripted_repairer_succeeds(made, some):
    for task in some[::5]:
        turns = made.demonstrate(task, noise=0.0, seed=0)
        assert turns is not None, task.instance_id
        session = made.session(task)
        session.start()
        assert [session.step(turn.response) for turn in turns][-1].info["success"], task.instance_id


def test_there_are_300_of_five_packages_and_all_tiers(made):
    if os.environ.get("SWE_TASKS") != "all":
        pytest.skip("a full set: set SWE_TASKS=all")
    every = made.tasks("all")
    assert len(every) >= 300
    assert len({task.repo for task in every}) >= 5
    assert max(Counter(task.repo for task in every).values()) <= len(every) / 4
    assert min(Counter(task.tier for task in every).values()) >= len(every) / 10
    assert len({task.bug_patch for task in every}) == len(every)
