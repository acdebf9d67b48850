"""Suite of software repair."""

import contextlib
import functools
from collections.abc import Sequence
from pathlib import Path

from turnwise.base.errors import ConfigError, DataError
from turnwise.environments.base import Demonstrated, Environment, Task
from turnwise.environments.needs import check_choices
from turnwise.environments.settings import EnvironmentConfig
from turnwise.worlds.swe.bubblewrap import BubblewrapWorkspace, check_bubblewrap
from turnwise.worlds.swe.commands import begin
from turnwise.worlds.swe.container import check_docker
from turnwise.worlds.swe.docker import DockerWorkspace, image_of
from turnwise.worlds.swe.environment import SessionLimits, SweEnvironment, SweSession
from turnwise.worlds.swe.grade import Grade, grade
from turnwise.worlds.swe.plan import TaskPlan
from turnwise.worlds.swe.plans import kept_plan, laid_out
from turnwise.worlds.swe.prepare import Preparer
from turnwise.worlds.swe.repositories import DATA_VARIABLE, data_folder, site_names, snapshot, system_of
from turnwise.worlds.swe.solver import solve, with_noise
from turnwise.worlds.swe.system import SITE
from turnwise.worlds.swe.tasks import TIERS, SweTask, load_tasks, split_tasks
from turnwise.worlds.swe.workspace import Files, Limits, Workspace

CHOICES = {"sandbox": ("bubblewrap", "docker")}


class Swe:
    """Bugs to repair, from `data`, SWE_DATA, or the default folder of `turnwise make-swe-tasks`.

    Options: data (folder), tasks (file), tiers, sandbox ("bubblewrap" or "docker"), limits of a command (command_s,
    memory_mb, disk_mb, processes), test_s (time limit of grading), tools_s (time limit of all of a trajectory's tools),
    and limits of what the agent sees: output_chars, view_lines, search_lines, statement_chars.
    """

    def __init__(
        self,
        config: EnvironmentConfig,
        *,
        data: str | None = None,
        tasks: str | None = None,
        tiers: Sequence[int] = (),
        sandbox: str = "bubblewrap",
        command_s: float = 30.0,
        test_s: float = 120.0,
        tools_s: float = 600.0,
        memory_mb: int = 1024,
        disk_mb: int = 256,
        processes: int = 64,
        output_chars: int = 4000,
        view_lines: int = 60,
        search_lines: int = 20,
        statement_chars: int = 8000,
    ):
        check_choices(CHOICES, sandbox=sandbox)
        numbers = ("command_s", "test_s", "tools_s", "memory_mb", "disk_mb", "processes", "output_chars", "view_lines")
        given = locals()
        for name in (*numbers, "search_lines", "statement_chars"):
            value = given[name]
            if not value > 0:
                raise ConfigError(f"environment.options.{name}={value}: expected more than 0")
        if unknown := set(tiers) - set(TIERS):
            raise ConfigError(f"environment.options.tiers has {min(unknown)!r}: expected some of {list(TIERS)}")
        self._config, self._data, self._file, self._tiers, self._sandbox = config, data, tasks, list(tiers), sandbox
        self._test_s = test_s
        self._limits = Limits(seconds=command_s, memory_mb=memory_mb, disk_mb=disk_mb, processes=processes)
        self._budget = SessionLimits(
            max_steps=config.max_steps,
            seconds=tools_s,
            output_chars=output_chars,
            view_lines=view_lines,
            search_lines=search_lines,
            statement_chars=statement_chars,
        )

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the tasks of a split: "train" (eight tenths), "valid", "test", or "all"."""
        return split_tasks(self._tasks, split, self._tiers)

    def environment(self, task: Task) -> Environment:
        """Build a fresh environment."""
        return SweEnvironment(self.session(task))

    def session(self, task: SweTask) -> SweSession:
        """Build a fresh environment for use without an event loop."""
        self._checked  # noqa: B018 (raises where nothing can be isolated)
        make = functools.partial(self.begun, task)
        return SweSession(make, functools.partial(self.judge, task), task, self._budget, self._config.success_reward)

    def workspace(self, task: SweTask) -> Workspace:
        """Make a clean copy of a task's snapshot."""
        if self._sandbox == "docker":
            return DockerWorkspace(image_of(task), self._limits)
        folder = self._folder
        return BubblewrapWorkspace(snapshot(folder, task), system_of(folder, task), self._limits)

    def begun(self, task: SweTask) -> Workspace:
        """Make the repository as the agent gets it: with the bug, and without the tests that grade."""
        if self._sandbox == "docker" or not (task.bug_patch or task.hidden_files):
            workspace = self.workspace(task)
            begin(workspace, task)
            return workspace
        folder = self._folder
        laid = laid_out(task, snapshot(folder, task), functools.partial(self._begun_files, task))
        return BubblewrapWorkspace(laid, system_of(folder, task), self._limits)

    def _begun_files(self, task: SweTask) -> Files:
        with contextlib.closing(self.workspace(task)) as workspace:
            begin(workspace, task)
            return workspace.changes()

    def plan(self, task: SweTask) -> TaskPlan:
        """Find out how a task is graded; takes seconds the first time."""
        python, path, _ = self._python(task)
        make = functools.partial(self.workspace, task)
        where = task.docker_image if self._sandbox == "docker" else str(snapshot(self._folder, task))
        preparer = Preparer(make, task, python=python, path=path, seconds=self._test_s)
        return kept_plan(task, f"{where} {python}", preparer.plan)

    def judge(self, task: SweTask, changes: Files) -> Grade:
        """Grade an agent's changes."""
        python, path, packages = self._python(task)
        make, plan = functools.partial(self.begun, task), self.plan(task)
        return grade(make, task, changes, plan, python=python, path=path, packages=packages, seconds=self._test_s)

    def _python(self, task: SweTask) -> tuple[str, list[str], set[str]]:
        """Return the interpreter of a task's tests, the folders of pytest, and the names of installed packages."""
        if self._sandbox == "docker":
            return "python", [], set()
        system = system_of(self._folder, task)
        return system.python, [SITE] if SITE in system.mounts else [], site_names(system)

    def task_name(self, task: Task) -> str:
        """Name a task in records."""
        return task.instance_id

    def words(self) -> list[str]:
        """Raise a ConfigError, because code has no small vocabulary."""
        raise ConfigError(
            "environment 'swe' needs a language model, such as model.name='smollm2': code has no small vocabulary"
        )

    def demonstrate(self, task: Task, *, noise: float, seed: int) -> list[Demonstrated] | None:
        """Let the scripted expert play; None if the reference patch is unknown or needs too many turns."""
        calls = solve(task)
        if calls is None:
            return None
        turns = with_noise(calls, task, noise, seed)
        return turns if len(turns) <= self._config.max_steps else None

    @functools.cached_property
    def _checked(self) -> None:
        check_docker() if self._sandbox == "docker" else check_bubblewrap()

    @functools.cached_property
    def _folder(self) -> Path:
        return data_folder(self._data)

    @functools.cached_property
    def _tasks(self) -> list[SweTask]:
        file = Path(self._file).expanduser() if self._file else self._folder / "tasks.jsonl"
        if not file.is_file():
            raise DataError(
                f"swe: {file} is not a file of tasks; set environment.options.tasks, "
                f"or {DATA_VARIABLE} to a folder with tasks.jsonl"
            )
        return load_tasks(file)
