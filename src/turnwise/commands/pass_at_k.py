"""Define `turnwise analyse pass-at-k`."""

import argparse
from functools import partial
from pathlib import Path
from typing import Any

from turnwise.base.errors import ConfigError
from turnwise.base.terminal import print_page
from turnwise.commands.common import (
    RUNS_OWN,
    add_markdown,
    add_out,
    count,
    load_libraries,
    natural,
    positive,
    refuse_written,
    say_written,
)


def add(kinds: Any) -> None:
    """Add the analysis."""
    parser = kinds.add_parser("pass-at-k", help="compare pass@k before and after training")
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folders, or folders of runs")
    parser.add_argument("--tasks", type=count, default=64, help="tasks to play, evenly spaced; default: 64")
    parser.add_argument("--samples", type=count, default=256, help="trajectories per task, the largest k; default: 256")
    parser.add_argument("--split", help="split of the environment; default: the runs' held-out one")
    parser.add_argument("--temperature", type=positive, help="sampling temperature; default: that of training")
    parser.add_argument("--before", type=natural, default=0, metavar="STEP", help="checkpoint before; default: 0")
    parser.add_argument("--step", type=natural, help="checkpoint after; default: the last")
    parser.add_argument("--seed", type=natural, default=0, help="seed of the sampling; default: 0")
    add_out(parser, f"{RUNS_OWN}, if there is one run")
    add_markdown(parser)
    parser.set_defaults(run=_pass_at_k)


def _pass_at_k(options: argparse.Namespace) -> int:
    load_libraries()
    from turnwise.base.files import write_json
    from turnwise.lab.diagnostics.capability import (
        as_json,
        capability_figure,
        capability_of,
        capability_table,
        check_runs,
        play_checkpoint,
        solved_table,
    )
    from turnwise.lab.diagnostics.dynamics import by_label
    from turnwise.lab.diagnostics.runs import find_runs
    from turnwise.lab.diagnostics.show import write
    from turnwise.train.display import ConsoleDisplay
    from turnwise.train.resume import use_device

    refuse_written(options.out, "pass-at-k.md", "pass-at-k.png", "pass-at-k.json")
    if options.step is not None and options.step <= options.before:
        raise ConfigError(f"--before {options.before} --step {options.step}: expected --step after --before")
    runs = find_runs(options.runs)
    check_runs(runs, (options.before, options.step), options.temperature)
    device = use_device(runs[0].config.run)
    chosen = {name: getattr(options, name) for name in ("tasks", "samples", "split", "temperature", "seed")}
    arms = {}
    with ConsoleDisplay() as display:
        for arm, mine in by_label(runs).items():
            played = []
            for run in mine:
                shown = partial(display.count, f"trajectories of {run.folder.path.name}")
                before, after = (
                    play_checkpoint(run, step, device=device, **chosen, on_trajectory=shown)
                    for step in (options.before, options.step)
                )
                played.append((before, after))
            arms[arm] = capability_of(mine, played, seed=options.seed)
    first = next(iter(arms.values())).played[0][0]
    temperature = runs[0].config.rollout.temperature if options.temperature is None else options.temperature
    head = (
        f"{len(first.tasks)} tasks, {options.samples} trajectories each at temperature {temperature:g}. pass@k is the "
        "chance that at least one of k trajectories succeeds; intervals are 95 %, by the bootstrap over tasks and runs "
        "or, if wider, Student's over runs. Before and after are paired."
    )
    page = [head, capability_table(arms), "Tasks that at least one trajectory solved:", solved_table(arms)]
    print_page(page, markdown=options.markdown, wide=options.wide)
    out = options.out or (runs[0].folder.path / "analyses" if len(runs) == 1 else None)
    written = out and write(out, "pass-at-k", ["# pass@k", *page], capability_figure(arms))
    if out:
        write_json(out / "pass-at-k.json", as_json(arms))
    say_written(written)
    return 0
