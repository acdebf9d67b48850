"""The sdist and the wheel, built once, and what they hold."""

import zipfile
from pathlib import Path

import pytest
from tests.needs import skip_without
from tests.newcomer import build_wheel


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, with the sdist beside it; nothing is fetched."""
    skip_without("build")
    return build_wheel(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="session")
def metadata(wheel: Path) -> str:
    """What a package index shows."""
    with zipfile.ZipFile(wheel) as content:
        (name,) = (name for name in content.namelist() if name.endswith(".dist-info/METADATA"))
        return content.read(name).decode()
