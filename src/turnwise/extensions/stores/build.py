"""Make the store of a recipe, and put it around the source of a run."""

from collections.abc import Sequence
from pathlib import Path

from turnwise.environments.base import Task
from turnwise.environments.hosts import Environments
from turnwise.environments.suites import Suite
from turnwise.extensions.stores.lessons import ASKED, RESPONSE
from turnwise.extensions.stores.prefixes import PrefixSampling
from turnwise.extensions.stores.reflection import AGAIN, FAILED, ReplayAndReflection
from turnwise.extensions.stores.remember import BETWEEN, Remembering
from turnwise.extensions.stores.reminded import FAILURE, SUCCESS
from turnwise.extensions.stores.replay import Replaying
from turnwise.extensions.stores.rows import FILE
from turnwise.extensions.stores.settings import StoreConfig
from turnwise.extensions.stores.store import Store
from turnwise.rollout.experience import Steps
from turnwise.rollout.settings import RolloutConfig


def make_store(settings: StoreConfig | None, suite: Suite, tasks: Sequence[Task]) -> Store | None:
    """Make the store of a recipe; None where it has none.

    Args:
        settings: The `[store]` of a recipe.
        suite: Names the tasks.
        tasks: Tasks of training.

    Raises:
        DataError: The store to start with cannot be read, or is of other tasks.
    """
    if settings is None:
        return None
    return Store(settings, lambda number: suite.task_name(tasks[number]) if number < len(tasks) else "")


def restored_store(settings: StoreConfig | None, checkpoint: Path) -> Store | None:
    """Return the store of a checkpoint where evaluations use it, else None.

    Raises:
        RunError: It is damaged, and the settings do not say to continue without it.
    """
    if settings is None or not settings.evaluate:
        return None
    store = Store(settings.model_copy(update={"start": None}), str)
    store.load_state_dict(checkpoint / FILE)
    return store


def texts_of(settings: StoreConfig | None) -> Sequence[str]:
    """Return what a store adds to prompts besides texts of the environment, for policies that know words only."""
    if settings is not None and settings.name == "r3":
        return FAILED, AGAIN, RESPONSE
    if settings is None or settings.name != "slea_rl":
        return ()
    return (SUCCESS, FAILURE, BETWEEN, *((*ASKED.values(), RESPONSE) if settings.extract == "policy" else ()))


def with_store(
    source: Steps,
    store: Store | None,
    *,
    tasks: Sequence[Task],
    environments: Environments,
    rollout: RolloutConfig,
    seed: int,
) -> Steps:
    """Return a source that uses a store; the source itself where a recipe has none.

    Args:
        source: Collects the experience of each step.
        store: The store.
        tasks: Tasks of training.
        environments: Where they are played.
        rollout: The `[rollout]` of a recipe.
        seed: Seed of the run.
    """
    if store is None:
        return source
    if store.settings.name == "prefix_sampling":
        return PrefixSampling(source, store, tasks, environments, rollout, seed)
    if store.settings.name == "r3":
        return ReplayAndReflection(source, store, tasks, environments, rollout, seed)
    if store.settings.name == "slea_rl":
        return Remembering(source, store, seed)
    return Replaying(source, store, seed)
