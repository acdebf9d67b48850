"""Select the changes to grade: none of tests, their configuration, or files that Python and pytest load themselves."""

import ast
import re
import sys
from collections.abc import Collection

from turnwise.environments.swe.patches import touched
from turnwise.environments.swe.tasks import SweTask
from turnwise.environments.swe.workspace import Files

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
_RUNNERS = {"pytest", "_pytest", "unittest", "pluggy", "builtins", "gc", "ctypes"}
_REACHING = {"_getframe", "_current_frames", "_exit", "modules", "meta_path", "settrace", "setprofile", "__import__"}


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
    if _FOLDERS.intersection(folders) or any(folder.endswith((".egg-info", ".dist-info")) for folder in folders):
        return True
    if {".git", "__pycache__"}.intersection(folders):
        return True
    importable = folders[1:] if folders[:1] == ["src"] else folders
    top = importable[0] if importable else name.partition(".")[0]
    is_code = name.endswith(".py")
    return is_code and (top in sys.stdlib_module_names or top in packages or top in _RUNNERS)


def reaches_for_the_tests(task: SweTask, old: Files, new: Files) -> str:
    """Find names in changed code that could manipulate the tests; empty if there are none.

    This check of names is easy to evade on purpose; the runner's canaries are the second defence.

    Args:
        task: The task; names in its reference patch are allowed.
        old: The changed files before.
        new: The changed files after.
    """
    for path, content in new.items():
        if content is None or not path.endswith(".py"):
            continue
        further = _reached(content) - _reached(old.get(path) or b"")
        if found := sorted(name for name in further if name not in task.patch):
            return f"{path} uses {found[0]}"
    return ""


def _reached(code: bytes) -> set[str]:
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set()
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Name):
            found.add(node.id)
    return found & (_RUNNERS | _REACHING)
