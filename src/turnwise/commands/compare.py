"""Define `turnwise compare` and `turnwise study`."""

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

from turnwise.base.errors import ConfigError, RunError
from turnwise.base.run_paths import is_one_name, runs_inside
from turnwise.base.terminal import make_console, print_page, say, say_next
from turnwise.commands.common import INTERRUPTED, add_markdown, add_out, count, refuse_written, say_written, share


def add(commands: Any) -> None:
    """Add the commands."""
    compare = commands.add_parser("compare", help="compare runs A with runs B, paired by seed and task, with intervals")
    compare.add_argument("runs", nargs="+", type=Path, metavar="A", help="run folders, or folders of runs")
    compare.add_argument("--against", nargs="+", type=Path, metavar="B", help="baseline runs; `--` for short")
    compare.add_argument("--step", type=int, help="step to compare at; default: the last of each run")
    compare.add_argument("--panel", help="compare results of `turnwise eval --panel NAME`")
    compare.add_argument(
        "--level", type=share, help="success level; the command compares how many trajectories reach it"
    )
    compare.add_argument(
        "--unequal", action="store_true", help="compare runs even if budgets, warm starts or models differ"
    )
    add_out(compare)
    add_markdown(compare)
    compare.set_defaults(run=_compare)

    study = commands.add_parser("study", help="train a grid of methods, seeds and recipes, and compare; can be resumed")
    study.add_argument("study", type=Path, help="TOML file, followed by overrides for all runs")
    study.add_argument("overrides", nargs="*", default=[], help=argparse.SUPPRESS)
    study.add_argument("--jobs", type=count, help="parallel runs, one thread each; default: number of cores")
    study.add_argument("--report", action="store_true", help="train nothing; write the comparisons of finished runs")
    add_markdown(study)
    study.set_defaults(run=_study, goes_on="run the same command again, which keeps what is done")


def _compare(options: argparse.Namespace) -> int:
    if not options.against:
        raise ConfigError("compare needs a baseline: `turnwise compare A... -- B...`")
    if options.panel is not None and not is_one_name(options.panel):
        raise ConfigError(f"there is no panel {options.panel!r}; `turnwise eval --panels` lists them")
    refuse_written(options.out, "comparison.md", "comparison.png")
    runs_inside([*options.runs, *options.against])
    from turnwise.lab.diagnostics.compare import compare
    from turnwise.lab.diagnostics.runs import find_runs
    from turnwise.lab.diagnostics.show import figure, page, write

    made = compare(
        find_runs(options.runs),
        find_runs(options.against),
        step=options.step,
        panel=options.panel,
        level=options.level,
        unequal=options.unequal,
    )
    written = options.out and write(options.out, "comparison", page(made), figure(made))
    print_page(page(made), markdown=options.markdown, wide=options.wide)
    say_written(written)
    return 0


def _study(options: argparse.Namespace) -> int:
    from turnwise.lab.diagnostics.study import load_study, state

    study = load_study(options.study, tuple(options.overrides))
    from turnwise.lab.diagnostics.runner import Runner, cores
    from turnwise.lab.diagnostics.show import write_study

    failed = []
    if not options.report:
        try:
            failed = Runner(study, options.jobs or cores(), make_console()).run()
        except KeyboardInterrupt as ended:  # a signal is one too, and has a name
            say(f"turnwise: {str(ended) or 'interrupted'}; run the same command again to resume", file=sys.stderr)
            return getattr(ended, "exit_code", INTERRUPTED)
    written = write_study(study)
    if written:
        path, found = written
        print_page(found, markdown=options.markdown, wide=options.wide)
        say_written(path)
    elif options.report:
        raise RunError(f"no run of {study.name} is finished yet")
    if failed:
        say(
            f"turnwise: {len(failed)} run{'s' * (len(failed) > 1)} failed, see {failed[0].path}.log; run the same "
            "command again to retry",
            file=sys.stderr,
        )
        return 2
    if written:
        one = next(job for job in study.jobs if state(job) == "done")
        say_next(f"turnwise report {shlex.quote(str(one.path))}", "the trajectories of one run")
    return 0
