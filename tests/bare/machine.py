"""Make a bare machine of this one: turnwise with what training requires, pytest, and nothing that is optional.

Nothing is patched: a new environment has links to the packages that are kept, and a PATH lacks the optional programs.
Child processes therefore find no more than the tests do.
"""

import os
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.needs import PROGRAMS, VARIABLES

ROOT = Path(__file__).parents[2]
TOOLS = ("pytest", "pytest-xdist", "hypothesis", "beartype")
"""What every test is run with; the other packages of the group `test` serve some tests only."""
SCRIPT = """#!{python}
import sys

from turnwise.__main__ import main

sys.exit(main())
"""


def make_environment(folder: Path) -> Path:
    """Make an environment with the kept packages and no others; return its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    (packages,) = folder.glob("lib/python*/site-packages")
    for found in kept_distributions():
        for top in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            if top.endswith(".pth"):  # a path of its own would lead back to all packages
                continue
            if not (packages / top).is_symlink():  # torch for CUDA brings a dozen distributions that share `nvidia`
                (packages / top).symlink_to(Path(str(found.locate_file(top))))
    (packages / "turnwise.pth").write_text(f"{source_folder()}\n")
    script = folder / "bin" / "turnwise"
    script.write_text(SCRIPT.format(python=python))
    script.chmod(0o755)
    return python


def source_folder() -> Path:
    """Find the folder that holds the package `turnwise` which this process imports."""
    spec = find_spec("turnwise")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parents[1]


def kept_distributions() -> list[Distribution]:
    """List turnwise, what it requires with the extra `train`, and the tools of all tests."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return required([*project["dependencies"], *project["optional-dependencies"]["train"], *TOOLS, "turnwise"])


def required(requirements: Iterable[str]) -> list[Distribution]:
    """List the installed distributions that meet requirements, and what these require in turn."""
    found: dict[str, Distribution] = {}
    left = [(Requirement(text), "") for text in requirements]
    seen: set[tuple[str, str]] = set()
    while left:
        requirement, extra = left.pop()
        name = canonicalize_name(requirement.name)
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        left += [(requirement, more) for more in requirement.extras if not extra]
        try:
            found.setdefault(name, distribution(name))
        except PackageNotFoundError:  # of another platform
            continue
        wanted = [Requirement(text) for text in found[name].requires or ()]
        left += [(needed, "") for needed in wanted if not needed.marker or needed.marker.evaluate({"extra": extra})]
    return list(found.values())


def make_path(folder: Path, path: str) -> str:
    """Make a PATH without the optional programs: a folder that has some is replaced by one of links to the others."""
    places = []
    for number, place in enumerate(map(Path, filter(None, path.split(os.pathsep)))):
        names = set(os.listdir(place)) if place.is_dir() else set()
        if names.isdisjoint(PROGRAMS):
            places.append(place)
            continue
        made = folder / str(number)
        made.mkdir(parents=True)
        for name in names.difference(PROGRAMS):
            (made / name).symlink_to(place / name)
        places.append(made)
    return os.pathsep.join(map(str, places))


def make_variables(folder: Path, given: Mapping[str, str]) -> dict[str, str]:
    """Make the environment variables of a bare machine: its PATH, and none that names a program or data."""
    named = {*VARIABLES, "CHROMIUM", "JAVA_HOME", "PYTHONPATH"}
    return {name: value for name, value in given.items() if name not in named} | {
        "PATH": make_path(folder, given.get("PATH", os.defpath)),
        "HYPOTHESIS_PROFILE": "quick",  # more examples find no more that is missing
    }
