"""Select the changes to grade: none of tests, their configuration, or files that Python and pytest load themselves."""

import re
import sys
from collections.abc import Collection

from turnwise.worlds.swe.patches import touched
from turnwise.worlds.swe.tasks import SweTask
from turnwise.worlds.swe.workspace import Files

_CONFIGURATION = {
    "conftest.py",
    "pytest.ini",
    ".pytest.ini",
    "pytest.toml",
    ".pytest.toml",
    "tox.ini",
    "setup.cfg",
    "pyproject.toml",
    "noxfile.py",
}
_LOADED = {"sitecustomize.py", "usercustomize.py", "pyvenv.cfg"}
_COMPILED = (".pyc", ".pyo", ".pyd", ".so", ".pth", ".pth~")
_TEST = re.compile(r"test_.*\.py|.*_test\.py|tests?\.py")
_FOLDERS = {"tests", "test"}
_METADATA = (".egg-info", ".dist-info", ".egg")
"""Ends of folders that importlib takes for metadata of packages, in any case."""
_RUNNERS = {"pytest", "_pytest", "pluggy"}


def graded_changes(task: SweTask, changes: Files, *, packages: Collection[str] = ()) -> dict[str, bytes | None]:
    """Drop changes that decide how the tests run; a file that the reference patch changes is always kept.

    Args:
        task: The task.
        changes: Files that the agent changed.
        packages: Names that the tests' Python environment provides; a new module must not replace one.
    """
    answer = set(touched(task.patch))
    grading = {*touched(task.test_patch), *task.hidden_files, *(name for name, _ in task.test_files)}
    return {
        path: content
        for path, content in changes.items()
        if path not in grading and (path in answer or not _decides(path, packages))
    }


def _decides(path: str, packages: Collection[str]) -> bool:
    *folders, name = path.split("/")
    if name in _CONFIGURATION or name in _LOADED or name.endswith(_COMPILED) or _TEST.fullmatch(name):
        return True
    if _FOLDERS.intersection(folders) or any(part.lower().endswith(_METADATA) for part in (*folders, name)):
        return True
    if {".git", "__pycache__"}.intersection(folders):
        return True
    importable = folders[1:] if folders[:1] == ["src"] else folders
    top = importable[0] if importable else name.partition(".")[0]
    is_code = name.endswith(".py")
    return is_code and (top in sys.stdlib_module_names or top in packages or top in _RUNNERS)
