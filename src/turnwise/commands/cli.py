"""Run turnwise from the command line.

turnwise demo                                                   open the report of a recorded run
turnwise play demo                                              watch its policy play, or play any environment yourself
turnwise recipes                                                list the recipes
turnwise get-model smollm2                                      fetch a model that some recipes need
turnwise train household-tiny-aem                               train a recipe, by name or file
turnwise train household-tiny-aem method=gigpo run.name=b
turnwise train --resume runs/b                                  resume after an interruption
turnwise eval runs/b --episodes 512                             evaluate the last checkpoint
turnwise eval runs/b --panel household-compact-valid-256        evaluate on tasks that are the same for every run
turnwise compare runs/gigpo -- runs/grpo                        compare two sets of runs, with confidence intervals
turnwise study studies/turn-ppo-household.toml                  train a grid of methods and seeds, and compare them
turnwise recredit runs/b --method gigpo                         assign another method's credit to recorded rollouts
turnwise analyse fidelity runs/b                                measure how close credit is to the truth
turnwise audit runs/b                                           measure how well credit finds turns with an effect
turnwise analyse surprisal runs/b                               analyse entropy and its modulation
turnwise report runs/b                                          write a page: curves, trajectories, credit per response
turnwise methods                                                list the credit assignment methods
turnwise methods --bias                                         compute each method's effect on the gradient exactly
turnwise config household-tiny-aem                              print the resolved configuration
turnwise check-env module:factory                               test an environment
turnwise check-harness module:function                          test whether an agent repeats, and what that allows
turnwise gateway runs/b                                         serve its policy to agents, and record what they do
turnwise import log.jsonl                                       read the log of an agent, to look at its credit
turnwise export runs/b --to sft                                 write what its policy did, as data for other tools
turnwise make-swe-tasks                                         make bugs to repair, for the environment 'swe'
turnwise serve-env household                                    serve an environment over OpenEnv's protocol
turnwise serve-model smollm2                                    serve a small model for training, over the Tinker API
turnwise verl-check                                             check that verl loads the plug-in, in Ray's workers too
"""

import argparse
import contextlib
import errno
import importlib
import importlib.util
import platform
import sys
import time
from collections.abc import Sequence
from typing import Any, NoReturn

from turnwise.base.errors import (
    DISTRIBUTION,
    TurnwiseError,
    did_you_mean,
    install,
    one_line,
    place_in_own_code,
    text_of,
)
from turnwise.base.files import FULL, describe_refusal, refused_by_disk
from turnwise.base.stopping import Stopped, stoppable
from turnwise.base.terminal import discard, open_missing_streams, outlast_readers, say
from turnwise.base.version import __version__
from turnwise.commands.common import INTERRUPTED, at_work, notes_on_former_words

OF_TRAINING = (
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "pyarrow",
    "rich",
    "matplotlib",
    "aiohttp",
    "h11",
    "scipy",
)
"""Packages of the extra `train`."""
OF_LOGS = ("pyarrow", "rich")
"""Packages of the extra `logs`."""
COMMANDS = (
    "demo play recipes get_model train evaluate report compare recredit analyse methods environments harness gateway "
    "serve_model import_log swe_tasks verl"
)
"""Modules of the commands, in the order of `turnwise --help`."""
TRAINING = ("train", "study")
"""Commands that may take days, which nobody may be watching when they end."""
PLACE = (errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG)
"""Error numbers that a path named by the user can cause."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code.

    The code is 0 on success, 2 for a user's mistake (one line on stderr), 130 when interrupted, 143 after SIGTERM and
    129 after SIGHUP.
    """
    open_missing_streams()
    try:
        try:
            options = _parse(arguments)
            with outlast_readers() if options.command in TRAINING else contextlib.nullcontext():
                return _main(options)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # the reader closed the pipe, as in `turnwise methods | head -1`
        discard(sys.stdout)
        discard(sys.stderr)
        return 141
    except OSError as error:
        if error.errno not in FULL:
            raise
        discard(sys.stdout)
        say(
            f"turnwise: cannot write: {error.strerror or error}. Free disk space, and run the command again",
            file=sys.stderr,
        )
        return 2


def _main(options: argparse.Namespace) -> int:
    try:
        begun, life = time.monotonic(), contextlib.ExitStack()
        with stoppable() as options.stop, notes_on_former_words(), life:
            options.signs_of_life = life  # a server closes it: it has nothing to wait for
            life.enter_context(at_work(lambda: f"{options.command}: working, {time.monotonic() - begun:.0f} s so far"))
            return options.run(options)
    except TurnwiseError as error:
        say(f"turnwise: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        if error.errno in PLACE and error.filename:
            named = one_line(str(error.filename2 or error.filename))
            say(f"turnwise: cannot use {named}: {error.strerror}", file=sys.stderr)
            return 2
        return _report(error, options)
    except Stopped as stopped:
        say(f"turnwise: {stopped.ended}", file=sys.stderr)
        return stopped.exit_code
    except KeyboardInterrupt:
        say("turnwise: interrupted", file=sys.stderr)
        return INTERRUPTED
    except ModuleNotFoundError as error:
        if error.name not in OF_TRAINING:
            raise
        extra = (
            "logs" if error.name in OF_LOGS and options.command in ("demo", "import", "recredit", "report") else "train"
        )
        say(f"turnwise: {error.name} is not installed; {install(extra)}", file=sys.stderr)
        return 2
    except Exception as error:  # libraries have their own types for a full disk
        return _report(error, options)


def _report(error: Exception, options: argparse.Namespace) -> int:
    """Print that the disk is full, or where the user's own code failed; raise any other error."""
    refused = refused_by_disk(error)
    if refused is None or not hasattr(options, "goes_on"):
        if place := place_in_own_code(error):
            say(f"turnwise: {place}: {type(error).__name__}: {one_line(text_of(error))}", file=sys.stderr)
            return 2
        raise error
    what = f"{one_line(str(refused.filename))}: " if refused.filename else ""
    say(
        f"turnwise: cannot write: {what}{describe_refusal(refused)}. Free disk space; {options.goes_on}",
        file=sys.stderr,
    )
    return 2


class _Parser(argparse.ArgumentParser):
    """Report errors in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"turnwise: {one_line(message)}; see `{self.prog} --help`\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Suggest a close match, as argparse does from Python 3.14 on."""
        if action.choices is not None and value not in action.choices:
            raise argparse.ArgumentError(
                action, f"invalid choice: {value!r}.{did_you_mean(str(value), map(str, action.choices))}"
            )


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse arguments. Overrides may come before, between and after the options."""
    arguments = _with_baseline(sys.argv[1:] if arguments is None else arguments)
    parser = _parser(arguments)
    options, further = parser.parse_known_args(arguments)
    end = further.index("--") if "--" in further else len(further)  # what follows "--" is not an option
    positional = further[:end] + further[end + 1 :]
    if further and (not hasattr(options, "overrides") or any(text.startswith("-") for text in further[:end])):
        parser.error(f"unrecognized arguments: {' '.join(further)}")
    if positional:
        options.overrides += positional
    return options


def _with_baseline(arguments: Sequence[str]) -> list[str]:
    """Turn `compare A... -- B...` into `compare A... --against B...`. In other commands `--` ends the options."""
    if "--" not in arguments or arguments[0] != "compare" or any(text.startswith("--against") for text in arguments):
        return list(arguments)
    end = arguments.index("--")
    return [*arguments[:end], "--against", *arguments[end + 1 :]]


def _parser(arguments: Sequence[str] = ()) -> argparse.ArgumentParser:
    parser = _Parser("turnwise", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", action=_Version, nargs=0, help="print the versions of turnwise, Python and torch")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    known = COMMANDS.split()
    for name in {*known} & {*arguments[:1]} or known:  # one is enough where its module bears its name
        importlib.import_module(f"turnwise.commands.{name}").add(commands)
    return parser


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from importlib.metadata import PackageNotFoundError, version  # takes longer than the rest of the command line

        torch = [f"torch {version('torch')}"] if importlib.util.find_spec("torch") else []  # to import it takes seconds
        say(", ".join([f"turnwise {__version__}", f"Python {platform.python_version()}", *torch]))
        with contextlib.suppress(PackageNotFoundError):
            say(
                f"turnwise: a distribution 'turnwise' {version('turnwise')} is installed here too, and owns the same "
                f"module: another project, or a clone of before the name {DISTRIBUTION!r}; pip uninstall turnwise, and "
                f"install {DISTRIBUTION} again",
                file=sys.stderr,
            )
        parser.exit()


if __name__ == "__main__":
    sys.exit(main())
