"""Put the store of a recipe around the source of a run."""

from collections.abc import Sequence

from turnwise.environments.base import Task
from turnwise.environments.suites import Suite
from turnwise.rollout.environments import Environments
from turnwise.rollout.experience import Steps
from turnwise.rollout.settings import RolloutConfig
from turnwise.rollout.stores.prefixes import PrefixSampling
from turnwise.rollout.stores.replay import Replaying
from turnwise.rollout.stores.settings import StoreConfig
from turnwise.rollout.stores.store import Store


def with_store(
    source: Steps,
    settings: StoreConfig | None,
    *,
    suite: Suite,
    tasks: Sequence[Task],
    environments: Environments,
    rollout: RolloutConfig,
    seed: int,
) -> tuple[Steps, Store | None]:
    """Return a source that uses a store, and the store; the source itself where a recipe has none.

    Args:
        source: Collects the experience of each step.
        settings: The `[store]` of a recipe.
        suite: Names the tasks.
        tasks: Tasks of training.
        environments: Where they are played.
        rollout: The `[rollout]` of a recipe.
        seed: Seed of the run.

    Raises:
        DataError: The store to start with cannot be read, or is of other tasks.
    """
    if settings is None:
        return source, None
    store = Store(settings, lambda number: suite.task_name(tasks[number]) if number < len(tasks) else "")
    if settings.name == "prefix_sampling":
        return PrefixSampling(source, store, tasks, environments, rollout, seed), store
    return Replaying(source, store, seed), store
