"""Define what commands see in addition to the repository: system programs and one Python, all read-only."""

import dataclasses
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from turnwise.base.errors import DataError

_LIBRARIES = (
    "*-linux-gnu*", "python3*", "git-core", "gcc", "perl", "perl5", "locale", "ssl", "file", "terminfo", "os-release",
    "bfd-plugins", "compat-ld", "gold-ld", "ld-*",
)  # fmt: skip
_SHARED = (
    "perl", "perl5", "git-core", "zoneinfo", "terminfo", "misc", "locale", "i18n", "tabset", "awk", "ca-certificates",
)  # fmt: skip
"""Of /usr/lib and /usr/share; other folders there may hold copies of packages: wheels, bundled software."""
_OF_PYTHON = ("bin", "include", "lib", "lib64")
"""Of the folder where a Python is installed; conda's has packages in others too."""
SITE = "/opt/site"
"""Mount point of the folder of Python packages."""


@dataclasses.dataclass(frozen=True, slots=True)
class System:
    """Mounts and variables of the sandbox."""

    mounts: Mapping[str, str]  # folders and files of the host, by their path in the sandbox
    covered: tuple[str, ...]  # folders in them that appear empty
    python: str  # path of the interpreter
    variables: Mapping[str, str]  # all environment variables of commands


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
    mounts = {str(found): str(found) for found in _system_files()}
    covered = [f"/usr/lib/{version}/ensurepip"]
    covered += [str(found) for found in sorted(Path("/usr").glob("lib*/py*/*-packages"))]
    if prefix != Path("/usr"):
        mounts |= {str(found): str(found) for name in _OF_PYTHON if (found := prefix / name).is_dir()}
        covered += [str(found) for found in sorted(prefix.glob("lib*/py*/*-packages"))]
        covered += [str(found) for found in sorted(prefix.glob("lib*/py*/ensurepip"))]
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


def _system_files() -> list[Path]:
    """List what is shown of the system: programs and libraries, but no folder that may bundle Python packages."""
    usr = Path("/usr")
    found = [usr / name for name in ("bin", "sbin", "lib32", "lib64", "libx32", "include", "libexec/git-core")]
    libraries = [path for name in _LIBRARIES for path in sorted(usr.glob(f"lib/{name}"))]
    on_debian = any(path.name.endswith("-linux-gnu") for path in libraries)
    found += libraries if on_debian else [usr / "lib"]  # elsewhere the libraries are single files there
    found += [usr / "share" / name for name in _SHARED]
    found += [Path("/etc") / name for name in ("alternatives", "ld.so.cache", "localtime")]
    return [path for path in found if path.exists()]


def _home(venv: Path) -> Path:
    """Find the installation folder of a virtual environment's Python."""
    for line in (venv / "pyvenv.cfg").read_text(encoding="utf-8", errors="replace").splitlines():
        name, _, value = line.partition("=")
        if name.strip() == "home" and (home := Path(value.strip())).is_absolute():
            if not (home / "python3").exists():  # its bin, include and lib are shown to the agent
                raise DataError(f"swe: {venv}/pyvenv.cfg: home is {home}, where there is no python3; recreate it")
            return home.parent
    return venv
