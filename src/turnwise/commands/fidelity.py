"""Define `turnwise analyse fidelity` and `turnwise audit`, which share their replays."""

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from turnwise.base.errors import RunError
from turnwise.base.terminal import print_page
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


def add(kinds: Any) -> None:
    """Add the analysis of fidelity."""
    parser = kinds.add_parser("fidelity", help="measure how close each method's credit is to the truth")
    parser.add_argument("--gradient", action="store_true", help="compare gradients too: a backward pass per response")
    _add_options(parser)
    parser.set_defaults(run=_fidelity)


def add_audit(commands: Any) -> None:
    """Add the audit."""
    parser = commands.add_parser("audit", help="measure how well each method finds the turns that have an effect")
    parser.add_argument(
        "--alternatives",
        type=count,
        default=1,
        help="distinct other actions that the policy must have drawn at a turn, or the turn is left out; default: 1",
    )
    _add_options(parser)
    parser.set_defaults(run=_audit)


def _add_options(parser: argparse.ArgumentParser) -> None:
    """Add what to play and measure."""
    parser.add_argument("run_folder", type=Path, metavar="RUN", help="run folder")
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument(
        "--method",
        action="append",
        metavar="NAME",
        help="method to measure, such as gigpo+empg, turn_ppo+visits or 'gae(decay=0.7)'; may be repeated; the others "
        f"are compared with the first; default: {', '.join(COMPARED[:3])}",
    )
    chosen.add_argument(
        "--all",
        action="store_true",
        help="measure every method that this run allows, except those that continue from every turn themselves",
    )
    parser.add_argument("--groups", type=count, default=24, help="groups to play; default: 24")
    parser.add_argument("--continuations", type=count, default=12, help="continuations per history; default: 12")
    parser.add_argument(
        "--critic-groups",
        type=count,
        metavar="N",
        help="other groups that critics learn from, such as those of one step; default: four per measured group",
    )
    parser.add_argument("--step", type=int, help="step of the checkpoint; default: the last")
    parser.add_argument(
        "--seed", type=natural, default=0, help="seed of tasks, trajectories and continuations; default: 0"
    )
    parser.add_argument(
        "--log", type=Path, metavar="FILE", help="log whose trajectories are measured; the policy continues them"
    )
    parser.add_argument("--format", metavar="NAME", help="format of the log; default: recognised from its content")
    parser.add_argument("--reward", metavar="NAME", help="key, scorer or evaluation that gives the log's reward")
    add_out(parser, RUNS_OWN)
    add_markdown(parser)


def _measure(options: argparse.Namespace, **further: Any) -> tuple[Path, Any, str]:
    """Play and continue trajectories of the run; return its folder, the findings, and what was played, in words."""
    folder, config = open_run(options.run_folder)
    if not os.access(folder.path, os.W_OK):
        raise RunError(f"{folder.path} cannot be written, where continuations are kept; copy the run")
    load_libraries()
    from turnwise.lab.diagnostics.fidelity_run import measure_run
    from turnwise.train.display import ConsoleDisplay
    from turnwise.train.resume import use_device

    def play(stage: Any) -> Any:
        from turnwise.integrations.logs.replayed import log_groups

        suite = stage.suite
        tasks = {suite.task_name(task): task for task in suite.tasks(config.environment.train_split)}
        reading = {"kind": options.format, "reward": options.reward}
        return log_groups(options.log, tasks, stage.policy, stage.config, **reading)

    with ConsoleDisplay() as display:
        found = measure_run(
            folder,
            () if options.all else options.method or COMPARED[:3],
            step=options.step,
            groups=options.groups,
            continuations=options.continuations,
            critic_groups=options.critic_groups,
            seed=options.seed,
            device=use_device(config.run),
            play=play if options.log else None,
            on_turn=display.turn,
            on_progress=lambda done, total: display.count("histories", done, total),
            on_gradient=lambda done, total: display.count("gradients of groups", done, total),
            **further,
        )
    whose = f"{options.log} and step" if options.log else "Step"
    played = (
        f"{whose} {found.step} of {folder.path}: {found.histories} histories of {found.groups} groups, "
        f"{found.continuations} continuations each, success {found.success:.2f}. "
    )
    return folder.path, found, played


def _tell(
    options: argparse.Namespace, run: Path, name: str, page: Sequence[Any], figure: Any, data: Mapping[str, Any]
) -> int:
    """Print the page of an analysis, and write it with its figure and data."""
    from turnwise.base.files import write_json
    from turnwise.lab.diagnostics.show import write

    print_page(page, markdown=options.markdown, wide=options.wide)
    out = options.out or run / "analyses"
    path = write(out, name, [f"# {name}", *page], figure)
    write_json(out / f"{name}.json", data)
    say_written(path)
    return 0


def _audit(options: argparse.Namespace) -> int:
    refuse_written(options.out, "audit.md", "audit.png", "audit.json")
    run, found, played = _measure(options, alternatives=options.alternatives)
    from turnwise.lab.diagnostics.audit_show import (
        as_json,
        audit_figure,
        audit_run,
        audit_table,
        effects_table,
        verdict,
    )
    from turnwise.lab.diagnostics.fidelity_show import lacking_lines

    made = audit_run(found, seed=options.seed)
    head = (
        f"{played}The effect of a turn is the mean return after it minus that after other actions the policy drew; "
        "intervals are 95 %, resampling groups."
    )
    page = [head, [("effects", ""), *effects_table(made)], audit_table(made), verdict(made), *lacking_lines(found)]
    return _tell(options, run, "audit", page, audit_figure(made), {"step": found.step, **as_json(made)})


def _fidelity(options: argparse.Namespace) -> int:
    refuse_written(options.out, "fidelity.md", "fidelity.png", "fidelity.json")
    run, found, played = _measure(options, gradient=options.gradient)
    from turnwise.lab.diagnostics.fidelity_record import write_responses
    from turnwise.lab.diagnostics.fidelity_show import (
        as_json,
        critics_lines,
        fidelity_figure,
        fidelity_table,
        importance_table,
        lacking_lines,
        places_table,
        verdict,
    )

    head = (
        f"{played}Fidelity is the cosine between advantages and true advantages, 95 % over groups; 1 is perfect "
        "credit, and 'needed' is how many times its responses a method needs. Entropy drift above 0 raises entropy, to "
        "first order. Neither measures learning."
    )
    page = [head, fidelity_table(found), *critics_lines(found), importance_table(found), verdict(found)]
    if places := places_table(found):
        page.append(places)
    page += lacking_lines(found)
    write_responses(run / "analyses", found.responses)  # where the report looks, whatever --out
    return _tell(options, run, "fidelity", page, fidelity_figure(found), as_json(found))
