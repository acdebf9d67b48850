"""Find modules under their names before version 0.3, with one warning per name."""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
import warnings
from collections.abc import Sequence
from typing import Any

FORMER = {
    "base": "cache checksums errors figures files imports section streams tables terminal",
    "credit": "analysis batch card columns entropy metrics methods options segments shaping trace transform transforms",
    "engines": "rollout.local rollout.server rollout.sampling",
    "extensions": "gateway judge rollout.demonstrations rollout.stores",
    "lab": "diagnostics report",
    "train": "evaluation",
    "worlds": "environments.adapters environments.alfworld environments.crossroads environments.grids "
    "environments.helpdesk environments.scienceworld environments.search_qa environments.seats environments.swe "
    "environments.webshop",
}
"""Current folders, and what moved into each, with the folder that it came from."""
RENAMED = {
    "objective.rejection": "extensions.preference.rejection",
    "rollout.blocking": "base.blocking",
    "config.recipes": "base.recipes",
    "rollout.engine": "engines.base",
    "environments.adapters.tool_calls": "environments.tool_calls",
    "rollout.environments": "environments.hosts",
}
"""What has another name too, or lies deeper."""
REMOVED = {"integrations.nemo_rl": "NeMo-RL", "integrations.roll": "ROLL", "integrations.slime": "slime"}
"""Removed adapters: they could not be run against their trainer, so that breakage would have gone unnoticed."""


class Moved(importlib.abc.InspectLoader, importlib.abc.MetaPathFinder):
    """Import `turnwise.methods` as `turnwise.credit.methods`, and so on: the same module under both names."""

    def __init__(self, package: str):
        self._package = package
        self._moved = {old: f"{to}.{old.rpartition('.')[2]}" for to, names in FORMER.items() for old in names.split()}
        self._moved |= RENAMED
        self._warned: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return how to import a module by its former name; None for any other name.

        Raises:
            ImportError: It is a removed adapter; the message says what to write instead.
        """
        package, _, name = fullname.partition(".")
        if package == self._package and name in REMOVED:
            from turnwise.base.errors import guide  # seldom needed, and `import turnwise` should be fast

            trainer, page = REMOVED[name], guide(f"how-to/other-trainers.md#{REMOVED[name].lower()}")
            raise ImportError(f"turnwise no longer has an adapter for {trainer}; write the lines of {page} instead")
        if package != self._package or (now := self._now(name)) is None:
            return None
        spec = importlib.util.find_spec(now)
        if spec is None:
            return None
        inside = spec.submodule_search_locations is not None
        return importlib.machinery.ModuleSpec(fullname, self, loader_state=spec, is_package=inside)

    def _now(self, name: str) -> str | None:
        """Return the current full name of what had a name below the package; None if it did not move."""
        parts = name.split(".")
        for count in range(min(3, len(parts)), 0, -1):
            old = ".".join(parts[:count])
            if old in self._moved:
                now = f"{self._package}.{self._moved[old]}"
                if old not in self._warned:
                    self._warned.add(old)
                    warnings.warn(
                        f"{self._package}.{old} is now {now}; its former name goes with version 0.4",
                        DeprecationWarning,
                        stacklevel=3,
                    )
                return ".".join([now, *parts[count:]])
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """Import the module under its current name."""
        return importlib.import_module(spec.loader_state.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Restore the module's own specification; it has run already.

        Loaded submodules get their former names too: otherwise importing one by it would set the package's attribute
        of that name, which may be a function.
        """
        spec: Any = module.__spec__
        if spec and spec.loader is self:
            module.__spec__ = spec.loader_state
            inside = spec.loader_state.name + "."
            loaded = {name: each for name, each in sys.modules.items() if name.startswith(inside)}
            sys.modules.update({f"{spec.name}.{name.removeprefix(inside)}": each for name, each in loaded.items()})

    def get_code(self, fullname: str) -> types.CodeType | None:
        """Return the code of a module, for `python -m`."""
        spec = self.find_spec(fullname)
        loader = spec and spec.loader_state.loader
        return loader.get_code(spec.loader_state.name) if spec and loader else None

    def get_source(self, fullname: str) -> str | None:
        """Return the source of a module."""
        spec = self.find_spec(fullname)
        return spec.loader_state.loader.get_source(spec.loader_state.name) if spec else None
