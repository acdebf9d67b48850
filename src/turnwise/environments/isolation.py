"""Keep environments apart from the trainer: a clean environment for their processes, and bubblewrap around them."""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from turnwise.errors import ConfigError

PASSED = frozenset(
    [
        *("PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TEMP", "TMP", "LD_LIBRARY_PATH"),
        *("DYLD_LIBRARY_PATH", "VIRTUAL_ENV", "JAVA_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR", "SSL_CERT_FILE"),
        *("SSL_CERT_DIR", "SYSTEMROOT"),
    ]
)
"""Variables that processes of environments get. Tokens of hubs and trackers are not among them."""
PASSED_STARTS = ("LC_", "PYTHON", "OMP_", "MKL_", "OPENBLAS_", "CUDA_VISIBLE_", "TURNWISE_")
PASSED_ENDS = ("_DATA",)
"""Variables with folders of games, such as ALFWORLD_DATA."""
HIDDEN = ("/tmp", "/var/tmp", "/run", "/home", "/root", "/mnt", "/media", "/srv")
"""Folders that bubblewrap replaces by empty ones, in addition to HOME."""
_PR_SET_DUMPABLE = 4


def clean_variables(names: Iterable[str] = (), given: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables that processes of environments get.

    Args:
        names: Further variables to pass, such as an API key that an environment needs.
        given: Variables to choose from; default: those of this process.
    """
    given, wanted = os.environ if given is None else given, PASSED | set(names)
    return {
        name: value
        for name, value in given.items()
        if name in wanted or name.startswith(PASSED_STARTS) or name.endswith(PASSED_ENDS)
    }


def hide_this_process() -> None:
    """Hide environment and memory of this process from other processes of the same user.

    Linux then refuses them /proc/PID/environ, /proc/PID/mem and ptrace; debuggers and py-spy included. Root can still
    read them.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def how_ended(code: int) -> str:
    """Describe the return code of a process."""
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def isolating(
    isolation: str, variables: Mapping[str, str], *, of: str = "environment", otherwise: str = "worker"
) -> list[str]:
    """Return the start of a command line that isolates a command; empty for isolation "worker".

    In bubblewrap it sees the system's files, Python's folders and those that variables named *_DATA point to, all
    read-only; empty folders instead of HIDDEN and HOME; and its own processes only.

    Args:
        isolation: Setting `environment.isolation` or `harness.isolation`.
        variables: Variables of the command.
        of: Section of the setting, for errors.
        otherwise: Value of the setting without bubblewrap, for errors.

    Raises:
        ConfigError: bubblewrap is missing, or the system forbids it.
    """
    if isolation == "worker":
        return []
    program = shutil.which("bwrap")
    if program is None:
        raise ConfigError(
            f"{of}.isolation='bubblewrap' needs the program 'bwrap', which is not on the PATH; install your system's "
            f"package 'bubblewrap', or set {of}.isolation='{otherwise}'"
        )
    hidden = [place for place in dict.fromkeys((*HIDDEN, str(Path.home()))) if Path(place).is_dir() and place != "/"]
    line = [program, "--die-with-parent", "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts"]
    line += ["--cap-drop", "ALL", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
    line += ["--unshare-net"] if isolation == "bubblewrap-offline" else []
    line += [part for place in hidden for part in ("--tmpfs", place)]
    line += [part for place in _needed(variables) for part in ("--ro-bind-try", place, place)]
    # the kernel lets a process that is root outside write most of /proc/sys, whatever its capabilities
    line += ["--remount-ro", "/proc", "--"]
    _try(line, of, otherwise)
    return line


def _needed(variables: Mapping[str, str]) -> list[str]:
    """List the folders below hidden ones that Python and the environments read, outer ones first."""
    python = [sys.prefix, sys.base_prefix, os.path.dirname(os.path.realpath(sys.executable)), *sys.path]
    data = [value for name, value in variables.items() if name.endswith(PASSED_ENDS)]
    places = {os.path.abspath(place) for place in (*python, *data, os.getcwd()) if place and os.path.isdir(place)}
    homes = {str(Path.home()), *HIDDEN, "/"}  # never a hidden folder as a whole
    return sorted(places - homes)


def _try(line: Sequence[str], of: str, otherwise: str) -> None:
    tried = subprocess.run([*line, "true"], capture_output=True, text=True, check=False, env={"PATH": os.defpath})
    if tried.returncode:
        raise ConfigError(
            f"{of}.isolation='bubblewrap' does not work here, it says: {' '.join(tried.stderr.split())[:200]}; "
            f"set {of}.isolation='{otherwise}', or allow user namespaces"
        )
