"""What an attacker in a worker or a harness would try; it imports no test library, so that every image can load it."""

import contextlib
import json
import os
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from turnwise.environments.base import Step

SECRET = "sentinel-5d41402abc4b2a76"
TELLING = ("environ", "cmdline", "maps", "smaps", "comm", "cwd", "exe", "root", "map_files", "fd")
"""Entries of /proc/PID with an environment, arguments, and names of files."""
HOLDER = """
import mmap, sys
with open(sys.argv[1]) as file:
    held = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    print("ready", flush=True)
    sys.stdin.read()
"""
"""A program with the sentinel in its arguments and in the name of a file that it maps."""


class Curious:
    """Evaluates what it is asked."""

    def __init__(self, seed: int):
        self.seed = seed

    def start(self) -> str:
        return "ask"

    def step(self, response: str) -> Step:
        try:
            return Step(observation=repr(eval(response)))
        except Exception as error:
            return Step(observation=f"{type(error).__name__}: {error}")


def found_in_proc() -> list[str]:
    """List the files below /proc, other than this process's own, that tell the sentinel."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        if process.name == str(os.getpid()):
            continue
        for name in TELLING:
            with contextlib.suppress(OSError):
                told = process / name
                if told.is_symlink():
                    text = os.readlink(told)
                elif told.is_dir():
                    text = " ".join(os.readlink(each) for each in told.iterdir())
                else:
                    text = told.read_text(errors="replace")
                if SECRET in text:
                    found.append(str(told))
    return found


def writable_in_proc_and_sys() -> list[str]:
    """List the files below /proc/sys, /proc and /sys, outside of processes, that open for writing."""
    found = []
    for top in ("/proc", "/sys"):
        for folder, folders, files in os.walk(top):
            if folder == "/proc":
                folders[:] = [name for name in folders if not name.isdigit() and name not in ("self", "thread-self")]
            for name in files:
                place = os.path.join(folder, name)
                with contextlib.suppress(OSError, ValueError):
                    os.close(os.open(place, os.O_WRONLY | os.O_NONBLOCK))
                    found.append(place)
    return found


def play(task: Any, endpoint: Any) -> dict[str, Any]:
    """Look around as the function of a harness, which asks the policy once."""
    ask(endpoint)
    return {"reward": 1.0, "info": {"found": found_in_proc(), "processes": len(list(Path("/proc").glob("[0-9]*")))}}


def ask(endpoint: Any) -> None:
    """Send one request, as an agent would."""
    body = json.dumps({"messages": [{"role": "user", "content": "look"}]}).encode()
    headers = {"Authorization": f"Bearer {endpoint.api_key}"}
    request = urllib.request.Request(f"{endpoint.base_url}/chat/completions", body, headers)
    urllib.request.urlopen(request, timeout=60).read()


if __name__ == "__main__":  # as the command of a harness
    print("a line before the reward")
    place = SimpleNamespace(base_url=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"])
    ask(place)
    print(json.dumps({"reward": 1.0, "info": {"found": found_in_proc()}}))
