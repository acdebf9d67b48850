"""What environments, models and logs write reaches the terminal with its control characters escaped."""

import ast
import io
import re
from pathlib import Path

import pytest

import turnwise
from turnwise.base.terminal import make_console, print_page, say, visible
from turnwise.commands.cli import main
from turnwise.commands.play import _Screen
from turnwise.environments.base import Step

EVIL = "a\x1b]0;title\x07b\x1b[2J\rc\x9b31m\u202ed\x00e\x7f\ud800"
SHOWN = "a\\x1b]0;title\\x07b\\x1b[2J\\rc".replace("\\r", "\\x0d") + "\\x9b31m\\u202ed\\x00e\\u007f\\ud800"
SOURCE = Path(turnwise.__file__).parent
OTHER_PROCESSES = {
    "__main__.py",
    "extensions/gateway/child.py",
    "worlds/swe/inside",
    "worlds/swe/make/reach.py",
}
"""Fixed texts before the package is loaded, and programs whose output another process reads."""


class Terminal(io.StringIO):
    """A terminal that keeps what is written."""

    def isatty(self) -> bool:
        return True


def test_control_characters_are_escaped_and_lines_and_tabs_stay():
    assert visible(EVIL) == SHOWN
    assert visible("a\n\tb ü 中 😀 [x]") == "a\n\tb ü 中 😀 [x]"
    assert visible(visible(EVIL)) == SHOWN


@pytest.mark.parametrize("terminal", [True, False])
def test_tables_pages_and_consoles_escape(terminal):
    for show in (
        lambda out: print_page([EVIL, [["name", "value"], [EVIL, "1"]]], file=out),
        lambda out: make_console(out, width=200).print(EVIL, markup=False),
        lambda out: say(EVIL, file=out),
    ):
        out = Terminal() if terminal else io.StringIO()
        show(out)
        assert SHOWN in out.getvalue()
        assert not {"\x07", "\r", "\x9b", "\u202e", "\x00", "\x1b]"} & {*out.getvalue()}
        assert "\x1b]" not in out.getvalue()
        assert "\x1b[2J" not in out.getvalue()


def test_play_shows_observations_and_responses_escaped(capsys):
    screen = _Screen(EVIL, EVIL)
    screen.observation(Step(observation=f"first\n\tsecond {EVIL}"))
    screen.response(EVIL, 0.5)
    screen.choices([EVIL])
    out = capsys.readouterr().out
    assert out.count(SHOWN) == 5
    assert "first\n\tsecond" in out or "first\n" in out
    assert not {"\x1b", "\x07", "\r", "\x9b", "\u202e"} & {*out}


def test_an_error_is_escaped(capsys):
    assert main(["import", f"no{EVIL[:-1]}.jsonl".replace("\x00", "")]) == 2
    assert not {"\x1b", "\x07", "\r", "\x9b", "\u202e"} & {*capsys.readouterr().err}


def test_no_file_prints_past_the_terminal():
    """`say` and the consoles of `make_console` are the one place where text goes out, so that no command forgets."""
    found = []
    for file in sorted(SOURCE.rglob("*.py")):
        path = file.relative_to(SOURCE).as_posix()
        if path == "base/terminal.py" or any(path.startswith(other) for other in OTHER_PROCESSES):
            continue
        text = file.read_text()
        for node in ast.walk(ast.parse(text)) if re.search(r"print|Console|sys\.std", text) else ():
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                if called in ("print", "Console", "sys.stdout.write", "sys.stderr.write"):
                    found.append(f"{path}:{node.lineno}: {called}")
    assert found == []
