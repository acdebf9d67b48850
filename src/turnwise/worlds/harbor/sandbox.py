"""What plays a task: an isolated copy of its files, on which its tests run at the end."""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from turnwise.worlds.swe.workspace import CommandResult

VERDICT = "/logs/verifier"
"""Where tests write one of `REWARDS`."""
REWARDS = ("reward.txt", "reward.json")
REWARD_BYTES = 10_000


class TaskSandbox(Protocol):
    """A task's files, isolated."""

    def run(self, command: str, *, output_chars: int) -> CommandResult:
        """Run a command of the agent; its processes end with it."""
        ...

    def test(self, *, output_chars: int) -> tuple[CommandResult, dict[str, bytes]]:
        """Run the tests, which become visible now; returns how they ended, and what they wrote of `REWARDS`."""
        ...

    def close(self) -> object:
        """Release all resources."""
        ...


def digest_of(copied: Sequence[tuple[Path, str]]) -> str:
    """Digest files and folders, with their modes and where they go."""
    digest = hashlib.sha256()
    for source, place in copied:
        for path in sorted(source.rglob("*")) if source.is_dir() else [source]:
            digest.update(f"{place} {path.relative_to(source)} {path.lstat().st_mode}\0".encode())
            if path.is_symlink():
                digest.update(os.fsencode(os.readlink(path)))
            elif path.is_file():
                digest.update(path.read_bytes())
    return digest.hexdigest()[:32]
