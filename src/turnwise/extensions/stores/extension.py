"""Give a run the store of its recipe."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from turnwise.environments.hosts import Environments
from turnwise.extensions.stores.build import make_store, texts_of, with_store
from turnwise.extensions.stores.recall import Memory
from turnwise.extensions.stores.reminded import Reminded
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
        tasks, rollout, seed = self.context.tasks, self.context.config.rollout, self.context.config.run.seed
        return with_store(source, self._store, tasks=tasks, environments=environments, rollout=rollout, seed=seed)

    def restore(self, checkpoint: Path, states: Mapping[str, Any], run: Path) -> None:
        """Load the store of a checkpoint where evaluations use it.

        Raises:
            RunError: It is damaged, and the settings do not say to continue without it.
        """
        self._reminds = self._reminds and bool(self.settings.evaluate)
        if self._reminds:
            self._store.load_state_dict(checkpoint / f"{self.key}.jsonl")
