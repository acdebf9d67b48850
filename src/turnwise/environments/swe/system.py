"""Define what commands see in addition to the repository: system programs and one Python, all read-only."""

import dataclasses
import os
import sys
from collections.abc import Mapping
from pathlib import Path

SITE = "/opt/site"
"""Mount point of the folder of Python packages."""


@dataclasses.dataclass(frozen=True, slots=True)
class System:
    """Mounts and variables of the sandbox.

    Attributes:
        mounts: Folders and files of the host, by their path in the sandbox.
        covered: Folders in them that appear empty.
        python: Path of the interpreter.
        variables: All environment variables of commands.
    """

    mounts: Mapping[str, str]
    covered: tuple[str, ...]
    python: str
    variables: Mapping[str, str]


def python_system(*, site: Path | None = None, venv: Path | None = None) -> System:
    """Make a system with the host's programs and a Python.

    The interpreter's own packages are hidden, because they may include the package to repair.

    Args:
        site: Folder of packages, as `pip install --target` fills it.
        venv: A virtual environment to use instead of the running Python.
    """
    prefix = Path(sys.base_prefix)
    if venv is not None:
        prefix = _home(venv)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    mounts = {"/usr": "/usr"}
    for name in ("/etc/alternatives", "/etc/ld.so.cache", "/etc/localtime"):
        if os.path.exists(name):
            mounts[name] = name
    covered = ["/usr/src", "/usr/lib/python3/dist-packages", f"/usr/lib/{version}/ensurepip"]
    inside = prefix.is_relative_to("/usr/local")
    covered += ["/usr/local/src"] if inside else ["/usr/local"]
    if prefix != Path("/usr"):
        if not prefix.is_relative_to("/usr"):
            mounts[str(prefix)] = str(prefix)
        covered += [str(found) for found in sorted(prefix.glob("lib/python3*/site-packages"))]
        covered += [str(found) for found in sorted(prefix.glob("lib/python3*/ensurepip"))]
    binaries = [str(prefix / "bin"), "/usr/bin", "/bin"]
    python = str(prefix / "bin" / "python3")
    if venv is not None:
        mounts[str(venv)] = str(venv)
        binaries.insert(0, str(venv / "bin"))
        python = str(venv / "bin" / "python")
    variables = {"PATH": ":".join(binaries), "LANG": "C.UTF-8", "HOME": "/scratch", "USER": "agent", "TZ": "UTC"}
    variables |= {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0", "TMPDIR": "/scratch"}
    if site is not None:
        mounts[SITE] = str(site)
        variables["PYTHONPATH"] = SITE
    return System(mounts, tuple(name for name in covered if os.path.isdir(name)), python, variables)


def _home(venv: Path) -> Path:
    """Find the installation folder of a virtual environment's Python."""
    for line in (venv / "pyvenv.cfg").read_text().splitlines():
        name, _, value = line.partition("=")
        if name.strip() == "home":
            return Path(value.strip()).parent
    return venv
