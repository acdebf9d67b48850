"""Write a log as a run folder without weights."""

import dataclasses
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnwise.base.errors import DataError
from turnwise.config import parse_config
from turnwise.credit.metrics import is_apart
from turnwise.environments.settings import IMPORTED
from turnwise.integrations.logs.formats import format_of, read_log
from turnwise.integrations.logs.logged import Logged
from turnwise.integrations.logs.source import NAMED, Source
from turnwise.integrations.logs.trajectories import UNREWARDED, in_groups, make_trajectories, score
from turnwise.integrations.recorded import RecordedRun
from turnwise.rollout.trajectory import Trajectory

if TYPE_CHECKING:
    from turnwise.models.policy import Policy


@dataclasses.dataclass(frozen=True)
class Scoring:
    """Score responses with a model at hand."""

    policy: "Policy"  # the model
    name: str  # its name, for the record
    settings: Any  # configuration with `model` and `update.max_tokens`


@dataclasses.dataclass(frozen=True)
class Imported:
    """What was read."""

    kind: str  # name of the format
    trajectories: int  # number of trajectories
    responses: int  # number of responses
    groups: int  # number of groups
    contrast: int  # number of groups whose rewards differ; credit by comparison has nothing to compare in others
    failed: int  # number of trajectories that cannot be learned from, such as those without reward
    missing: tuple[str, ...]  # what the log does not have, and what follows


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
    logged, source = read_log(path, kind, reward)
    if not any(each.responses for each in logged):
        raise DataError(f"{path} holds no response of a model, in {len(logged)} trajectories")
    steps = _played(logged, scoring)
    found = _summary(kind, steps, source, scored=scoring is not None)
    _write(logged, steps, out, {"log": path.name, **dataclasses.asdict(found), "scored_by": scoring and scoring.name})
    return found


def write_run(logged: Sequence[Logged], out: Path, source: Source) -> Path:
    """Write trajectories as a run folder, in their order; returns it."""
    _write(logged, _played(logged, None), out, {"log": source.path.name, "missing": ()})
    return out


def in_steps(logged: Sequence[Logged]) -> list[list[Logged]]:
    """Return the trajectories of each batch, those of a group adjacent."""
    by_step: dict[int, list[Logged]] = defaultdict(list)
    for each in logged:
        by_step[each.step].append(each)
    return [in_groups(by_step[number]) for number in sorted(by_step)]


def _played(logged: Sequence[Logged], scoring: Scoring | None) -> list[list[Trajectory]]:
    steps = []
    for batch in in_steps(logged):
        trajectories = make_trajectories(batch)
        if scoring is not None:
            score(batch, trajectories, scoring.policy, scoring.settings)
        steps.append(trajectories)
    return steps


def _write(logged: Sequence[Logged], steps: Sequence[Sequence[Trajectory]], out: Path, facts: Any) -> None:
    models = {each.model for each in logged if each.model}
    config = parse_config(
        {
            "run": {"folder": str(out.parent), "name": out.name, "steps": len(steps)},
            "environment": {"name": IMPORTED, "invalid_penalty": 0.0},
            "model": {"name": models.pop() if len(models) == 1 else "unknown"},
        }
    )
    run = RecordedRun(out, config, {IMPORTED: facts})
    for trajectories in steps:
        run.add(trajectories)
        run.evaluate(trajectories)


def _summary(kind: str, steps: Sequence[Sequence[Trajectory]], source: Source, *, scored: bool) -> Imported:
    every = [trajectory for trajectories in steps for trajectory in trajectories]
    rewards: dict[tuple[int, int], list[float]] = {}
    for number, trajectories in enumerate(steps):
        for trajectory in trajectories:
            known = rewards.setdefault((number, trajectory.group), [])
            if trajectory.usable:
                known.append(trajectory.reward)
    turns = [turn for trajectory in every for turn in trajectory.turns]
    unrewarded = sum(trajectory.failure == f"log: {UNREWARDED}" for trajectory in every)
    missing = []
    if silent := sum(not trajectory.turns for trajectory in every):
        missing.append(f"responses of {silent} of {len(every)} trajectories: they get no credit")
    unknown = {
        "entropies": all(turn.behavior_entropies for turn in turns),
        "log-probabilities": all(turn.behavior_logprobs for turn in turns),
        "token ids": all(turn.prompt_ids and turn.response_ids for turn in turns),
    }
    if not scored and (lacking := [name for name, known in unknown.items() if not known]):
        names = f"{', '.join(lacking[:-1])} and {lacking[-1]}" if len(lacking) > 1 else lacking[0]
        missing.append(f"{names}: --score MODEL computes them for methods such as empg")
    causes = [each.failure for each in every if each.failure and each.failure != f"log: {UNREWARDED}" and each.turns]
    if len(every) > 1 and len(rewards) == len(every):
        missing.append("groups: every trajectory is its own, so comparisons give no credit; name its task or group")
    if causes:
        named = "; ".join(dict.fromkeys(cause.removeprefix("log: ") for cause in causes[:NAMED]))
        missing.append(f"credit of {len(causes)} of {len(every)} trajectories, which failed: {named}")
    if unrewarded:
        how = "; if their logs name it otherwise, give --reward NAME" if unrewarded == len(every) else ""
        missing.append(f"the reward of {unrewarded} of {len(every)} trajectories: they get no credit{how}")
    return Imported(
        kind,
        len(every),
        len(turns),
        len(rewards),
        sum(bool(known and is_apart(max(known), min(known))) for known in rewards.values()),
        sum(not trajectory.usable for trajectory in every),
        (*missing, *not_kept(source)),
    )


def not_kept(source: Source) -> Iterator[str]:
    """Yield what of a log is not kept: with numbers, and the first records by name."""
    for what, found in (("records are left out", source.left_out), ("rewards are none", source.unrewarded)):
        if found:
            named = "; ".join(dict.fromkeys(found[:NAMED]))
            yield f"{len(found)} {what}: {named}" + (f"; and {len(found) - NAMED} more" if len(found) > NAMED else "")
    if len(set(source.unsaid)) > 2:
        more = sum(reward > 0 for reward in source.unsaid)
        yield f"the success of {len(source.unsaid)} trajectories: a positive reward, as {more} have, counts as success"
    if source.repeated:
        yield f"{source.repeated} that were there before, and count once"
    yield from (f"{number} {what}" for what, number in sorted(source.lacks.items()) if number)
