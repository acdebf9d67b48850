"""Define `turnwise train` and `turnwise config`."""

import argparse
import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnwise.base.errors import ConfigError, EngineLost
from turnwise.base.terminal import say, say_next
from turnwise.commands.common import INTERRUPTED, first_notes, load_libraries, recipe

if TYPE_CHECKING:
    from turnwise.config import Config

FREE = ("run.steps=", "run.threads=", "checkpoint.", "evaluate.", "engine.", "log.", "store.damaged=")
"""Settings that may change when a run resumes."""


def add(commands: Any) -> None:
    """Add the commands."""
    train = commands.add_parser("train", help="train a recipe, or resume a run")
    train.add_argument("recipe", nargs="?", help="name or TOML file, followed by overrides such as run.steps=9")
    train.add_argument("overrides", nargs="*", default=[], help=argparse.SUPPRESS)
    train.add_argument("--resume", type=Path, metavar="RUN", help="resume the run in this folder")
    train.set_defaults(run=_train)

    config = commands.add_parser("config", help="print the resolved configuration and change nothing")
    config.add_argument("recipe", nargs="?", help="name or TOML file; default: the defaults of all settings")
    config.add_argument("overrides", nargs="*", default=[], help="overrides such as update.learning_rate=1e-4")
    config.set_defaults(run=_config)


def _train(options: argparse.Namespace) -> int:
    path = options.resume
    try:
        config = _resumed(options) if path else _new(options)
        path = path or config.run_folder
        load_libraries()
        from turnwise.train.display import ConsoleDisplay
        from turnwise.train.loop import train

        with ConsoleDisplay(notes=[] if options.resume else first_notes(config, options)) as display:
            folder = train(config, resume=options.resume, display=display, stop=options.stop)
        say_next(f"turnwise report {shlex.quote(str(folder.path))}", "curves, trajectories, credit per turn")
    except KeyboardInterrupt as error:
        if path is None:
            raise
        ended = getattr(error, "ended", "interrupted")
        say(f"turnwise: {ended}; {_how_to_resume(path)}", file=sys.stderr, flush=True)
        return getattr(error, "exit_code", INTERRUPTED)
    except EngineLost as error:  # its message says what to do about the engine, but not in which folder the run is
        raise EngineLost(f"{error}; {_how_to_resume(path)}") from error
    except Exception:  # a full disk, which libraries report in errors of their own
        options.goes_on = _how_to_resume(path)
        raise
    return 0


def _new(options: argparse.Namespace) -> "Config":
    if options.recipe is None:
        raise ConfigError(
            "no recipe given; name one, such as household-tiny-aem (`turnwise recipes` lists them), or resume with "
            "--resume RUN"
        )
    return recipe(options)


def _resumed(options: argparse.Namespace) -> "Config":
    from turnwise.config import override_config
    from turnwise.train.folder import RunFolder

    given = [*([options.recipe] if options.recipe else []), *options.overrides]
    frozen = [override for override in given if not override.startswith(FREE)]
    if frozen:
        raise ConfigError(
            f"{frozen[0]!r} would change a run that has started; --resume accepts only run.steps, run.threads, "
            "evaluate.*, checkpoint.*, engine.*, log.* and store.damaged"
        )
    return override_config(RunFolder.open(options.resume)[1], given)


def _how_to_resume(path: Path | None) -> str:
    from turnwise.train.folder import RunFolder, by_step

    if path is None or not path.exists():
        return "no checkpoint was saved; start again with the same command"
    if not (steps := by_step(RunFolder(path).checkpoints)):
        return f"no checkpoint was saved; start again with `{RunFolder(path).resuming}`"
    return f"resume from the checkpoint of step {max(steps)} with `{RunFolder(path).resuming}`"


def _config(options: argparse.Namespace) -> int:
    say(json.dumps(recipe(options).model_dump(mode="json"), indent=2))
    return 0
