"""A log that is damaged, or made to harm, is refused with one line that says where and what to do."""

import dataclasses
import gzip
import io
import json
import os
import re
import resource
import subprocess
import sys
import zipfile
from pathlib import Path

import pyarrow as pa
import pytest
from tests.integrations.logs.test_formats import chat, lines, span, verifiers

from turnwise.base.errors import DataError
from turnwise.commands.cli import main
from turnwise.integrations.logs.formats import FORMATS
from turnwise.integrations.logs.inspect_logs import ZSTANDARD
from turnwise.integrations.logs.write import import_log


def refused(path: Path, capsys) -> str:
    """Import a log that must be refused; returns the one line."""
    out = path.parent / "made"
    assert main(["import", str(path), "--out", str(out)]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert path.name in said
    assert not out.exists()
    return said


def bomb(path: Path, megabytes: int, members: int, packed: int = zipfile.ZIP_DEFLATED, text: bytes = b" ") -> Path:
    """Write an archive whose samples are blanks, or repeat another text."""
    with zipfile.ZipFile(path, "w", packed, compresslevel=1) as archive:
        archive.writestr("header.json", '{"eval": {}}')
        for number in range(members):
            with archive.open(f"samples/{number}.json", "w", force_zip64=True) as member:
                for _ in range(megabytes):
                    member.write(text * (2**20 // len(text)))
    return path


@pytest.mark.parametrize(
    ("megabytes", "members", "said"), [(300, 1, "more than 256 MiB"), (220, 5, "more than 1024 MiB")]
)
def test_an_archive_that_would_fill_the_memory_is_refused(tmp_path, capsys, megabytes, members, said):
    path = bomb(tmp_path / "bomb.eval", megabytes, members)
    assert said in refused(path, capsys)


def with_forged_size(path: Path) -> Path:
    """Say in the directory of an archive that its last member has 9 bytes."""
    data = bytearray(path.read_bytes())
    place = data.rindex(b"PK\x01\x02")
    data[place + 24 : place + 28] = (9).to_bytes(4, "little")
    path.write_bytes(data)
    return path


def refused_within(folder: Path, name: str, most: int) -> str:
    """Import a log with the command, which may hold so many bytes; returns the one line."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "turnwise", "import", name],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (most, most)),
    )
    assert done.returncode == 2, done.stderr[-2000:]
    (said,) = done.stderr.splitlines()
    return said


def test_an_archive_that_lies_about_its_size_is_not_unpacked(tmp_path):
    """The import may take 2 GiB at most."""
    with_forged_size(bomb(tmp_path / "bomb.eval", 1500, 1))
    refused_within(tmp_path, "bomb.eval", 2**31)


PEAK = """
import sys, tracemalloc
from turnwise.commands.cli import main
main(sys.argv[1:])  # imports modules, which are not counted
tracemalloc.start()
assert main(sys.argv[1:]) == 2
print(tracemalloc.get_traced_memory()[1])
"""


def taken(path: Path) -> int:
    """Measure how many bytes it takes to refuse a log, in a process that holds nothing of other tests."""
    command = [sys.executable, "-c", PEAK, "import", str(path), "--out", str(path.parent / "made")]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.parametrize("packed", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_compression_that_python_unpacks_whole_is_refused(tmp_path, capsys, packed):
    """Of 281 kB, whose directory says 9 bytes, such a member took 4.3 GB."""
    path = with_forged_size(bomb(tmp_path / "bomb.eval", 24, 1, packed))
    assert f"has the compression {packed}, and Inspect writes 0, 8 or 93 only" in refused(path, capsys)
    assert taken(path) < 2**24


@pytest.mark.slow
def test_five_gigabytes_in_a_megabyte_and_a_half_are_refused(tmp_path):
    """Compressed as well as Zstandard can; a block is compressed once, and repeated."""
    block = pa.compress(b" " * 2**24, codec="zstd", asbytes=True)
    assert isinstance(block, bytes)
    packed, size = block * 300, 300 * 2**24
    path = tmp_path / "bomb.eval"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("header.json", '{"eval": {}}')
        archive.writestr("noise.bin", os.urandom(1_500_000 - len(packed)))
        archive.writestr("samples/0.json", packed)
        member = archive.getinfo("samples/0.json")
        member.compress_type, member.file_size = ZSTANDARD, size
    assert size > 5 * 10**9
    assert 1_400_000 < path.stat().st_size < 1_600_000
    assert "bomb.eval unpacks to more than 1024 MiB" in refused_within(tmp_path, "bomb.eval", 2**31)


def test_values_that_would_fill_the_memory_are_refused(tmp_path, capsys, monkeypatch):
    """`[],[],...` takes 28 times its length once it is read: 257 kB, unpacked to 252 MiB, took 7.2 GB."""
    path = bomb(tmp_path / "bomb.eval", 26, 1, text=b"[],")
    assert "bomb.eval, samples/0.json, has more than 16 Mi values; split it" in refused(path, capsys)
    assert taken(path) < 2**26
    monkeypatch.setattr("turnwise.base.jsonl.MOST_VALUES", 1000)
    values = json.dumps(chat(info=[[]] * 1000)).encode()
    for name, data in {
        "log.jsonl": values,
        "later.jsonl": json.dumps(chat()).encode() + b"\n" + values,
        "indented.json.gz": gzip.compress(b"[\n" + values + b"\n]"),
    }.items():
        (tmp_path / name).write_bytes(data)
        assert "values; split it" in refused(tmp_path / name, capsys)


def test_a_compressed_file_that_would_fill_the_memory_is_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("turnwise.base.jsonl.MOST_UNPACKED", 2**20)
    path = tmp_path / "log.jsonl.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(json.dumps(chat()).encode() + b"\n")
        for _ in range(2**14):
            file.write(b" " * 99 + b"\n")
    assert "unpacks to more than 1 MiB; unpack it with gunzip first" in refused(path, capsys)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", ["log.jsonl", "log.jsonl.gz"])
def test_a_byte_order_mark_and_compression_are_read_whatever_the_name(tmp_path, name, packed):
    data = b"\xef\xbb\xbf" + json.dumps(chat()).encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if packed else data)
    assert import_log(tmp_path / name, tmp_path / "made").trajectories == 1


def zipped(name: bytes) -> bytes:
    """Return an archive that has a log, not compressed."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr(name.decode(), f"{json.dumps(chat())}\n" * 3)
    return data.getvalue()


def test_a_folder_without_documents_is_said(tmp_path, capsys):
    lines(tmp_path / "log.jsonl", chat())
    assert main(["import", str(tmp_path), "--out", str(tmp_path / "made")]) == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert told.endswith("has no files named trajectory*.json, as a folder of ATIF has; name a file of another format")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (json.dumps(chat()).encode("utf-16"), "is in UTF-16, expected UTF-8; convert it with iconv -f UTF-16 -t UTF-8"),
        (json.dumps(chat()).encode("utf-16-le"), "is in UTF-16LE, expected UTF-8; convert it with iconv -f UTF-16LE"),
        (json.dumps(chat()).encode("utf-16-be"), "is in UTF-16BE, expected UTF-8"),
        (json.dumps(chat()).encode("utf-32"), "is in UTF-32, expected UTF-8; convert it with iconv -f UTF-32 -t UTF-8"),
        (zipped(b"log.jsonl"), "is a ZIP archive, expected JSON in UTF-8; unpack it, or name it .eval"),
        (gzip.compress(zipped(b"log.jsonl")), "is a ZIP archive, expected JSON in UTF-8"),
        (gzip.compress(gzip.compress(b"{}")), "is compressed twice, expected JSON in UTF-8; unpack it with gunzip"),
        (pa.compress(b"{}" * 99, codec="zstd", asbytes=True), "is compressed with Zstandard, expected JSON in UTF-8"),
        (b"PAR1" + bytes(99), "is a Parquet file, expected JSON in UTF-8; write its rows as JSON Lines"),
        (b"", "is empty"),
        (b" \n\n", "has no records; expected one object per line"),
        (b"[]", "has no records; expected one object per line"),
        (b"[" * 100_000, "not valid JSON"),
        (json.dumps(chat(tools=7)).encode(), "line 1: tools is 7, expected a list"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_read_is_said(tmp_path, capsys, data, said):
    (tmp_path / "log.jsonl").write_bytes(data)
    assert said in refused(tmp_path / "log.jsonl", capsys)


@pytest.mark.parametrize("value", [None, 3, "x", [None], [{"spans": [None]}], [{"scopeSpans": [7]}], {"a": 1}])
def test_spans_of_another_form_are_said(tmp_path, capsys, value):
    good = {"resourceSpans": [{"scopeSpans": [{"spans": [span(1, [], [])]}]}]}
    refused(lines(tmp_path / "log.jsonl", good, {"resourceSpans": value}), capsys)


@pytest.mark.parametrize("bad", [b"[" * 100_000, b"{", b'"text"', b"{\xff}", b"null"])
def test_a_line_that_is_no_object_costs_itself(tmp_path, capsys, bad):
    good = json.dumps(chat()).encode()
    (tmp_path / "log.jsonl").write_bytes(good + b"\n" + bad + b"\n" + good)
    assert main(["import", str(tmp_path / "log.jsonl"), "--out", str(tmp_path / "made")]) == 0
    told = capsys.readouterr()
    assert "made: trajectories: 2, responses: 4," in told.out
    assert "note: missing: 1 records are left out: " in told.err
    assert "log.jsonl, line 2" in told.err


def test_half_a_surrogate_pair_is_replaced(tmp_path):
    path = lines(tmp_path / "log.jsonl", chat(task="\ud800", info={"\udcff": "\ud800"}))
    assert import_log(path, tmp_path / "made").trajectories == 1


def inspected(**more) -> dict:
    return {"eval": {"task": "t"}, "samples": [{"id": 1, **inspect_sample(), **more}]}


def inspect_sample() -> dict:
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "a", "source": "generate"}]
    return {"messages": messages, "scores": {"match": {"value": "C"}}}


def with_span(**more) -> dict:
    return {"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": "t", "name": "s", **more}]}]}]}


def answered(message: dict) -> dict:
    value = json.dumps([message])
    attributes = {"gen_ai.operation.name": "chat", "gen_ai.output.messages": value}
    return with_span(attributes=attributes)


ODD = {
    "chat, tools": ("chat", chat(tools=7), "line 1: tools is 7, expected a list"),
    "verifiers, completion": ("verifiers", verifiers(completion={"a": 1}), 'line 1: completion is {"a": 1}, expected'),
    "verifiers, tool_defs": ("verifiers", verifiers(tool_defs=True), "line 1: tool_defs is true, expected a list"),
    "verifiers, calls": (
        "verifiers",
        verifiers(completion=[{"role": "assistant", "content": "", "tool_calls": 3}]),
        "line 1: completion: messages[0]: tool_calls is 3, expected a list",
    ),
    "inspect, samples": ("inspect", {"eval": {}, "samples": 5}, "samples is 5, expected a list"),
    "inspect, eval": ("inspect", {"eval": [], "samples": []}, "eval is [], expected an object"),
    "inspect, messages": ("inspect", inspected(messages="x"), 'samples[0]: messages is "x", expected a list'),
    "inspect, scores": ("inspect", inspected(scores=[1]), "samples[0]: scores is [1], expected an object"),
    "inspect, attachments": ("inspect", inspected(attachments=1), "samples[0]: attachments is 1, expected an object"),
    "inspect, one attachment often": (
        "inspect",
        inspected(
            attachments={"a": "x" * 2**22},
            messages=[{"role": "user", "content": [{"type": "text", "text": "attachment://a"}] * 65}],
        ),
        "samples[0]: its attachments make more than 256 MiB of messages",
    ),
    "chat, too long": (
        "chat",
        chat(messages=[{"role": "assistant", "content": "a"}] * 6000),
        "line 1: a conversation of 6,000 messages is too long; split it",
    ),
    "inspect, calls": (
        "inspect",
        inspected(messages=[{"role": "assistant", "content": "", "tool_calls": ["x"]}]),
        'samples[0]: messages[0].tool_calls[0] is "x", expected an object',
    ),
    "inspect, part": (
        "inspect",
        inspected(messages=[{"role": "user", "content": [{"type": "text", "text": 1}]}]),
        "samples[0]: messages[0].content[0]: text is 1, expected a text",
    ),
    "spans": ("opentelemetry", {"resourceSpans": [1]}, "resourceSpans[0] is 1, expected an object"),
    "spans, time": ("opentelemetry", with_span(startTimeUnixNano="x"), 'startTimeUnixNano is "x", expected a whole'),
    "spans, status": (
        "opentelemetry",
        with_span(status=[]),
        "status is [], expected an object or a text or a whole number",
    ),
    "spans, key": ("opentelemetry", with_span(attributes=[{"key": []}]), "attributes: a key is [], expected a text"),
    "spans, number": (
        "opentelemetry",
        with_span(attributes=[{"key": "a", "value": {"intValue": None}}]),
        "attributes: intValue is null, expected a whole number",
    ),
    "spans, values": (
        "opentelemetry",
        with_span(attributes=[{"key": "a", "value": {"arrayValue": {"values": 1}}}]),
        "attributes: arrayValue: values is 1, expected a list",
    ),
    "spans, parts": ("opentelemetry", answered({"parts": 4}), "parts is 4, expected a list"),
    "spans, answers": (
        "opentelemetry",
        answered({"parts": [{"type": "tool_call_response", "response": "x"}, {"type": "text", "content": "y"}]}),
        "gen_ai.output.messages has answers of tools in a message of the model",
    ),
}


@pytest.mark.parametrize("name", ODD)
def test_a_value_of_another_type_is_named_with_its_place(name, tmp_path):
    kind, value, said = ODD[name]
    path = tmp_path / ("log.json" if kind == "inspect" else "log.jsonl")
    path.write_text(json.dumps(value) + "\n")
    with pytest.raises(DataError, match=re.escape(said)) as raised:
        import_log(path, tmp_path / "out", kind=kind)
    assert "Error" not in str(raised.value)
    assert not (tmp_path / "out").exists()


def test_a_reader_that_fails_is_not_taken_for_a_log_that_is_wrong(tmp_path, monkeypatch):
    """An error in the reader itself is not told as an error of the log."""

    def broken(source):
        raise AttributeError("a bug")
        yield

    monkeypatch.setitem(FORMATS, "chat", dataclasses.replace(FORMATS["chat"], read=broken))
    (tmp_path / "log.jsonl").write_text(json.dumps(chat()) + "\n")
    with pytest.raises(AttributeError, match="a bug"):
        import_log(tmp_path / "log.jsonl", tmp_path / "out")
