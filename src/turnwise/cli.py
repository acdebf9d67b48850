"""The command line.

turnwise train recipes/household-tiny-aem.toml                  train a recipe
turnwise train recipes/household-tiny-aem.toml method=gigpo aem=false run.name=b
turnwise train --resume runs/b                                  go on after an interruption
turnwise eval runs/b --episodes 512                             evaluate the last checkpoint
turnwise eval runs/b --panel household-compact-valid-256        on tasks that are the same for every run
turnwise compare runs/aem -- runs/grpo                          is it better? Paired, with intervals
turnwise study studies/aem-household.toml                       a grid of methods and seeds, and its comparisons
turnwise recredit runs/b --method gigpo                         what would another method have said?
turnwise analyse surprisal runs/b                               the analyses of AEM's paper
turnwise report runs/b                                          a page: curves, trajectories, credit by response
turnwise methods                                                what credit can be assigned with
turnwise methods --bias                                         what each method does to the gradient, exactly
turnwise config recipes/household-tiny-aem.toml                 print the resolved configuration
turnwise check-env module:factory                               test an environment
turnwise make-swe-tasks                                         bugs to repair, for the environment 'swe'
turnwise serve-env household                                    serve an environment over OpenEnv's protocol
turnwise verl-check                                             is the plug-in of verl there, in Ray's workers too?
"""

import argparse
import errno
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from turnwise.commands import analyse, compare, evaluate, methods, recredit, report, swe_tasks, train, verl, worlds
from turnwise.commands.common import INTERRUPTED
from turnwise.errors import TurnwiseError, did_you_mean

OF_TRAINING = ("torch", "transformers", "tokenizers", "safetensors", "pyarrow", "rich", "matplotlib", "httpx2", "scipy")
"""Packages of the extra `train`."""


PLACE = (errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG)
"""What is wrong with a path that a user has named."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code: 0, 2 for a user's mistake (one line on stderr), 130 when interrupted."""
    try:
        try:
            return _main(arguments)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # the reader has seen enough, as in `turnwise methods | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python's own flush complains
        return 141


def _main(arguments: Sequence[str] | None) -> int:
    options = _parse(arguments)
    try:
        return options.run(options)
    except TurnwiseError as error:
        print(f"turnwise: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        if error.errno in PLACE and error.filename:
            print(f"turnwise: cannot use {error.filename2 or error.filename}: {error.strerror}", file=sys.stderr)
            return 2
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS):
            raise
        print(f"turnwise: cannot write: {error}. Make room; what is on disk is good, and `turnwise train --resume RUN_FOLDER` goes on from the "
              "last checkpoint", file=sys.stderr)  # fmt: skip
        return 2
    except KeyboardInterrupt:
        print("turnwise: interrupted", file=sys.stderr)
        return INTERRUPTED
    except ModuleNotFoundError as error:
        if error.name not in OF_TRAINING:
            raise
        print(f"turnwise: {error.name} is not installed; pip install 'turnwise[train]'", file=sys.stderr)
        return 2


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, as everything else does."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"turnwise: {message}; see `{self.prog} --help`\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """As argparse, which has suggestions only from Python 3.14 on."""
        if action.choices is not None and value not in action.choices:
            raise argparse.ArgumentError(
                action, f"invalid choice: {value!r}.{did_you_mean(str(value), map(str, action.choices))}"
            )


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse; overrides may stand before, between and after the options."""
    arguments = ["--against" if text == "--" else text for text in (sys.argv[1:] if arguments is None else arguments)]
    parser = _parser()
    options, further = parser.parse_known_args(arguments)
    if further and (not hasattr(options, "overrides") or any(text.startswith("-") for text in further)):
        parser.error(f"unrecognized arguments: {' '.join(further)}")
    if further:
        options.overrides += further
    return options


def _parser() -> argparse.ArgumentParser:
    parser = _Parser("turnwise", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for module in (train, evaluate, report, compare, recredit, analyse, methods, worlds, swe_tasks, verl):
        module.add(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
