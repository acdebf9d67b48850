"""Give a run the store of its recipe."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from turnwise.environments.hosts import Environments
from turnwise.extensions.stores.build import make_store, texts_of
from turnwise.extensions.stores.prefixes import PrefixSampling
from turnwise.extensions.stores.recall import Memory
from turnwise.extensions.stores.reflection import ReplayAndReflection
from turnwise.extensions.stores.remember import Remembering
from turnwise.extensions.stores.reminded import Reminded
from turnwise.extensions.stores.replay import Replaying
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
