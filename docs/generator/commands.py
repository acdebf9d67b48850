"""Every command with its arguments, from the parser."""

import argparse
from collections.abc import Iterator
from pathlib import Path

from generator.text import item, sentence
from turnwise.commands import cli

PAGE = Path(__file__).parents[1] / "reference" / "commands.md"
HEAD = """# Commands

<!-- Made by `python docs/generate.py` from the parser of the command line. Edit its help. -->

`turnwise --help` shows them by example. Exit codes: 0 on success; 2 for a mistake in what was asked (one line on
stderr), problems that `check-env` finds, and runs of a study that failed; 1 where `verl-check` misses the plug-in; 130
on Ctrl-C, 143 on SIGTERM, 129 on SIGHUP. A recipe may be followed by overrides `section.key=value` of its
[settings](settings.md).
"""


def commands(parser: argparse.ArgumentParser) -> Iterator[tuple[argparse.ArgumentParser, str]]:
    """Every command below a parser, with the line of its help."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for name, inner in action.choices.items():
                yield inner, helps[name]
                yield from commands(inner)


def argument(action: argparse.Action) -> str:
    """An argument with its help."""
    value = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    many = {"+": f"{value} ...", "*": f"[{value} ...]", "?": f"[{value}]", 0: "", None: value}[action.nargs]
    if action.choices is not None and action.metavar is None:
        many = " | ".join(map(str, action.choices))
    shown = " ".join(filter(None, [", ".join(action.option_strings), many]))
    return item(f"`{shown}`: {sentence((action.help or '').replace('%%', '%'))}")


def page() -> str:
    """The page of all commands."""
    blocks = [HEAD.rstrip()]
    for parser, help_text in commands(cli._parser()):
        blocks += [f"## {parser.prog}", sentence(help_text)]
        shown = [
            argument(action)
            for action in parser._actions
            if action.help != argparse.SUPPRESS
            and not isinstance(action, (argparse._HelpAction, argparse._SubParsersAction))
        ]
        if shown:
            blocks.append("\n".join(shown))
    return "\n\n".join(blocks) + "\n"


def pages() -> dict[Path, str]:
    """The page of the commands."""
    return {PAGE: page()}
