"""Write the trajectories of a run or of a log in a format that other tools read."""

import dataclasses
import gzip
import json
import shlex
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from turnwise.base.errors import ConfigError, DataError, did_you_mean
from turnwise.base.files import replacing
from turnwise.config import Config, override_config
from turnwise.extensions.gateway.messages import Message, with_text
from turnwise.extensions.gateway.outcome import Outcome
from turnwise.integrations.logs import tuning
from turnwise.integrations.logs.formats import FORMATS, WRITTEN, read_log
from turnwise.integrations.logs.logged import Logged, Response
from turnwise.integrations.logs.messages import message_of, with_ids
from turnwise.integrations.logs.source import Source
from turnwise.integrations.logs.trajectories import UNREWARDED
from turnwise.integrations.logs.write import in_steps, not_kept, write_run
from turnwise.lab.diagnostics.recredit import recorded_steps, replay
from turnwise.rollout.record import read_rollouts
from turnwise.rollout.trajectory import Trajectory, Turn
from turnwise.train.credit import make_transform
from turnwise.train.folder import RunFolder
from turnwise.train.recorded import read_step


@dataclasses.dataclass(frozen=True)
class Exported:
    """What was written."""

    path: Path  # the file, or the folder of documents
    trajectories: int  # number of trajectories that were read
    written: int  # number of objects that were written
    missing: tuple[str, ...]  # what of them is not written


def export(
    path: Path,
    out: Path,
    to: str,
    *,
    by: str | None = None,
    least: float | None = None,
    method: str | None = None,
    step: int | None = None,
    kind: str | None = None,
    reward: str | None = None,
) -> Exported:
    """Read a run folder or a log, and write it in a format.

    Args:
        path: The run folder, or the log.
        out: File to write: JSON Lines; a list if its name ends in .json; compressed if it ends in .gz; for ATIF, a name
            without an ending is a folder, with a document per trajectory.
        to: Name of the format.
        by: What is chosen by, for formats that choose; see `Format.choices`.
        least: Minimum return or advantage to select.
        method: Method whose advantages are written; None: those of the run.
        step: The only step of a run; None: all.
        kind: Name of the log's format; None: found by its content.
        reward: Name of the key, scorer or evaluation that gives the log's reward.

    Raises:
        ConfigError: The format or an option is unknown, or the file exists.
        DataError: The log cannot be read, or nothing of it can be written.
    """
    if to not in WRITTEN:
        raise ConfigError(f"--to {to}: no such format is written.{did_you_mean(to, WRITTEN)}")
    choices = FORMATS[to].choices
    if by is not None and by not in choices:
        raise ConfigError(f"--by {by}: {to} is chosen by {' or '.join(choices) or 'nothing'}")
    by = by or next(iter(choices), None)
    if least is not None and to != "sft":
        raise ConfigError(f"--least is for sft, not for {to}")
    if out.exists():
        raise ConfigError(f"--out: {out} exists, and nothing is overwritten; name another, or remove it")
    if (path / "config.json").is_file():
        logged, name = read_run(path, method, step)
        source = None
    else:
        if step is not None:
            raise ConfigError(f"--step is for runs, and {path} is a log")
        logged, source = read_log(path, kind, reward)
        logged = [each for together in in_steps(logged) for each in together]
        name = method or ("grpo" if by in ("advantage", "state") else "")
        if name:
            add_credit(logged, source, name)
    write: Any = choices[by] if by else FORMATS[to].write
    objects = list(write(logged, name, *([least] if to == "sft" else [])))
    if not objects:
        raise DataError(f"{path}: nothing to write as {to}: {_why(logged, to, by)}")
    _save(objects, out, folder=to == "atif" and not out.suffix)
    missing = [f"{to} does not hold {FORMATS[to].lacks}"] if FORMATS[to].lacks else []
    if to == "dpo" and by == "group" and (several := tuning.in_several(logged)):
        missing.append(f"trajectories of several conversations, {several} of {len(logged)}; --by state pairs responses")
    missing += _not_recorded(path) if source is None else not_kept(source)
    return Exported(out, len(logged), len(objects), tuple(missing))


def _why(logged: Sequence[Logged], to: str, by: str | None) -> str:
    count = f"{len(tuning.usable(logged))} of {len(logged)} trajectories have a reward and a response"
    if to == "sft":
        return f"{count}, and none is at or above the bound; choose another with --least"
    several = tuning.in_several(logged) if by == "group" else 0
    why = f"{several} of them have several conversations (sub-agents, edited histories), which --by state pairs"
    return f"{count}, and {why if several else f'no {by} has two values'}" if to == "dpo" else count


def _save(objects: list[Any], out: Path, *, folder: bool) -> None:
    if folder:
        out.mkdir(parents=True)
        for number, each in enumerate(objects, start=1):
            _save([each], out / f"trajectory-{number:06d}.json", folder=False)
        return
    name = out.name.removesuffix(".gz")
    lines = (json.dumps(each, ensure_ascii=False, allow_nan=False) for each in objects)
    listed = objects[0] if len(objects) == 1 else objects
    text = json.dumps(listed, ensure_ascii=False, indent=2) if name.endswith(".json") else "\n".join(lines)
    data = f"{text}\n".encode()
    out.parent.mkdir(parents=True, exist_ok=True)
    with replacing(out) as temporary:
        temporary.write_bytes(gzip.compress(data, mtime=0) if out.suffix == ".gz" else data)


def add_credit(logged: Sequence[Logged], source: Source, method: str) -> None:
    """Give the responses of a log the advantages of a method, in place.

    Raises:
        DataError: The method needs what the log does not have.
    """
    with tempfile.TemporaryDirectory() as folder:
        run = write_run(list(logged), Path(folder) / "run", source)
        try:
            credit = _credit(run, method, None)
        except DataError as error:
            raise DataError(str(error).replace(str(run), str(source.path))) from None
    advantages = [value for step in sorted(credit) for value in credit[step]]
    place = 0
    for each in logged:
        for number, response in enumerate(each.responses):
            value = advantages[place + number]
            response.advantage = None if np.isnan(value) else float(value)
        place += max(1, len(each.responses))


def read_run(path: Path, method: str | None = None, step: int | None = None) -> tuple[list[Logged], str]:
    """Read the recorded trajectories of a run, as a log would tell them.

    Returns:
        The trajectories, and the name of the method that gave them credit.

    Raises:
        RunError: There is no such run.
        ConfigError: It has no such step.
        DataError: A file is damaged, or lacks a column that the method needs.
    """
    folder, config = RunFolder.open(path)
    credit = _credit(path, method, step) if method else {}
    steps = recorded_steps(folder)
    if step is not None and step not in steps:
        raise ConfigError(f"--step {step}: {shlex.quote(str(path))} has the steps {steps[0]} to {steps[-1]}")
    found: list[Logged] = []
    system = _system(config)
    for number in steps if step is None else [step]:
        played, columns = read_rollouts(folder.rollouts / f"step-{number:06d}.parquet")
        values = credit.get(number) if method else columns.get("advantage")
        place = 0
        for index, trajectory in enumerate(played):
            end = place + max(1, len(trajectory.turns))
            name = f"{path.name}-step-{number}-trajectory-{index}"
            found.append(_logged(trajectory, name, number, [] if values is None else list(values[place:end]), system))
            found[-1].model = config.model.name
            place = end
    return found, method or config.method.label


def _credit(path: Path, method: str, step: int | None) -> dict[int, np.ndarray]:
    """Return the advantages of a method for each row of each step; NaN for those without credit."""
    folder, config = RunFolder.open(path)
    asked = override_config(config.without_code, [f"method={method}"])
    transform = make_transform(asked.method, update=asked.update)
    steps = [number for number in recorded_steps(folder) if step in (None, number)]
    paths = {number: folder.rollouts / f"step-{number:06d}.parquet" for number in steps}
    found = {number: np.full(read_step(path).table.num_rows, np.nan) for number, path in paths.items()}
    for recorded, trace in replay(folder, transform, invalid_penalty=config.environment.invalid_penalty, only=step):
        found[recorded.step][recorded.row_R] = trace.advantage_R
    return found


def _logged(trajectory: Trajectory, name: str, step: int, values: Sequence[float], system: str) -> Logged:
    history: list[Message] = []
    tools: list[Any] = []
    whole: list[int] = []
    responses: list[Response] = []
    for number, turn in enumerate(trajectory.turns):
        fresh = turn.fresh or not number
        before = [] if fresh else history
        history = [*before, *_added(turn, before, system)]
        tools = turn.extras.get("request", {}).get("tools", []) if fresh else tools
        ids = [*([] if fresh else whole), *turn.prompt_ids] if turn.prompt_ids else []
        message = message_of(turn.response, f"call-{number}")
        responses.append(
            Response(
                history,
                message,
                tools,
                reward=turn.reward or None,
                valid=turn.valid,
                truncated=turn.truncated,
                state_key=None if turn.state_key is None else str(turn.state_key),
                actor=turn.extras.get("actor", ""),
                prompt_ids=ids,
                response_ids=turn.response_ids,
                logprobs=turn.behavior_logprobs,
                entropies=turn.behavior_entropies,
                version=turn.version,
                advantage=next((float(value) for value in values[number : number + 1] if not np.isnan(value)), None),
            )
        )
        history, whole = [*history, message], [*ids, *turn.response_ids]
    outcome = None
    if responses and trajectory.failure != f"log: {UNREWARDED}":
        outcome = Outcome(responses[-1].reward or 0.0, trajectory.success, trajectory.info)
        responses[-1].reward = None
    return Logged(
        name,
        responses,
        task=trajectory.task,
        group=f"step {step}, group {trajectory.group}",
        outcome=outcome,
        truncated=trajectory.ended in ("truncated", "context"),
        failure=(trajectory.failure or "").removeprefix("log: ") or None,
        step=step,
        id=name,
    )


def _added(turn: Turn, before: Sequence[Message], system: str) -> list[Message]:
    """Return the messages that the prompt of a turn adds to those before it."""
    if (request := turn.extras.get("request")) is not None:
        return with_ids([*before[-1:], *with_text(request, turn.observation)])[len(before[-1:]) :]
    calls = before[-1].get("tool_calls") if before else None
    read: Message = {"role": "tool" if calls else "user", "content": turn.observation}
    read |= {"extra": {"observed": True}} if before else {}
    read |= {"tool_call_id": calls[-1]["id"]} if calls else {}
    return [read] if before or not system else [{"role": "system", "content": system}, read]


def _system(config: Config) -> str:
    """Return the system message of a run's prompts; agents send their own."""
    return "" if config.model.name == "tiny" else config.prompt.message


def _not_recorded(path: Path) -> Iterator[str]:
    """Yield what the prompts of a run had, and its record holds as token ids alone."""
    folder, config = RunFolder.open(path)
    step = folder.rollouts / f"step-{recorded_steps(folder)[0]:06d}.parquet"
    if "request" not in pq.read_schema(step).names:
        yield "an earlier turnwise recorded this run: of what agents sent it kept the last message alone"
    if penalty := config.environment.invalid_penalty:
        yield f"the run takes {penalty:g} from invalid responses (environment.invalid_penalty), which no format holds"
    given = {
        "lists of admissible actions": config.prompt.admissible,
        "current subgoals": config.prompt.plan,
        "the turns that a window repeats": config.rollout.context == "window",
    }
    if named := " and ".join(name for name, there in given.items() if there):
        yield f"a run records observations: {named} are in its token ids alone"
