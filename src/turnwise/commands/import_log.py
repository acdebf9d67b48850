"""Define `turnwise import`."""

import argparse
import shlex
from pathlib import Path
from typing import Any

from turnwise.base.errors import ConfigError
from turnwise.base.terminal import say, say_next
from turnwise.commands.common import note, quiet

KINDS = ("chat", "opentelemetry", "inspect", "verifiers")


def add(commands: Any) -> None:
    """Add the command."""
    command = commands.add_parser("import", help="read the log of any agent into a run folder without weights")
    command.add_argument(
        "log", type=Path, metavar="FILE", help="JSON Lines of messages, OTLP as JSON, .eval of Inspect, results.jsonl"
    )
    command.add_argument(
        "overrides", nargs="*", default=[], help="overrides for --score, such as model.max_context=8192"
    )
    command.add_argument(
        "--out", type=Path, metavar="FOLDER", help="run folder to make; default: runs/NAME of the file"
    )
    command.add_argument("--format", choices=KINDS, help="default: found by the file's content")
    command.add_argument("--reward", metavar="NAME", help="key, scorer or evaluation that gives the reward")
    command.add_argument(
        "--score",
        metavar="RUN|MODEL",
        help="compute entropies and log-probabilities with a run's policy or a chat model",
    )
    command.set_defaults(run=_import)


def _import(options: argparse.Namespace) -> int:
    from turnwise.config.sections import is_one_name
    from turnwise.integrations.logs.write import Scoring, import_log
    from turnwise.train.folder import RunFolder

    name = options.log.name.split(".")[0]
    if options.out is None and not is_one_name(name):
        raise ConfigError(f"{str(options.log)!r} gives the run no name; choose one with --out FOLDER")
    out = options.out or Path("runs") / name
    RunFolder.refuse_existing(out, another="--out FOLDER")
    scoring = None
    if options.score is not None:
        from turnwise.commands.policies import load_policy
        from turnwise.train.resume import use_device

        quiet()
        config, policy = load_policy(
            options.score, ["rollout.max_new_tokens=1", *options.overrides]
        )  # it generates nothing
        policy.model.to(use_device(config.run))
        policy.model.eval()
        scoring = Scoring(policy, options.score, config)
    elif options.overrides:
        raise ConfigError(f"{options.overrides[0]!r}: overrides are for the model of --score; add it, or remove them")
    found = import_log(options.log, out, kind=options.format, reward=options.reward, scoring=scoring)
    say(
        f"{out}: {found.trajectories} trajectories with {found.responses} responses, format {found.kind}; "
        f"{found.groups} groups, rewards differ in {found.contrast}"
    )
    for what in found.missing:
        note(f"missing: {what}")
    say_next(f"turnwise report {shlex.quote(str(out))}", "shows every turn with its credit")
    return 0
