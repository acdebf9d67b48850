"""List the formats of logs, find that of a file, and read a file."""

import dataclasses
import functools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from turnwise.base.errors import ConfigError, DataError, did_you_mean
from turnwise.environments.plain import sound
from turnwise.extensions.gateway.messages import short
from turnwise.integrations.logs import tuning
from turnwise.integrations.logs.atif import read_atif
from turnwise.integrations.logs.atif_write import write_atif
from turnwise.integrations.logs.chat_lines import read_chat_lines, write_chat_lines
from turnwise.integrations.logs.inspect_logs import read_inspect
from turnwise.integrations.logs.logged import Logged
from turnwise.integrations.logs.nemo_gym import read_nemo_gym
from turnwise.integrations.logs.opentelemetry import read_opentelemetry, write_opentelemetry
from turnwise.integrations.logs.requests import read_requests
from turnwise.integrations.logs.source import Source
from turnwise.integrations.logs.trajectories import prepare
from turnwise.integrations.logs.verifiers_results import read_episodes, read_verifiers

Write = Callable[[Sequence[Logged], str], Iterator[dict[str, Any]]]
"""Yields the objects of a file, from trajectories and the name of the method that gave them credit."""


@dataclasses.dataclass(frozen=True)
class LogFormat:
    """A format of logs.

    Attributes:
        what: What its files hold.
        keys: Keys of its records.
        read: Yields the trajectories of a file; None: it is only written.
        write: Writes them; None: it is only read.
        lacks: What it cannot hold of them.
        choices: Writers by what `--by` names, the default first, where there are several.
    """

    what: str
    keys: frozenset[str] = frozenset()
    read: Callable[[Source], Iterator[Logged]] | None = None
    write: Write | None = None
    lacks: str = ""
    choices: dict[str, Any] = dataclasses.field(default_factory=dict)


BOTH = "token ids, log-probabilities, trajectories without a response"
ALL = "token ids, log-probabilities, failed trajectories and those without reward"
FORMATS: dict[str, LogFormat] = {
    "chat": LogFormat(
        "a line per trajectory, with messages of chat completions or Anthropic",
        frozenset({"messages"}),
        read_chat_lines,
        write_chat_lines,
        f"{BOTH}, and the order of turns of agents that alternate",
    ),
    "atif": LogFormat(
        "ATIF documents, or a folder of Harbor's trials",
        frozenset({"schema_version", "steps"}),
        read_atif,
        write_atif,
        'arguments of tool calls that are not objects: they become {"value": ...}',
    ),
    "requests": LogFormat("a call per line, request and response", frozenset({"request", "response"}), read_requests),
    "opentelemetry": LogFormat(
        "spans of OTLP as JSON",
        frozenset({"resourceSpans"}),
        read_opentelemetry,
        write_opentelemetry,
        f"{BOTH}, messages after the last response, steps, and rewards of single responses",
    ),
    "inspect": LogFormat("a log of Inspect, .eval or .json", frozenset({"eval", "samples"}), read_inspect),
    "verifiers": LogFormat("results.jsonl of vf-eval", frozenset({"prompt", "completion"}), read_verifiers),
    "episodes": LogFormat("traces.jsonl of verifiers 1", frozenset({"traces", "task"}), read_episodes),
    "nemo-gym": LogFormat("rollouts of NeMo Gym", frozenset({"responses_create_params", "response"}), read_nemo_gym),
    "sft": LogFormat(
        "conversations to imitate",
        lacks=ALL,
        choices={"reward": tuning.successes, "advantage": tuning.credited},
    ),
    "dpo": LogFormat(
        "pairs, chosen and rejected",
        lacks=f"{ALL}, and groups or states without two values",
        choices={"group": tuning.pairs_of_groups, "state": tuning.pairs_of_states},
    ),
}
"""Formats by name."""
READ = tuple(name for name, each in FORMATS.items() if each.read)
WRITTEN = tuple(name for name, each in FORMATS.items() if each.write or each.choices)


def kind_of(record: Any) -> str | None:
    """Name the format that a record belongs to, by its keys; None: no known one."""
    keys = set(record) if isinstance(record, dict) else set()
    if "resourceLogs" in keys:
        return "opentelemetry"
    return next((name for name in READ if FORMATS[name].keys <= keys), None)


def format_of(path: Path) -> str:
    """Name the format of a file, by its name and its first record that belongs to one.

    Raises:
        DataError: The file cannot be read, or belongs to none.
    """
    if path.suffix == ".eval":
        return "inspect"
    if path.is_dir():
        return "atif"
    source = Source(path)
    first: Any = None
    for number, (_, record) in enumerate(source.records()):
        if found := kind_of(record):
            return found
        first = record if first is None else first
        if number >= 100:
            break
    if first is None:
        wrong = source.left_out[0] if source.left_out else f"{path} has no records"
        raise DataError(f"{wrong}; expected one object per line, a list, or one object")
    known = "; ".join(f"{name}: {FORMATS[name].what}" for name in READ)
    raise DataError(
        f"{path}: its first record belongs to no known format: {_shape(first)}. Known formats: {known}. "
        "Choose one with --format NAME, or write it as `chat`"
    )


def _shape(value: Any) -> str:
    """Show the keys of a record with the beginning of their values."""
    if not isinstance(value, dict):
        return short(value)
    return "{" + ", ".join(f"{key[:40]}: {short(each)[:30]}" for key, each in list(value.items())[:8]) + "}"


def read_log(path: Path, kind: str | None = None, reward: str | None = None) -> tuple[list[Logged], Source]:
    """Read all trajectories of a file.

    Args:
        path: The file, or a folder of ATIF documents.
        kind: Name of its format; None: found by its content.
        reward: Name of the key, scorer or evaluation that gives the reward.

    Returns:
        The trajectories, and the source, which has what of the file is not kept.

    Raises:
        DataError: The file is not such a log, or none of its records can be read.
    """
    kind = kind or format_of(path)
    if kind not in READ:
        raise ConfigError(f"--format {kind}: no log is read in it.{did_you_mean(kind, READ)}")
    read, keys = FORMATS[kind].read, FORMATS[kind].keys
    assert read is not None
    source = Source(path, reward, functools.partial(_other, kind, keys))
    found: list[Logged] = []
    seen: dict[tuple[int, str], list[Logged]] = defaultdict(list)
    for each in read(source):
        with source.record(each.where):
            each = sound(each)
            prepare(each)
            others = seen[each.step, each.id] if each.id else []
            if any(each == dataclasses.replace(other, where=each.where, made=each.made) for other in others):
                source.repeated += 1
            else:  # ids may be equal by chance, or name a sample of several tasks
                found.append(each)
                others.append(each)
    if not found and source.left_out:
        more = len(source.left_out) - 1
        raise DataError(source.left_out[0] + (f" ({more} more records cannot be read)" if more else ""))
    return found, source


def _other(kind: str, keys: frozenset[str], record: Any) -> str | None:
    """Name the format of a record that belongs to another one than its log."""
    found = kind_of(record)
    return None if found in (None, kind) or keys <= set(record) else found
