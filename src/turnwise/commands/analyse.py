"""Define `turnwise analyse`."""

import argparse
from pathlib import Path
from typing import Any

from turnwise.base.tables import Table
from turnwise.base.terminal import print_table
from turnwise.commands import fidelity, pass_at_k, turns
from turnwise.commands.common import (
    RUNS_OWN,
    add_markdown,
    add_out,
    count,
    load_libraries,
    natural,
    open_run,
    refuse_written,
    say_written,
)
from turnwise.credit.compared import COMPARED


def add(commands: Any) -> None:
    """Add the command and its analyses."""
    analyse = commands.add_parser("analyse", help="measure credit on your runs, and analyse entropy and its modulation")
    kinds = analyse.add_subparsers(required=True, metavar="ANALYSIS")
    surprisal = kinds.add_parser("surprisal", help="A: alpha - 1 against Monte-Carlo relative surprisal")
    surprisal.add_argument("run_folder", type=Path, metavar="RUN", help="run folder")
    surprisal.add_argument("--states", type=count, default=64, help="recorded responses to examine; default: 64")
    surprisal.add_argument("--responses", type=count, default=64, help="fresh responses per state; default: 64")
    surprisal.add_argument("--step", type=int, help="step to analyse; default: the last that follows a kept checkpoint")
    surprisal.add_argument("--seed", type=natural, default=0, help="seed of the fresh responses; default: 0")
    surprisal.set_defaults(run=_surprisal)
    fidelity.add(kinds)
    fidelity.add_audit(commands)
    pass_at_k.add(kinds)
    turns.add(kinds)
    noise = kinds.add_parser("noise", help="estimate how many groups make a step's gradient more signal than noise")
    noise.add_argument("run_folder", type=Path, metavar="RUN", help="run folder")
    noise.add_argument(
        "--method",
        action="append",
        metavar="NAME",
        help=f"method to measure; may be repeated; default: {' and '.join(COMPARED[:2])}",
    )
    noise.add_argument("--groups", type=count, default=32, help="groups to play; default: 32")
    noise.add_argument("--step", type=int, help="step of the checkpoint; default: the last")
    noise.add_argument("--seed", type=natural, default=0, help="seed of the played groups; default: 0")
    noise.set_defaults(run=_noise)
    masked = kinds.add_parser("masked", help="B: entropy of runs with method.keep=positive and =negative")
    dynamics = kinds.add_parser("dynamics", help="C: entropy, success and balance of samples, by method")
    for parser, run in ((masked, _masked), (dynamics, _dynamics)):
        parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folders, or folders of runs")
        parser.set_defaults(run=run)
    cost = kinds.add_parser("cost", help="D: seconds by stage, and the share of modulation")
    cost.add_argument("run_folder", type=Path, metavar="RUN", help="run folder")
    cost.set_defaults(run=_cost)
    for parser in (surprisal, cost):
        add_out(parser, RUNS_OWN)
    for parser in (masked, dynamics):
        add_out(parser)
    for parser in (surprisal, masked, dynamics, cost, noise):
        add_markdown(parser)


def _surprisal(options: argparse.Namespace) -> int:
    _refuse_written(options, "surprisal")
    folder, config = open_run(options.run_folder)
    load_libraries()
    from turnwise.lab.diagnostics.surprisal import measure_surprisal, surprisal_figure, surprisal_table
    from turnwise.train.display import ConsoleDisplay
    from turnwise.train.resume import use_device

    device = use_device(config.run)
    with ConsoleDisplay() as display:
        made = measure_surprisal(
            folder,
            config,
            states=options.states,
            responses=options.responses,
            step=options.step,
            seed=options.seed,
            device=device,
            on_response=lambda done, total: display.count("fresh responses", done, total),
        )
    head = f"Step {made.step} of {folder.path}: {len(made.alpha_R)} states, {made.responses} fresh responses each."
    return _written(options, folder.path, "surprisal", head, surprisal_table(made), surprisal_figure(made))


def _noise(options: argparse.Namespace) -> int:
    folder, config = open_run(options.run_folder)
    load_libraries()
    from turnwise.lab.diagnostics.noise import measure_noise, noise_table
    from turnwise.train.display import ConsoleDisplay
    from turnwise.train.resume import use_device

    device = use_device(config.run)
    with ConsoleDisplay() as display:
        found = measure_noise(
            folder,
            options.method or COMPARED[:2],
            step=options.step,
            groups=options.groups,
            seed=options.seed,
            device=device,
            on_turn=display.turn,
            on_trajectory=lambda done, total: display.count("gradients", done, total),
        )
    print_table(noise_table(found, config.rollout.groups), markdown=options.markdown, wide=options.wide)
    return 0


def _masked(options: argparse.Namespace) -> int:
    _refuse_written(options, "masked")
    from turnwise.lab.diagnostics.dynamics import by_label, dynamics_figure, masked_table
    from turnwise.lab.diagnostics.runs import find_runs

    runs = find_runs(options.runs)
    head = (
        "Training on responses with one sign of A (alpha - 1); entropy over the first and last fifth of the steps, "
        "95 % over runs."
    )
    return _written(options, None, "masked", head, masked_table(runs), dynamics_figure(by_label(runs)))


def _dynamics(options: argparse.Namespace) -> int:
    _refuse_written(options, "dynamics")
    from turnwise.lab.diagnostics.dynamics import by_label, dynamics_figure, dynamics_table
    from turnwise.lab.diagnostics.runs import find_runs

    arms = by_label(find_runs(options.runs))
    head = (
        "Means over the steps that all runs have, 95 % over runs. The paper: modulation keeps entropy higher early and "
        "lower late, GRPO's collapses early."
    )
    return _written(options, None, "dynamics", head, dynamics_table(arms), dynamics_figure(arms))


def _cost(options: argparse.Namespace) -> int:
    _refuse_written(options, "cost")
    folder, config = open_run(options.run_folder)
    from turnwise.lab.diagnostics.dynamics import cost_figure, cost_table
    from turnwise.lab.diagnostics.runs import RunLog

    run = RunLog(folder, config)
    table = cost_table(run)
    num_steps = sum("rollout/success" in record for record in run.records)
    head = f"{run.folder.path}, {num_steps} of {run.config.run.steps} steps."
    return _written(options, run.folder.path, "cost", head, table, cost_figure(run, table))


def _refuse_written(options: argparse.Namespace, stem: str) -> None:
    refuse_written(options.out, f"{stem}.md", f"{stem}.png")


def _written(options: argparse.Namespace, run: Path | None, stem: str, head: str, table: Table, figure: Any) -> int:
    """Print an analysis, and write it to `--out`, by default into the only run that it reads."""
    from turnwise.lab.diagnostics.show import write

    folder = options.out or (run and run / "analyses")
    print_table(table, title=head, markdown=options.markdown, wide=options.wide)  # before anything that can fail
    say_written(folder and write(folder, stem, [f"# {stem}", head, table], figure))
    return 0
