"""Read task folders of Harbor, with the reason for each that cannot be played here."""

import dataclasses
import re
import shlex
import tomllib
from pathlib import Path, PurePosixPath

from pydantic import BaseModel, ValidationError

BASES = ("ubuntu", "debian", "python", "buildpack-deps")
"""Images whose programs this machine has, or the task does not need."""
WITHOUT_EFFECT = ("LABEL", "CMD", "ENTRYPOINT", "EXPOSE", "MAINTAINER", "STOPSIGNAL", "HEALTHCHECK")
INSTALLS = re.compile(r"\b(apt-get|apt|apk|pip3?|uvx?|npm|curl|wget)\b")
"""Programs with which tests fetch what they need; there is no network."""
TAKEN = ("/", "/bin", "/dev", "/etc", "/lib", "/logs", "/proc", "/scratch", "/sbin", "/tests", "/tmp", "/usr")


class _Verifier(BaseModel):
    timeout_sec: float = 600.0
    env: dict[str, str] = {}


class _Environment(BaseModel):
    docker_image: str | None = None


class _Settings(BaseModel):
    verifier: _Verifier = _Verifier()
    environment: _Environment = _Environment()


@dataclasses.dataclass(frozen=True)
class HarborTask:
    """A task."""

    name: str  # name of its folder
    folder: Path
    instruction: str  # what the agent is asked to do
    root: str = "/app"  # working directory
    # Files and folders of `environment/` by the place that they are copied to, below `root`
    copied: tuple[tuple[Path, str], ...] = ()
    variables: tuple[tuple[str, str], ...] = ()  # environment variables
    test_s: float = 600.0  # time limit of the tests (seconds)
    test_variables: tuple[tuple[str, str], ...] = ()  # further variables of the tests


def read_tasks(folder: Path) -> tuple[list[HarborTask], dict[str, str]]:
    """Read the task folders in a folder.

    Returns:
        The tasks that can be played, and why the others cannot, by name.
    """
    tasks, refused = [], {}
    for file in sorted(folder.glob("*/task.toml")):
        try:
            tasks.append(read_task(file.parent))
        except ValueError as error:
            refused[file.parent.name] = " ".join(str(error).split())
    return tasks, refused


def read_task(folder: Path) -> HarborTask:
    """Read a task folder.

    Raises:
        ValueError: It cannot be read, or needs more than a base image with files.
    """
    try:
        settings = _Settings.model_validate(tomllib.loads((folder / "task.toml").read_text(encoding="utf-8-sig")))
        instruction = (folder / "instruction.md").read_text(encoding="utf-8")
        tests = (folder / "tests" / "test.sh").read_text(encoding="utf-8")
        dockerfile = (folder / "environment" / "Dockerfile").read_text(encoding="utf-8")
    except OSError as error:
        name = Path(error.filename).name if error.filename else folder.name
        image = name == "Dockerfile" and "; an image alone needs docker"
        raise ValueError(f"it has no {name}{image or ''}") from None
    except ValidationError as error:
        raise ValueError(f"task.toml: {error.errors()[0]['loc']}: {error.errors()[0]['msg']}") from None
    if found := INSTALLS.search(re.sub(r"#.*", "", tests)):
        raise ValueError(f"its tests use {found[1]}, and there is no network")
    root, copied, variables = _read_dockerfile(dockerfile, folder / "environment")
    verifier = settings.verifier
    return HarborTask(
        folder.name, folder, instruction, root, copied, variables, verifier.timeout_sec, tuple(verifier.env.items())
    )


def _read_dockerfile(text: str, context: Path) -> tuple[str, tuple[tuple[Path, str], ...], tuple[tuple[str, str], ...]]:
    root, copied, variables = "/", list[tuple[Path, str]](), dict[str, str]()
    lines = re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ").splitlines()
    for line in filter(None, map(str.strip, lines)):
        name, _, rest = line.partition(" ")
        name, words = name.upper(), shlex.split(rest)
        if name == "FROM":
            if words[0].removeprefix("docker.io/library/").partition(":")[0] not in BASES:
                raise ValueError(f"its image begins from {words[0]}, which needs docker")
        elif name == "WORKDIR":
            root = str(PurePosixPath(root) / words[0])
        elif name in ("COPY", "ADD"):
            *sources, place = [word for word in words if not word.startswith("--")]
            if any("--from" in word or "://" in word for word in words):
                raise ValueError(f"its image has {line!r}, which needs docker")
            into = place.endswith("/") or place in (".", root) or len(sources) > 1
            copied += _copies(sources, PurePosixPath(root) / place, context, into=into)
        elif name == "ENV":
            pairs = (
                [word.partition("=") for word in words] if "=" in words[0] else [(words[0], "=", " ".join(words[1:]))]
            )
            variables |= {key: value for key, _, value in pairs}
        elif name not in WITHOUT_EFFECT:
            raise ValueError(f"its image has {line[:60]!r}, which needs docker")
    if any(root == name or root.startswith(f"{name}/") for name in TAKEN if name != "/") or root == "/":
        raise ValueError(f"its working directory is {root}, which needs docker")
    if outside := next((place for _, place in copied if not f"{place}/".startswith(f"{root}/")), None):
        raise ValueError(f"it copies files to {outside}, outside {root}, which needs docker")
    return root, tuple(copied), tuple(variables.items())


def _copies(sources: list[str], place: PurePosixPath, context: Path, *, into: bool) -> list[tuple[Path, str]]:
    """Return what is copied where, as Docker has it: the content of folders, and files by their names into folders."""
    found = []
    for name in sources:
        matched = sorted(context.glob(name.strip("/"))) if name.strip("./") or name == ".." else [context]
        if not matched or any(not path.resolve().is_relative_to(context.resolve()) for path in matched):
            raise ValueError(f"it copies {name}, which environment/ does not have")
        into = into or len(matched) > 1
        found += [(path, str(place / path.name) if path.is_file() and into else str(place)) for path in matched]
    return found
