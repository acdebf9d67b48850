"""`turnwise eval`."""

import argparse
import contextlib
import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnwise.base.errors import ConfigError, RunError
from turnwise.base.terminal import print_table, say, say_next
from turnwise.commands.common import count, load_libraries, note, open_run

if TYPE_CHECKING:
    from turnwise.config import Config

IDLE = {
    "evaluate.episodes": "; use --episodes N",
    "evaluate.final_episodes": "; use --episodes N",
    "evaluate.every": "",
    "run.seed": ", whose sampling seeds are 0, 1, ...; use --seeds N for the first N",
    "run.steps": "; use --step N for the checkpoint of a step",
    "run.name": "; name the run folder",
    "run.folder": "; name the run folder",
    **dict.fromkeys(("model.", "prompt."), "; the checkpoint has its own model and conversation format"),
    **dict.fromkeys(
        ("method", "measures", "update.", "warmstart.", "checkpoint.", "log."),
        "; the policy is already trained",
    ),
    **dict.fromkeys(
        (
            "rollout.groups",
            "rollout.group_size",
            "rollout.select",
            "rollout.filter",
            "rollout.filter_from",
            "rollout.max_batches",
            "rollout.temperature",
        ),
        ", which plays every task once per seed; set evaluate.temperature for its temperature",
    ),
}
"""Overrides that do not affect an evaluation, and what to use instead."""


EFFECTIVE = ("model.precision",)
"""Overrides that affect an evaluation although their section does not."""


def add(commands: Any) -> None:
    """Add the command."""
    evaluate = commands.add_parser("eval", help="evaluate a run's checkpoint")
    evaluate.add_argument("run_folder", type=Path, metavar="RUN", help="run folder")
    evaluate.add_argument(
        "overrides", nargs="*", default=[], help="overrides such as environment.name=alfworld evaluate.temperature=0"
    )
    evaluate.add_argument("--split", help="split of the environment; default: the run's held-out one")
    evaluate.add_argument("--environment", help="environment to play; default: the run's")
    evaluate.add_argument("--episodes", type=count, help="episodes to play; default: evaluate.final_episodes")
    evaluate.add_argument("--seeds", type=count, help="number of sampling seeds; default: 1")
    evaluate.add_argument(
        "--panel", metavar="NAME", help="named panel: fixed tasks, limits and seeds, to compare runs on"
    )
    evaluate.add_argument("--panels", action=_ListPanels, nargs=0, help="list the panels and exit")
    evaluate.add_argument("--step", type=int, help="step of the checkpoint; default: the last")
    evaluate.add_argument(
        "--markdown", action="store_true", help="print the page of the evaluation in Markdown instead of JSON"
    )
    evaluate.set_defaults(run=_evaluate)


class _ListPanels(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from turnwise.train.evaluation.panels import PANELS

        table = [("panel", "tasks", "turns", "seeds", "needs")]
        for name, panel in PANELS.items():
            numbers = (str(panel.episodes or "all"), str(panel.max_steps), str(len(panel.seeds)))
            table.append((name, *numbers, panel.needs or "-"))
        print_table(table)
        parser.exit()


def _evaluate(options: argparse.Namespace) -> int:
    out = sys.stdout  # for the result alone: what the environment prints goes to stderr
    options.signs_of_life.enter_context(contextlib.redirect_stdout(sys.stderr))
    folder, config = open_run(options.run_folder)
    config = _asked(config, options)
    if not folder.verified:
        note(folder.unverified)
    load_libraries()
    from turnwise.engines.build import make_engine
    from turnwise.engines.models import Models, NamedModel
    from turnwise.environments.suites import make_suite
    from turnwise.train.checkpoint import checkpoint_at, load_checkpoint
    from turnwise.train.display import ConsoleDisplay, describe
    from turnwise.train.evaluation.assess import assess
    from turnwise.train.evaluation.panels import check_tasks, find_panel, task_digest
    from turnwise.train.evaluation.play import common_failure, evaluate, panel
    from turnwise.train.evaluation.scores import (
        as_markdown,
        as_table,
        evaluation_record,
        rows_by_type,
        write_evaluation,
    )
    from turnwise.train.extension import Context, make_collectors, make_extensions, make_players
    from turnwise.train.resume import use_device

    config.engine.check()
    suite = make_suite(config.environment)
    found = suite.tasks(config.environment.eval_split)
    if options.panel:
        fixed = find_panel(options.panel)
        name, episodes, seeds = options.panel, fixed.episodes or len(found), fixed.seeds
    else:
        episodes, seeds = options.episodes or config.evaluate.final_episodes, range(options.seeds or 1)
        name = f"own-{config.environment.name}-{config.environment.eval_split}-{episodes}"
    tasks = [suite.task_name(task) for task in panel(found, episodes)]
    if options.panel:
        check_tasks(options.panel, tasks)
    device = use_device(config.run)
    context = Context(config, suite, suite.tasks(config.environment.train_split), device)
    extensions = make_extensions(context)
    checkpoint = checkpoint_at(folder, options.step)
    to_play = not any(each.evaluates_with_state for each in extensions)
    step, policy, states = load_checkpoint(checkpoint, to_play=to_play)
    policy.model.to(device)  # pyright: ignore[reportArgumentType]
    for each in extensions:
        each.restore(checkpoint, states, folder.path)
    collector = make_collectors(extensions, context, make_players(extensions, context))
    models = Models(policy=NamedModel(policy, make_engine(config.engine, config.model.precision, policy)))
    models.publish(step)
    results, played = [], []
    with ConsoleDisplay() as display:
        for seed in seeds:
            metrics, trajectories = evaluate(
                collector,
                models,
                found,
                episodes=episodes,
                temperature=config.evaluate.temperature,
                seed=seed,
                on_turn=display.turn,
            )
            metrics |= assess(suite, models, config.model, config.rollout, config.evaluate.temperature)
            display.console.print(
                f"step {step}, seed {seed}: {describe(metrics, common_failure(trajectories))}",
                highlight=False,
                soft_wrap=True,
            )
            results.append({"step": step, "seed": seed, "panel": name, "tasks": task_digest(tasks), **metrics})
            played += trajectories
        if not any(result["episodes"] for result in results):
            raise RunError(f"no episode could be played: {common_failure(played)}. Nothing was written")
    rows = rows_by_type(played)
    record = evaluation_record(name, config, results, played, on_panel=bool(options.panel))
    if options.markdown:
        say(as_markdown(record, rows), end="", file=out, flush=True)  # before anything that can fail
    else:
        print_table(as_table(rows), title=f"{folder.path} on {name}, step {step}", file=sys.stderr)
        say(json.dumps(results, indent=2), file=out, flush=True)
    written = write_evaluation(folder.path / "evaluations", record, rows)
    say(f"table: {written}", file=sys.stderr)
    run = shlex.quote(str(folder.path))
    if options.panel:
        say_next(f"turnwise compare {run} -- OTHER_RUN --panel {name} --step {step}", "after the same for OTHER_RUN")
    else:
        say_next(f"turnwise report {run}", "the page of the run")
    return 0


def _asked(config: "Config", options: argparse.Namespace) -> "Config":
    """Apply the command line's settings to a run's configuration."""
    from turnwise.config import override_config
    from turnwise.credit.methods.former import KEY
    from turnwise.train.evaluation.panels import on_panel

    overrides, idle = [], {f"{KEY}=": IDLE["method"], **IDLE}
    for given in options.overrides:
        if given.startswith(EFFECTIVE):
            continue
        if instead := next((said for prefix, said in idle.items() if given.startswith(prefix)), None):
            raise ConfigError(f"{given!r} does not affect an evaluation{instead}")
    if options.panel:
        given = [name for name in ("split", "environment", "episodes", "seeds") if getattr(options, name)]
        if given:
            raise ConfigError(f"--panel {options.panel} fixes what --{given[0]} sets; remove one of them")
        config = on_panel(config, options.panel, options.overrides)
    if options.environment:
        overrides += [f"environment.name={options.environment}"]
        if options.environment != config.environment.name:
            overrides += ["environment.options={}"]
    if options.split:
        overrides += [f"environment.eval_split={options.split}"]
    return override_config(config, [*overrides, *options.overrides])
