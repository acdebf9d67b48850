"""Make the store of a recipe, and put it around the source of a run."""

from collections.abc import Sequence

from turnwise.environments.base import Task
from turnwise.environments.hosts import Environments
from turnwise.environments.suites import Suite
from turnwise.extensions.stores.lessons import ASKED, RESPONSE
from turnwise.extensions.stores.prefixes import PrefixSampling
from turnwise.extensions.stores.reflection import AGAIN, FAILED, ReplayAndReflection
from turnwise.extensions.stores.remember import BETWEEN, Remembering
from turnwise.extensions.stores.reminded import FAILURE, SUCCESS
from turnwise.extensions.stores.replay import Replaying
from turnwise.extensions.stores.settings import StoreConfig
from turnwise.extensions.stores.store import Store
from turnwise.rollout.experience import Steps
from turnwise.rollout.settings import RolloutConfig


def make_store(settings: StoreConfig, suite: Suite, tasks: Sequence[Task]) -> Store:
    """Make the store of a recipe.

    Args:
        settings: The `[store]` of a recipe.
        suite: Names the tasks.
        tasks: Tasks of training.

    Raises:
        DataError: The store to start with cannot be read, or is of other tasks.
    """
    return Store(settings, lambda number: suite.task_name(tasks[number]) if number < len(tasks) else "")


def texts_of(settings: StoreConfig) -> Sequence[str]:
    """Return what a store adds to prompts besides texts of the environment, for policies that know words only."""
    if settings.name == "r3":
        return FAILED, AGAIN, RESPONSE
    if settings.name != "slea_rl":
        return ()
    return (SUCCESS, FAILURE, BETWEEN, *((*ASKED.values(), RESPONSE) if settings.extract == "policy" else ()))


def with_store(
    source: Steps,
    store: Store,
    *,
    tasks: Sequence[Task],
    environments: Environments,
    rollout: RolloutConfig,
    seed: int,
) -> Steps:
    """Return a source that uses a store.

    Args:
        source: Collects the experience of each step.
        store: The store.
        tasks: Tasks of training.
        environments: Where they are played.
        rollout: The `[rollout]` of a recipe.
        seed: Seed of the run.
    """
    if store.settings.name == "prefix_sampling":
        return PrefixSampling(source, store, tasks, environments, rollout, seed)
    if store.settings.name == "r3":
        return ReplayAndReflection(source, store, tasks, environments, rollout, seed)
    if store.settings.name == "slea_rl":
        return Remembering(source, store, seed)
    return Replaying(source, store, seed)
