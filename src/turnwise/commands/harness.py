"""Define `turnwise check-harness`."""

import argparse
import contextlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnwise.base.errors import ConfigError
from turnwise.base.imports import import_named
from turnwise.base.recipes import shipped_recipes
from turnwise.base.terminal import print_page, say
from turnwise.commands.common import count, load_libraries, natural

if TYPE_CHECKING:
    from turnwise.config import Config


def add(commands: Any) -> None:
    """Add the command."""
    check = commands.add_parser("check-harness", help="play an agent's tasks twice, and report whether it repeats")
    check.add_argument(
        "name", metavar="HARNESS|RECIPE|RUN", help="an agent as module:function or command, a recipe, or a run"
    )
    check.add_argument(
        "overrides", nargs="*", default=[], help="overrides such as environment.name=my_agent:Tasks model.name=smollm2"
    )
    check.add_argument("--tasks", type=count, default=16, help="number of training tasks to play; default: 16")
    check.add_argument("--all", action="store_true", help="play all training tasks")
    check.add_argument("--step", type=natural, help="step of a run's checkpoint; default: the last")
    check.add_argument("--json", action="store_true", help="print the result as JSON")
    check.set_defaults(run=_check)


def harness_config(name: str, overrides: Sequence[str]) -> "Config":
    """Load the settings of a harness: by its own name, or those of a recipe or of a run.

    Raises:
        ConfigError: There is no [harness].
    """
    from turnwise.config import load_config, override_config
    from turnwise.extensions.gateway.settings import HarnessConfig
    from turnwise.train.folder import RunFolder

    path = Path(name)
    if (path / "config.json").is_file():
        config = override_config(RunFolder.open(path)[1], overrides)
    elif path.suffix == ".toml" or name in shipped_recipes():
        config = load_config(path, overrides)
    else:
        config = load_config(None, [f"harness.run={name}", "warmstart.steps=0", *overrides])
    harness = config.section(HarnessConfig)
    if harness is None:
        raise ConfigError(f"{name} has no [harness], so turnwise plays its environment; use `turnwise check-env`")
    return config


def _check(options: argparse.Namespace) -> int:
    out = sys.stdout  # for JSON alone: what the agent prints goes to stderr
    if options.json:
        options.signs_of_life.enter_context(contextlib.redirect_stdout(sys.stderr))
    config = harness_config(options.name, options.overrides)
    load_libraries()
    from turnwise.engines.build import make_engine
    from turnwise.engines.models import Models, NamedModel
    from turnwise.environments.suites import make_suite, tasks_of
    from turnwise.extensions.gateway.settings import HarnessConfig
    from turnwise.lab.diagnostics.harness_check import check_harness
    from turnwise.lab.diagnostics.harness_show import as_json, page
    from turnwise.train.checkpoint import checkpoint_at, load_checkpoint
    from turnwise.train.display import ConsoleDisplay
    from turnwise.train.folder import RunFolder
    from turnwise.train.resume import use_device
    from turnwise.train.warmstart import warm_policy

    harness = config.section(HarnessConfig)
    assert harness is not None
    if harness.function is not None:
        import_named(harness.function)  # what is checked is told first if it is wrong
    config.engine.check()
    device, suite = use_device(config.run), make_suite(config.environment)
    tasks = tasks_of(suite, config.environment.name, config.environment.train_split)
    chosen = [tasks[number] for number in range(len(tasks) if options.all else min(options.tasks, len(tasks)))]
    names = [suite.task_name(task) for task in chosen]
    path = Path(options.name)
    with ConsoleDisplay() as display:
        if (path / "config.json").is_file():
            step, policy, _ = load_checkpoint(checkpoint_at(RunFolder(path), options.step), to_play=True)
            policy.model.to(device)  # pyright: ignore[reportArgumentType]
            who = f"the policy of {path} after step {step}"
        else:
            warmed = {"on_demonstration": display.demonstration, "on_step": display.warm_start}
            policy, _ = warm_policy(config, suite, device=device, **warmed)
            who = f"{config.model.name} before any training"
        models = Models(policy=NamedModel(policy, make_engine(config.engine, config.model.precision, policy)))
        models.publish()
        found = check_harness(
            harness, chosen, names, models, config.rollout, seed=config.run.seed, on_turn=display.turn
        )
    if options.json:
        say(json.dumps(as_json(options.name, found), indent=2), file=out)
    else:
        print_page(page(options.name, found, who, len(tasks)), wide=True)  # its cells are sentences
    return 0
