"""The command line.

turnwise train recipes/household-tiny-aem.toml                  train a recipe
turnwise train recipes/household-tiny-aem.toml method=gigpo aem=false run.name=b
turnwise train --resume runs/b                                  go on after an interruption
turnwise eval runs/b --episodes 512                             evaluate the last checkpoint
turnwise eval runs/b --panel household-compact-valid-256        on tasks that are the same for every run
turnwise compare runs/aem -- runs/grpo                          is it better? Paired, with intervals
turnwise study studies/aem-household.toml                       a grid of methods and seeds, and its comparisons
turnwise recredit runs/b --method gigpo                         what would another method have said?
turnwise analyse surprisal runs/b                               the analyses of AEM's paper
turnwise report runs/b                                          a page: curves, trajectories, credit by response
turnwise methods                                                what credit can be assigned with
turnwise methods --bias                                         what each method does to the gradient, exactly
turnwise config recipes/household-tiny-aem.toml                 print the resolved configuration
turnwise check-env module:factory                               test an environment
turnwise make-swe-tasks                                         bugs to repair, for the environment 'swe'
turnwise serve-env household                                    serve an environment over OpenEnv's protocol
turnwise verl-check                                             is the plug-in of verl there, in Ray's workers too?
"""

import argparse
import errno
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from turnwise.config import Config, load_config, override_config
from turnwise.diagnostics.commands import add_commands
from turnwise.environments.swe.make.command import add_command as add_swe_command
from turnwise.errors import ConfigError, TurnwiseError, did_you_mean


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code: 0, 2 for a user's mistake (one line on stderr), 130 when interrupted."""
    try:
        try:
            return _main(arguments)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # the reader has seen enough, as in `turnwise methods | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python's own flush complains
        return 141


def _main(arguments: Sequence[str] | None) -> int:
    options = _parse(arguments)
    try:
        return options.run(options)
    except TurnwiseError as error:
        print(f"turnwise: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS):
            raise
        print(f"turnwise: cannot write: {error}. Make room; what is on disk is good, and `turnwise train --resume RUN_FOLDER` goes on from the "
              "last checkpoint", file=sys.stderr)  # fmt: skip
        return 2
    except KeyboardInterrupt:
        print("turnwise: interrupted; go on with `turnwise train --resume RUN_FOLDER`", file=sys.stderr)
        return 130
    except ModuleNotFoundError as error:
        if error.name not in (
            "torch",
            "transformers",
            "tokenizers",
            "safetensors",
            "pyarrow",
            "rich",
            "matplotlib",
            "httpx2",
            "scipy",
        ):
            raise
        print(f"turnwise: {error.name} is not installed; pip install 'turnwise[train]'", file=sys.stderr)
        return 2


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, as everything else does."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"turnwise: {message}; see `{self.prog} --help`\n")


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse; overrides may stand before, between and after the options."""
    arguments = ["--against" if text == "--" else text for text in (sys.argv[1:] if arguments is None else arguments)]
    parser = _parser()
    options, further = parser.parse_known_args(arguments)
    if further and (not hasattr(options, "overrides") or any(text.startswith("-") for text in further)):
        parser.error(f"unrecognized arguments: {' '.join(further)}")
    if further:
        options.overrides += further
    return options


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number, 1 or more, got {text!r}")
    return int(text)


class _ListPanels(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from turnwise.analysis.tables import as_text
        from turnwise.environments.panels import PANELS

        table = [("panel", "tasks", "turns", "seeds", "needs")]
        for name, panel in PANELS.items():
            numbers = (str(panel.episodes or "all"), str(panel.max_steps), str(len(panel.seeds)))
            table.append((name, *numbers, panel.needs or "-"))
        print(as_text(table))
        parser.exit()


def _parser() -> argparse.ArgumentParser:
    parser = _Parser("turnwise", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    train = commands.add_parser("train", help="train a recipe, or go on with a run")
    train.add_argument("recipe", nargs="?", help="TOML file, followed by overrides such as update.learning_rate=1e-4")
    train.add_argument("overrides", nargs="*", help=argparse.SUPPRESS)
    train.add_argument("--resume", type=Path, metavar="RUN", help="go on with the run in this folder")
    train.set_defaults(run=_train)

    evaluate = commands.add_parser("eval", help="evaluate a run's checkpoint")
    evaluate.add_argument("run_folder", type=Path, metavar="RUN")
    evaluate.add_argument("overrides", nargs="*", help="such as environment.name=alfworld evaluate.temperature=0")
    evaluate.add_argument("--split", help="split of the environment; default: the run's held-out split")
    evaluate.add_argument("--environment", help="another environment than the run's")
    evaluate.add_argument("--episodes", type=_count, help="panel size; default: evaluate.final_episodes")
    evaluate.add_argument("--seeds", type=_count, help="repeat with this many sampling seeds; default: 1")
    evaluate.add_argument("--panel", metavar="NAME", help="fixed tasks, limits and seeds, to compare runs on")
    evaluate.add_argument("--panels", action=_ListPanels, nargs=0, help="list the panels and exit")
    evaluate.add_argument("--step", type=int, help="step of the checkpoint; default: the last")
    evaluate.set_defaults(run=_evaluate)

    report = commands.add_parser("report", help="write runs as a page, or serve it while they train")
    report.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    report.add_argument("--output", type=Path, metavar="FOLDER", help="default: report/ in the run, or beside several")
    report.add_argument("--live", action="store_true", help="serve the page and keep it up to date; writes nothing")
    report.add_argument("--port", type=_count, help="with --live; default: 8010")
    report.add_argument("--host", help="with --live: address to listen on; default: 127.0.0.1, this machine only")
    report.add_argument(
        "--methods", metavar="A,B+aem", help="methods to recompute the credit of recorded responses with"
    )
    report.set_defaults(run=_report)

    methods = commands.add_parser("methods", help="list the methods of credit assignment")
    what = methods.add_mutually_exclusive_group()
    what.add_argument("--bias", action="store_true", help="direction and noise of each one's gradient in small worlds")
    what.add_argument("--drift", action="store_true", help="what steps do to entropy, with AEM and without")
    methods.add_argument("--world", metavar="NAME", help="with --bias: this world only, in more detail")
    methods.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    methods.set_defaults(run=_methods)

    config = commands.add_parser("config", help="print the resolved configuration; touches nothing")
    config.add_argument("recipe", nargs="?")
    config.add_argument("overrides", nargs="*")
    config.set_defaults(run=_config)

    check = commands.add_parser("check-env", help="test an environment and say what to mend")
    check.add_argument("name", help="module:factory, or a built-in environment")
    check.add_argument("overrides", nargs="*", help="such as environment.options.size=tiny")
    check.set_defaults(run=_check_environment)

    add_commands(commands, _count)
    add_swe_command(commands, _count)

    serve = commands.add_parser("serve-env", help="serve an environment over OpenEnv's protocol")
    serve.add_argument("name", help="module:factory, or a built-in environment")
    serve.add_argument("overrides", nargs="*", help="such as environment.options.size=tiny")
    serve.add_argument("--host", default="127.0.0.1", help="address to listen on; 0.0.0.0: all of this machine's")
    serve.add_argument("--port", type=_count, default=8000)
    serve.add_argument("--sessions", type=_count, default=256, help="worlds at one time; default: 256")
    serve.set_defaults(run=_serve_environment)

    verl = commands.add_parser("verl-check", help="is the plug-in of verl there, in Ray's workers too?")
    verl.add_argument(
        "--address", help="of a Ray cluster, or auto; default: RAY_ADDRESS, else one started for the purpose"
    )
    verl.add_argument("--workers", type=_count, default=1, help="worker processes to ask; default: 1")
    verl.set_defaults(run=_check_verl)
    return parser


def _recipe(options: argparse.Namespace) -> Config:
    """The configuration of `recipe overrides...`; the recipe may be left out."""
    recipe, overrides = options.recipe, list(options.overrides)
    if recipe is not None and "=" in recipe and not Path(recipe).exists():
        recipe, overrides = None, [recipe, *overrides]
    return load_config(Path(recipe) if recipe else None, overrides)


def _train(options: argparse.Namespace) -> int:
    if options.resume is None:
        if options.recipe is None:
            raise ConfigError("name a recipe, such as recipes/household-tiny-aem.toml, or a run with --resume")
        config = _recipe(options)
    else:
        from turnwise.train.folder import RunFolder

        given = [*([options.recipe] if options.recipe else []), *options.overrides]
        free = ("run.steps=", "run.threads=", "checkpoint.", "evaluate.", "engine.", "log.")
        frozen = [o for o in given if not o.startswith(free)]
        if frozen:
            raise ConfigError(f"{frozen[0]!r} would change a run that has begun; with --resume only run.steps, run.threads, "
                              "evaluate.*, checkpoint.*, engine.* and log.* can be given")  # fmt: skip
        config = override_config(RunFolder.open(options.resume)[1], given)
    quiet()
    from turnwise.train.display import ConsoleDisplay
    from turnwise.train.loop import train

    with ConsoleDisplay() as display:
        train(config, resume=options.resume, display=display)
    return 0


def _evaluate(options: argparse.Namespace) -> int:
    from turnwise.environments.panels import check_tasks, find_panel, on_panel, task_digest
    from turnwise.train.folder import RunFolder

    folder, config = RunFolder.open(options.run_folder)
    overrides = []
    if options.panel:
        given = [name for name in ("split", "environment", "episodes", "seeds") if getattr(options, name)]
        if given:
            raise ConfigError(f"--panel {options.panel} fixes what --{given[0]} would change: leave one of them out")
        config = on_panel(config, options.panel, options.overrides)
    if options.environment:
        overrides += [f"environment.name={options.environment}"]
        if options.environment != config.environment.name:
            overrides += ["environment.options={}"]
    if options.split:
        overrides += [f"environment.eval_split={options.split}"]
    config = override_config(config, [*overrides, *options.overrides])
    quiet()
    from turnwise.rollout.collect import blocking
    from turnwise.rollout.engines import check_engine, make_engine
    from turnwise.rollout.workers import make_worlds
    from turnwise.train.checkpoint import checkpoint_at, load_checkpoint
    from turnwise.train.display import ConsoleDisplay, describe
    from turnwise.train.evaluate import evaluate, panel
    from turnwise.train.loop import make_suite, use_device
    from turnwise.train.scores import as_table, evaluation_record, rows_by_type, write_evaluation

    check_engine(config)
    suite = make_suite(config.environment)
    split, found = config.environment.eval_split, suite.tasks(config.environment.eval_split)
    episodes, seeds = options.episodes or config.evaluate.final_episodes, range(options.seeds or 1)
    if options.panel:
        episodes, seeds = find_panel(options.panel).episodes or len(found), find_panel(options.panel).seeds
    tasks = [suite.task_name(task) for task in panel(found, episodes)]
    if options.panel:
        check_tasks(options.panel, tasks)
    name = options.panel or f"own-{config.environment.name}-{split}-{episodes}"
    worlds = make_worlds(suite, config.environment)
    device = use_device(config)
    step, policy, _ = load_checkpoint(checkpoint_at(folder, options.step))
    policy.model.to(device)  # pyright: ignore[reportArgumentType]
    engine = make_engine(config, policy)
    blocking(engine.update_weights())
    results, played = [], []
    with ConsoleDisplay() as display:
        for seed in seeds:
            metrics, trajectories = evaluate(
                policy,
                engine,
                suite,
                split=split,
                episodes=episodes,
                temperature=config.evaluate.temperature,
                max_new_tokens=config.rollout.max_new_tokens,
                stop=config.rollout.stop,
                window=config.rollout.remembered,
                seed=seed,
                worlds=worlds,
                on_turn=display.turn,
            )
            display.console.print(f"step {step}, seed {seed}: {describe(metrics)}", highlight=False, soft_wrap=True)
            results.append({"step": step, "seed": seed, "panel": name, "tasks": task_digest(tasks), **metrics})
            played += trajectories
        rows = rows_by_type(played)
        display.console.print(as_table(f"{folder.path} on {name}, step {step}", rows))
        record = evaluation_record(name, config, results, played, on_panel=bool(options.panel))
        written = write_evaluation(folder.path / "evaluations", record, rows)
        display.console.print(f"table: {written}", highlight=False, soft_wrap=True)
    print(json.dumps(results, indent=2))
    return 0


def _report(options: argparse.Namespace) -> int:
    from turnwise.report.command import report

    return report(options)


def _methods(options: argparse.Namespace) -> int:
    from turnwise.analysis.tables import as_markdown, as_text

    if options.world is not None and not options.bias:
        raise ConfigError("--world belongs to --bias: turnwise methods --bias --world NAME")
    table = _bias(options.world) if options.bias else _drift() if options.drift else _list()
    print((as_markdown if options.markdown else as_text)(table))
    return 0


def _list() -> Sequence[Sequence[str]]:
    from turnwise.methods import METHODS
    from turnwise.transform import card_of, trial

    table: list[Sequence[str]] = [("name", "stage", "arXiv", "formula", "needs", "expected gradient")]
    for name, constructor in METHODS.items():
        card, method = card_of(constructor), trial(constructor)
        needs = [*method.needs, *(f"{option}=..." for option in card.trial)]
        paper = card.arxiv or "-"
        table.append((name, card.stage, paper, card.confidence, ", ".join(needs) or "-", str(method.gradient)))
    return table


def _bias(world: str | None) -> Sequence[Sequence[str]]:
    from turnwise.analysis.bias import rows
    from turnwise.analysis.tables import in_one_world, summary
    from turnwise.analysis.worlds import WORLDS
    from turnwise.methods import METHODS

    if world is not None and world not in WORLDS:
        raise ConfigError(f"unknown world {world!r}.{did_you_mean(world, WORLDS)}")
    measured = _progress(rows(only=world), len(METHODS), "methods measured")
    return in_one_world(measured) if world else summary(measured)


def _drift() -> Sequence[Sequence[str]]:
    from turnwise.analysis.drift import measure_drift
    from turnwise.analysis.tables import drifts

    return drifts(measure_drift())


T = TypeVar("T")


def _progress(items: Iterable[T], total: int, what: str) -> Iterator[T]:
    """Say on a terminal's stderr how far it is, once it has taken two seconds."""
    start, shown = time.monotonic(), False
    for done, item in enumerate(items, start=1):
        yield item
        if sys.stderr.isatty() and time.monotonic() - start > 2.0:
            print(f"\r{done}/{total} {what}", end="", file=sys.stderr, flush=True)
            shown = True
    if shown:
        print("\r\033[K", end="", file=sys.stderr, flush=True)


def _config(options: argparse.Namespace) -> int:
    print(json.dumps(_recipe(options).model_dump(mode="json"), indent=2))
    return 0


def _check_environment(options: argparse.Namespace) -> int:
    from turnwise.environments.check import check_environment, report
    from turnwise.environments.suites import make_suite

    config = load_config(None, [f"environment.name={options.name}", *options.overrides])
    problems = check_environment(make_suite(config.environment))
    print(report(options.name, problems))
    return 2 if any(problem.severe for problem in problems) else 0


def _check_verl(options: argparse.Namespace) -> int:
    from turnwise.verl_check import check

    code, lines = check(address=options.address, workers=options.workers)
    print("\n".join(lines))
    return code


def _serve_environment(options: argparse.Namespace) -> int:
    from turnwise.environments.serve import serve

    config = load_config(None, [f"environment.name={options.name}", *options.overrides])
    serve(config.environment, host=options.host, port=options.port, sessions=options.sessions)
    return 0


def quiet() -> None:
    """Keep transformers' own progress bars and hints out of ours."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


if __name__ == "__main__":
    sys.exit(main())
