"""Released packages that tasks are made of: pure Python, with tests that need pytest alone and take seconds."""

import compileall
import dataclasses
import py_compile
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path, PurePosixPath

from turnwise.base.cache import made_aside
from turnwise.base.errors import ConfigError, DataError, did_you_mean

PYTEST = "pytest==9.0.2"
"""What runs the tests."""
_LEFT_OUT = {"build", "dist", "doc", "docs", "examples", "benchmark", "benchmarks", ".github", ".git"}
_TEST = re.compile(r"test_.*\.py|.*_test\.py|tests?\.py")


@dataclasses.dataclass(frozen=True, slots=True)
class Package:
    """A release on the package index."""

    name: str  # on the index
    version: str  # the release; its source distribution has the tests


PACKAGES = {
    package.name: package
    for package in (
        Package("boltons", "26.2.0"),
        Package("cachetools", "8.0.1"),
        Package("inflection", "0.5.1"),
        Package("isodate", "0.7.2"),
        Package("parse", "1.22.4"),
        Package("semver", "3.1.1"),
        Package("toolz", "1.2.0"),
        Package("voluptuous", "0.16.0"),
        Package("webcolors", "25.10.0"),
    )
}
"""The packages by name."""


def find_packages(names: list[str]) -> list[Package]:
    """Return packages by name; without names, all.

    Raises:
        ConfigError: A name is unknown.
    """
    for name in names:
        if name not in PACKAGES:
            raise ConfigError(f"make-swe-tasks knows no package {name!r}.{did_you_mean(name, PACKAGES)}")
    return [PACKAGES[name] for name in names or PACKAGES]


def fetch(package: Package, folder: Path) -> Path:
    """The source of a release as a snapshot of the data folder; downloads it once.

    Raises:
        DataError: pip cannot get it.
    """
    target = folder / "snapshots" / package.name / package.version
    if target.is_dir():
        return target
    with tempfile.TemporaryDirectory() as aside:
        what = f"{package.name}=={package.version}"
        _pip("download", "--quiet", "--no-deps", "--no-binary", package.name, "--dest", aside, what)
        (archive,) = Path(aside).glob("*.tar.gz")
        with tarfile.open(archive) as files:
            files.extractall(aside, filter="data")
        (unpacked,) = (found for found in Path(aside).iterdir() if found.is_dir())
        with made_aside(target) as filled:
            clean_copy(unpacked, filled)
    return target


def clean_copy(source: Path, target: Path) -> None:
    """Copy a repository without documentation, and without build results, which would reveal the reference patch."""
    for found in sorted(source.iterdir()):
        if found.name in _LEFT_OUT or found.name.endswith((".egg-info", ".egg")) or found.is_symlink():
            continue
        if found.is_dir():
            shutil.copytree(
                found, target / found.name, ignore=shutil.ignore_patterns("*.egg-info", "__pycache__", ".git")
            )
        else:
            shutil.copy(found, target / found.name)


def fetch_tools(folder: Path) -> Path:
    """The environment that all made tasks share; downloads it once.

    Raises:
        DataError: pip cannot get it.
    """
    target = folder / "environments" / "default"
    if not target.is_dir():
        with made_aside(target) as filled:
            _pip("install", "--quiet", "--no-compile", "--target", str(filled), PYTEST)
            # bytecode that stays valid in a copy of the folder: to compile pytest again takes longer than most tests
            compileall.compile_dir(filled, quiet=2, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    return target


def test_files(snapshot: Path) -> list[str]:
    """Paths of test files."""
    return [path for path in _python_files(snapshot) if _TEST.fullmatch(PurePosixPath(path).name)]


def source_files(snapshot: Path) -> list[str]:
    """Paths of the package's own code."""
    found = []
    for path in _python_files(snapshot):
        *folders, name = PurePosixPath(path).parts
        if (
            {"test", "tests"}.isdisjoint(folders)
            and not _TEST.fullmatch(name)
            and name not in ("setup.py", "conftest.py", "_version.py")
        ):
            found.append(path)
    return found


def _python_files(snapshot: Path) -> list[str]:
    return sorted(path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*.py") if path.is_file())


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr.strip() or "no reason given").splitlines()[-1]
        raise DataError(f"make-swe-tasks: pip {arguments[0]} {arguments[-1]} failed: {said}")
