"""Run the agent's tool calls in a workspace, and format their answers.

A call is text in the form of most chat models:
`<tool_call>{"name": "view", "arguments": {"path": "a.py"}}</tool_call>`.
"""

import json
import re
import shlex
from collections.abc import Callable, Mapping
from typing import Any

from turnwise.base.errors import did_you_mean
from turnwise.environments.plain import sound_text
from turnwise.environments.tool_calls import ParsedCall, read_tool_calls
from turnwise.worlds.swe.workspace import CommandResult, Workspace

CUT = "[... {} characters left out ...]"
MAX_FILE = 1_000_000
"""Maximum size of editable files (bytes)."""
MAX_COMMAND = 120_000
"""Maximum command size (bytes): Linux takes 131,072 in one argument."""

# Name, what it does, and its arguments with their types; those in brackets may be left out.
TOOLS: dict[str, tuple[str, dict[str, type], dict[str, type]]] = {
    "run": ("Run a shell command.", {"command": str}, {}),
    "view": ("Show a file's numbered lines.", {"path": str}, {"start": int, "end": int}),
    "search": ("Find lines with a text.", {"text": str}, {"path": str}),
    "edit": (
        "Replace an old text, which must stand once in the file or at the line; without old, the line. "
        "An empty old makes a file.",
        {"path": str, "new": str},
        {"old": str, "line": int},
    ),
    "submit": ("Hand the repair in.", {}, {}),
}


class Rejected(Exception):
    """The call is malformed or cannot be executed; the text is for the agent."""


def describe(names: Mapping[str, object] = TOOLS) -> str:
    """Describe the tools briefly, because schemas are too long for small models."""
    lines = ['Each turn, one call: <tool_call>{"name": NAME, "arguments": {...}}</tool_call>']
    for name in names:
        what, must, may = TOOLS[name]
        lines.append(f"{name}({', '.join([*must, *(f'[{optional}]' for optional in may)])}): {what}")
    return "\n".join(lines)


def write_call(name: str, **arguments: Any) -> str:
    """Format a call."""
    text = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>{text}</tool_call>"


def read_call(response: str) -> tuple[str, dict[str, Any]]:
    """Parse the single call of a response.

    Raises:
        Rejected: It has no call, several, or an invalid one.
    """
    _, calls = read_tool_calls(response)
    if not calls:
        raise Rejected(f"No tool call was found. {describe().splitlines()[0]}")
    if len(calls) > 1:
        raise Rejected(f"{len(calls)} tool calls were found; make one a turn. Nothing was done.")
    return _checked(calls[0])


def _checked(call: ParsedCall) -> tuple[str, dict[str, Any]]:
    if call.malformed:
        raise Rejected('The call is not valid JSON with "name" and "arguments".')
    if call.name not in TOOLS:
        raise Rejected(f"There is no tool {call.name!r}.{did_you_mean(call.name, TOOLS)}")
    _, must, may = TOOLS[call.name]
    arguments: dict[str, Any] = json.loads(call.arguments)
    kinds = must | may
    for name, value in arguments.items():
        if name not in kinds:
            raise Rejected(f"{call.name} takes no argument {name!r}.{did_you_mean(name, kinds)}")
        if not isinstance(value, kinds[name]) or isinstance(value, bool):
            raise Rejected(f"{call.name}: {name} must be {'a text' if kinds[name] is str else 'a whole number'}.")
        if isinstance(value, str) and "\0" in value:
            raise Rejected(f"{call.name}: {name} holds a zero byte.")
        if isinstance(value, str) and sound_text(value) is not value:
            raise Rejected(f"{call.name}: {name} holds half a surrogate pair, which is no text.")
    if missing := [name for name in must if name not in arguments]:
        raise Rejected(f"{call.name} needs the argument {missing[0]!r}.")
    return call.name, arguments


class Tools:
    """Execute calls in a workspace. All file access runs inside the sandbox, so links cannot leave it.

    Args:
        workspace: The workspace.
        output_chars: Maximum answer length (characters); longer ones show beginning and end, and how much is omitted.
        view_lines: Lines of a file shown at once.
        search_lines: Lines shown of a search.
    """

    def __init__(self, workspace: Workspace, *, output_chars: int, view_lines: int, search_lines: int):
        self._workspace, self._chars = workspace, output_chars
        self._view_lines, self._search_lines = view_lines, search_lines

    def call(self, name: str, arguments: dict[str, Any]) -> str:
        """Execute a call from `read_call`, except "submit"; returns the answer for the agent.

        Raises:
            Rejected: The call cannot be executed.
        """
        tools: dict[str, Callable[..., str]] = {
            "run": self._run,
            "view": self._view,
            "search": self._search,
            "edit": self._edit,
        }
        return tools[name](**arguments)

    def _done(self, command: str, **how: Any) -> CommandResult:
        """Run a command."""
        if (size := len(command.encode())) > MAX_COMMAND:
            raise Rejected(
                f"The call makes a command of {size} bytes; it may have {MAX_COMMAND}. Write what is long with edit."
            )
        return self._workspace.run(command, **how)

    def _run(self, command: str) -> str:
        outcome = self._done(command)
        text = self._text(outcome.output).rstrip("\n")
        if outcome.stopped_by:
            return self._shortened(text, f"[stopped: it took too much {outcome.stopped_by}]")
        return self._shortened(text, f"[exit status {outcome.code}]")

    def _view(self, path: str, start: int = 1, end: int | None = None) -> str:
        lines = [line.rstrip("\r") for line in _lines(self._content(path))]
        start = max(1, start)
        last = min(len(lines), start + self._view_lines - 1 if end is None else end)
        if start > len(lines):
            raise Rejected(f"{path} has {len(lines)} lines.")
        last = min(last, start + self._view_lines - 1)
        shown = "\n".join(f"{number}: {lines[number - 1]}" for number in range(start, last + 1))
        return self._shortened(shown, f"[lines {start} to {max(start, last)} of {len(lines)}]")

    def _search(self, text: str, path: str = ".") -> str:
        where, what = shlex.quote(path), shlex.quote(text)
        outcome = self._done(f"grep -rHnIFs --exclude-dir=.git -e {what} -- {where}")
        found = sorted((line.removeprefix("./") for line in _lines(self._text(outcome.output))), key=_place)
        shown = found[: self._search_lines]
        notes = [f"[{len(found)} lines found, {len(shown)} shown]"] if len(found) > len(shown) else []
        if outcome.stopped_by:
            notes.append(f"[stopped: it took too much {outcome.stopped_by}; there may be more]")
        return self._shortened("\n".join(shown), "\n".join(notes)) or "Nothing was found."

    def _edit(self, path: str, new: str, old: str | None = None, line: int | None = None) -> str:
        if old == "":
            made = 'test ! -e "$1" && mkdir -p -- "$(dirname -- "$1")" && cat > "$1"'
            if self._do(made, path, new).code:
                raise Rejected(f"{path} cannot be made; does it exist? To change it, old must be a text of it.")
            return f"{path} was made."
        content = self._content(path)
        place, old = _stands_at(content, line, path) if old is None else (_found(content, old, line, path), old)
        if self._do('cat > "$1"', path, content[:place] + new + content[place + len(old) :]).code:
            raise Rejected(f"{path} cannot be written.")
        return f"{path} was edited."

    def _do(self, script: str, path: str, stdin: str) -> CommandResult:
        return self._done(f"set -- {shlex.quote(path)}; {script}", stdin=stdin.encode("utf-8", "surrogateescape"))

    def _content(self, path: str) -> str:
        outcome = self._done(f"cat -- {shlex.quote(path)}", output_chars=MAX_FILE + 1)
        if outcome.code:
            raise Rejected(f"{path} cannot be read: is it a file?")
        if len(outcome.output) > MAX_FILE:
            raise Rejected(f"{path} is longer than {MAX_FILE} bytes.")
        return outcome.output.decode("utf-8", "surrogateescape")

    def _text(self, output: bytes) -> str:
        return output.decode(errors="replace")

    def _shortened(self, text: str, note: str) -> str:
        text = text.encode("utf-8", "replace").decode()
        room = self._chars - len(note) - len(CUT) - 10  # the number and line breaks
        if len(text) > room:
            half = max(0, room // 2)
            cut = CUT.format(len(text) - 2 * half)
            text = f"{text[:half]}\n{cut}\n{text[len(text) - half :]}"
        return "\n".join(filter(None, (text, note)))


def _lines(text: str) -> list[str]:
    """Split into lines at line breaks only, unlike Python's `splitlines`."""
    return text.removesuffix("\n").split("\n") if text else []


def _found(content: str, old: str, line: int | None, path: str) -> int:
    """Find where an old text begins; it must occur once, or once at the line."""
    places = [found.start() for found in re.finditer(re.escape(old), content)]
    if line is not None and len(places) != 1:
        begins = [0, *(found.end() for found in re.finditer("\n", content)), len(content) + 1]
        here = range(*begins[line - 1 : line + 1]) if 1 <= line < len(begins) else range(0)
        places = [place for place in places if place in here]
    if len(places) != 1:
        where = f" at line {line}" if line is not None else ""
        raise Rejected(
            f"The old text stands {len(places)} times in {path}{where}; it must stand there once. Nothing was done."
        )
    return places[0]


def _stands_at(content: str, line: int | None, path: str) -> tuple[int, str]:
    """Find where the text of a line begins after its indentation; returns the place and the text."""
    if line is None:
        raise Rejected("edit needs the argument 'old' or 'line'.")
    lines = _lines(content) or [""]
    if not 1 <= line <= len(lines):
        raise Rejected(f"{path} has {len(lines)} lines, so there is no line {line}.")
    standing = lines[line - 1]
    text = standing.strip()
    indentation = len(standing) - len(standing.lstrip()) if text else 0
    return sum(len(earlier) + 1 for earlier in lines[: line - 1]) + indentation, text


def _place(line: str) -> tuple[str, int]:
    """Parse file and line of a grep result."""
    path, _, rest = line.partition(":")
    number = rest.partition(":")[0]
    return path, int(number) if number.isdecimal() and len(number) < 19 else 0  # the agent may have replaced grep
