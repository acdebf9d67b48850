"""Define `turnwise import` and `turnwise export`."""

import argparse
import shlex
from pathlib import Path
from typing import Any

from turnwise.base.errors import ConfigError
from turnwise.base.run_paths import is_one_name, refuse_missing
from turnwise.base.terminal import say, say_next
from turnwise.commands.common import load_libraries, note

KINDS = ("chat", "atif", "requests", "opentelemetry", "inspect", "verifiers", "episodes", "nemo-gym")
WRITTEN = ("chat", "atif", "opentelemetry", "sft", "dpo")


def add(commands: Any) -> None:
    """Add the command."""
    command = commands.add_parser("import", help="read any agent's log into a run folder without weights")
    command.add_argument(
        "log",
        type=Path,
        metavar="FILE",
        help="a log: JSON Lines of messages, ATIF, .eval of Inspect and others; see --format",
    )
    command.add_argument(
        "overrides", nargs="*", default=[], help="overrides for --score, such as model.max_context=8192"
    )
    command.add_argument(
        "--out", type=Path, metavar="FOLDER", help="run folder to make; default: runs/NAME of the file"
    )
    command.add_argument("--format", choices=KINDS, help="format of the log; default: recognised from its content")
    command.add_argument("--reward", metavar="NAME", help="key, scorer or evaluation that gives the reward")
    command.add_argument(
        "--score",
        metavar="RUN|MODEL",
        help="compute entropies and log-probabilities with a run's policy or a chat model",
    )
    command.set_defaults(run=_import)
    command = commands.add_parser("export", help="write a run or a log in the formats of other tools")
    command.add_argument("source", type=Path, metavar="RUN|LOG", help="run folder, or a log that `import` reads")
    command.add_argument(
        "--to", choices=WRITTEN, required=True, help="format to write; sft and dpo are data for fine-tuning"
    )
    command.add_argument(
        "--out", type=Path, metavar="FILE", help="JSON Lines, .json or .gz; default: NAME.FORMAT.jsonl"
    )
    command.add_argument("--by", choices=("reward", "advantage", "group", "state"), help="how sft or dpo chooses")
    command.add_argument("--least", type=float, metavar="X", help="lowest return, or advantage, that sft chooses")
    command.add_argument("--method", metavar="NAME", help="write this method's advantages; default: the run's")
    command.add_argument("--step", type=int, help="only this step of a run")
    command.add_argument("--format", choices=KINDS, help="format of the log; default: recognised from its content")
    command.add_argument("--reward", metavar="NAME", help="key, scorer or evaluation that gives the log's reward")
    command.set_defaults(run=_export)


def _export(options: argparse.Namespace) -> int:
    refuse_missing(options.source)
    from turnwise.integrations.logs.export import export

    name = options.source.name.split(".")[0] or "log"
    out = options.out or Path(f"{name}-atif" if options.to == "atif" else f"{name}.{options.to}.jsonl")
    made = export(
        options.source,
        out,
        options.to,
        by=options.by,
        least=options.least,
        method=options.method,
        step=options.step,
        kind=options.format,
        reward=options.reward,
    )
    say(f"{out}: {made.written} written from {made.trajectories} trajectories, format {options.to}")
    for what in made.missing:
        note(f"missing: {what}")
    return 0


def _import(options: argparse.Namespace) -> int:
    refuse_missing(options.log)
    from turnwise.integrations.logs.write import Scoring, import_log
    from turnwise.train.folder import RunFolder

    name = options.log.name.split(".")[0]
    if options.out is None and not is_one_name(name):
        raise ConfigError(f"{str(options.log)!r} gives the run no name; choose one with --out FOLDER")
    out = options.out or Path("runs") / name
    RunFolder.refuse_existing(out, another="--out FOLDER")
    scoring = None
    if options.score is not None:
        load_libraries()
        from turnwise.commands.policies import load_policy
        from turnwise.train.resume import use_device

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
        f"{out}: trajectories: {found.trajectories}, responses: {found.responses}, groups: {found.groups} "
        f"(rewards differ in {found.contrast}), format: {found.kind}"
    )
    for what in found.missing:
        note(f"missing: {what}")
    say_next(f"turnwise report {shlex.quote(str(out))}", "shows every turn with its credit")
    return 0
