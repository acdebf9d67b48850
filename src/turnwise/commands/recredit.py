"""`turnwise recredit`."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from turnwise.errors import ConfigError, RunError
from turnwise.tables import as_markdown, as_text

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
beside the advantages that the run trained with: same sign, correlation, and equal are shares or Pearson's over responses; variance is the
mean square in units of the run's; zero: responses without credit; thirds: where in a trajectory the absolute credit falls, one of two turns
being first or last; signal / noise: of a tabular policy gradient, below 0 where no signal is seen"""


def add(commands: Any) -> None:
    """Add the command."""
    recredit = commands.add_parser("recredit", help="what would other methods have said of a run's rollouts?")
    recredit.add_argument("run_folder", type=Path, metavar="RUN")
    recredit.add_argument(
        "overrides", nargs="*", default=[], help="options of the method, such as method.discount=0.9 aem=false"
    )
    recredit.add_argument(
        "--method", action="append", metavar="NAME", help="NAME, or NAME+aem; may be repeated; default: the run's own"
    )
    recredit.add_argument("--step", type=int, help="this step alone; default: all")
    recredit.add_argument("--out", type=Path, metavar="FILE", help="Parquet file for the advantages of a single method")
    recredit.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    recredit.set_defaults(run=_recredit)


def _recredit(options: argparse.Namespace) -> int:
    from turnwise.config import override_config
    from turnwise.diagnostics.recredit import replay, statistics, write_credit
    from turnwise.methods.build import split_name
    from turnwise.train.credit import make_credit
    from turnwise.train.folder import RunFolder

    folder, config = RunFolder.open(options.run_folder)
    foreign = [given for given in options.overrides if not given.startswith(("method.", "aem="))]
    if foreign:
        raise ConfigError(f"{foreign[0]!r}: recredit takes method.* and aem= only; the rollouts are what they are")
    if options.out and len(options.method or []) > 1:
        raise ConfigError("--out is for a single --method; run the command once a method")
    table: list[Sequence[str]] = [HEAD]
    for name in options.method or [None]:
        overrides = options.overrides
        if name is not None:
            base, with_aem = split_name(name)
            if with_aem and "aem=false" in overrides:
                raise ConfigError(f"--method {name} has AEM, and aem=false takes it away: leave one of them out")
            overrides = [f"method={base}", f"aem={str(with_aem).lower()}", *overrides]
        asked = override_config(config, overrides)
        replayed = list(replay(folder, config, make_credit(asked), only=options.step))
        if not replayed:
            raise RunError(f"{folder.path} learned from nothing in the steps asked for")
        s = statistics(replayed)
        numbers = [f"{number:.3f}" for number in (s.agreement, s.correlation, s.equal, s.variance, s.zero_frac)]
        thirds = " ".join(f"{share:.2f}" for share in s.share_K)
        table.append((asked.label, *numbers, thirds, f"{s.signal_to_noise:.3g}"))
        if options.out:
            write_credit(options.out, replayed)
    print((as_markdown if options.markdown else as_text)(table))
    print(LEGEND, file=sys.stderr)
    return 0
