"""Define `turnwise play`: watch a policy play, or play an environment yourself."""

import argparse
import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnwise.base.errors import ConfigError, EnvironmentFault, did_you_mean
from turnwise.base.terminal import make_console, say, visible
from turnwise.commands.common import load_libraries, natural, seconds
from turnwise.commands.environments import environment_config

if TYPE_CHECKING:
    from turnwise.environments.settings import EnvironmentConfig

QUIT = ("quit", "q")
DEMO = "demo"


def add(commands: Any) -> None:
    """Add the command."""
    play = commands.add_parser("play", help="watch a run's policy play, or play an environment yourself")
    play.add_argument(
        "what", metavar="RUN|demo|ENVIRONMENT", help="a run, the recorded run, or an environment (also: a recipe)"
    )
    play.add_argument(
        "overrides", nargs="*", default=[], help="overrides such as environment.max_steps=5 evaluate.temperature=0"
    )
    play.add_argument("--human", action="store_true", help="play a run's environment yourself")
    play.add_argument("--task", default="0", help="number of the task in its split, from 0, or its name; default: 0")
    play.add_argument("--split", help="split of the environment; default: the held-out one")
    play.add_argument("--seed", type=natural, default=0, help="seed of the sampling; default: 0")
    play.add_argument("--step", type=int, help="step of the checkpoint; default: the last")
    play.add_argument(
        "--delay", type=seconds, metavar="SECONDS", help="time between turns; default: wait for Enter on a terminal"
    )
    play.set_defaults(run=_play)


def _play(options: argparse.Namespace) -> int:
    is_run = options.what == DEMO or (Path(options.what) / "config.json").is_file() or "/" in options.what
    if is_run and not Path(options.what).is_file():
        return _play_run(options)
    for name in ("step", "delay"):
        if getattr(options, name) is not None:
            raise ConfigError(f"--{name} needs a run, whose policy plays; {options.what!r} is an environment")
    return _play_yourself(environment_config(options.what, options.overrides), options)


def _play_run(options: argparse.Namespace) -> int:
    from turnwise.commands.demo import demo_run
    from turnwise.config import override_config
    from turnwise.train.folder import RunFolder

    folder, config = RunFolder.open(demo_run() if options.what == DEMO else Path(options.what))
    config = override_config(config, options.overrides)
    if options.human:
        return _play_yourself(config.environment, options)
    load_libraries()
    from turnwise.engines.build import make_engine
    from turnwise.environments.workers import make_environments
    from turnwise.train.checkpoint import checkpoint_at, load_checkpoint
    from turnwise.train.evaluation.watch import watch
    from turnwise.train.prepare import use_device

    config.engine.check()
    suite, task = _task(config.environment, options)
    step, policy, _ = load_checkpoint(checkpoint_at(folder, options.step), to_play=True)
    policy.model.to(use_device(config.run))  # pyright: ignore[reportArgumentType]
    game = watch(
        policy,
        make_engine(config.engine, config.model.precision, policy),
        make_environments(suite, config.environment),
        task,
        config.rollout,
        temperature=config.evaluate.temperature,
        seed=options.seed,
    )
    screen = _Screen(f"{folder.path.name}, step {step}", suite.task_name(task))
    pause = _pause(options.delay, screen)
    with contextlib.closing(game):
        _show(game, screen, pause)
    return 0


def _show(game: Iterable[Any], screen: "_Screen", pause: Callable[[], None]) -> None:
    """Show the events of a game that a policy plays."""
    from turnwise.rollout.failures import placed_failure
    from turnwise.train.evaluation.watch import Observed, Responded

    for event in game:
        if isinstance(event, Observed):
            screen.observation(event.step)
        elif isinstance(event, Responded):
            pause()
            screen.response(event.response, event.entropy)
        elif event.ended == "context":
            screen.note("ended: model.max_context has no room for another response")
        elif event.failure:
            raise EnvironmentFault(f"the trajectory failed: {placed_failure(event)}")


def _play_yourself(config: "EnvironmentConfig", options: argparse.Namespace) -> int:
    """Let a person play one task."""
    options.signs_of_life.close()
    import asyncio

    from turnwise.environments.workers import make_environments

    suite, task = _task(config, options)
    environments = make_environments(suite, config)
    screen = _Screen(config.name, suite.task_name(task))
    screen.note("type a response; ? lists the admissible actions, which you can give by number; q quits")
    with asyncio.Runner() as runner:
        try:
            step = runner.run(environments.start(0, task))
            while True:
                screen.observation(step)
                if step.ended:
                    return 0
                action = _ask(screen, step.admissible or ())
                if action is None:
                    screen.note("you left the game")
                    return 0
                step = runner.run(environments.step(0, action))
        except EnvironmentFault as fault:
            where = f"at turn {screen.turns}" if screen.turns else "at the start"
            raise EnvironmentFault(f"{fault} ({where})") from None
        finally:
            environments.close(0)
            runner.run(environments.aclose())


def _ask(screen: "_Screen", admissible: Sequence[str]) -> str | None:
    """Read a person's response; None: the person quits."""
    while True:
        try:
            text = input("> ").strip()
        except EOFError:
            return None
        if not sys.stdin.isatty():
            say(text)
        if text in QUIT and text not in admissible:
            return None
        if text == "?":
            screen.choices(admissible)
        elif text.isdecimal() and text not in admissible and int(text) < len(admissible):
            return admissible[int(text)]
        elif text:
            return text


def _task(config: "EnvironmentConfig", options: argparse.Namespace) -> tuple[Any, Any]:
    """Return the suite and the task that `--split` and `--task` name."""
    from turnwise.environments.suites import make_suite, tasks_of

    suite, split = make_suite(config), options.split or config.eval_split
    tasks, given = tasks_of(suite, config.name, split), options.task
    if given.isdecimal() and int(given) < len(tasks):
        return suite, tasks[int(given)]
    names = [suite.task_name(task) for task in tasks]
    if given not in names:
        raise ConfigError(
            f"--task {given!r}: split {split!r} has {len(tasks)} tasks, numbered from 0"
            + (f".{did_you_mean(given, names)}" if not given.isdecimal() and len(names) <= 10_000 else "")
        )
    return suite, tasks[names.index(given)]


def _pause(delay: float | None, screen: "_Screen") -> Callable[[], None]:
    """Return what to do before each response: delay, wait for Enter on a terminal, or nothing elsewhere."""
    if delay is not None:
        return lambda: time.sleep(delay)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return lambda: None
    screen.note("Enter: next turn; Ctrl-C ends")

    def wait() -> None:
        sys.stdin.readline()

    return wait


class _Screen:
    """Show a game turn by turn."""

    def __init__(self, title: str, task: str):
        self.console = make_console(sys.stdout, soft_wrap=True)
        self.turns, self.reward = 0, 0.0
        self._print(f"{title}: {task}", "bold")

    def observation(self, step: Any) -> None:
        """Show the result of a response: its reward, the next observation, and how the game ended."""
        if self.turns:
            self.reward += step.reward
            refused = "" if step.valid else ", not accepted"
            self._print(f"  reward {step.reward:g}{refused}", "dim" if step.valid else "yellow")
        self._print(f"\n{step.observation}")
        if step.ended:
            won = bool(step.info.get("success", False))
            end = "success" if won else "no success" + (", turn limit" if step.truncated else "")
            turns = f"{self.turns} turn{'s' if self.turns != 1 else ''}"
            self._print(f"\n{end} after {turns}, return {self.reward:g}", "bold green" if won else "bold red")
        self.turns += 1

    def response(self, text: str, entropy: float | None) -> None:
        """Show the policy's response, with the mean entropy of its tokens."""
        self._print(f"> {text}", "bold cyan", "" if entropy is None else f"   entropy {entropy:.3f} nats")

    def choices(self, admissible: Sequence[str]) -> None:
        """List the admissible actions."""
        if not admissible:
            self.note("this environment does not list its admissible actions")
        for number, action in enumerate(admissible):
            self._print(f"{number:3} {action}")

    def note(self, text: str) -> None:
        """Show a remark."""
        self._print(text, "dim")

    def _print(self, text: str, style: str = "", further: str = "") -> None:
        from rich.text import Text  # plain text: an observation may contain brackets, which rich reads as markup

        self.console.print(Text.assemble((visible(text), style), (further, "dim")))
