"""Writes what an agent is told of a bug: where it is, as far as its tier says so, and how a test of it fails."""

import ast
import textwrap

_TEST_LINES, _SAID_CHARS = 12, 300


def statement(package: str, tier: int, places: list[tuple[str, int, str, str]], failures: list[tuple[str, str]]) -> str:
    """A problem statement.

    Args:
        package: Its name.
        tier: 1: file, line and the line's text are told; 2: file and function; 3: only what happens.
        places: Path, line, text of the line, and function of each bug.
        failures: Source of a test that fails, and what it said.
    """
    parts = []
    for path, line, text, function in places:
        if tier == 1:
            parts.append(f"The bug is in {path}, line {line}:\n{text.strip()}")
        elif tier == 2:
            parts.append(f"The bug is in {path}, in {function}.")
    begin = f"{package} has a bug." if len(places) == 1 else f"{package} has {len(places)} bugs."
    if tier == 3:
        parts.append("Find where it is." if len(places) == 1 else "Find where they are.")
    for source, said in failures:
        parts.append(f"This test fails:\n{source}\nIt says: {said}")
    return "\n".join([begin, *parts])


def test_source(module: str, name: str) -> str:
    """The source of a test, shortened.

    Args:
        module: Source of the test's file.
        name: The test's name, as `path::Class::test[parameters]`.
    """
    *within, function = name.partition("::")[2].partition("[")[0].split("::")
    nodes: list[ast.AST] = [ast.parse(module)]
    for wanted in (*within, function):
        nodes = [
            child
            for node in nodes
            for child in ast.walk(node)
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and child.name == wanted
        ]
    parameters = name.partition("[")[2].rstrip("]")
    shown = f"{function}[{parameters}]" if parameters else function
    if not nodes:
        return shown
    source = textwrap.dedent(ast.get_source_segment(module, nodes[0], padded=True) or shown)
    lines = [line for line in source.splitlines() if line.strip()]
    if len(lines) > _TEST_LINES:
        lines = [*lines[:_TEST_LINES], "    ..."]
    return "\n".join([*lines, *([f"with the parameters {parameters}"] if parameters else [])])


def said(reason: str) -> str:
    """What a failing test said, in one short line."""
    words = " ".join(reason.partition(": ")[2].split() or reason.split())
    return words if len(words) <= _SAID_CHARS else f"{words[:_SAID_CHARS]} ..."
