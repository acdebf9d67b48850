"""What a place to work in is: a copy of a repository in which commands run, whatever isolates it."""

import dataclasses
from collections.abc import Mapping
from typing import Literal, Protocol

Files = Mapping[str, bytes | None]
"""Contents of files by their path in the repository, with "/" between its parts; None: there is no such file."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a workspace may use.

    Attributes:
        seconds: Of one command (wall clock).
        memory_mb: Of all processes of a command together, and of each (MiB).
        processes: At one time.
        disk_mb: Of all that is written, scratch files included (MiB); it is held in memory.
        output_chars: Of a command that are kept; the rest is read and dropped.
    """

    seconds: float = 30.0
    memory_mb: int = 1024
    processes: int = 64
    disk_mb: int = 256
    output_chars: int = 1_000_000


Ending = Literal["", "time", "memory", "processes"]
"""Which limit ended a command; empty: it ended by itself."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a command did.

    Attributes:
        code: Exit status; of a command that was killed -9.
        output: Standard output and standard error together.
        stopped_by: Which limit ended it.
        seconds: It took.
    """

    code: int
    output: bytes
    stopped_by: Ending = ""
    seconds: float = 0.0


class Oversized(Exception):
    """Files hold more than may be written: sparse ones, which take no room where they are."""


class Workspace(Protocol):
    """A writable copy of a repository. Processes of a command do not outlive it; files do."""

    root: str
    """The repository's folder as commands see it; they start there."""
    scratch: str
    """A folder beside it for files that are no part of it."""

    def run(
        self, command: str, *, stdin: bytes = b"", seconds: float | None = None, output_chars: int | None = None
    ) -> Outcome:
        """Run a shell command.

        Args:
            command: For `sh -c`.
            stdin: What it reads.
            seconds: In place of the workspace's own limit.
            output_chars: In place of the workspace's own limit.

        Raises:
            EnvironmentFault: The workspace itself is gone.
        """
        ...

    def changes(self) -> dict[str, bytes | None]:
        """Regular files that differ from the snapshot, with their contents; None: deleted. Links and devices are left out.

        Raises:
            EnvironmentFault: The workspace itself is gone.
            Oversized: They hold more than `Limits.disk_mb`.
        """
        ...

    def close(self) -> None:
        """Give everything back; may be called twice."""
        ...
