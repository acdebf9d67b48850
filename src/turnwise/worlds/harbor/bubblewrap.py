"""Play a task in bubblewrap, with the files that its image copies and the programs of this machine."""

import contextlib
import dataclasses
import os
import shutil
import tempfile
from itertools import chain
from pathlib import Path

from turnwise.base.cache import cache_folder
from turnwise.base.errors import EnvironmentFault
from turnwise.worlds.harbor.sandbox import REWARD_BYTES, REWARDS, VERDICT, digest_of
from turnwise.worlds.harbor.tasks import HarborTask
from turnwise.worlds.swe.bubblewrap import BubblewrapWorkspace
from turnwise.worlds.swe.system import System, python_system
from turnwise.worlds.swe.workspace import CommandResult, Limits

LEFT_OUT = shutil.ignore_patterns("Dockerfile")


class BubblewrapSandbox:
    """The files of a task's image, and the programs of this machine.

    Args:
        task: The task.
        snapshot: Its files; see `laid_out`.
        limits: What a command may use.
    """

    def __init__(self, task: HarborTask, snapshot: Path, limits: Limits):
        self._task = task
        self._workspace = BubblewrapWorkspace(snapshot, self._system(), limits, root=task.root, aliases=["/logs"])
        self.close = self._workspace.close

    def run(self, command: str, *, output_chars: int) -> CommandResult:
        """See `TaskSandbox`."""
        return self._workspace.run(command, output_chars=output_chars)

    def test(self, *, output_chars: int) -> tuple[CommandResult, dict[str, bytes]]:
        """See `TaskSandbox`."""
        system = self._system(dict(self._task.test_variables))
        tests = str((self._task.folder / "tests").resolve())
        self._workspace.show(dataclasses.replace(system, mounts={**system.mounts, "/tests": tests}))
        command = f"rm -rf {VERDICT} && mkdir -p {VERDICT} && bash /tests/test.sh"
        outcome = self._workspace.run(command, seconds=self._task.test_s, output_chars=output_chars)
        found = {name: self._workspace.run(f"cat {VERDICT}/{name}", output_chars=REWARD_BYTES) for name in REWARDS}
        return outcome, {name: read.output for name, read in found.items() if read.code == 0}

    def _system(self, more: dict[str, str] | None = None) -> System:
        system = python_system()
        return dataclasses.replace(system, variables={**system.variables, **dict(self._task.variables), **(more or {})})


def laid_out(task: HarborTask) -> Path:
    """Return a folder with the files of a task where its image has them; it is made once for the same files."""
    folder = cache_folder() / "harbor" / digest_of(task.copied)
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as aside:
        made = Path(aside) / "made"
        made.mkdir()
        for source, place in task.copied:
            target = made / place.removeprefix(task.root).lstrip("/")
            _refuse_links(source, target, made, task.name)
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True, ignore=LEFT_OUT)
            else:
                shutil.copy(source, target)
        with contextlib.suppress(OSError):  # another process was faster
            made.rename(folder)
    return folder


def _refuse_links(source: Path, target: Path, made: Path, task: str) -> None:
    """Raise if a copy would write through a link, which the task may have copied before, to a file of this machine."""
    inside = (Path(at, name).relative_to(source) for at, *names in os.walk(source) for name in chain(*names))
    for path in (target, *(target / each for each in inside)):
        if path.is_symlink() or not path.resolve().is_relative_to(made.resolve()):
            raise EnvironmentFault(f"{task}: its image copies over the link {path.relative_to(made)}")
