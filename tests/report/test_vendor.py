"""The libraries of the page are those of the list, with their licences, and small."""

import hashlib
import tomllib
from importlib import resources
from pathlib import Path

import turnwise.lab.report

VENDOR = Path(str(resources.files(turnwise.lab.report))) / "vendor"
LIST = tomllib.loads((VENDOR / "LIST.toml").read_text())


def test_every_file_is_as_listed():
    listed = {name: digest for library in LIST.values() for name, digest in library["sha256"].items()}
    found = {path.relative_to(VENDOR).as_posix(): path for path in VENDOR.rglob("*") if path.is_file()}
    assert set(found) == {*listed, "LIST.toml"}
    for name, digest in listed.items():
        assert hashlib.sha256(found[name].read_bytes()).hexdigest() == digest, name


def test_every_library_says_version_and_licence_and_brings_its_text():
    for name, library in LIST.items():
        assert library["version"]
        assert library["licence"] in ("MIT", "Apache-2.0")
        assert "from" in library
        assert (VENDOR / name / "LICENSE").is_file()


def test_they_stay_small():
    assert sum(path.stat().st_size for path in VENDOR.rglob("*") if path.is_file()) < 1_500_000
