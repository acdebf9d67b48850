"""Random configurations, commands and library calls: each works, or fails with one line that turnwise wrote.

python -m tests.fuzz CASES [SEED]    # at the repository's root: print every finding; exit code 1 if there are some

The working directory is a temporary folder that must stay empty. A case is made from the seed and its number alone.
"""

import contextlib
import dataclasses
import inspect
import io
import itertools
import os
import random
import sys
import tempfile
import traceback
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pydantic

import turnwise as tw
from turnwise.base.errors import TurnwiseError
from turnwise.commands.cli import main
from turnwise.config import Config, load_config
from turnwise.credit.methods import METHODS
from turnwise.environments.suites import make_suite
from turnwise.objective.build import make_objective
from turnwise.train.credit import make_transform
from turnwise.train.extension import Context, make_collectors, make_extensions, make_players
from turnwise.train.lone import lone_note
from turnwise.train.parts import make_plan
from turnwise.worlds.crossroads.knobs import Knobs

RECIPES = sorted(Path(__file__).parents[1].resolve().glob("recipes/*.toml"))
TEXTS = (
    *("", " ", "x", "-1", "0", "1", "2", "7", "0.5", "-0.5", "1e-9", "1e400", "nan", "inf", "-inf", "true", "false"),
    *(
        "10" + "0" * 30,
        "-" + "9" * 30,
        "1_000",
        "0x10",
        "1e3",
        "2026-01-01",
        "12:00:00",
        "None",
        "null",
        "[]",
        "[1, 2]",
    ),
    *("{}", "{name=1}", '{name="grpo"}', '{"name": "grpo"}', "[[", "{", '"', "'", '"a', "\\", "\n", "a\nb", "\x00"),
    *("\u00fc", "../up", "/", ".", "~", "a" * 3000, "[" * 2000, "tiny", "lora", "top", "bf16", "server", "window"),
    *("gigpo+aem", "nowhere:thing", "json:dumps", "json:nothing", ":", "a:b:c", "grpo", "aem", "mix", "clip_cov"),
    *("hapo", "steer", "epo", '["grpo"]', '{parts=["grpo"]}', '[{name="module:Term"}]', '["entropy", "entropy"]'),
    *('["nothing"]', "cuda:99", "branching", '{name="branching", rule="arpo"}', '{name="branching", rule="tree_grpo"}'),
    *('{name="branching", rule="none"}', '{name="branching", widths=[2, -1]}', '["info_gain", "hindsight_logprob"]'),
    *(
        '{run="json:dumps", isolation="process"}',
        '{run="agent --flag"}',
        '{run=["agent", "x"], isolation="bubblewrap"}',
    ),
    *(
        "gvisor",
        "docker",
        "in-process",
        "bubblewrap",
        "crossroads",
        '{setting="long"}',
        '{setting="short", horizon=-1}',
    ),
    *("igpo", "spae", "infopo", "hcapo", "a2tgpo", "tree_grpo", '["value_head"]'),
)
COMMANDS = ("config", "eval", "compare", "recredit", "report", "study", "methods", "analyse")
"""Commands that a random argument cannot make work for long; `report --live` waits for a run that is not there."""
WORDS = (
    *("--step", "--panel", "--episodes", "--seeds", "--split", "--out", "--method", "--against", "--", "--level"),
    *("--jobs", "--markdown", "--bias", "--problem", "--report", "--port", "--methods", "surprisal", "noise"),
    *("dynamics", "cost", "masked", "nowhere", "run.steps=1", "method=rloo", "--unequal", "--states", "--output"),
    *("--environment", "fidelity", "--gradient", "--all"),
)
VALUES = (
    *(0.0, 1.0, -1.0, 1e300, 1e-300, float("nan"), float("inf"), 10**400, True, None, "x", "1", b"x", 1j, [], [1.0]),
    *({}, (), "a", "b", 3, -3, 1.5, np.float32(2), np.int8(3), np.datetime64("2026-01-01"), np.array(1.0), object()),
)
SMALL = ("crossroads", "frozen_lake", "sokoban")
"""Environments whose tasks are made in no time."""


def keys() -> list[str]:
    """Every setting by its dotted name."""

    def below(section: Any, prefix: str) -> Iterator[str]:
        for name, field in section.model_fields.items():
            yield prefix + name
            kinds = [field.annotation, *typing.get_args(field.annotation)]
            for kind in kinds:
                if isinstance(kind, type) and issubclass(kind, pydantic.BaseModel):
                    yield from below(kind, f"{prefix}{name}.")

    options = {name for method in METHODS for name in inspect.signature(METHODS[method]).parameters}
    knobs = [field.name for field in dataclasses.fields(Knobs)]
    return [
        *below(Config, ""),
        "aem",  # of versions up to 0.2
        *(f"method.{name}" for name in sorted(options)),
        *(f"environment.options.{name}" for name in ("setting", "num_train", *knobs)),
        *(f"rollout.collector.{name}" for name in ("rule", "max_tokens", "max_env_steps", "initial", "beam")),
    ]


KEYS = keys()


def misspelt(text: str, chance: random.Random) -> str:
    """Drop or repeat one character."""
    place = chance.randrange(len(text))
    return text[:place] + text[place + 1 :] if chance.random() < 0.5 else text[:place] + text[place] + text[place:]


def overrides(chance: random.Random) -> list[str]:
    """Make some overrides, of which most have a value of no meaning."""
    made = []
    for _ in range(chance.choice((1, 1, 2, 3))):
        key = chance.choice(KEYS)
        key = misspelt(key, chance) if chance.random() < 0.05 else key
        made.append(f"{key}{'=' if chance.random() < 0.98 else ''}{chance.choice(TEXTS)}")
    return made


def configuration(chance: random.Random) -> Callable[[], object]:
    """A recipe with overrides, and all parts of a run that are made before its folder."""
    recipe, given = chance.choice([None, *RECIPES]), overrides(chance)

    def call() -> None:
        config = load_config(recipe, given)
        transform, objective = make_transform(config.method), make_objective(config.update)
        make_plan(transform, objective, config.update, config.engine, config.label, config.measures)
        lone_note(transform, config.rollout.group_size)
        if config.environment.name in SMALL:
            suite = make_suite(config.environment)
            context = Context(config, suite)
            extensions = make_extensions(context)
            make_collectors(extensions, context, make_players(extensions, context))

    call.__doc__ = f"load_config({recipe and recipe.name!r}, {given})"
    return call


def command(chance: random.Random) -> Callable[[], object]:
    """A command with random arguments. It must return 0 or 2 with one line."""
    words = [chance.choice((*WORDS, *TEXTS, *overrides(chance))) for _ in range(chance.randrange(5))]
    arguments = [chance.choice(COMMANDS), *(word for word in words if "\x00" not in word)]

    def call() -> None:
        said = io.StringIO()
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
            try:
                code = main(arguments)
            except SystemExit as end:
                code = end.code
        if code not in (0, 2) or (code == 2 and said.getvalue().count("\n") != 1):
            raise AssertionError(f"exit code {code}: {said.getvalue()!r}")

    call.__doc__ = f"turnwise {arguments}"
    return call


def column(chance: random.Random, rows: int) -> Any:
    """A column of a batch: mostly right, else of wrong values, kinds or lengths."""
    kind = chance.random()
    if kind < 0.6:
        return [chance.choice((0.0, 1.0, 0.5, -2.0)) for _ in range(rows)]
    if kind < 0.8:
        return [chance.choice(VALUES) for _ in range(rows)]
    if kind < 0.9:
        return chance.choice(VALUES)
    made = np.array([chance.choice((0.0, 1.0, np.nan)) for _ in range(chance.choice((rows, rows + 1)))])
    return (
        np.ma.masked_invalid(made)
        if chance.random() < 0.5
        else made.astype(chance.choice(("f2", "f4", "i8", "U3", "?")))
    )


def library(chance: random.Random) -> Callable[[], object]:
    """A method with random options on a batch of random columns."""
    rows = chance.choice((1, 2, 4, 4, 8))
    name = chance.choice([*METHODS])
    known = [*inspect.signature(METHODS[name]).parameters, "unknown"]
    options = {chance.choice(known): chance.choice(VALUES) for _ in range(chance.choice((0, 0, 1)))}
    right = {
        "group": [chance.randrange(2) for _ in range(rows)],
        "trajectory": [chance.randrange(3) for _ in range(rows)],
        "reward": [chance.choice((0.0, 1.0)) for _ in range(rows)],
        "columns": {column_name: column(chance, rows) for column_name in ("entropy", "state_key", "length", "logprob")},
        "num_tokens": [chance.randrange(1, 4) for _ in range(rows)],
    }
    wrong = chance.choice([None, None, *right])
    given = right | ({wrong: column(chance, rows)} if wrong else {})

    def call() -> None:
        with np.errstate(all="ignore"):
            method = METHODS[name](**options)
            batch, _ = tw.Batch.from_arrays(**given)
            advantage_R = method.trace(batch)[0].advantage_R
        assert np.isfinite(advantage_R).all()

    call.__doc__ = f"{name}(**{options}) on {given}"
    return call


def finding(call: Callable[[], object]) -> str:
    """Run a case; returns what is wrong, or nothing."""
    try:
        call()
    except TurnwiseError as error:
        return "" if "\n" not in str(error) and len(str(error)) < 1600 else f"not one line: {str(error)[:200]!r}"
    except Exception as error:  # the finding
        return described(error)
    return ""


def described(error: BaseException) -> str:
    """Describe an error and where it was raised."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {str(error)[:200]} ({last.filename}:{last.lineno})"


def fuzz(cases: int, seed: int) -> Iterator[str]:
    """Yield what is wrong with each case that is wrong."""
    kinds = itertools.cycle((configuration, library, configuration, command))
    for number, make in zip(range(cases), kinds, strict=False):
        call = make(random.Random(f"{seed}-{number}"))
        wrong = finding(call)
        if left := os.listdir():
            wrong = f"{wrong} left {left} on disk"
            for name in left:
                os.rename(name, Path(tempfile.mkdtemp()) / name)
        if wrong:
            yield f"{number}: {wrong}\n    {str(call.__doc__)[:600]}"


def report(fuzzer: Callable[[int, int], Iterator[str]]) -> None:
    """Run a fuzzer with the arguments of the command line, print every finding, and exit with 1 if there are some."""
    findings = 0
    with tempfile.TemporaryDirectory() as here:
        os.chdir(here)
        for text in fuzzer(int(sys.argv[1]), int([*sys.argv, "0"][2])):
            findings += 1
            print(text, flush=True)
        os.chdir("/")
    print(f"{sys.argv[1]} cases, {findings} findings")
    sys.exit(findings > 0)


if __name__ == "__main__":
    report(fuzz)
