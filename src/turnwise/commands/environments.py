"""Define `turnwise check-env` and `turnwise serve-env`."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnwise.base.errors import ConfigError
from turnwise.base.recipes import shipped_recipes
from turnwise.base.terminal import say
from turnwise.commands.common import count

if TYPE_CHECKING:
    from turnwise.environments.settings import EnvironmentConfig


def add(commands: Any) -> None:
    """Add the commands."""
    check = commands.add_parser("check-env", help="test an environment and report its problems")
    check.add_argument("--tamper", action="store_true", help="attack it like a cheating agent; report what succeeds")
    check.add_argument("--json", action="store_true", help="with --tamper: print the result as JSON")
    check.add_argument(
        "--answer",
        action="append",
        default=[],
        metavar="TEXT",
        help="a response to give in every turn of a play; may be repeated",
    )
    check.set_defaults(run=_check)
    serve = commands.add_parser("serve-env", help="serve an environment over OpenEnv's protocol")
    serve.set_defaults(run=_serve)
    for parser in (check, serve):
        parser.add_argument("name", help="built-in environment, module:factory, or a recipe")
        parser.add_argument("overrides", nargs="*", default=[], help="overrides such as environment.options.size=tiny")
    serve.add_argument("--host", default="127.0.0.1", help="address to listen on; 0.0.0.0: every interface")
    serve.add_argument("--port", type=count, default=8000, help="port to listen on; default: 8000")
    serve.add_argument("--sessions", type=count, default=256, help="parallel environments; default: 256")


def environment_config(name: str, overrides: Sequence[str]) -> "EnvironmentConfig":
    """Load the settings of an environment: by its name, or those of a recipe."""
    from turnwise.config import load_config

    if Path(name).suffix == ".toml" or name in shipped_recipes():
        return load_config(Path(name), overrides).environment
    return load_config(None, [f"environment.name={name}", *overrides]).environment


def _check(options: argparse.Namespace) -> int:
    if options.tamper:
        return _tamper(options)
    if options.json:
        raise ConfigError("--json needs --tamper: turnwise check-env --tamper --json NAME")
    from turnwise.environments.check import report
    from turnwise.environments.check_apart import check_apart

    checked = check_apart(environment_config(options.name, options.overrides), options.answer)
    say(report(options.name, checked.problems, checked.missed))
    if checked.has_words is False:
        say("note: no words(), so model.name='tiny' cannot play it; language models can")
    return 2 if any(problem.severe for problem in checked.problems) else 0


def _tamper(options: argparse.Namespace) -> int:
    from turnwise.environments.tamper_apart import as_json, report, tamper

    findings = tamper(environment_config(options.name, options.overrides))
    say(json.dumps(as_json(options.name, findings), indent=2) if options.json else report(options.name, findings))
    return 2 if any(finding.succeeded for finding in findings) else 0


def _serve(options: argparse.Namespace) -> int:
    from turnwise.environments.serve import serve

    config, ready = environment_config(options.name, options.overrides), options.signs_of_life.close
    serve(config, host=options.host, port=options.port, sessions=options.sessions, on_ready=ready)
    return 0
