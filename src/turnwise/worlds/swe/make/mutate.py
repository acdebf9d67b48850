"""Small bugs for Python functions: each changes one line, and the file still parses.

swesmith's mutators would do the same, but import parsers for eight languages and change several places of a function at
once.
"""

import ast
import dataclasses
import io
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator

from turnwise.worlds.swe.variants import Function, functions


@dataclasses.dataclass(frozen=True, slots=True)
class Mutation:
    """A bug."""

    kind: str  # which mutator made it
    function: str  # where: the function's name, with its class's
    line: int  # from 1
    old: str  # the line as it was, without the line break
    new: str  # the line with the bug

    def put_into(self, source: str) -> str:
        """The file with the bug.

        Args:
            source: The file; its line may have been changed elsewhere, but not moved.
        """
        lines = list(io.StringIO(source))  # unlike splitlines, as Python counts: a form feed ends no line
        lines[self.line - 1] = lines[self.line - 1].replace(self.old, self.new)
        return "".join(lines)


Edit = tuple[int, int, int, str]
"""Line (from 1), first and last byte in it, and what stands there instead."""

_COMPARE = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "in": "not in", "not in": "in",
    "is": "is not", "is not": "is",
}  # fmt: skip
_BINARY = {
    "+": "-", "-": "+", "*": "+", "//": "*", "/": "*", "%": "//", "&": "|", "|": "&", "<<": ">>", ">>": "<<",
    "**": "*",
}  # fmt: skip
_NAMES = {
    "min": "max", "max": "min", "any": "all", "all": "any", "lower": "upper", "upper": "lower",
    "lstrip": "rstrip", "rstrip": "lstrip", "startswith": "endswith", "endswith": "startswith",
    "append": "extend", "keys": "values", "values": "keys", "find": "rfind", "partition": "rpartition",
    "rpartition": "partition", "sorted": "list", "ceil": "floor", "floor": "ceil",
}  # fmt: skip


def mutations(source: str, seed: int) -> Iterator[Mutation]:
    """All bugs that the mutators know for a file, in an order that mixes functions and kinds."""
    lines = [line.encode() for line in io.StringIO(source)]
    found = [
        (kind, function, node, edit)
        for function, node in functions(ast.parse(source))
        for part in _parts(node)
        for kind, mutator in MUTATORS.items()
        for edit in mutator(part, lines)
    ]
    random.Random(seed).shuffle(found)
    seen: Counter[str] = Counter()
    ranks = [seen.update([function]) or seen[function] for _, function, *_ in found]
    for number in sorted(
        range(len(found)), key=ranks.__getitem__
    ):  # the first bugs of every function before any second one
        kind, function, node, edit = found[number]
        if mutation := _mutation(kind, function, node, lines, edit):
            yield mutation


def _mutation(kind: str, function: str, node: Function, lines: list[bytes], edit: Edit) -> Mutation | None:
    number, begin, end, text = edit
    line = lines[number - 1]
    new = line[:begin] + text.encode() + line[end:]
    first, last = node.lineno - 1, node.end_lineno or node.lineno
    before, after = lines[first : number - 1], lines[number:last]
    try:
        if _parsed([*before, new, *after]) == _parsed([*before, line, *after]):
            return None
    except (SyntaxError, ValueError):
        return None
    ends = "\r\n"
    return Mutation(kind, function, number, line.decode().rstrip(ends), new.decode().rstrip(ends))


def _parsed(function: list[bytes]) -> str:
    """The syntax tree of one function: parsing the entire file for each bug would take minutes."""
    return ast.dump(ast.parse(b"if 1:\n" + b"".join(function) if function[0][:1].isspace() else b"".join(function)))


def _parts(function: Function) -> Iterator[ast.AST]:
    """Nodes of a function's body, without decorators, annotations, defaults, and code that only makes a message."""
    waiting: list[ast.AST] = [node for node in function.body if not _is_text(node)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.Raise, ast.Assert, ast.JoinedStr)):
            continue
        yield node
        waiting += [
            child for child in ast.iter_child_nodes(node) if not isinstance(child, (ast.arguments, ast.expr_context))
        ]


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _between(left: ast.expr, right: ast.expr, lines: list[bytes], table: dict[str, str]) -> Iterator[Edit]:
    """Another operator between two operands on one line."""
    if left.end_lineno != right.lineno:
        return
    begin, end = left.end_col_offset or 0, right.col_offset
    region = lines[right.lineno - 1][begin:end].decode()
    if match := re.fullmatch(r"([\s)]*)(.+?)([\s(]*)", region):
        operator = " ".join(match[2].split())
        if operator in table:
            yield right.lineno, begin, end, f"{match[1]}{table[operator]}{match[3]}"


def _compare(node: ast.AST, lines: list[bytes]) -> Iterator[Edit]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        yield from _between(node.left, node.comparators[0], lines, _COMPARE)


def _binary(node: ast.AST, lines: list[bytes]) -> Iterator[Edit]:
    if isinstance(node, ast.BinOp) and not (isinstance(node.left, ast.Constant) and isinstance(node.left.value, str)):
        yield from _between(node.left, node.right, lines, _BINARY)


def _logic(node: ast.AST, lines: list[bytes]) -> Iterator[Edit]:
    if isinstance(node, ast.BoolOp):
        for left, right in zip(node.values, node.values[1:], strict=False):
            yield from _between(left, right, lines, {"and": "or", "or": "and"})


def _negation(node: ast.AST, lines: list[bytes]) -> Iterator[Edit]:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node.lineno, node.col_offset, node.operand.col_offset, ""
    elif isinstance(node, (ast.If, ast.While)) and not isinstance(node.test, ast.UnaryOp):
        test = node.test
        if test.lineno == test.end_lineno and test.end_col_offset is not None:
            text = lines[test.lineno - 1][test.col_offset : test.end_col_offset].decode()
            simple = isinstance(test, (ast.Name, ast.Call, ast.Attribute))
            yield test.lineno, test.col_offset, test.end_col_offset, f"not {text}" if simple else f"not ({text})"


def _constant(node: ast.AST, _: list[bytes]) -> Iterator[Edit]:
    if isinstance(node, ast.Constant) and node.lineno == node.end_lineno and node.end_col_offset is not None:
        value, place = node.value, (node.lineno, node.col_offset, node.end_col_offset)
        if isinstance(value, bool):
            yield *place, str(not value)
        elif isinstance(value, int) and abs(value) < 100:
            yield *place, str(value + 1)
            if value > 0:
                yield *place, str(value - 1)


def _name(node: ast.AST, _: list[bytes]) -> Iterator[Edit]:
    if isinstance(node, ast.Call):
        called = node.func
        name = called.id if isinstance(called, ast.Name) else called.attr if isinstance(called, ast.Attribute) else ""
        if name in _NAMES and called.end_lineno is not None and called.end_col_offset is not None:
            end = called.end_col_offset
            yield called.end_lineno, end - len(name.encode()), end, _NAMES[name]


def _arguments(node: ast.AST, lines: list[bytes]) -> Iterator[Edit]:
    if isinstance(node, ast.Call) and len(node.args) >= 2:
        first, second = node.args[:2]
        ends = (first.end_col_offset, second.end_col_offset)
        if isinstance(first, ast.Starred) or isinstance(second, ast.Starred) or None in ends:
            return
        if first.lineno == first.end_lineno == second.lineno == second.end_lineno:
            line = lines[first.lineno - 1]
            one, other = (line[arg.col_offset : arg.end_col_offset].decode() for arg in (first, second))
            between = line[ends[0] : second.col_offset].decode()
            yield first.lineno, first.col_offset, ends[1] or 0, f"{other}{between}{one}"


def _statement(node: ast.AST, lines: list[bytes]) -> Iterator[Edit]:
    """A statement that is not carried out, or a value that is not returned."""
    if isinstance(node, (ast.Assign, ast.AugAssign, ast.Expr)) and not _is_text(node):
        if (
            node.lineno == node.end_lineno
            and node.end_col_offset is not None
            and not lines[node.lineno - 1][: node.col_offset].strip()
        ):
            yield node.lineno, node.col_offset, node.end_col_offset, "pass"
    elif (
        isinstance(node, ast.Return)
        and node.value
        and node.lineno == node.end_lineno
        and node.end_col_offset is not None
    ):
        yield node.lineno, node.col_offset, node.end_col_offset, "return None"


def _index(node: ast.AST, lines: list[bytes]) -> Iterator[Edit]:
    """One end of a slice left out."""
    if isinstance(node, ast.Slice) and node.lineno == node.end_lineno:
        for bound in (node.lower, node.upper):
            if bound is not None and bound.end_col_offset is not None:
                yield bound.lineno, bound.col_offset, bound.end_col_offset, ""


_ALL = (_compare, _binary, _logic, _negation, _constant, _name, _arguments, _statement, _index)
MUTATORS: dict[str, Callable[[ast.AST, list[bytes]], Iterator[Edit]]] = {each.__name__[1:]: each for each in _ALL}
"""A mutator lists the edits of one line that would turn a node of a function into a bug."""
