"""What a terminal and a log file are shown: tables, pages and colours."""

import io
import re

import pytest

from turnwise.base.errors import did_you_mean
from turnwise.base.tables import as_text, page_as_markdown, page_as_text
from turnwise.base.terminal import STYLES, is_tenth, print_page, print_table, say_next

LONG = "pick_clean_then_place_in_recep"
TABLE = [("task type", "grpo + aem", "A - B"), (LONG, "0.125", "+0.125"), ("look [train]", "0.5", "-")]
PAGE = ["# grpo against rloo", "Not shown.", TABLE, "* a remark\n* another"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(params=[20, 60, 200])
def terminal(request, monkeypatch) -> Terminal:
    monkeypatch.setenv("COLUMNS", str(request.param))
    monkeypatch.setenv("TERM", "xterm-256color")
    return Terminal()


def test_a_terminal_gets_tables_without_markdown_and_whole_words(terminal):
    print_page(PAGE, file=terminal)
    text = terminal.getvalue()
    for whole in (LONG, "look [train]", "+0.125", "grpo against rloo", "another"):
        assert whole in text
    assert "|" not in text
    assert "#" not in text


def test_a_file_gets_plain_lines_of_any_width(monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    file = io.StringIO()
    print_table(TABLE, title="Three numbers.", file=file)
    lines = file.getvalue().splitlines()
    assert lines[:2] == ["Three numbers.", ""]
    assert lines[2] == f"{'task type':{len(LONG)}}  grpo + aem  A - B"
    assert lines[3] == f"{LONG}  0.125       +0.125"
    assert len(lines) == 5


def test_markdown_comes_on_request_alone(terminal):
    print_page(PAGE, markdown=True, file=terminal)
    assert terminal.getvalue() == page_as_markdown(PAGE)
    assert f"| {LONG} | 0.125 | +0.125 |" in terminal.getvalue()
    assert page_as_text(PAGE).startswith("grpo against rloo\n\nNot shown.\n\ntask type")


def test_the_next_command_goes_to_stderr(capsys):
    say_next("turnwise report runs/a", "the page")
    assert capsys.readouterr() == ("", "next: turnwise report runs/a   # the page\n")


def test_a_count_passes_each_tenth_once():
    assert [done for done in range(1, 51) if is_tenth(done, 50)] == [5, 10, 15, 20, 25, 30, 35, 40, 45, 50]
    assert is_tenth(0, 0)


def luminance(color: str) -> float:
    """Relative luminance as WCAG 2 defines it."""
    parts = [int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_every_colour_is_legible_on_white_and_on_black():
    colors = [part for style in STYLES.values() for part in style.split() if part.startswith("#")]
    assert colors
    for color in colors:
        assert 1.05 / (luminance(color) + 0.05) >= 4.0, f"{color} on white"
        assert (luminance(color) + 0.05) / 0.05 >= 4.0, f"{color} on black"


def test_texts_of_bars_have_the_colour_of_the_terminal():
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TimeRemainingColumn

    from turnwise.base.terminal import make_console

    file = io.StringIO()
    columns = (BarColumn(), MofNCompleteColumn(), TaskProgressColumn(), TimeRemainingColumn())
    console = make_console(file, force_terminal=True, color_system="truecolor", width=100)
    with Progress(*columns, console=console) as bars:
        bars.update(bars.add_task("x", total=4), completed=1)
    codes = set(re.findall(r"\x1b\[([0-9;]*)m", file.getvalue()))
    assert codes <= {"0", "38;2;43;123;185", "38;5;237"}, "the bar's colour, and its dim rest"


def test_long_lines_of_markdown_are_broken_between_words_and_tables_are_not():
    words, table = " ".join(["word"] * 60), [("name", "text"), ("a", "b" * 200)]
    text = page_as_markdown([f"# {words}", words, f"* {words}\n* short", table])
    heading, _, *lines = text.splitlines()
    assert heading == f"# {words}"
    assert max(len(line) for line in lines if not line.startswith("|")) <= 120
    assert " ".join(text.split()).count("word") == 180
    item = lines[lines.index("") + 1 :]
    assert item[0].startswith("* word")
    assert item[1].startswith("  word")
    assert "* short" in item
    assert f"| a | {'b' * 200} |" in lines


WIDE = [("name", "what", "cost"), ("a-name-of-thirty-characters-ab", f"begin {'word ' * 40}end", "1.5 hours")]
WIDE += [("b", "short", "-")]


def test_a_wide_table_fits_a_hundred_columns_and_loses_the_middle_of_its_widest_cells(capsys):
    print_table(WIDE)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) == 100
    assert re.fullmatch(r"a-name-of-thirty-characters-ab  begin word [word ]*\.\.\.[word ]* end  1.5 hours", lines[1])
    assert lines[2].split() == ["b", "short", "-"]
    print_table(WIDE, wide=True)
    assert WIDE[1][1] in capsys.readouterr().out


def test_names_are_the_last_to_be_shortened():
    many = [[*"abcde"], ["x" * 60, *["y" * 30] * 4]]
    _, second = as_text(many, 108).splitlines()
    assert len(second) == 108
    assert second.split()[0] == "x" * 60
    assert [len(cell) for cell in as_text(many, 60).split()[5:]] == [20, 10, 10, 10, 10]
    numbers = [["head", "number"], ["x" * 60, "0.123 [0.045, 0.678], and more of it"]]
    assert numbers[1][1] in as_text(numbers, 40)


def test_no_bar_is_drawn_into_a_log_even_where_colours_are_forced(monkeypatch):
    from rich.progress import Progress

    from turnwise.base.terminal import make_console

    monkeypatch.setenv("FORCE_COLOR", "1")  # as many a CI does
    file = io.StringIO()
    console = make_console(file)
    assert not console.is_terminal
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bars:
        bars.update(bars.add_task("x", total=4), completed=1)
    assert file.getvalue() == ""


@pytest.mark.parametrize("name", ["qqq", "zzz"])
def test_of_many_options_the_three_nearest_are_named(name):
    many = [f"household-{number}" for number in range(40)] + ["next", "nonesuch-tiny"]
    found = re.fullmatch(r" The nearest of 42: (.*)\.", did_you_mean(name, many))
    assert found
    assert len(found[1].split(", ")) == 3
    assert did_you_mean("", many) == ""
    assert did_you_mean(name, many[:3]) == " Known: household-0, household-1, household-2."
