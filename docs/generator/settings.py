"""Every setting of a recipe and every key of a study, from the fields of their sections and the docstrings there."""

import ast
import inspect
import itertools
import json
import textwrap
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import annotated_types
import pydantic
from pydantic_core import PydanticUndefined

from generator.text import prose, sentence, wrap
from turnwise.base.section import Kinds, Named, Section
from turnwise.config import Config
from turnwise.lab.diagnostics.study import StudyConfig

DOCS = Path(__file__).parents[1]
PAGE = DOCS / "reference" / "settings.md"
LEARN, ASK = "how-to/other-ways-to-learn.md", "how-to/what-methods-ask-for.md"
ELSEWHERE = {
    "environment.direction": LEARN,
    "rollout.turn_budget": LEARN,
    "update.preference": LEARN,
    "update.passes": LEARN,
    "reward_model": LEARN,
    "judge": ASK,
    "continuations": ASK,
    "monitor": ASK,
    "store": "how-to/stores.md",
    "demonstrations": "how-to/demonstrations.md",
    "harness": "reference/harness.md",
}
"""Page below docs, by the section of an extension whose settings stand at its end."""
SAME = {"judge.engine": "engine"}
"""A section with the keys of another one, which is explained there."""
MARK = "\n## Settings\n\n<!-- Made by `python docs/generate.py` from the docstrings of the fields. Edit those. -->\n"
HEAD = """# Settings

<!-- Made by `python docs/generate.py` from the docstrings of the fields. Edit those. -->

A recipe is a TOML file with these keys; on the command line they are overrides such as `update.learning_rate=1e-4`.
`turnwise config RECIPE` prints the resolved values, and [combinations](combinations.md) shows what goes together. A
recipe sets only what differs from the defaults, and an unknown key is an error. Keys marked "name and options" take a
bare name, or a table with the name and its options:
`method = "gigpo"`, `method = { name = "hgpo", depth = 4 }`.

## Methods that modify others

`method = "gigpo+aem"` puts AEM around GiGPO. Every method with an argument `base` may follow a `+`, a function of your
own too, and several may follow each other. An option goes to the part that has it, as in
`method = { name = "gigpo+aem", discount = 0.9, temperature = 0.5 }`. If two parts have it, name the part:
`method = "empg(temperature=2.0)+aem(temperature=0.5)"`. Recipes of versions up to 0.2 have a key `aem`, which was true
where it was missing. It is still read, and a note says how to write it now.

## General
"""
PLAIN = {int: "integer", float: "number", bool: "true or false", str: "text", Path: "path"}
BOUNDS = {
    annotated_types.Ge: ("ge", "\N{GREATER-THAN OR EQUAL TO}"),
    annotated_types.Gt: ("gt", ">"),
    annotated_types.Le: ("le", "\N{LESS-THAN OR EQUAL TO}"),
    annotated_types.Lt: ("lt", "<"),
    annotated_types.MinLen: ("min_length", "length at least"),
}


def is_section(annotation: Any, base: type = Section) -> bool:
    """Whether a field holds fields of its own."""
    return isinstance(annotation, type) and issubclass(annotation, base)


def sections_of(field: Any) -> list[type[Section]]:
    """The section that a field holds; one that may be missing counts."""
    return [part for part in (field.annotation, *typing.get_args(field.annotation)) if is_section(part)]


def leaves(model: type[pydantic.BaseModel], prefix: str = "") -> Iterator[tuple[str, Any, list[str]]]:
    """Every field below a section, with the keys that lead to it, and the kinds of the section that have it.

    A section that may be missing is a field too. Kinds that explain a field differently have an entry each.
    """
    for name, field, of in _fields(model):
        if not is_section(field.annotation):
            yield f"{prefix}{name}", field, of
        for section in sections_of(field):
            yield from leaves(section, f"{prefix}{name}.")


def described(model: type[pydantic.BaseModel]) -> dict[str, Any]:
    """The fields of a section, each with the docstring under it as its description.

    pydantic can read them too, but does so at every import, which takes a quarter of the time to start a command.
    """
    texts: dict[str, str] = {}
    for cls in reversed(model.__mro__):
        if cls.__module__.startswith("turnwise"):
            (found,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
            for field, text in itertools.pairwise(cast(ast.ClassDef, found).body):
                if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                    texts[cast(ast.Name, field.target).id] = inspect.cleandoc(ast.literal_eval(text.value))
    for name, field in model.model_fields.items():
        field.description = field.description or texts.get(name)
    return model.model_fields


def _fields(model: type[pydantic.BaseModel]) -> Iterator[tuple[str, Any, list[str]]]:
    yield from ((name, field, []) for name, field in described(model).items())
    found: dict[tuple[str, str | None], tuple[Any, list[str]]] = {}
    for kind in model.kinds().values() if issubclass(model, Kinds) else ():
        for name, field in described(kind).items():
            if name not in model.model_fields:
                label = f"{model.named_by} = " + ("your own" if kind.named == ":" else json.dumps(kind.named))
                found.setdefault((name, field.description), (field, []))[1].append(label)
    yield from ((name, field, of) for (name, _), (field, of) in found.items())


def sections() -> Iterator[tuple[str, Any]]:
    """Every section of a recipe with its name."""
    for name, field in Config.model_fields.items():
        yield from ((name, section) for section in sections_of(field))


def kind(annotation: Any) -> str:
    """The type of a value, in words."""
    if annotation in PLAIN:
        return PLAIN[annotation]
    if is_section(annotation, Named):
        return "name and options"
    if is_section(annotation):
        return "a section, see below"
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return " or ".join(f"`{json.dumps(part)}`" for part in parts)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(kind(part) for part in parts if part is not type(None))
    if origin in (tuple, list):
        items = [part for part in parts if part is not Ellipsis]
        return (
            "list of pairs of texts" if typing.get_origin(items[0]) is tuple else f"list, each item: {kind(items[0])}"
        )
    if origin is dict:
        return "table"
    raise TypeError(f"docs/generator/settings.py has no words for the type {annotation}")


def default(field: Any) -> str:
    """The default as a recipe would have it."""
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return "required"
    if value is None:
        return "unset"
    if isinstance(value, Named):
        value = value.name
    return f"default `{json.dumps(value, default=str)}`"


def facts(field: Any) -> str:
    """Type, bounds and default in one line."""
    bounds = [
        f"{words} {getattr(bound, name):g}"
        for bound in field.metadata
        for form, (name, words) in BOUNDS.items()
        if isinstance(bound, form)
    ]
    return ", ".join([kind(field.annotation), *bounds, default(field)])


def entry(name: str, field: Any, of: list[str]) -> list[str]:
    """A setting with its facts and its meaning."""
    owners = f"with {' or '.join(f'`{each}`' for each in of)}: " if of else ""
    return [f"### `{name}`", wrap(f"*{owners}{facts(field)}*"), prose(field.description or "")]


def entries(fields: Iterator[tuple[str, Any, list[str]]]) -> list[str]:
    """The settings that stand on the page of settings itself."""
    return [block for found in fields if not home(found[0]) for block in entry(*found)]


def home(name: str) -> str:
    """The section whose own page explains a setting; "" where the page of settings does."""
    return next((section for section in (*ELSEWHERE, *SAME) if name.startswith(f"{section}.")), "")


def page() -> str:
    """The page of all settings but those of extensions."""
    top = [found for found in leaves(Config) if "." not in found[0]]
    blocks = [HEAD.rstrip()]
    for found in top:
        blocks += entry(*found)
    for section, annotation in sections():
        blocks += [f"## {section}", sentence(inspect.getdoc(annotation) or "")]
        blocks += entries(leaves(annotation, f"{section}."))
        inside = [name for name in ELSEWHERE if name.partition(".")[0] == section]
        blocks += [f"[Settings of `{name}`](../{ELSEWHERE[name]}#settings)." for name in inside]
    blocks += ["## Keys of a study", "In the file that `turnwise study` runs ([how](../how-to/compare.md))."]
    for found in leaves(StudyConfig):
        blocks += entry(*found)
    return "\n\n".join(blocks) + "\n"


def extended(path: str) -> str:
    """A page that is written by hand, with the settings of its extensions at the end."""
    text, blocks = (DOCS / path).read_text().partition(MARK)[0], []
    for found in leaves(Config):
        if ELSEWHERE.get(home(found[0])) == path and not any(found[0].startswith(f"{same}.") for same in SAME):
            blocks += entry(*found)
    for section, other in SAME.items():
        if ELSEWHERE[section.partition(".")[0]] == path:
            blocks += [f"`{section}` has the keys of [`{other}`](../reference/settings.md#{other})."]
    return text.rstrip() + "\n" + MARK + "\n" + "\n\n".join(blocks) + "\n"


def pages() -> dict[Path, str]:
    """The page of the settings, and those that end in the settings of an extension."""
    return {PAGE: page()} | {DOCS / path: extended(path) for path in dict.fromkeys(ELSEWHERE.values())}
