"""Store results in a file at once, so that a stopped program resumes from there."""

import json
import threading
from pathlib import Path
from typing import Any


class Kept:
    """Answers by question, one per line; a partly written line is ignored and computed again.

    Args:
        path: The file; created if it does not exist.
    """

    def __init__(self, path: Path):
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path, self._lock, self._known = path, threading.Lock(), dict[str, Any]()
        with path.open("a+b") as file:
            file.seek(0)
            written = file.read()
            file.truncate(written.rfind(b"\n") + 1)
        self._known.update(json.loads(line) for line in written.split(b"\n")[:-1])

    def __contains__(self, question: str) -> bool:
        return question in self._known

    def __getitem__(self, question: str) -> Any:
        return self._known[question]

    def __setitem__(self, question: str, answer: Any) -> None:
        with self._lock, self._path.open("ab") as file:
            self._known[question] = answer
            file.write(json.dumps([question, answer]).encode() + b"\n")
