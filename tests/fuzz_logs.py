"""Damaged logs of other agents: `turnwise import` reads them, or ends with one line and writes nothing.

python -m tests.fuzz_logs CASES [SEED]    # at the repository's root: print every finding; exit code 1 if any
"""

import contextlib
import gzip
import io
import json
import random
import shutil
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.fuzz import described, report
from tests.integrations.logs.test_agents import atif, episode, pair, rollout
from tests.integrations.logs.test_formats import EVAL, chat, export, sample, traced, verifiers
from turnwise.commands.cli import main
from turnwise.integrations.logs.formats import READ

DEEP: Any = []
for _ in range(600):
    DEEP = [DEEP]
VALUES = (
    *(
        None,
        True,
        0,
        -1,
        1.5,
        10**400,
        1e308,
        float("nan"),
        float("-inf"),
        "",
        "x",
        "\ud800",
        "\x1b[2J\x00",
        "1" * 5000,
    ),
    *([], {}, [None], [[]], {"": {}}, {"key": None}, "[" * 100_000, '{"a": NaN}', DEEP, "null", "\U0001f600"),
)
VERBATIM = (
    b"\xef\xbb\xbf",
    b"\xff\xfe",
    b"\x00",
    b"[" * 50_000,
    b'{"a":1,"a":2}\n',
    b"1e999\n",
    b"null\n",
    b"9" * 6000,
)


def numbered() -> dict[str, Any]:
    """Return a span of OpenInference."""
    message = {"role": "user", "contents.0.message_content.text": "q", "tool_calls.0.tool_call.function.name": "f"}
    told = {f"llm.input_messages.{number}.message.{key}": value for number in "01" for key, value in message.items()}
    told |= {"openinference.span.kind": "LLM", "llm.output_messages.0.message.content": "a", "llm.tools.0.tool": "{}"}
    return {
        "traceId": "t",
        "name": "x",
        "attributes": [{"key": k, "value": {"stringValue": v}} for k, v in told.items()],
    }


def logs() -> dict[str, bytes]:
    """One good log per format."""

    def lines(*values: Any) -> bytes:
        return "".join(json.dumps(value) + "\n" for value in values).encode()

    return {
        "chat.jsonl": lines(chat(), chat(0.0), chat(reward=None)),
        "verifiers.jsonl": lines(verifiers(), verifiers(reward=0.0)),
        "spans.jsonl": lines(*traced()),
        "numbered.jsonl": lines(export(numbered())),
        "inspect.json": json.dumps({"eval": {"task": "t", "model": "m"}, "samples": [sample(), sample()]}).encode(),
        "sums.eval": EVAL.read_bytes(),
        "trajectory.json": json.dumps(atif()).encode(),
        "traces.jsonl": lines(episode("a"), episode("b", 0.0)),
        "rollouts.jsonl": lines(rollout(0, 1.0), rollout(1, 0.0)),
        "requests.jsonl": lines(pair(chat()["messages"][:2], chat()["messages"][2], reward=1)),
    }


def places(value: Any) -> Iterator[tuple]:
    """Yield where something stands in a value, which may be nested deeper than functions can be."""
    waiting: list[tuple[Any, tuple]] = [(value, ())]
    while waiting:
        inner, path = waiting.pop()
        if path:
            yield path
        keys = [*inner] if isinstance(inner, dict) else range(len(inner)) if isinstance(inner, list) else ()
        waiting += [(inner[key], (*path, key)) for key in reversed(keys)]


def change_value(value: Any, chance: random.Random) -> Any:
    """Remove a value somewhere inside, or put another in its place."""
    where = list(places(value))
    if not where:
        return fresh(chance)
    *folders, last = chance.choice(where)
    inner = value
    for key in folders:
        inner = inner[key]
    if chance.random() < 0.25:
        del inner[last]
    else:
        inner[last] = fresh(chance)
    return value


def fresh(chance: random.Random) -> Any:
    """Return one of the values, as a copy: a later change may reach into it."""
    return json.loads(json.dumps(chance.choice(VALUES)))


def change_json(data: bytes, chance: random.Random) -> bytes:
    """Change values of a text in JSON, or of one of its lines."""
    lines = data.splitlines() or [b"{}"]
    place = chance.randrange(len(lines))
    value = json.loads(lines[place])
    for _ in range(chance.choice((1, 1, 2, 4))):
        value = change_value(value, chance)
    with contextlib.suppress(RecursionError):  # a deep value put into another one
        lines[place] = json.dumps(value).encode()
    return b"\n".join(lines) + b"\n"


def change_bytes(data: bytes, chance: random.Random) -> bytes:
    """Flip bits, cut, double, or insert what parsers get wrong."""
    made = bytearray(data)
    kind = chance.randrange(4)
    place = chance.randrange(len(made) + 1)
    if kind == 0:
        for _ in range(chance.choice((1, 3, 20))):
            made[chance.randrange(len(made))] ^= 1 << chance.randrange(8)
    elif kind == 1:
        del made[place:]
    elif kind == 2:
        made[place:place] = made[: chance.randrange(len(made) + 1)]
    else:
        made[place if chance.random() < 0.5 else 0 : place] = chance.choice(VERBATIM)
    return bytes(made)


def change_archive(data: bytes, chance: random.Random) -> bytes:
    """Write an archive anew with one member changed."""
    old, new = zipfile.ZipFile(io.BytesIO(data)), io.BytesIO()
    texts = {}
    from turnwise.integrations.logs.inspect_logs import _content

    for member in old.infolist():
        texts[member.filename] = _content(old, member)
    name = chance.choice(sorted(texts))
    with contextlib.suppress(ValueError):
        texts[name] = change_json(texts[name].replace(b"\n", b" "), chance)
    with zipfile.ZipFile(
        new, "w", chance.choice((zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA, zipfile.ZIP_STORED))
    ) as archive:
        for member, text in texts.items():
            if member != name or chance.random() < 0.9:
                archive.writestr(member, text)
    return new.getvalue()


def write_case(chance: random.Random, good: dict[str, bytes]) -> Path:
    """Write a damaged log into the working directory."""
    name, data = chance.choice(sorted(good.items()))
    if chance.random() < 0.6:
        data = change_archive(data, chance) if name.endswith(".eval") else change_json(data, chance)
    else:
        data = change_bytes(data, chance)
    kind = chance.random()
    if kind < 0.05:
        data, name = gzip.compress(data)[: None if chance.random() < 0.7 else -5], f"{name}.gz"
    elif kind < 0.08:
        data = data.decode("utf-8", "replace").encode("utf-16")
    elif kind < 0.11:
        data = b"\xef\xbb\xbf" + data
    path = Path(name)
    path.write_bytes(data)
    return path


def fuzz_logs(cases: int, seed: int) -> Iterator[str]:
    """Yield what is wrong with each case that is wrong."""
    good = logs()
    warnings.simplefilter("ignore")
    for number in range(cases):
        chance = random.Random(f"{seed}-{number}")
        path = write_case(chance, good)
        kind = chance.choice(([], [], [], ["--format", chance.choice(READ)]))
        reward = chance.choice(([], [], ["--reward", "other"]))
        out, said = io.StringIO(), io.StringIO()
        wrong = ""
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(said):
                code = main(["import", str(path), "--out", "made", *kind, *reward])
            if code not in (0, 2) or (code == 2 and said.getvalue().count("\n") != 1):
                wrong = f"exit code {code}: {said.getvalue()!r}"
            elif code == 2 and Path("made").exists():
                wrong = f"refused, and left a folder: {said.getvalue()!r}"
        except Exception as error:  # the finding
            wrong = described(error)
        shutil.rmtree("made", ignore_errors=True)
        if wrong:
            yield f"{number}: {path} {kind} {reward}: {wrong}"
        path.unlink()


if __name__ == "__main__":
    report(fuzz_logs)
