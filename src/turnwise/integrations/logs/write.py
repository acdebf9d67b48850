"""Write a log as a run folder without weights."""

import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from turnwise.base.errors import DataError
from turnwise.config import parse_config
from turnwise.environments.plain import sound_text
from turnwise.environments.settings import IMPORTED
from turnwise.extensions.gateway.outcome import Outcome
from turnwise.integrations.logs.formats import FORMATS, format_of
from turnwise.integrations.logs.logged import Logged, Response
from turnwise.integrations.logs.trajectories import in_groups, make_trajectories, score
from turnwise.integrations.recorded import RecordedRun
from turnwise.models.policy import Policy
from turnwise.rollout.trajectory import Trajectory


@dataclasses.dataclass(frozen=True)
class Scoring:
    """Score responses with a model at hand.

    Attributes:
        policy: The model.
        name: Its name, for the record.
        settings: Configuration with `model` and `update.max_tokens`.
    """

    policy: Policy
    name: str
    settings: Any


@dataclasses.dataclass(frozen=True)
class Imported:
    """What was read.

    Attributes:
        kind: Name of the format.
        trajectories: Number of trajectories.
        responses: Number of responses.
        groups: Number of groups.
        contrast: Number of groups whose rewards differ; credit by comparison has nothing to compare in others.
        failed: Number of trajectories that cannot be learned from, such as those without reward.
        missing: What the log does not have, and what follows.
    """

    kind: str
    trajectories: int
    responses: int
    groups: int
    contrast: int
    failed: int
    missing: tuple[str, ...]


def import_log(
    path: Path, out: Path, *, kind: str | None = None, reward: str | None = None, scoring: Scoring | None = None
) -> Imported:
    """Read a log, and write it as a run folder.

    Args:
        path: The log.
        out: Folder to make.
        kind: Name of the log's format; None: found by its content.
        reward: Name of the key, scorer or evaluation that gives the reward.
        scoring: Model that scores the responses; None: entropies and token ids stay unknown.

    Raises:
        DataError: The file is not such a log, or holds no response.
        RunError: The folder exists.
    """
    kind = kind or format_of(path)
    logged = _read(path, kind, reward)
    if not any(each.responses for each in logged):
        raise DataError(f"{path} holds no response of a model, in {len(logged)} trajectories")
    by_step: dict[int, list[Logged]] = defaultdict(list)
    for each in logged:
        by_step[each.step].append(each)
    steps = []
    for number in sorted(by_step):
        told = in_groups(by_step[number])
        trajectories = make_trajectories(told)
        if scoring is not None:
            score(told, trajectories, scoring.policy, scoring.settings)
        steps.append(trajectories)
    found = _summary(kind, steps, scored=scoring is not None)
    models = {each.model for each in logged if each.model}
    config = parse_config(
        {
            "run": {"folder": str(out.parent), "name": out.name, "steps": len(steps)},
            "environment": {"name": IMPORTED, "invalid_penalty": 0.0},
            "model": {"name": models.pop() if len(models) == 1 else "unknown"},
        }
    )
    facts = {"log": path.name, **dataclasses.asdict(found), "scored_by": scoring and scoring.name}
    run = RecordedRun(out, config, {IMPORTED: facts})
    for trajectories in steps:
        run.add(trajectories)
    run.evaluate(steps[-1])
    return found


def _read(path: Path, kind: str, reward: str | None) -> list[Logged]:
    """Read all trajectories.

    Raises:
        DataError: The file is not such a log.
    """
    found: list[Logged] = []
    try:
        for each in FORMATS[kind](path, reward=reward):
            found.append(_sound(each))
            make_trajectories(found[-1:])
    except RecursionError:
        place = f"after {found[-1].where}" if found else "at its start"
        raise DataError(f"{path}, {place}: a value is nested too deeply; remove that record") from None
    return found


def _sound(value: Any) -> Any:
    """Return a value whose texts can be written as UTF-8; JSON allows half surrogate pairs."""
    if isinstance(value, str):
        return sound_text(value)
    if isinstance(value, dict):
        return {_sound(key): _sound(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_sound, value))
    if isinstance(value, Logged | Response | Outcome):
        return dataclasses.replace(
            value, **{field.name: _sound(getattr(value, field.name)) for field in dataclasses.fields(value)}
        )
    return value


def _summary(kind: str, steps: Sequence[Sequence[Trajectory]], *, scored: bool) -> Imported:
    every = [trajectory for trajectories in steps for trajectory in trajectories]
    rewards: dict[tuple[int, int], set[float]] = {}
    for number, trajectories in enumerate(steps):
        for trajectory in trajectories:
            known = rewards.setdefault((number, trajectory.group), set())
            if trajectory.usable:
                known.add(trajectory.reward)
    failed = sum(not trajectory.usable for trajectory in every)
    unrewarded = sum(trajectory.failure == "log: the log gives no reward" for trajectory in every)
    missing = []
    if silent := sum(not trajectory.turns for trajectory in every):
        missing.append(f"responses of {silent} of {len(every)} trajectories: they get no credit")
    if not scored:
        missing.append(
            "entropies, log-probabilities and token ids: --score MODEL computes them for methods such as empg"
        )
    if unrewarded:
        missing.append(f"the reward of {unrewarded} of {len(every)} trajectories: they get no credit")
    return Imported(
        kind,
        len(every),
        sum(len(trajectory.turns) for trajectory in every),
        len(rewards),
        sum(len(known) > 1 for known in rewards.values()),
        failed,
        tuple(missing),
    )
