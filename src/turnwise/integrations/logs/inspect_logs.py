"""Read logs of Inspect: .eval files, which are archives of JSON, and .json files."""

import json
import struct
import sys
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pydantic import BaseModel

from turnwise.base.errors import DataError, did_you_mean
from turnwise.base.jsonl import MOST_UNPACKED, refuse_many_values
from turnwise.extensions.gateway.messages import short
from turnwise.integrations.logs.logged import Logged, as_text, check, read_responses
from turnwise.integrations.logs.messages import read_one
from turnwise.integrations.logs.source import Source, Undecided

HEADER, SAMPLES, ATTACHED = "header.json", "samples/", "attachment://"
MOST_OF_MEMBER = 2**28
"""What a member of an archive may unpack to (bytes)."""
ZSTANDARD = 93
"""Number of the compression in archives."""
BOUNDED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, ZSTANDARD)
"""Compressions that Inspect writes. What has another one is unpacked whole by Python, whatever size it declares."""
DAMAGED = (
    *(zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, pa.ArrowException),
    *(RuntimeError, struct.error, UnicodeDecodeError, OverflowError),
)
"""What reading an archive raises that is damaged or encrypted, or whose own numbers are wrong."""
GRADES = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}
"""Rewards of Inspect's grades: correct, partly correct, incorrect, no answer."""


class _Sample(BaseModel):
    id: Any
    messages: list[Any]
    epoch: Any = None
    uuid: str | None = None
    attachments: dict[str, Any] | None = None
    scores: dict[str, Any] | None = None
    output: dict[str, Any] | None = None
    error: Any = None
    invalidation: Any = None
    limit: Any = None


class _Log(BaseModel):
    eval: dict[str, Any]
    samples: list[Any] | None = None


def read_inspect(source: Source) -> Iterator[Logged]:
    """Yield the samples of a log. Epochs of a sample are a group; an invalidated one gets no credit."""
    for where, header, given in _samples(source):
        with source.record(where):
            yield _logged(check(_Sample, given, where), header, where, source)


def _logged(sample: _Sample, header: dict[str, Any], where: str, source: Source) -> Logged:
    messages, own, attached = [], [], _Attached(sample.attachments or {}, where)
    for number, message in enumerate(sample.messages):
        read = read_one(attached.whole(message), where, f"messages[{number}]", source)
        error = message.get("error")
        if read[-1]["role"] == "tool" and isinstance(error, dict) and error.get("message"):  # the model reads it
            read[-1]["content"] = "\n".join(filter(None, (read[-1]["content"], f"Error: {error['message']}")))
        messages += read
        own += [message.get("source") != "input" for each in read if each["role"] == "assistant"]
    value, grade = _score(sample.scores or {}, where, source)
    error, output = sample.error, sample.output or {}
    failure = None if error is None else as_text(error.get("message") if isinstance(error, dict) else error)
    if sample.invalidation:
        reason = sample.invalidation.get("reason") if isinstance(sample.invalidation, dict) else None
        failure = f"it was invalidated{f': {reason}' if reason else ''}"
    return Logged(
        where,
        [response for response, is_own in zip(read_responses(messages, where=where), own, strict=True) if is_own],
        task=f"{as_text(header.get('task'))} {as_text(sample.id)}".strip(),
        outcome=source.outcome(value, None, {"score": value} if value is not None else None, where),
        truncated=bool(sample.limit) or grade == "N",
        failure=failure,
        model=as_text(header.get("model") or output.get("model")),
        id=sample.uuid or ("" if sample.epoch is None else f"{as_text(sample.id)} {as_text(sample.epoch)}"),
    )


def _samples(source: Source) -> Iterator[tuple[str, dict[str, Any], Any]]:
    """Yield place, header and content of every sample."""
    path = source.path
    if path.suffix != ".eval":
        for where, record in source.records():
            with source.record(where):
                log = check(_Log, record, where)
                yield from ((f"{where}, samples[{n}]", log.eval, each) for n, each in enumerate(log.samples or ()))
        return
    try:
        with zipfile.ZipFile(path) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > MOST_UNPACKED:
                raise DataError(
                    f"{path} unpacks to more than {MOST_UNPACKED >> 20} MiB; split it, or unpack its samples to .json"
                )
            if HEADER not in archive.namelist():
                raise DataError(f"{path} has no {HEADER}: Inspect has not finished it; end the evaluation first")
            where = f"{path}, {HEADER}"
            header = check(_Log, _load(_content(archive, archive.getinfo(HEADER)), where), where).eval
            for entry in sorted(archive.infolist(), key=lambda entry: entry.filename):
                if entry.filename.startswith(SAMPLES) and entry.filename.endswith(".json"):
                    where = f"{path}, {entry.filename}"
                    with source.record(where):
                        yield where, header, _load(_content(archive, entry), where)
    except DAMAGED as error:
        raise DataError(f"{path} is not a log of Inspect, or is damaged: {error}") from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None


def _content(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    """Return a member of an archive, within limits."""
    if member.file_size > MOST_OF_MEMBER:
        raise zipfile.BadZipFile(f"{member.filename} unpacks to more than {MOST_OF_MEMBER >> 20} MiB")
    if member.compress_type not in BOUNDED:
        raise zipfile.BadZipFile(
            f"{member.filename} has the compression {member.compress_type}, and Inspect writes 0, 8 or 93 only"
        )
    data = _unpacked(archive, member)
    refuse_many_values(data, f"{archive.filename}, {member.filename},")
    return data


def _unpacked(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    """Unpack a member; Inspect writes Zstandard, which zipfile reads from Python 3.14 on."""
    if member.compress_type != ZSTANDARD:
        with archive.open(member) as content:
            return content.read(MOST_OF_MEMBER)
    file = archive.fp
    assert file is not None
    file.seek(member.header_offset + 26)  # where the lengths of name and extra field stand
    name, extra = struct.unpack("<HH", file.read(4))
    file.seek(name + extra, 1)
    packed = file.read(member.compress_size)
    data = pa.CompressedInputStream(pa.BufferReader(packed), "zstd").read(member.file_size + 1)  # a size can be forged
    if zlib.crc32(data) != member.CRC:
        raise zipfile.BadZipFile(f"the checksum of {member.filename} is wrong")
    return data


def _load(data: bytes, where: str) -> Any:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise DataError(f"{where}: not valid JSON") from None
    if not isinstance(value, dict):
        raise DataError(f"{where}: expected an object, got {type(value).__name__}")
    return value


class _Attached:
    """Put back what is attached, as long as this takes no more than a whole sample may."""

    def __init__(self, attached: Mapping[str, Any], where: str):
        self._attached, self._where, self._left = attached, where, MOST_OF_MEMBER

    def whole(self, value: Any) -> Any:
        """Return a value with the texts that it refers to.

        Raises:
            DataError: They are too long.
        """
        if isinstance(value, str) and value.startswith(ATTACHED):
            found = self._attached.get(value.removeprefix(ATTACHED))
            self._left -= len(found) if isinstance(found, str) else 0
            if self._left < 0:
                raise DataError(f"{self._where}: its attachments make more than {MOST_OF_MEMBER >> 20} MiB of messages")
            return found if isinstance(found, str) else value
        if isinstance(value, list):
            return [self.whole(each) for each in value]
        return {key: self.whole(each) for key, each in value.items()} if isinstance(value, dict) else value


def _score(scores: Mapping[str, Any], where: str, source: Source) -> tuple[Any, Any]:
    """Return the value of a score as a number, and as it was logged. `--reward` is SCORER, or SCORER.KEY."""
    found, reward = {}, source.reward
    for name, score in scores.items():
        value = score.get("value") if isinstance(score, dict) else None
        found |= {f"{name}.{key}": part for key, part in value.items()} if isinstance(value, dict) else {name: value}
    if not found:
        return None, None
    if reward is None and len(found) > 1:
        raise Undecided(f"{where}: it has the scores {', '.join(found)}; choose one with --reward NAME")
    name = reward or next(iter(found))
    if name not in found:
        raise DataError(f"{where}: there is no score {name!r}, which --reward names.{did_you_mean(name, found)}")
    value = found[name]
    number = GRADES.get(value) if isinstance(value, str) else value
    if number is None or not isinstance(number, int | float) or not abs(number) <= sys.float_info.max:
        source.unrewarded.append(
            f"{where}: the score {name!r} is {short(value)}, expected a number or one of {', '.join(GRADES)}"
        )
        return None, value
    return float(number), value
