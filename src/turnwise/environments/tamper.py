"""Attack an environment the way an agent could: forged results, fake turns, shared state, exhausted resources.

An attack succeeds if it earns a reward or a success that nonsense does not earn, if the environment raises, hangs or
dies, or if one trajectory can pass information to another. `turnwise.environments.tamper_apart` uses other processes.
"""

import dataclasses
import os
import resource
import sys
import time
from collections.abc import Callable, Sequence
from itertools import zip_longest
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from turnwise.base.errors import EnvironmentFault
from turnwise.environments import tamper_attacks
from turnwise.environments.base import Environment, Task
from turnwise.environments.check_plays import (
    MAY_DIFFER,
    Broken,
    OnCall,
    Play,
    nonsense_first,
    play,
    scripted,
    untried,
)
from turnwise.environments.suites import Suite

TURNS = 40
MEMORY_MB = 512
"""Growth of the environment's process that one trajectory may cause (MiB)."""
SHARED = "state shared between trajectories"


@dataclasses.dataclass(frozen=True)
class Finding:
    """Report an attack."""

    family: str  # what it tries to misuse
    name: str  # what it does
    succeeded: str | None  # how it succeeded; None if the environment withstood it


class Tamper:
    """Attack one task of a suite.

    Args:
        suite: Suite to attack.
        split: Split of the task to attack.
        folder: Empty working directory, in which attacks may write.
        max_observation_chars: Maximum observation length (characters).
        on_call: Called with the name of every call of the environment, and None after it.

    Raises:
        EnvironmentFault: The environment fails without any attack.
    """

    def __init__(
        self, suite: Suite, folder: Path, *, split: str = "train", max_observation_chars: int, on_call: OnCall
    ):
        self._suite, self._folder, self._on_call = suite, folder, on_call
        self._longest = max_observation_chars
        self._task: Task = suite.tasks(split)[0]
        opened = _Opened()
        try:
            self._plain = self._play(nonsense_first())
            plays = [self._plain, self._play(scripted(["submit"])), self._play(untried(set()))]
        except Broken as broken:
            cause = f"{broken.problem.what}: {broken.problem.mend}"
            raise EnvironmentFault(f"the environment fails without any attack; fix this first: {cause}") from None
        self._reward = max(0.0, *(reward_of(played) for played in plays))
        self._success = any(success_of(played) for played in plays)
        self._files = opened.new_files()
        self.attacks = [
            *tamper_attacks.attacks_on_files(self._files),
            *tamper_attacks.attacks_by_text(),
            *tamper_attacks.attacks_on_resources(),
        ]
        self.checks: list[Callable[[], Finding]] = [
            *(lambda attack=attack: self._attack(attack) for attack in self.attacks),
            self._interleaved,
            self._notes,
            self._afterwards,
        ]

    def _build(self) -> Environment:
        return self._suite.environment(self._task)

    def _play(self, respond: Any) -> Play:
        return play(self._build, respond, TURNS, self._on_call)

    def _attack(self, attack: tamper_attacks.Attack) -> Finding:
        before = _peak_mb()
        try:
            played = self._play(scripted(list(attack.responses)))
        except Broken as broken:
            return Finding(attack.family, attack.name, broken.problem.what[:200])
        return Finding(attack.family, attack.name, self._succeeded(played, _peak_mb() - before))

    def _succeeded(self, played: Play, grown_mb: float) -> str | None:
        if success_of(played) and not self._success:
            return "counted as success"
        if reward_of(played) > self._reward + 1e-9:
            return f"earned reward {reward_of(played):g}; nonsense earns {self._reward:g}"
        if written := [path for path in self._files if _holds_mark(path)]:
            return f"the agent's tools can write {written[0]}, which the environment reads"
        longest = max(len(step.observation) for step in played.steps)
        if longest > self._longest:
            return f"answered with {longest} characters, more than max_observation_chars={self._longest}"
        return f"the environment's process grew by {grown_mb:.0f} MiB" if grown_mb > MEMORY_MB else None

    def _interleaved(self) -> Finding:
        """Interleave two trajectories of a task; each must answer as if it were alone."""
        name = "two interleaved trajectories"
        lines = [self._plain.responses, ["xyzzy", *reversed(self._plain.responses)][:TURNS]]
        try:
            alone = [self._play(scripted(line)).visible() for line in lines]
            waiting = [_Stepwise(self._build(), self._on_call) for _ in lines]
            for pair in zip_longest(*lines):
                for one, response in zip(waiting, pair, strict=True):
                    one.step(response)
        except Broken as broken:
            return Finding(SHARED, name, broken.problem.what[:200])
        repeats = getattr(self._plain.environment, "repeats", True)
        pairs = zip(waiting, alone, strict=True)
        differ = any(_visible(one.visible, repeats) != _visible(other, repeats) for one, other in pairs)
        return Finding(SHARED, name, "a trajectory answers differently while another one plays" if differ else None)

    def _notes(self) -> Finding:
        """Leave a note in one trajectory and look for it in the next."""
        name = "a note for the next trajectory"
        for place in (".", str(self._folder), "/var/tmp"):
            leave, read = tamper_attacks.notes(place)
            try:
                self._play(scripted(list(leave)))
                found = any(tamper_attacks.MARK in step.observation for step in self._play(scripted(list(read))).steps)
            except Broken as broken:
                return Finding(SHARED, name, broken.problem.what[:200])
            finally:
                Path(place, "note-of-another-trajectory").unlink(missing_ok=True)
            if found:
                return Finding(SHARED, name, f"a trajectory reads what another one wrote in {place}")
        return Finding(SHARED, name, None)

    def _afterwards(self) -> Finding:
        """Play the first trajectory again, after all attacks."""
        name = "the first trajectory again after all attacks"
        try:
            again = self._play(scripted(self._plain.responses))
        except Broken as broken:
            return Finding(SHARED, name, broken.problem.what[:200])
        repeats = getattr(self._plain.environment, "repeats", True)
        same = _visible(again.visible(), repeats) == _visible(self._plain.visible(), repeats)
        return Finding(SHARED, name, None if same else "it answers differently than before the attacks")


class _Stepwise:
    """Play one response at a time."""

    def __init__(self, environment: Environment, on_call: OnCall):
        self._environment, self._on_call = environment, on_call
        self._one = play(lambda: environment, scripted([]), 0, on_call)
        self.visible = self._one.visible()

    def step(self, response: str | None) -> None:
        if response is None or self._one.steps[-1].ended:
            return
        last = self._one.steps[-1]  # `start` of what goes on repeats it
        begun: Any = SimpleNamespace(start=lambda: last, step=self._environment.step)
        self._one = play(lambda: begun, scripted([response]), 1, self._on_call)
        self.visible += self._one.visible()[1:]


class _Opened:
    """Record files that Python code of this process opens from now on."""

    def __init__(self) -> None:
        self._began, self._paths, self._active = time.time(), dict[str, None](), True
        sys.addaudithook(self._heard)  # cannot be removed, so it is switched off

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._active and event == "open" and isinstance(arguments[0], str):
            self._paths[os.path.abspath(arguments[0])] = None

    def new_files(self) -> list[str]:
        """Return the files that did not exist before; attacks may overwrite them without harm."""
        self._active = False
        ignored = (sys.prefix, sys.base_prefix, "/proc", "/sys", "/dev")
        found = [path for path in self._paths if not path.startswith(ignored) and "__pycache__" not in path]
        return [path for path in found if not os.path.exists(path) or os.stat(path).st_ctime >= self._began - 1]


def reward_of(played: Play) -> float:
    """Return the sum of the rewards of an episode."""
    return float(sum(step.reward for step in played.steps))


def success_of(played: Play) -> bool:
    """Return whether an episode counts as success."""
    return bool(played.steps[-1].info.get("success", False))


def score(findings: Sequence[Finding]) -> float:
    """Return the share of attacks that the environment withstood."""
    return sum(finding.succeeded is None for finding in findings) / len(findings)


def _visible(steps: Sequence[dict[str, Any]], repeats: bool) -> list[dict[str, Any]]:
    left_out = () if repeats else MAY_DIFFER
    return [{name: value for name, value in step.items() if name not in left_out} for step in steps]


def _holds_mark(path: str) -> bool:
    try:
        return tamper_attacks.MARK in Path(path).read_text(errors="replace")
    except OSError:
        return False


def _peak_mb() -> float:
    """Return the most memory that this process has held so far (MiB)."""
    try:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    # getrusage counts what the process that started this one held at that moment
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024
