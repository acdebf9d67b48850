"""Suite of help desks: questions by seed, and an expert that follows the reference."""

import itertools
import json
import random
from collections.abc import Sequence
from typing import Literal, get_args

from turnwise.base.errors import ConfigError
from turnwise.credit.shaping.tool_calls import Rule, ToolCall
from turnwise.environments.base import Demonstrated
from turnwise.environments.needs import check_choices, check_counts
from turnwise.environments.settings import EnvironmentConfig
from turnwise.environments.splits import split_seeds
from turnwise.environments.words import split_words
from turnwise.worlds.helpdesk import desk as rows
from turnwise.worlds.helpdesk.desk import MOST_TURNS, QUESTIONS, draw_desk
from turnwise.worlds.helpdesk.environment import ENDS, HelpdeskEnvironment
from turnwise.worlds.helpdesk.tools import TOOLS, call_tool

Reading = Literal["short", "text"]
"""What the first observation tells: the question, or the tools too."""


class Helpdesk:
    """Questions to a shop's database. Options: kinds, reading, matching, num_train, num_valid."""

    gives = HelpdeskEnvironment.gives

    def __init__(
        self,
        config: EnvironmentConfig,
        *,
        kinds: str = "all",
        reading: Reading = "short",
        matching: Rule = "assignment",
        num_train: int = 3000,
        num_valid: int = 512,
    ):
        check_counts("questions", num_train=num_train, num_valid=num_valid)
        self._kinds = tuple(QUESTIONS) if kinds == "all" else tuple(kind.strip() for kind in kinds.split(","))
        for kind in self._kinds:
            check_choices({"kinds": ("all", *QUESTIONS)}, kinds=kind)
        check_choices({"reading": get_args(Reading), "matching": get_args(Rule)}, reading=reading, matching=matching)
        longest = max(self._kinds, key=MOST_TURNS.__getitem__)
        if config.max_steps < MOST_TURNS[longest]:
            raise ConfigError(
                f"environment.max_steps={config.max_steps} is less than the {MOST_TURNS[longest]} turns that a "
                f"question of kind {longest!r} takes; raise it, or leave the kind out of environment.options.kinds"
            )
        self._config, self._reading = config, reading
        self._matching: Rule = matching
        self._counts = {"train": num_train, "valid": num_valid, "test": num_valid}

    def tasks(self, split: str) -> Sequence[int]:
        """Return the seeds of a split."""
        return split_seeds(split, self._counts.get(split, 0), of="helpdesk")

    def task_name(self, task: int) -> str:
        """Name a task in records."""
        return f"desk-{task}"

    def environment(self, task: int) -> HelpdeskEnvironment:
        """Build a fresh environment."""
        return HelpdeskEnvironment(
            draw_desk(task, self._kinds),
            max_steps=self._config.max_steps,
            success_reward=self._config.success_reward,
            explain=self._reading == "text",
            rule=self._matching,
        )

    def words(self) -> list[str]:
        """Return every word of observations and responses."""
        drawn = itertools.islice((draw_desk(seed, (kind,)) for seed in itertools.count() for kind in self._kinds), 40)
        questions = " ".join(desk.question for desk in drawn)
        names = " ".join([*rows.NAMES, *rows.CITIES, *rows.PRODUCTS, *rows.STATES, *ENDS.values()])
        answers = 'orders lines error [{"order": 1, "day": 1}, {"product": 1, "quantity": 1}]'
        errors = "the arguments are not JSON expected one tool call no such takes and must be of type integer string"
        tools = json.dumps([*TOOLS.values()])
        text = " ".join([questions, names, answers, errors, tools])
        return sorted({*split_words(text), *map(str, range(100))})

    def demonstrate(self, task: int, *, noise: float, seed: int) -> list[Demonstrated]:
        """Let an expert follow the reference, with noise: lookups of other numbers, which are not to be imitated."""
        desk, chance = draw_desk(task, self._kinds), random.Random(f"{task}-{seed}")
        turns = []
        for call in desk.calls:
            while chance.random() < noise and len(turns) + len(desk.calls) + 1 < self._config.max_steps:
                other = chance.choice(["orders", "order", "product"])
                (key,) = TOOLS[other]["parameters"]["properties"]
                wrong = ToolCall(other, {key: chance.randrange(1, 100)})
                if wrong not in desk.calls and "error" in call_tool(desk, wrong):
                    turns.append(Demonstrated(written(wrong), False))
            turns.append(Demonstrated(written(call), True))
        turns.append(Demonstrated(written(ToolCall("answer", {"value": desk.answer})), True))
        return turns


def written(call: ToolCall) -> str:
    """Write a call as a response."""
    return f"{call.name} {json.dumps(dict(call.arguments))}"
