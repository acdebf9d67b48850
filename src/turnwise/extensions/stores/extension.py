"""Give a run the store of its recipe."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from turnwise.environments.base import Task
from turnwise.environments.hosts import Environments
from turnwise.environments.suites import Suite
from turnwise.extensions.stores.lessons import ASKED, RESPONSE
from turnwise.extensions.stores.prefixes import PrefixSampling
from turnwise.extensions.stores.recall import Memory
from turnwise.extensions.stores.reflection import AGAIN, FAILED, ReplayAndReflection
from turnwise.extensions.stores.remember import BETWEEN, Remembering
from turnwise.extensions.stores.reminded import FAILURE, SUCCESS, Reminded
from turnwise.extensions.stores.replay import Replaying
from turnwise.extensions.stores.settings import MemoryConfig, StoreConfig
from turnwise.extensions.stores.store import Store
from turnwise.rollout.experience import Steps
from turnwise.rollout.groups import Collector
from turnwise.train.extension import Context, Extension


class Stored(Extension):
    """Use trajectories of earlier steps as `[store]` says."""

    def __init__(self, key: str, settings: Any, context: Context):
        super().__init__(key, settings, context)
        self.part = self._store = make_store(settings, context.suite, context.tasks)
        self._reminds = settings.name == "slea_rl"

    def texts(self) -> Sequence[str]:
        """Return what the store adds to prompts."""
        return texts_of(self.settings)

    def collector(self, collector: Collector) -> Collector:
        """Return a collector whose turns are shown experiences, where the store is a memory."""
        return Reminded(collector, Memory(self._store)) if self._reminds else collector

    def source(self, source: Steps, environments: Environments) -> Steps:
        """Return a source that uses the store."""
        seed, name = self.context.config.run.seed, self.settings.name
        if name in ("prefix_sampling", "r3"):  # these play tasks again
            kind = PrefixSampling if name == "prefix_sampling" else ReplayAndReflection
            return kind(source, self._store, self.context.tasks, environments, self.context.config.rollout, seed)
        return (Remembering if name == "slea_rl" else Replaying)(source, self._store, seed)

    def restore(self, checkpoint: Path, states: Mapping[str, Any], run: Path) -> None:
        """Load the store of a checkpoint where evaluations use it.

        Raises:
            RunError: It is damaged, and the settings do not say to continue without it.
        """
        self._reminds = self._reminds and bool(self.settings.evaluate)
        if self._reminds:
            self._store.load_state_dict(checkpoint / f"{self.key}.jsonl")


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
