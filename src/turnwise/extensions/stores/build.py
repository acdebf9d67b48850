"""Make the store of a recipe, and list what it adds to prompts."""

from collections.abc import Sequence

from turnwise.environments.base import Task
from turnwise.environments.suites import Suite
from turnwise.extensions.stores.lessons import ASKED, RESPONSE
from turnwise.extensions.stores.reflection import AGAIN, FAILED
from turnwise.extensions.stores.remember import BETWEEN
from turnwise.extensions.stores.reminded import FAILURE, SUCCESS
from turnwise.extensions.stores.settings import MemoryConfig, StoreConfig
from turnwise.extensions.stores.store import Store


def make_store(settings: StoreConfig, suite: Suite, tasks: Sequence[Task]) -> Store:
    """Make the store of a recipe.

    Raises:
        DataError: The store to start with cannot be read, or is of other tasks.
    """
    return Store(settings, lambda number: suite.task_name(tasks[number]) if number < len(tasks) else "")


def texts_of(settings: StoreConfig) -> Sequence[str]:
    """Return what a store adds to prompts besides the environment's texts, for policies with a word vocabulary."""
    if settings.name == "r3":
        return FAILED, AGAIN, RESPONSE
    if not isinstance(settings, MemoryConfig):
        return ()
    return (SUCCESS, FAILURE, BETWEEN, *((*ASKED.values(), RESPONSE) if settings.extract == "policy" else ()))
