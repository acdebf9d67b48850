"""Read task folders of Harbor, with the reason for each that cannot be played here."""

import dataclasses
import posixpath
import re
import shlex
import tomllib
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from turnwise.worlds.swe import forms

Sandbox = Literal["bubblewrap", "docker"]
Network = Literal["none", "tests", "all"]
BASES = ("ubuntu", "debian", "python", "buildpack-deps")
"""Images whose programs this machine has, or the task does not need."""
WITHOUT_EFFECT = ("LABEL", "CMD", "ENTRYPOINT", "EXPOSE", "MAINTAINER", "STOPSIGNAL", "HEALTHCHECK")
INSTALLS = re.compile(r"\b(apt-get|apt|apk|pip3?|uvx?|npm|curl|wget)\b")
"""Programs with which tests fetch what they need."""
TAKEN = ("/bin", "/dev", "/etc", "/lib", "/logs", "/proc", "/sbin", "/scratch", "/sys", "/tests", "/tmp", "/usr")
_CANARY = re.compile(r"\A(?:(?:<!--.*canary.*-->|#.*canary.*|[ \t]*)\n)+", re.IGNORECASE)
_TEMPLATE = re.compile(r"\$\{(\w+)(?::-(.*))?\}")
COMPOSE = ("docker-compose.yaml", "docker-compose.yml")
PARTS = ("task.toml", "instruction.md", "tests", "environment")
"""What a task folder has of its own, and not by a link to elsewhere on this machine."""
_PLACE = re.compile(r"(?:/[A-Za-z0-9._+@ -]+)+")
"""A folder that docker's options cannot read as anything else."""


class _Verifier(BaseModel):
    timeout_sec: float = 600.0
    env: dict[str, str] = {}
    environment_mode: str | None = None
    environment: dict[str, Any] | None = None


class _Environment(BaseModel):
    docker_image: str | None = None
    build_timeout_sec: float = 600.0
    os: str = "linux"
    gpus: int | None = None
    mcp_servers: list[Any] = []
    env: dict[str, str] = {}
    workdir: str | None = None


class _Settings(BaseModel):
    verifier: _Verifier = _Verifier()
    environment: _Environment = _Environment()

    def check(self) -> None:
        """Raise a ValueError if the task needs what no sandbox has."""
        environment, verifier = self.environment, self.verifier
        if environment.os.lower() != "linux":
            raise ValueError(f"it needs {environment.os}")
        if environment.gpus:
            raise ValueError("it needs a GPU")
        if environment.mcp_servers:
            raise ValueError("it needs MCP servers")
        if verifier.environment_mode == "separate" or verifier.environment is not None:
            raise ValueError("its tests have an image of their own")


@dataclasses.dataclass(frozen=True)
class HarborTask:
    """A task."""

    name: str  # name of its folder
    folder: Path
    instruction: str  # what the agent is asked to do
    root: str  # working directory; in docker, empty is the image's
    # Files and folders of `environment/` by the place that they are copied to, below `root`; in docker, the image's
    copied: tuple[tuple[Path, str], ...] = ()
    variables: tuple[tuple[str, str], ...] = ()  # environment variables
    image: str | None = None  # name of its image; None: it is built
    build_s: float = 600.0  # time limit of building the image (seconds)
    test_s: float = 600.0  # time limit of the tests (seconds)
    test_variables: tuple[tuple[str, str], ...] = ()  # further variables of the tests


def read_tasks(
    folder: Path, sandbox: Sandbox = "bubblewrap", network: Network = "none"
) -> tuple[list[HarborTask], dict[str, str]]:
    """Read the task folders in a folder.

    Returns:
        The tasks that can be played, and why the others cannot, by name.
    """
    tasks, refused = [], {}
    for file in sorted(folder.glob("*/task.toml")):
        try:
            tasks.append(read_task(file.parent, sandbox, network))
        except ValueError as error:
            refused[file.parent.name] = " ".join(str(error).split())
    return tasks, refused


def read_task(folder: Path, sandbox: Sandbox = "bubblewrap", network: Network = "none") -> HarborTask:
    """Read a task folder.

    Raises:
        ValueError: It cannot be read, or needs more than the sandbox has.
    """
    if linked := next((name for name in PARTS if not _is_within(folder / name, folder)), None):
        raise ValueError(f"its {linked} is a link out of the folder")
    try:
        settings = _Settings.model_validate(tomllib.loads((folder / "task.toml").read_text(encoding="utf-8-sig")))
        instruction = (folder / "instruction.md").read_text(encoding="utf-8")
        tests = (folder / "tests" / "test.sh").read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"it has no {Path(error.filename).name if error.filename else folder.name}") from None
    except ValidationError as error:
        raise ValueError(f"task.toml: {error.errors()[0]['loc']}: {error.errors()[0]['msg']}") from None
    environment, verifier = settings.environment, settings.verifier
    settings.check()
    if network == "none" and (found := INSTALLS.search(re.sub(r"#.*", "", tests))):
        online = ", unless network = 'tests'" if sandbox == "docker" else ""
        raise ValueError(f"its tests use {found[1]}, and there is no network{online}")
    task = HarborTask(
        folder.name,
        folder,
        _CANARY.sub("", instruction),
        root=working_directory(environment.workdir) if environment.workdir else "",
        variables=_resolved(environment.env),
        image=environment.docker_image and forms.image("docker_image", environment.docker_image),
        build_s=environment.build_timeout_sec,
        test_s=verifier.timeout_sec,
        test_variables=_resolved(verifier.env),
    )
    return _with_files(task) if sandbox == "bubblewrap" else _with_image(task)


def working_directory(place: str) -> str:
    """Return an absolute path without "..", which may come from a task or from its image.

    Raises:
        ValueError: It is none, or has characters with which it could be more than one option.
    """
    normal = _joined("/", place)
    if not (place.startswith("/") and (normal == "/" or _PLACE.fullmatch(normal))):
        raise ValueError(f"its working directory is {place[:80]!r}, expected a path such as /app")
    return normal


def _joined(folder: str, place: str) -> str:
    """Return a place in a folder, or an absolute one, without ".."."""
    return "/" + posixpath.normpath(posixpath.join(folder, place)).lstrip("/")


def _is_within(path: Path, folder: Path) -> bool:
    return path.resolve().is_relative_to(folder.resolve())


def _resolved(variables: dict[str, str]) -> tuple[tuple[str, str], ...]:
    """Give variables their values: a task gets none of this machine's variables, which may be secret."""
    if bad := next((name for name, value in variables.items() if "\0" in name + value), None):
        raise ValueError(f"its variable {bad[:40]!r} has a zero character")
    found = {name: _TEMPLATE.fullmatch(value) for name, value in variables.items()}
    if missing := next((match[1] for match in found.values() if match and match[2] is None), None):
        raise ValueError(f"it needs the variable {missing} of this machine")
    return tuple((name, match[2] if (match := found[name]) else value) for name, value in variables.items())


def _with_image(task: HarborTask) -> HarborTask:
    """Check that a task's image is one, and can be had."""
    context = task.folder / "environment"
    if found := next((name for name in COMPOSE if (context / name).exists()), None):
        raise ValueError(f"it has {found}, and only one container is run")
    if task.image is None and not (context / "Dockerfile").is_file():
        raise ValueError("it has no Dockerfile, and names no image")
    return task


def _with_files(task: HarborTask) -> HarborTask:
    """Carry out a task's Dockerfile as far as it is a base image with files."""
    context = task.folder / "environment"
    try:
        text = (context / "Dockerfile").read_text(encoding="utf-8")
    except OSError:
        raise ValueError("it has no Dockerfile; an image alone needs docker") from None
    root, copied, variables = "/", list[tuple[Path, str]](), dict[str, str]()
    lines = re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ").splitlines()
    for line in filter(None, map(str.strip, lines)):
        name, _, rest = line.partition(" ")
        name, words = name.upper(), shlex.split(rest)
        if name == "FROM":
            if words[0].removeprefix("docker.io/library/").partition(":")[0] not in BASES:
                raise ValueError(f"its image begins from {words[0]}, which needs docker")
        elif name == "WORKDIR":
            root = _joined(root, words[0])
        elif name in ("COPY", "ADD"):
            *sources, place = [word for word in words if not word.startswith("--")]
            if any("--from" in word or "://" in word for word in words):
                raise ValueError(f"its image has {line!r}, which needs docker")
            into = place.endswith("/") or place in (".", root) or len(sources) > 1
            copied += _copies(sources, PurePosixPath(_joined(root, place)), context, into=into)
        elif name == "ENV":
            pairs = (
                [word.partition("=") for word in words] if "=" in words[0] else [(words[0], "=", " ".join(words[1:]))]
            )
            variables |= {key: value for key, _, value in pairs}
        elif name not in WITHOUT_EFFECT:
            raise ValueError(f"its image has {line[:60]!r}, which needs docker")
    root = working_directory(task.root or root)
    if is_taken(root):
        raise ValueError(f"its working directory is {root}, which needs docker")
    if outside := next((place for _, place in copied if not f"{place}/".startswith(f"{root}/")), None):
        raise ValueError(f"it copies files to {outside}, outside {root}, which needs docker")
    every = (*variables.items(), *task.variables)
    return dataclasses.replace(task, root=root, copied=tuple(copied), variables=every)


def is_taken(root: str) -> bool:
    """Whether a working directory holds the system's files, which an agent must not hand to the tests."""
    return root == "/" or any(root == name or root.startswith(f"{name}/") for name in TAKEN)


def _copies(sources: list[str], place: PurePosixPath, context: Path, *, into: bool) -> list[tuple[Path, str]]:
    """Return what is copied where, as Docker has it: the content of folders, and files by their names into folders."""
    found = []
    for name in sources:
        matched = sorted(context.glob(name.strip("/"))) if name.strip("./") or name == ".." else [context]
        if not matched or not all(_is_within(path, context) for path in matched):
            raise ValueError(f"it copies {name}, which environment/ does not have")
        into = into or len(matched) > 1
        found += [(path, str(place / path.name) if path.is_file() and into else str(place)) for path in matched]
    return found
