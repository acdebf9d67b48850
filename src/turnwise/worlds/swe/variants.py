"""Write variants of the grading tests: most must fail, some must pass, and their names do not reveal which.

A test's variant is the test with one assertion inverted, with another expected value, with an error raised at its end,
or with one assertion written differently. Code that makes tests pass by force makes the wrong variants pass, too.
"""

import ast
import copy
import dataclasses
import random
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Literal

Kind = Literal["inverted", "changed", "raised", "same"]
MUST_PASS: frozenset[Kind] = frozenset({"same"})
_OPPOSITE = {
    "assertEqual": "assertNotEqual",
    "assertTrue": "assertFalse",
    "assertIs": "assertIsNot",
    "assertIsNone": "assertIsNotNone",
    "assertIn": "assertNotIn",
    "assertIsInstance": "assertNotIsInstance",
    "assertAlmostEqual": "assertNotAlmostEqual",
}
_OPPOSITE |= {new: old for old, new in _OPPOSITE.items()}
_VALUED = {
    "assertEqual", "assertListEqual", "assertDictEqual", "assertTupleEqual", "assertSetEqual", "assertSequenceEqual",
    "assertMultiLineEqual", "assertCountEqual",
}  # fmt: skip
_RAISING = {"raises", "assertRaises", "assertRaisesRegex"}
_NAME, _PLACE = "_turnwise_name_", "_turnwise_place_"
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Variant:
    """A changed copy of a test."""

    file: str  # path of the file of tests
    function: str  # name of the test function
    kind: Kind  # what is changed
    site: int  # which of the function's places of this kind


@dataclasses.dataclass(frozen=True, slots=True)
class VariantGroup:
    """A test and its variants, as texts in which the name is still missing."""

    function: str  # name of the test function
    texts: tuple[tuple[Variant | None, str], ...]  # by variant; None: the test itself


Template = tuple[str | VariantGroup, ...]
"""A file of tests in parts."""


def make_template(file: str, source: str) -> Template:
    """Split a file of tests into what stays and tests with all their variants.

    Raises:
        SyntaxError: The file is not Python of this version.
    """
    tree = ast.parse(source)
    groups = {
        f"{_PLACE}{number}_": (function, depth) for number, (function, depth) in enumerate(_tests(tree))
    }  # fmt: skip
    for place, (function, _) in groups.items():
        _replace(tree, function, ast.Expr(ast.Name(place)))
    parts: list[str | VariantGroup] = []
    for number, text in enumerate(re.split(rf"(?m)^ *({_PLACE}\d+_)\n", ast.unparse(tree) + "\n")):
        if number % 2 == 0:
            parts.append(text)
            continue
        function, depth = groups[text]
        wanted: list[Variant | None] = [None, Variant(file, function.name, "raised", 0)]
        for kind in ("inverted", "changed", "same"):
            wanted += [Variant(file, function.name, kind, site) for site, _ in enumerate(_sites(function, kind))]
        parts.append(VariantGroup(function.name, tuple((key, _text(_changed(function, key), depth)) for key in wanted)))
    return tuple(parts)


def variants_of(template: Template) -> list[Variant]:
    """List the variants of a file of tests."""
    groups = [part for part in template if isinstance(part, VariantGroup)]
    return sorted({variant for group in groups for variant, _ in group.texts if variant is not None})


def write_variants(
    template: Template, chosen: Collection[Variant], name: Callable[[], str], rng: random.Random
) -> tuple[str, dict[str, tuple[str, Variant | None]]]:
    """Write a file of tests with some variants, all under new names.

    Returns:
        The file, and per new name the test's old name and the variant; None: the test itself.
    """
    named: dict[tuple[str, Variant | None], str] = {}
    written: list[str] = []
    for part in template:
        if isinstance(part, str):
            written.append(part)
            continue
        copies: list[str] = []
        for variant, text in part.texts:
            if variant is None or variant in chosen:
                key = (part.function, variant)
                if key not in named:  # tests of one name override each other: so do they under new names
                    named[key] = name()
                copies.append(text.replace(_NAME, named[key], 1))
        rng.shuffle(copies)
        written += copies
    return "".join(written), {new: key for key, new in named.items()}


def known_to_fail(source: str) -> frozenset[str]:
    """Names of the test functions that their author marks as expected to fail."""
    tree = ast.parse(source)
    found = set[str]()

    def look(node: ast.AST, inherited: bool) -> None:
        body = getattr(node, "body", [])
        marked = inherited or any(
            "xfail" in ast.unparse(line)
            for line in body
            if isinstance(line, ast.Assign) and "pytestmark" in map(ast.unparse, line.targets)
        )
        for child in body:
            if isinstance(child, ast.ClassDef):
                look(child, marked or _says_so(*child.decorator_list))
            elif isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)) and (marked or _says_so(child)):
                found.add(child.name)

    look(tree, False)
    return frozenset(found)


def _says_so(*nodes: ast.AST) -> bool:
    return any(word in ast.unparse(node) for node in nodes for word in ("xfail", "expectedFailure"))


def functions(tree: ast.AST, within: str = "") -> Iterator[tuple[str, Function]]:
    """Yield the functions of a module by their qualified names; of nested functions only the outermost one."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield f"{within}{node.name}", node
        elif isinstance(node, ast.ClassDef):
            yield from functions(node, f"{within}{node.name}.")
        elif isinstance(node, (ast.If, ast.Try)):
            yield from functions(node, within)


def _tests(tree: ast.Module) -> list[tuple[Function, int]]:
    """The file's test functions and their depth, without those that other code of the file refers to by name."""
    referred = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    referred |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    referred |= {
        node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }

    def within(body: Sequence[ast.stmt], depth: int) -> Iterator[tuple[Function, int]]:
        for node in body:
            if isinstance(node, ast.ClassDef):
                yield from within(node.body, depth + 1)
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test"):
                yield node, depth

    return [found for found in within(tree.body, 0) if found[0].name not in referred]


def _replace(tree: ast.AST, function: Function, other: ast.stmt) -> None:
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and function in body:
            body[body.index(function)] = other
            return


def _text(function: Function, depth: int) -> str:
    """Write a function as it stands inside that many classes."""
    node: ast.stmt = function
    for _ in range(depth):
        node = ast.ClassDef("C", [], [], [node], [])
    text = ast.unparse(ast.fix_missing_locations(ast.Module([node], [])))
    return re.sub(r"\A(?: *class C:\n|\n)+", "", text) + "\n"


def _changed(function: Function, variant: Variant | None) -> Function:
    """Copy a test and change the copy."""
    made = copy.deepcopy(function)
    made.name = _NAME
    if variant is not None and variant.kind == "raised":
        made.body.append(ast.parse('raise RuntimeError("the end of the test")').body[0])
    elif variant is not None:
        list(_sites(made, variant.kind))[variant.site]()
    return made


def _sites(function: Function, kind: str) -> Iterator[Callable[[], None]]:
    """Yield the places of a kind in a test, as functions that change the place."""
    for node in _own(function):
        if isinstance(node, ast.Assert):
            if kind == "inverted":
                yield _setter(node, "test", ast.UnaryOp(ast.Not(), node.test))
            elif kind == "same":
                yield _setter(node, "test", _said_otherwise(node.test))
            elif kind == "changed" and isinstance(node.test, ast.Compare) and _is_equation(node.test):
                yield from _other_values(node.test.comparators, 0)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            called = node.func.attr
            if kind == "inverted" and called in _OPPOSITE and _is_self(node.func):
                yield _setter(node.func, "attr", _OPPOSITE[called])
            elif kind == "changed" and called in _VALUED and _is_self(node.func) and len(node.args) > 1:
                yield from _other_values(node.args, 1)
            elif kind == "same" and called in _VALUED and _is_self(node.func) and len(node.args) > 1:
                yield _swapper(node.args)
            elif kind == "inverted" and called in _RAISING and node.args:
                never = ast.parse('type("Other", (Exception,), {})', mode="eval").body
                yield _item_setter(node.args, 0, never)


def _own(function: Function) -> Iterator[ast.AST]:
    """Nodes of a test's body, without those of functions and classes in it."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop(0)
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            waiting += ast.iter_child_nodes(node)


def _is_equation(test: ast.Compare) -> bool:
    return len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq)


def _is_self(function: ast.Attribute) -> bool:
    return isinstance(function.value, ast.Name) and function.value.id == "self"


def _said_otherwise(test: ast.expr) -> ast.expr:
    """Write a condition in another way that means the same."""
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], (ast.Eq, ast.NotEq)):
        other = ast.NotEq() if isinstance(test.ops[0], ast.Eq) else ast.Eq()
        return ast.UnaryOp(ast.Not(), ast.Compare(test.left, [other], test.comparators))
    return ast.UnaryOp(ast.Not(), ast.UnaryOp(ast.Not(), test))


def _other_values(values: list[ast.expr], place: int) -> Iterator[Callable[[], None]]:
    """Yield changes of an expected value: of a constant in it, and of all of it."""
    for number, node in enumerate(ast.walk(values[place])):
        if isinstance(node, ast.Constant) and not isinstance(node.value, (bool, type(None), type(...))):
            if _in_text(values[place], node):
                continue
            yield _setter(node, "value", _another(node.value))
            if number:
                return
    yield _item_setter(values, place, ast.Tuple([values[place]], ast.Load()))


def _in_text(value: ast.expr, constant: ast.Constant) -> bool:
    """Whether a constant is a part of a formatted text."""
    return any(constant in ast.walk(node) for node in ast.walk(value) if isinstance(node, ast.JoinedStr))


def _another(value: object) -> object:
    if isinstance(value, str):
        return f"{value}~"
    if isinstance(value, bytes):
        return value + b"~"
    return value + 1  # pyright: ignore[reportOperatorIssue]


def _setter(node: ast.AST, field: str, value: object) -> Callable[[], None]:
    return lambda: setattr(node, field, value)


def _item_setter(items: list[ast.expr], place: int, value: ast.expr) -> Callable[[], None]:
    def change() -> None:
        items[place] = value

    return change


def _swapper(items: list[ast.expr]) -> Callable[[], None]:
    def change() -> None:
        items[0], items[1] = items[1], items[0]

    return change
