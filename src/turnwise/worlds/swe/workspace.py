"""Define the workspace: an isolated copy of a repository in which commands run."""

import dataclasses
from collections.abc import Mapping
from typing import Literal

Files = Mapping[str, bytes | None]
"""File contents by path in the repository (separator "/"); None: the file does not exist."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Resource limits of a workspace."""

    seconds: float = 30.0  # wall-clock time of one command
    memory_mb: int = 1024  # memory of all processes of a command together, and of each (MiB)
    processes: int = 64  # concurrent processes
    disk_mb: int = 256  # size of all written files, scratch files included (MiB); they are held in memory
    output_chars: int = 1_000_000  # kept output of a command (characters); the rest is dropped


Ending = Literal["", "time", "memory", "processes"]
"""The limit that ended a command; empty: it ended by itself."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """Result of a command."""

    code: int  # exit status; -9 if it was killed
    output: bytes  # standard output and standard error together
    stopped_by: Ending = ""  # the limit that ended it
    seconds: float = 0.0  # its wall-clock time


class Oversized(Exception):
    """Files exceed the disk limit, or cannot be read; sparse files can, because they take no space in the workspace."""


class Workspace:
    """A writable copy of a repository. Processes of a command do not outlive it; files do."""

    root: str
    """The repository's folder as commands see it; they start there."""
    scratch: str
    """A folder for files outside the repository."""

    def __init__(self, limits: Limits):
        self._limits = limits

    def run(
        self,
        command: str,
        *,
        stdin: bytes = b"",
        seconds: float | None = None,
        output_chars: int | None = None,
        read_only: bool = False,
    ) -> CommandResult:
        """Run a shell command.

        Args:
            command: For `sh -c`.
            stdin: What it reads.
            seconds: Replaces the workspace's own limit.
            output_chars: Replaces the workspace's own limit.
            read_only: Whether the repository cannot be written to (bubblewrap only).

        Raises:
            EnvironmentFault: The workspace has ended.
        """
        limits = self._limits
        seconds = limits.seconds if seconds is None else seconds
        return self._run(
            command, stdin, seconds, limits.output_chars if output_chars is None else output_chars, read_only
        )

    def _run(self, command: str, stdin: bytes, seconds: float, output_chars: int, read_only: bool) -> CommandResult:
        raise NotImplementedError

    def changes(self) -> dict[str, bytes | None]:
        """Return regular files that differ from the snapshot, with their contents; None: deleted.

        Raises:
            EnvironmentFault: The workspace has ended.
            Oversized: The files exceed `Limits.disk_mb`.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Release all resources; may be called twice."""
        raise NotImplementedError
