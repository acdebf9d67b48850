"""Everything that `make` installs has a version and a hash that were there when the tests ran."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
INDEX_CHOOSES = {"torch"}
"""Its builds differ by index, so that no hash fits all."""


def blocks(name: str) -> list[str]:
    return re.split(r"\n(?=\S)", (ROOT / name).read_text().strip())


@pytest.fixture(scope="module")
def versions() -> dict[str, str]:
    return dict(block.split()[0].split("==") for block in hashed())


def hashed() -> list[str]:
    return blocks("requirements-hashed.txt")


@pytest.mark.parametrize("name", ["requirements-hashed.txt", "requirements-models.txt"])
def test_every_package_has_one_version_and_hashes(name):
    for block in blocks(name):
        first, *others = (line.rstrip(" \\").strip() for line in block.splitlines())
        assert re.match(r"[a-z0-9-]+==\S+( ; .*)?$", first), first
        assert others, first
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", line) for line in others), first


def test_what_pyproject_asks_for_is_there_in_a_version_that_fits(versions):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    groups, extras = project["dependency-groups"], project["project"]["optional-dependencies"]
    asked = [*project["project"]["dependencies"], *extras["train"], *groups["test"], *groups["check"], *groups["docs"]]
    for requirement in map(Requirement, asked):
        name = canonicalize_name(requirement.name)
        if name not in INDEX_CHOOSES:
            assert requirement.specifier.contains(versions[name]), f"{requirement}: run `make lock`"


def test_constraints_and_hashes_name_the_same_versions(versions):
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    constrained = {canonicalize_name(name): version for name, version in (line.split("==") for line in lines)}
    shared = constrained.keys() & versions.keys()
    assert constrained.keys() - shared == INDEX_CHOOSES
    assert {name: constrained[name] for name in shared} == {name: versions[name] for name in shared}
