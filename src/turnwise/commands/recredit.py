"""Define `turnwise recredit`."""

import argparse
import contextlib
import functools
import math
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from turnwise.base.errors import ConfigError, RunError, guide
from turnwise.base.imports import NotLoaded, as_data
from turnwise.base.terminal import print_table, say, say_next
from turnwise.commands.common import add_markdown, open_run, refuse_written
from turnwise.credit.compared import COMPARED

HEAD = (
    "method",
    "same sign",
    "correlation",
    "equal",
    "variance",
    "zero",
    "credit by third of the turns",
    "signal / noise",
)


LEGEND = """\
Compared with the advantages that the run trained with, over responses:
same sign, equal: share of responses; correlation: Pearson's; variance: mean square relative to the run's;
zero: share of responses without credit; thirds: share of the absolute credit in each third of the turns;
signal / noise: of a tabular policy gradient, below 0 if there is no signal
As in training, an update.dose of the run bounds the dose of every method"""


def add(commands: Any) -> None:
    """Add the command."""
    recredit = commands.add_parser("recredit", help="assign other methods' credit to a run's recorded rollouts")
    recredit.add_argument("run_folder", type=Path, metavar="RUN", help="run folder")
    recredit.add_argument("overrides", nargs="*", default=[], help="options of the method, such as method.discount=0.9")
    recredit.add_argument(
        "--method",
        action="append",
        metavar="NAME",
        help="method, such as gigpo or gigpo+empg; may be repeated; default: the run's",
    )
    recredit.add_argument("--step", type=int, help="replay only this step; default: all")
    recredit.add_argument("--out", type=Path, metavar="FILE", help="Parquet file for the advantages of a single method")
    add_markdown(recredit)
    recredit.set_defaults(run=_recredit)


def _recredit(options: argparse.Namespace) -> int:
    folder, config = open_run(options.run_folder)
    from turnwise.config import override_config
    from turnwise.credit.methods.former import is_former
    from turnwise.credit.methods.names import names_code
    from turnwise.lab.diagnostics.recredit import read_recorded, replay, statistics, write_credit
    from turnwise.measures.plan import plan_measures
    from turnwise.train.credit import make_transform

    if config.model.adapters:
        raise ConfigError(
            f"{folder.path} learned from the turns of each role of model.adapters apart, and recredit compares whole "
            "trajectories; choose a run without roles"
        )
    foreign = [given for given in options.overrides if not (given.startswith("method.") or is_former(given))]
    if foreign:
        raise ConfigError(
            f"{foreign[0]!r}: recredit accepts only --method and method.*, since the rollouts are already recorded"
        )
    if options.out and len(options.method or []) > 1:
        raise ConfigError("--out needs a single --method; run the command once per method")
    if options.out:
        refuse_written(options.out.parent, options.out.name)
    if not options.method and names_code(config.method.model_dump(mode="json")):
        raise ConfigError(
            f"the method of {folder.path}, {config.label}, is code that the run names; to run it, name it by --method"
        )
    table: list[Sequence[str]] = [HEAD]
    signal, penalty = True, config.environment.invalid_penalty
    read = functools.cache(functools.partial(read_recorded, folder, invalid_penalty=penalty))
    for name in options.method or [None]:
        overrides = options.overrides if name is None else [f"method={name}", *options.overrides]
        asked = override_config(config.without_code, overrides)
        transform = make_transform(asked.method, update=asked.update)
        with as_data(), contextlib.suppress(NotLoaded):  # raises for columns that no run measures
            needs = {f"method {asked.label!r}": transform.needs}
            plan_measures(needs, further=config.measures, models=config.optional_models)
        replayed = list(replay(folder, transform, invalid_penalty=penalty, only=options.step, read=read))
        if not replayed:
            raise RunError(f"{folder.path} learned nothing in the requested steps; choose others with --step")
        s = statistics(replayed)
        signal = s.signal_frac > 0.0
        numbers = [
            "-" if math.isnan(number) else f"{number:.3f}"
            for number in (s.agreement, s.correlation, s.equal, s.variance, s.zero_frac)
        ]
        thirds = "-" if any(map(math.isnan, s.share_K)) else " ".join(f"{share:.2f}" for share in s.share_K)
        ratio = "-" if math.isnan(s.signal_to_noise) else f"{s.signal_to_noise:.3g}"
        table.append((asked.label, *numbers, thirds, ratio))
        if options.out:
            write_credit(options.out, replayed)
            say(f"written: {options.out}", file=sys.stderr)
    print_table(table, markdown=options.markdown, wide=options.wide)
    say(LEGEND, file=sys.stderr)
    if not signal:
        say(
            "no signal: returns are equal within every group of these steps, so credit comes only from penalties "
            f"and bonuses, and says nothing about the methods; see {guide('how-to/choose-credit.md')}",
            file=sys.stderr,
        )
        return 0
    if folder.without_weights:
        return 0
    names = " ".join(f"--method {name}" for name in options.method or COMPARED[:2])
    say_next(f"turnwise analyse noise {shlex.quote(str(folder.path))} {names}", "groups that a step needs")
    return 0
