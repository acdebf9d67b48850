"""Read logs of Inspect: .eval files, which are archives of JSON, and .json files."""

import json
import struct
import sys
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from turnwise.base.errors import DataError, did_you_mean
from turnwise.base.jsonl import MOST_UNPACKED, refuse_many_values
from turnwise.extensions.gateway.messages import short
from turnwise.integrations.logs.logged import Logged, member, read_history, read_outcome, read_responses, typed

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


def read_inspect(path: Path, *, reward: str | None = None) -> Iterator[Logged]:
    """Yield the samples of a log; see `ReadLog`. Epochs of a sample are a group."""
    for where, told, sample in _samples(path):
        if not isinstance(sample, dict) or "messages" not in sample or "id" not in sample:
            raise DataError(f"{where}: expected a sample of Inspect, with id and messages")
        attached = member(sample, "attachments", dict, where)
        kept = [message for message in member(sample, "messages", list, where) if isinstance(message, dict)]
        messages = read_history(
            [_message(message, attached, f"{where}: messages[{number}]") for number, message in enumerate(kept)], where
        )
        given = [message.get("source") != "input" for message in kept if message.get("role") == "assistant"]
        responses = [each for each, own in zip(read_responses(messages), given, strict=True) if own]
        error, output = sample.get("error"), member(sample, "output", dict, where)
        value, grade = _score(member(sample, "scores", dict, where), reward, where)
        yield Logged(
            where,
            responses,
            task=f"{told.get('task', '')} {sample['id']}".strip(),
            outcome=read_outcome(value, None, {"score": value} if value is not None else None, where),
            truncated=bool(sample.get("limit")) or grade == "N",
            failure=None if error is None else str(error.get("message") if isinstance(error, dict) else error),
            model=str(told.get("model") or output.get("model") or ""),
        )


def _samples(path: Path) -> Iterator[tuple[str, dict[str, Any], Any]]:
    """Yield place, header and content of every sample."""
    if path.suffix == ".json":
        try:
            whole = _load(path.read_bytes(), str(path))
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror}") from None
        told = member(whole, "eval", dict, str(path))
        for number, sample in enumerate(member(whole, "samples", list, str(path))):
            yield f"{path}, samples[{number}]", told, sample
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
            told = member(_load(_content(archive, archive.getinfo(HEADER)), where), "eval", dict, where)
            for entry in sorted(archive.infolist(), key=lambda entry: entry.filename):
                if entry.filename.startswith(SAMPLES) and entry.filename.endswith(".json"):
                    where = f"{path}, {entry.filename}"
                    yield where, told, _load(_content(archive, entry), where)
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


def _message(message: Mapping[str, Any], attached: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return a message in the form of chat completions: text only, calls nested, what is attached put back."""
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(
            typed(_whole(part.get("text", ""), attached), str, f"{where}: the text of a part")
            for part in content
            if isinstance(part, dict) and part.get("type") == "text"
        )
    read = {"role": message.get("role"), "content": _whole(content, attached)}
    calls = [typed(call, dict, f"{where}: a tool call") for call in member(message, "tool_calls", list, where)]
    if calls:
        read["tool_calls"] = [{"function": {"name": c.get("function"), "arguments": c.get("arguments")}} for c in calls]
    return read


def _whole(text: Any, attached: Mapping[str, Any]) -> Any:
    if isinstance(text, str) and text.startswith(ATTACHED):
        return attached.get(text.removeprefix(ATTACHED), text)
    return text


def _score(scores: Mapping[str, Any], reward: str | None, where: str) -> tuple[float | None, Any]:
    """Return the value of a score as a number, and as it was logged. `reward` is SCORER, or SCORER.KEY."""
    found = {}
    for name, score in scores.items():
        value = score.get("value") if isinstance(score, dict) else None
        found |= {f"{name}.{key}": part for key, part in value.items()} if isinstance(value, dict) else {name: value}
    if not found:
        return None, None
    if reward is None and len(found) > 1:
        raise DataError(f"{where}: it has the scores {', '.join(found)}; choose one with --reward NAME")
    name = reward or next(iter(found))
    if name not in found:
        raise DataError(f"{where}: there is no score {name!r}, which --reward names.{did_you_mean(name, found)}")
    value = found[name]
    number = GRADES.get(value) if isinstance(value, str) else value
    if not isinstance(number, int | float) or abs(number) > sys.float_info.max:  # also too large for a float
        raise DataError(
            f"{where}: the score {name!r} is {short(value)}, expected a number or one of {', '.join(GRADES)}"
        )
    return float(number), value
