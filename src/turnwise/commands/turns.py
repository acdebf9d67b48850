"""Define `turnwise analyse turns`."""

import argparse
import math
from pathlib import Path
from typing import Any

from turnwise.base.terminal import print_page
from turnwise.commands.common import add_markdown, count, load_libraries, natural, open_run, share


def add(kinds: Any) -> None:
    """Add the analysis."""
    parser = kinds.add_parser("turns", help="measure what limits on turns save and lose on held-out tasks")
    parser.add_argument("run_folder", type=Path, metavar="RUN", help="run folder")
    parser.add_argument(
        "--limit", type=count, action="append", metavar="TURNS", help="limit to measure; may be repeated"
    )
    parser.add_argument(
        "--quantile", type=share, default=0.75, help="also the limit at this quantile of training turns; default: 0.75"
    )
    parser.add_argument("--extend", type=count, default=2, help="turns of an extension; default: 2")
    parser.add_argument("--tasks", type=count, default=128, help="held-out tasks to play; default: 128")
    parser.add_argument("--step", type=natural, help="step of the checkpoint; default: the last")
    parser.add_argument("--seed", type=natural, default=0, help="seed of the sampling; default: 0")
    parser.add_argument(
        "--prices", type=prices, metavar="READ,WRITTEN", help="prices per million tokens read and written"
    )
    add_markdown(parser)
    parser.set_defaults(run=_turns)


def prices(text: str) -> tuple[float, float]:
    """Parse two prices, 0 or more each."""
    try:
        read, written = map(float, text.split(","))
    except ValueError:
        read = written = math.nan
    if not (0 <= read < math.inf and 0 <= written < math.inf):
        raise argparse.ArgumentTypeError(f"expected two prices such as 0.15,0.60, got {text!r}")
    return read, written


def _turns(options: argparse.Namespace) -> int:
    folder, config = open_run(options.run_folder)
    load_libraries()
    from turnwise.base.errors import RunError
    from turnwise.lab.diagnostics.runs import RunLog
    from turnwise.lab.diagnostics.turn_budgets import Limit, budget_table, compare_limits, past_quantile, play_unlimited
    from turnwise.train.resume import use_device

    run = RunLog(folder, config)
    limits: list[int] = list(options.limit or ())
    named = ""
    try:
        limits.append(past_quantile(run, options.quantile))
        named = f" The last limit is the {options.quantile:g} quantile of turns in the last training step."
    except RunError:
        if not options.limit:
            raise
    played = play_unlimited(
        run, options.step, tasks=options.tasks, seed=options.seed, device=use_device(run.config.run)
    )
    rules = [Limit(turns, extend) for turns in dict.fromkeys(limits) for extend in (0, options.extend)]
    found = compare_limits(played, {rule.name: rule for rule in rules})
    head = (
        f"{len(played)} held-out tasks, each played once without a limit; every limit is applied to these trajectories."
        f"{named} The loss of success is paired by task, 95 %."
    )
    print_page([head, budget_table(found, options.prices)], markdown=options.markdown, wide=options.wide)
    return 0
