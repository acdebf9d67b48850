"""Do what a newcomer does: install the wheel, and run every command of the README and the tutorials as it stands there.

python tests/newcomer.py                 builds the wheel, and takes torch and the like from this interpreter
python tests/newcomer.py --wheel F       tries this wheel
python tests/newcomer.py --quick         trains for few steps only (minutes less)
python tests/newcomer.py PAGE...         follows these pages only
python tests/newcomer.py --download      installs everything from the package index instead (hundreds of megabytes)

Everything happens in an empty temporary folder. A ```bash block runs line by line. The ```python blocks of a page run
in one interpreter, as a reader's would; a block with a file name becomes that file. The commands of the README's three
doors run too, on a log of one task. The first command that fails or prints a traceback ends the script with exit code
1. `make`, and what installs from the working directory, belong to a clone and are skipped.
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import site
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, cast

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```(bash|python)(?: (\w+\.py))?\n(.*?)^```", re.MULTILINE | re.DOTALL)
DOOR = re.compile(r"^\| \*\*[^|]+\*\* \| `([^`]+)` \|", re.MULTILINE)
LOG = "".join(
    json.dumps({"task": "sum", "messages": [{"role": role, "content": text} for role, text in said], "reward": reward})
    + "\n"
    for reward, said in (
        (1.0, [("user", "2 + 2?"), ("assistant", "4")]),
        (0.0, [("user", "2 + 2?"), ("assistant", "5")]),
    )
)
"""What an agent left: two trajectories of one task, for the first door."""
SHORT = (
    "run.steps=2 warmstart.games=60 warmstart.steps=40 rollout.groups=8 evaluate.episodes=16 evaluate.final_episodes=16"
)
QUICK = """#!/bin/sh
# Train and analyse briefly: a policy that has hardly begun shows as well that the commands run.
case "$1 $2" in
  "train --resume") exec {turnwise} "$@" ;;
  train*) exec {turnwise} "$@" {short} ;;
  # a policy that was trained this shortly never wins, so there is no credit to measure; tests/diagnostics does it
  "analyse fidelity") echo "left out with --quick"; exit 0 ;;
esac
exec {turnwise} "$@"
"""


INTERPRETER = """import json, sys
names = {"__name__": "__main__"}
for line in sys.stdin:
    exec(compile(json.loads(line), "<block>", "exec"), names)
    print("\\0", flush=True)"""
ENDED = "\0\n"
"""What it prints after each block."""


class Failed(Exception):
    """A command failed; the text has its output."""


def build_wheel(folder: Path) -> Path:
    """Build the wheel by way of the sdist, without fetching anything, and return it."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failed(f"the wheel cannot be built:\n{done.stdout}{done.stderr}")
    return next(folder.glob("*.whl"))


def make_environment(folder: Path, wheel: Path, *, download: bool = False) -> dict[str, str]:
    """Make a virtual environment with the wheel, and return the variables to run commands in it.

    Args:
        folder: Folder of the environment, created.
        wheel: Wheel to install.
        download: Install what the wheel needs from the package index. Otherwise it comes from this interpreter's
            packages, and no index is asked.
    """
    venv.create(folder, symlinks=True, with_pip=download)
    names = (
        "HOME",
        "LANG",
        "TMPDIR",
        *(name for name in os.environ if name.endswith("_DATA")),
    )  # nothing else of this environment, such as PYTHONPATH
    variables = {name: os.environ[name] for name in names if name in os.environ}
    variables |= {
        "PATH": f"{folder / 'bin'}:/usr/local/bin:/usr/bin:/bin",
        "PIP_FIND_LINKS": str(wheel.parent),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "TURNWISE_CACHE": str(folder / "cache"),
        "OMP_NUM_THREADS": "1",
    }
    if download:
        variables |= {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
        variables["PIP_CONSTRAINT"] = str(ROOT / "constraints.txt")
        run("pip install torch", folder, variables)
    else:
        (packages,) = folder.glob("lib/python*/site-packages")
        borrowed = [path for path in site.getsitepackages() if Path(path).is_dir()]
        (packages / "borrowed.pth").write_text("\n".join(borrowed) + "\n")  # plain folders: their own .pth are ignored
        (folder / "bin" / "pip").write_text('#!/bin/sh\nexec python -m pip "$@"\n')  # the borrowed one
        (folder / "bin" / "pip").chmod(0o755)
        variables |= {"PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1"}
    run(f"pip install --quiet '{wheel}[train]'", folder, variables)
    return variables


def commands(page: Path, where: Path) -> Iterator[tuple[str, str]]:
    """Yield the commands and the Python blocks of a page in order, each with its language."""
    text = page.read_text(encoding="utf-8")
    for language, file, block in BLOCK.findall(text):
        if file:
            (where / file).write_text(block, encoding="utf-8")
        elif language == "python":
            yield language, block
        else:
            yield from (("bash", line) for line in map(str.strip, block.replace("\\\n", " ").splitlines()) if line)
    doors = (door for door in DOOR.findall(text) if f"\n{door} " not in text)  # the others have run in a block
    yield from (("bash", door) for door in doors)


def run(command: str, where: Path, variables: Mapping[str, str]) -> None:
    """Run one command.

    Raises:
        Failed: Its exit code is not 0, or it prints a traceback.
    """
    start = time.monotonic()
    done = subprocess.run(
        ["/bin/bash", "-c", command], cwd=where, env=variables, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    output = done.stdout + done.stderr
    if done.returncode or "Traceback (most recent call last)" in output:
        raise Failed(f"exit code {done.returncode} of: {command}\n{output}")
    print(f"{time.monotonic() - start:6.1f} s  {command}", flush=True)


@contextlib.contextmanager
def start_python(where: Path, variables: Mapping[str, str]) -> Iterator[Callable[[str], None]]:
    """Start an interpreter, and yield a function that runs a block there, and raises `Failed` if the block does."""
    streams: dict[str, Any] = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.STDOUT,
        "text": True,
    }
    with subprocess.Popen(["python", "-c", INTERPRETER], cwd=where, env=variables, **streams) as python:

        def run_block(block: str) -> None:
            start, output = time.monotonic(), ""
            print(json.dumps(block), file=python.stdin, flush=True)
            while not output.endswith(ENDED) and (line := cast(IO[str], python.stdout).readline()):
                output += line
            if not output.endswith(ENDED) or "Traceback (most recent call last)" in output:
                raise Failed(f"this block failed:\n{block}\n{output}")
            print(f"{time.monotonic() - start:6.1f} s  a block of {block.count(chr(10))} lines of Python", flush=True)

        yield run_block


def follow(pages: list[Path], wheel: Path, folder: Path, *, quick: bool, download: bool = False) -> None:
    """Install the wheel and run every command of the pages, all in one folder.

    Raises:
        Failed: A command failed.
    """
    variables = make_environment(folder / "venv", wheel, download=download)
    if quick:
        own = folder / "quick"
        own.mkdir()
        (own / "turnwise").write_text(QUICK.format(turnwise=folder / "venv/bin/turnwise", short=SHORT))
        (own / "turnwise").chmod(0o755)
        variables["PATH"] = f"{own}:{variables['PATH']}"
    where = folder / "empty"
    where.mkdir()
    (where / "log.jsonl").write_text(LOG, encoding="utf-8")
    for page in pages:
        print(page.relative_to(ROOT), flush=True)
        with start_python(where, variables) as run_block:
            for language, command in commands(page, where):
                if language == "python":
                    run_block(command)
                elif command.startswith(("make ", ". .venv/", "pip install '.[")):
                    print(f" skipped  {command}: needs a clone", flush=True)
                elif (data := re.search(r"needs (\w+_DATA)", command)) and data[1] not in os.environ:
                    print(f" skipped  {command}", flush=True)
                elif not command.startswith("#"):
                    run(command, where, variables)


def main() -> int:
    """Run the script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", type=Path, nargs="*", metavar="PAGE")
    parser.add_argument("--wheel", type=Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--download", action="store_true")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="newcomer-"))
    try:
        everything = [ROOT / "README.md", *sorted((ROOT / "docs" / "tutorials").glob("*.md"))]
        wheel = options.wheel.absolute() if options.wheel else build_wheel(folder / "dist")
        pages = [page.absolute() for page in options.pages] or everything
        follow(pages, wheel, folder, quick=options.quick, download=options.download)
    except Failed as failed:
        print(failed, file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
