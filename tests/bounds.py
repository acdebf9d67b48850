"""Check that the trainer's lower bounds are the versions with which `make test-lowest` runs.

    python -m tests.bounds .venv-lowest/versions.txt

A bound below them was never tested: another package asks for more.
"""

import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
PINNED = {"torch"}
"""Tested apart, since another build is gigabytes."""


def untested(project: str, resolved: str) -> list[str]:
    """Say which bounds of a `pyproject.toml` are lower than the versions resolved, one `NAME==VERSION` per line."""
    table = tomllib.loads(project)["project"]
    extras = table["optional-dependencies"]
    ran = dict(line.split("==") for line in resolved.splitlines() if "==" in line)
    said = []
    for requirement in map(Requirement, [*table["dependencies"], *extras["train"], *extras["lora"]]):
        name = canonicalize_name(requirement.name)
        bounds = [each.version for each in requirement.specifier if each.operator == ">="]
        if name not in PINNED and [Version(bound) for bound in bounds] != [Version(ran[name])]:
            needed = f"{requirement.name}>={ran[name]}"
            said.append(f"pyproject.toml: {requirement} allows what was not tested; write {needed}")
    return said


if __name__ == "__main__":
    sys.exit("\n".join(untested((ROOT / "pyproject.toml").read_text(), Path(sys.argv[1]).read_text())) or None)
