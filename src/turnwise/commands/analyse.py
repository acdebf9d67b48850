"""The commands `compare`, `study`, `recredit` and `analyse`."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from turnwise.errors import ConfigError, RunError

Count = Callable[[str], int]


def add_commands(commands: Any, count: Count) -> None:
    """Add the parsers of this file's commands.

    Args:
        commands: What `add_subparsers` returned.
        count: Parses a whole number, 1 or more.
    """
    compare = commands.add_parser("compare", help="is A better than B? Paired by seed and task, with intervals")
    compare.add_argument("runs", nargs="+", type=Path, metavar="A", help="run folders, or folders of runs")
    compare.add_argument(
        "--against", nargs="+", type=Path, required=True, metavar="B", help="the baseline; `--` for short"
    )
    compare.add_argument("--step", type=int, help="compare after this step; default: the last of each run")
    compare.add_argument("--panel", help="use the results of `turnwise eval --panel NAME`")
    compare.add_argument("--level", type=float, help="success whose cost in trajectories is compared")
    _add_out(compare, "comparison")
    compare.set_defaults(run=_compare)

    study = commands.add_parser("study", help="train a grid of methods, seeds and recipes, and compare; can be resumed")
    study.add_argument("study", type=Path, help="TOML file, followed by overrides for all runs")
    study.add_argument("overrides", nargs="*", help=argparse.SUPPRESS)
    study.add_argument("--jobs", type=count, help="runs at one time, a thread each; default: as many as cores")
    study.add_argument("--report", action="store_true", help="train nothing: write the comparisons of what is finished")
    study.set_defaults(run=_study)

    recredit = commands.add_parser("recredit", help="what would other methods have said of a run's rollouts?")
    recredit.add_argument("run_folder", type=Path, metavar="RUN")
    recredit.add_argument("overrides", nargs="*", help="options of the method, such as method.discount=0.9 aem=false")
    recredit.add_argument("--method", action="append", metavar="NAME", help="may be repeated; default: the run's own")
    recredit.add_argument("--step", type=int, help="this step alone; default: all")
    recredit.add_argument("--out", type=Path, metavar="FILE", help="Parquet file for the advantages of a single method")
    recredit.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    recredit.set_defaults(run=_recredit)

    analyse = commands.add_parser("analyse", help="the analyses of AEM's paper on runs of your own")
    kinds = analyse.add_subparsers(required=True, metavar="ANALYSIS")
    surprisal = kinds.add_parser("surprisal", help="A: alpha - 1 against Monte-Carlo relative surprisal")
    surprisal.add_argument("run_folder", type=Path, metavar="RUN")
    surprisal.add_argument("--states", type=count, default=64)
    surprisal.add_argument("--responses", type=count, default=64, help="fresh responses a state")
    surprisal.add_argument("--step", type=int, help="default: the last that follows a kept checkpoint")
    surprisal.add_argument("--seed", type=int, default=0)
    surprisal.set_defaults(run=_surprisal)
    noise = kinds.add_parser("noise", help="how many groups a step needs before its gradient is more signal than noise")
    noise.add_argument("run_folder", type=Path, metavar="RUN")
    noise.add_argument("--method", action="append", metavar="NAME", help="may be repeated; default: grpo and grpo+aem")
    noise.add_argument("--groups", type=count, default=32)
    noise.add_argument("--step", type=int, help="default: the last checkpoint")
    noise.add_argument("--seed", type=int, default=0)
    noise.set_defaults(run=_noise)
    masked = kinds.add_parser("masked", help="B: entropy of runs with method.keep=positive and =negative")
    dynamics = kinds.add_parser("dynamics", help="C: entropy, success and balance of samples, by method")
    for parser, run in ((masked, _masked), (dynamics, _dynamics)):
        parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folders, or folders of runs")
        parser.set_defaults(run=run)
    cost = kinds.add_parser("cost", help="D: seconds by stage, and AEM's share")
    cost.add_argument("run_folder", type=Path, metavar="RUN")
    cost.set_defaults(run=_cost)
    for parser in (surprisal, masked, dynamics, cost):
        _add_out(parser, "analyses")


def _add_out(parser: argparse.ArgumentParser, default: str) -> None:
    parser.add_argument(
        "--out", type=Path, default=Path(default), metavar="FOLDER", help=f"for table and figure; default: {default}"
    )


def _say(path: Path) -> None:
    print(f"written: {path}, with its figure", file=sys.stderr)


def _compare(options: argparse.Namespace) -> int:
    from turnwise.diagnostics.compare import compare
    from turnwise.diagnostics.runs import find_runs
    from turnwise.diagnostics.show import figure, page, write

    made = compare(
        find_runs(options.runs), find_runs(options.against), step=options.step, panel=options.panel, level=options.level
    )
    text = page(made)
    written = write(options.out, "comparison", text, figure(made))
    print(text, end="")
    _say(written)
    return 0


def _study(options: argparse.Namespace) -> int:
    from rich.console import Console

    from turnwise.diagnostics.runner import Runner, cores
    from turnwise.diagnostics.show import write_study
    from turnwise.diagnostics.study import load_study, results

    study = load_study(options.study, tuple(options.overrides))
    failed = []
    if not options.report:
        console = Console(file=sys.stderr)
        try:
            failed = Runner(study, options.jobs or cores(), console).run()
        except KeyboardInterrupt:
            print(f"turnwise: interrupted; go on with `turnwise study {options.study}`", file=sys.stderr)
            return 130
    found = results(study)
    if found:
        path, text = write_study(study.folder, study.name, found)
        print(text, end="")
        _say(path)
    elif options.report:
        raise RunError(f"no comparison of {study.name} has a finished run on both sides yet")
    if failed:
        print(
            f"turnwise: {len(failed)} run{'s' * (len(failed) > 1)} failed, see {failed[0].path}.log; call the study again to retry",
            file=sys.stderr,
        )
    return 2 if failed else 0


def _recredit(options: argparse.Namespace) -> int:
    from turnwise.analysis.tables import as_markdown, as_text
    from turnwise.config import override_config
    from turnwise.diagnostics.recredit import replay, statistics, write_credit
    from turnwise.train.credit import make_credit
    from turnwise.train.folder import RunFolder

    folder, config = RunFolder.open(options.run_folder)
    foreign = [given for given in options.overrides if not given.startswith(("method.", "aem="))]
    if foreign:
        raise ConfigError(f"{foreign[0]!r}: recredit takes method.* and aem= only; the rollouts are what they are")
    if options.out and len(options.method or []) > 1:
        raise ConfigError("--out is for a single --method; run the command once a method")
    table = [
        (
            "method",
            "same sign",
            "correlation",
            "equal",
            "variance",
            "zero",
            "credit by third of the turns",
            "signal / noise",
        )
    ]
    for name in options.method or [None]:
        overrides = options.overrides if name is None else [f"method={name}", *options.overrides]
        asked = override_config(config, overrides)
        replayed = list(replay(folder, config, make_credit(asked), only=options.step))
        if not replayed:
            raise RunError(f"{folder.path} learned from nothing in the steps asked for")
        s = statistics(replayed)
        thirds = " ".join(f"{share:.2f}" for share in s.share_K)
        numbers = (
            f"{s.agreement:.3f}",
            f"{s.correlation:.3f}",
            f"{s.equal:.3f}",
            f"{s.variance:.3f}",
            f"{s.zero_frac:.3f}",
        )
        table.append((asked.label, *numbers, thirds, f"{s.signal_to_noise:.3g}"))
        if options.out:
            write_credit(options.out, replayed)
    print((as_markdown if options.markdown else as_text)(table))
    return 0


def _surprisal(options: argparse.Namespace) -> int:
    from turnwise.cli import quiet
    from turnwise.diagnostics.surprisal import fidelity_figure, fidelity_table, measure_fidelity
    from turnwise.train.folder import RunFolder
    from turnwise.train.loop import use_device

    folder, config = RunFolder.open(options.run_folder)
    quiet()
    use_device(config)
    made = measure_fidelity(
        folder, config, states=options.states, responses=options.responses, step=options.step, seed=options.seed
    )
    head = f"Step {made.step} of {folder.path}: {len(made.alpha_R)} states, {made.responses} fresh responses each."
    return _written(options.out, "surprisal", head, fidelity_table(made), fidelity_figure(made))


def _noise(options: argparse.Namespace) -> int:
    from turnwise.analysis.tables import as_text
    from turnwise.cli import quiet
    from turnwise.diagnostics.noise import measure_noise, noise_table
    from turnwise.train.display import ConsoleDisplay
    from turnwise.train.folder import RunFolder
    from turnwise.train.loop import use_device

    folder, config = RunFolder.open(options.run_folder)
    quiet()
    use_device(config)
    with ConsoleDisplay() as display:
        found = measure_noise(
            folder, config, options.method or ["grpo", "grpo+aem"], step=options.step, groups=options.groups,
            seed=options.seed, on_trajectory=lambda done, total: display.count("gradients", done, total),
        )  # fmt: skip
    print(as_text(noise_table(found, config.rollout.groups)))
    return 0


def _masked(options: argparse.Namespace) -> int:
    from turnwise.diagnostics.dynamics import by_label, dynamics_figure, masked_table
    from turnwise.diagnostics.runs import find_runs

    runs = find_runs(options.runs)
    head = "Training on responses with one sign of A (alpha - 1); entropy over the first and last fifth of the steps, 95 % over runs."
    return _written(options.out, "masked", head, masked_table(runs), dynamics_figure(by_label(runs)))


def _dynamics(options: argparse.Namespace) -> int:
    from turnwise.diagnostics.dynamics import by_label, dynamics_figure, dynamics_table
    from turnwise.diagnostics.runs import find_runs

    arms = by_label(find_runs(options.runs))
    head = ("Means over the steps that all runs have, 95 % over runs. The paper: AEM keeps entropy higher early and lower late, "
            "GRPO's collapses early.")  # fmt: skip
    return _written(options.out, "dynamics", head, dynamics_table(arms), dynamics_figure(arms))


def _cost(options: argparse.Namespace) -> int:
    from turnwise.diagnostics.dynamics import cost_figure, cost_table
    from turnwise.diagnostics.runs import Run
    from turnwise.train.folder import RunFolder

    run = Run(*RunFolder.open(options.run_folder))
    table = cost_table(run)
    return _written(
        options.out, "cost", f"{run.folder.path}, {run.config.run.steps} steps.", table, cost_figure(run, table)
    )


def _written(folder: Path, stem: str, head: str, table: Any, figure: Any) -> int:
    from turnwise.analysis.tables import as_markdown, as_text
    from turnwise.diagnostics.show import write

    print(f"{head}\n\n{as_text(table)}")
    _say(write(folder, stem, f"# {stem}\n\n{head}\n\n{as_markdown(table)}\n", figure))
    return 0
