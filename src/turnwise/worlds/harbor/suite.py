"""Suite of Harbor's task folders."""

import functools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from turnwise.base.errors import ConfigError
from turnwise.base.terminal import say
from turnwise.environments.base import Environment, Task
from turnwise.environments.needs import check_choices
from turnwise.environments.settings import EnvironmentConfig
from turnwise.environments.splits import named_split
from turnwise.worlds.harbor.bubblewrap import BubblewrapSandbox, laid_out
from turnwise.worlds.harbor.docker import DockerSandbox, image_of
from turnwise.worlds.harbor.environment import HarborEnvironment
from turnwise.worlds.harbor.sandbox import TaskSandbox
from turnwise.worlds.harbor.tasks import HarborTask, Network, Sandbox, read_tasks
from turnwise.worlds.swe.bubblewrap import check_bubblewrap
from turnwise.worlds.swe.container import check_docker
from turnwise.worlds.swe.workspace import Limits

CHOICES = {"sandbox": ("auto", "bubblewrap", "docker"), "network": ("none", "tests", "all")}


class Harbor:
    """Task folders of Harbor. Those that cannot be played in the sandbox are skipped, with their reasons.

    Options:
        data: Folder of task folders.
        sandbox: "docker" builds each task's image; "bubblewrap" needs no daemon, and plays tasks whose image is a
            base with files; "auto" is docker where a daemon answers.
        network: Whose containers have a network in docker: nobody's ("none"), the tests' ("tests"), which run the
            agent's files, or also the agent's ("all").
        command_s, memory_mb, disk_mb, processes: Limits of a command.
        output_chars: Maximum length of the shown output.
    """

    def __init__(
        self,
        config: EnvironmentConfig,
        *,
        data: str = "",
        sandbox: Sandbox | Literal["auto"] = "auto",
        network: Network = "none",
        command_s: float = 30.0,
        memory_mb: int = 1024,
        disk_mb: int = 256,
        processes: int = 64,
        output_chars: int = 4000,
    ):
        if not data:
            raise ConfigError("environment.options.data is missing: name the folder of Harbor's task folders")
        numbers = {"command_s": command_s, "memory_mb": memory_mb, "disk_mb": disk_mb}
        for name, value in {**numbers, "processes": processes, "output_chars": output_chars}.items():
            if not value > 0:
                raise ConfigError(f"environment.options.{name}={value}: expected more than 0")
        check_choices(CHOICES, sandbox=sandbox, network=network)
        if network != "none" and sandbox == "bubblewrap":
            raise ConfigError(f"environment.options.network={network!r} needs docker; in bubblewrap there is none")
        self._sandbox = _chosen(sandbox if network == "none" else "docker")
        self._network: Network = network
        self._data = Path(data).expanduser().absolute()
        self._found, self.refused = read_tasks(self._data, self._sandbox, network)
        why = "; ".join(f"{name}: {cause}" for name, cause in [*self.refused.items()][:3])
        if not self._found:
            raise ConfigError(f"{self._data} has no task that can be played here: {why or 'no folder with task.toml'}")
        if self._sandbox == "bubblewrap":
            check_bubblewrap()
        if self.refused:
            every = len(self.refused) + len(self._found)
            say(f"note: {len(self.refused)} of {every} tasks are skipped: {why}", file=sys.stderr)
        self._limits = Limits(seconds=command_s, memory_mb=memory_mb, disk_mb=disk_mb, processes=processes)
        self._options = {"max_steps": config.max_steps, "output_chars": output_chars}
        self._snapshots: dict[str, Path] = {}  # of the tasks that have been played
        self._images: dict[str, str] = {}  # likewise

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the tasks of a split, by a hash of their names."""
        belongs = named_split(split, of="Harbor's tasks")
        return [task.name for task in self._found if belongs(task.name)]

    def environment(self, task: Task) -> Environment:
        """Build a fresh environment."""
        found = next(each for each in self._found if each.name == task)
        return HarborEnvironment(found.instruction, functools.partial(self._isolated, found), **self._options)

    def _isolated(self, task: HarborTask) -> TaskSandbox:
        if self._sandbox == "docker":
            if task.name not in self._images:
                self._images[task.name] = image_of(task)
            return DockerSandbox(task, self._images[task.name], self._limits, self._network)
        if task.name not in self._snapshots or not self._snapshots[task.name].is_dir():
            self._snapshots[task.name] = laid_out(task)
        return BubblewrapSandbox(task, self._snapshots[task.name], self._limits)

    def task_name(self, task: Task) -> str:
        """Name a task in records."""
        return str(task)


def _chosen(sandbox: Sandbox | Literal["auto"]) -> Sandbox:
    """Check that docker is there, or whether it is."""
    if sandbox == "bubblewrap":
        return sandbox
    try:
        check_docker()
    except ConfigError:
        if sandbox == "docker":
            raise
        return "bubblewrap"
    return "docker"
