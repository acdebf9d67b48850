"""Damaged run folders: every command that reads one works, or ends with one line and changes nothing.

python -m tests.fuzz_folders CASES [SEED]    # at the repository's root: print every finding; exit code 1 if any

A case damages one or two files of a copy of a small run, and gives the copy to one command. It is made from the seed
and its number alone.
"""

import contextlib
import io
import random
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.fuzz import described, report
from tests.toys import small_config
from turnwise.commands.cli import main
from turnwise.train.loop import train

COMMANDS: dict[str, Callable[[str], list[str]]] = {
    "report": lambda run: ["report", run],
    "compare": lambda run: ["compare", run, run],
    "recredit": lambda run: ["recredit", run, "--method", "rloo"],
    "dynamics": lambda run: ["analyse", "dynamics", run],
    "cost": lambda run: ["analyse", "cost", run],
    "noise": lambda run: ["analyse", "noise", run],
    "eval": lambda run: ["eval", run, "--episodes", "2"],
    "play": lambda run: ["play", run, "--delay", "0"],
    "resume": lambda run: ["train", "--resume", run],
}
WRITE = ("report", "eval", "train", "analyse")
"""Commands that may write into a run when they work."""
Damage = Callable[[Path, random.Random], None]


def flip(path: Path, chance: random.Random) -> None:
    """Change one bit."""
    data = bytearray(path.read_bytes())
    if data:
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(data)


def cut(path: Path, chance: random.Random) -> None:
    """Cut off the end, as a full disk does."""
    data = path.read_bytes()
    path.write_bytes(data[: chance.randrange(len(data) + 1)])


def fill(path: Path, chance: random.Random) -> None:
    """Replace the content."""
    path.write_bytes(chance.choice((b"", b"\0" * 100, b"{}", b"[]", b"null", b"\xff\xfe", b"{" * 5000, b"1e999\n")))


def mix(path: Path, chance: random.Random) -> None:
    """Leave out a line, or repeat it."""
    lines = path.read_bytes().splitlines(keepends=True)
    if lines:
        place = chance.randrange(len(lines))
        lines[place : place + 1] = [lines[place]] * chance.choice((0, 2))
    path.write_bytes(b"".join(lines))


def remove(path: Path, chance: random.Random) -> None:
    """Remove the file."""
    path.unlink()


def double(path: Path, chance: random.Random) -> None:
    """Copy it under another name beside it, as a synchronising program does."""
    shutil.copy(path, path.with_name(f"{path.stem} (1){path.suffix}"))


def become_folder(path: Path, chance: random.Random) -> None:
    """Put a folder in its place."""
    path.unlink()
    path.mkdir()


def dangle(path: Path, chance: random.Random) -> None:
    """Put a link to nothing in its place."""
    path.unlink()
    path.symlink_to("nowhere")


def swap(path: Path, chance: random.Random) -> None:
    """Replace it by another file of the run."""
    others = sorted(other for other in path.parent.rglob("*") if other.is_file() and other != path)
    if others:
        shutil.copy(chance.choice(others), path)


DAMAGES: tuple[Damage, ...] = (flip, flip, cut, fill, mix, remove, double, become_folder, dangle, swap)


def content(folder: Path) -> dict[str, bytes]:
    """Read every file of a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def judged(words: list[str], run: Path) -> str:
    """Run a command; returns what is wrong, or nothing."""
    before, out, err = content(run), io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            code = main(words)
    except BaseException as error:  # the finding
        return described(error)
    last_line = (err.getvalue().splitlines() or [""])[-1]
    if code not in (0, 2):
        return f"exit code {code}: {last_line[:300]}"
    if code == 2 and not last_line.startswith("turnwise: "):
        return f"exit code 2 without a line of ours: {last_line[:300]!r}"
    if "Traceback" in err.getvalue():
        return "a traceback"
    if (code == 2 or words[0] not in WRITE) and content(run) != before:
        changed = {name for name in before | content(run) if before.get(name) != content(run).get(name)}
        return f"exit code {code}, yet it changed {sorted(changed)[:5]}"
    return ""


def fuzz(cases: int, seed: int) -> Iterator[str]:
    """Yield what is wrong with each case that is wrong."""
    with tempfile.TemporaryDirectory() as place:
        sound = train(small_config(Path(place) / "sound", run={"steps": 2}, checkpoint={"every": 1})).path
        files = sorted(str(path.relative_to(sound)) for path in sound.rglob("*") if path.is_file())
        for number in range(cases):
            chance, run = random.Random(f"{seed}-{number}"), Path(place) / "run"
            shutil.copytree(sound, run)
            name, said = chance.choice(sorted(COMMANDS)), []
            for file in chance.sample(files, chance.choice((1, 1, 2))):
                damage = chance.choice(DAMAGES)
                damage(run / file, chance)
                said.append(f"{damage.__name__} {file}")
            if wrong := judged(COMMANDS[name](str(run)), run):
                yield f"{number}: {name} after {', '.join(said)}: {wrong}"
            shutil.rmtree(run)


if __name__ == "__main__":
    report(fuzz)
