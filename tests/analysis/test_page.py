"""The tables, the command line that prints them, and the page that is written from them."""

import csv
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import turnwise as tw
from turnwise.base.tables import as_markdown, as_text
from turnwise.commands import common
from turnwise.commands.cli import main
from turnwise.credit.analysis.__main__ import BY_PROBLEM
from turnwise.credit.analysis.bias import rows
from turnwise.credit.analysis.decisions import PROBLEMS
from turnwise.credit.analysis.tables import across_problems, drifts, in_one_problem, summary

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "bias.md"
FEW = ("rloo", "grpo", "dr_grpo", "gigpo", "aem")
LIGHT = re.compile(r"[-+]?(inf|\d+(\.\d+)?)%?")


@pytest.fixture(scope="module")
def few():
    return list(rows({name: tw.trial(tw.METHODS[name]) for name in FEW}))


def lines(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]


def section(title: str) -> list[list[str]]:
    """The table under a heading of the page, as Markdown or as text; "" for the first."""
    parts = re.split(r"^## (.*)\n", PAGE.read_text(), flags=re.MULTILINE)
    text = dict(zip(["", *parts[1::2]], parts[0::2], strict=True))[title]
    if plain := re.search(r"^```text\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        head, *rows = [re.split(r" {2,}", line) for line in plain[1].splitlines()]
        return [head, ["-"] * len(head), *rows]
    return lines(text)


def agree(printed: str, made: str) -> bool:
    """The same text, or numbers that differ in the last digit by one: another machine sums in another order."""
    if not (LIGHT.fullmatch(printed) and LIGHT.fullmatch(made)) or "inf" in printed + made:
        return (
            [*map(agree, printed.split(" to "), made.split(" to "))] == [True, True]
            if " to " in printed
            else printed == made
        )
    digits = len(printed.rstrip("%").partition(".")[2])
    return abs(float(printed.rstrip("%")) - float(made.rstrip("%"))) < 1.5 * 10.0**-digits


def compare(printed: list[list[str]], made: list[list[str]], *, key: int = 1) -> None:
    """Every line of `made` stands in `printed`, under the same header; the first `key` cells name a line."""
    assert printed[0] == list(made[0])
    on_page = {tuple(line[:key]): line for line in printed[2:]}
    for line in made[1:]:
        there = on_page[tuple(line[:key])]
        assert all(map(agree, there, line)), (
            f"the page says\n{there}\nthe code gives\n{line}\nrun python -m turnwise.credit.analysis"
        )


def compare_page(measured) -> None:
    head, *made = summary(measured)
    compare(section(""), [head, *((name, gradient.split()[0], *rest) for name, gradient, *rest in made)])
    with PAGE.with_name("bias-by-problem.csv").open(newline="") as file:
        head, *kept = csv.reader(file)
    for name, key in BY_PROBLEM.items():
        table = [line[1:] for line in kept if line[0] == name]
        assert [line[0] for line in table] == list(tw.METHODS)
        compare([head[1:], [], *table], across_problems(measured, key))


def test_the_page_is_what_the_code_gives(few, drift):
    compare_page(few)
    compare(section("Drift of entropy"), drifts(drift), key=3)


@pytest.mark.slow
@pytest.mark.usefixtures("array_types_unchecked")
def test_the_page_is_what_the_code_gives_for_every_method():
    compare_page(list(rows({name: tw.trial(make) for name, make in tw.METHODS.items()})))


def test_the_page_declares_what_the_methods_declare():
    declared = {line[0]: line[1] for line in section("")[2:]}
    made = {name: str(tw.trial(make).gradient) for name, make in tw.METHODS.items()}
    assert declared == {name: re.split(r"[: ]", text)[0] for name, text in made.items()}, (
        "run python -m turnwise.credit.analysis"
    )


def test_the_page_has_every_method_and_every_problem():
    assert [line[0] for line in section("")[2:]] == list(tw.METHODS), "run python -m turnwise.credit.analysis"
    assert [line[0] for line in section("The problems")[2:]] == list(PROBLEMS)
    assert "`python -m turnwise.credit.analysis > docs/reference/bias.md`" in PAGE.read_text().splitlines()[0]


@pytest.mark.parametrize(
    ("printed", "made", "same"),
    [
        ("0.12", "0.13", True),
        ("0.12", "0.14", False),
        ("biased", "unbiased", False),
        ("0.39 to 1.02", "0.40 to 1.02", True),
        ("0.39 to 1.02", "0.42 to 1.02", False),
        ("inf", "inf", True),
        ("inf", "1.00", False),
        ("1.0 to inf", "1.0 to inf", True),
        ("42%", "43%", True),
        ("42%", "44%", False),
        ("-", "-", True),
        ("-0.100", "+0.100", False),
    ],
)
def test_the_comparison_can_fail(printed, made, same):
    assert agree(printed, made) == same


def test_a_summary_says_the_worst(few):
    table = {line[0]: dict(zip(summary(few)[0], line, strict=True)) for line in summary(few)[1:]}
    assert table["rloo"] == {
        "method": "rloo", "expected gradient": "unbiased", "cosine": "1.000", "worst in": "-", "bias": "0.000",
        "raw bias": "0.00", "variance, RLOO = 1": "1.00", "K": "3 to 8",
    }  # fmt: skip
    assert table["dr_grpo"]["expected gradient"] == "scaled by (K - 1) / K"
    assert table["dr_grpo"]["raw bias"] == "0.33"  # 1 / K where K is least, 3
    assert table["aem"]["expected gradient"] == "biased"
    worst = min(next(row for row in few if row.name == "aem").measured, key=lambda m: m.cosine)
    assert table["aem"]["worst in"] == worst.problem
    assert table["aem"]["cosine"] == f"{worst.cosine:.3f}"


def test_a_method_without_a_problem_gets_dashes():
    reads = tw.chain(
        tw.Transform("reads", lambda credit_R, state, batch: (credit_R, state), needs=("success",)),
        gradient=tw.Gradient("unbiased"),
    )
    (_, line) = in_one_problem(rows({"reads": reads}, only="dense"))
    assert line == ("reads", "unbiased", "-", "-", "-", "-", "-", "-")
    header, line, _ = across_problems(list(rows({"reads": reads, "rloo": tw.rloo()})), "cosine")
    assert header == ("method", *PROBLEMS)
    assert [problem for problem, cell in zip(header, line, strict=True) if cell == "-"] == [
        "dense",
        "dense-2",
        "lengths",
    ]


def test_tables_for_people_and_for_markdown():
    table = [("a", "b|c"), ("long name", "1")]
    assert as_text(table).splitlines() == ["a          b|c", "long name  1"]
    assert as_markdown(table).splitlines() == ["| a | b\\|c |", "|-|-|", "| long name | 1 |"]


# -- the command line --------------------------------------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch):
    """Two methods only."""
    monkeypatch.setattr("turnwise.credit.analysis.bias.METHODS", {name: tw.METHODS[name] for name in ("rloo", "aem")})


def test_methods_bias_prints_a_line_a_method(quick, capsys):
    assert main(["methods", "--bias", "--problem", "uneven"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert [(line.split()[0], line.split()[-1]) for line in out] == [("method", "K"), ("rloo", "8"), ("aem", "8")]
    assert main(["methods", "--bias", "--markdown"]) == 0
    out, err = capsys.readouterr()
    compare(section(""), [line for line in lines(out) if set(line[0]) != {"-"}])
    assert err == "", "progress is for terminals"


def test_methods_drift_prints_a_line_a_setting(capsys):
    assert main(["methods", "--drift"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1 + 2 * 2 * 3


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--bias", "--problem", "spars"], "unknown problem 'spars'. Did you mean 'sparse'?"),
        (["--problem", "sparse"], "--problem needs --bias"),
        (["--drift", "--problem", "sparse"], "--problem needs --bias"),
    ],
)
def test_a_mistake_is_one_line(arguments, expected, capsys):
    assert main(["methods", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("turnwise: ")
    assert err.count("\n") == 1
    assert expected in err


def test_progress_shows_after_two_seconds_on_a_terminal_and_is_wiped(monkeypatch, capsys):
    clock = iter([0.0, 1.0, 2.5, 3.0])
    ticking = SimpleNamespace(monotonic=lambda: next(clock))  # of this module alone: threads read the clock, too
    monkeypatch.setattr("turnwise.commands.common.time", ticking)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert list(common.progress("abc", 3, "letters")) == ["a", "b", "c"]
    assert capsys.readouterr().err == "\r2/3 letters\r3/3 letters\r\033[K"


def test_analysis_needs_numpy_only():
    code = "import sys, turnwise.credit.analysis.__main__; print(*{name.split('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "scipy", "rich", "pydantic", "matplotlib", "pandas"} & set(done.stdout.split())


def test_importing_turnwise_does_not_import_the_analysis():
    code = "import sys, turnwise; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not [name for name in done.stdout.split() if name.startswith("turnwise.credit.analysis")]
