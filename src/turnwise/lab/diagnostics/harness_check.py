"""Play the tasks of a harness twice with the same answers, and report how far it repeats and what that allows."""

import collections
import dataclasses
import re
from collections.abc import Iterator, Sequence
from os.path import commonprefix
from typing import Any

import numpy as np

from turnwise.base.errors import RunError
from turnwise.base.imports import import_named
from turnwise.engines.models import Models
from turnwise.environments.base import Task, shown
from turnwise.extensions.gateway.agents import Harnesses, Witness
from turnwise.extensions.gateway.call import Call
from turnwise.extensions.gateway.messages import Message, last_message
from turnwise.extensions.gateway.settings import HarnessConfig
from turnwise.rollout.collectors import make_request
from turnwise.rollout.groups import OnTurn
from turnwise.rollout.plays import play_starts
from turnwise.rollout.settings import RolloutConfig
from turnwise.rollout.starts import Start
from turnwise.rollout.trajectory import Trajectory
from turnwise.train.evaluation.play import common_failure

SHOWN = 48
"""Characters shown of a text that differs."""
TIMES = re.compile(
    r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?)?"  # a date, and perhaps a time
    r"|\b\d\d?:\d\d(?::\d\d(?:[.,]\d+)?)?\b"
    r"|\b1[5-9]\d{8}(?:\.\d+|\d{3}|\d{6}|\d{9})?\b"  # seconds since 1970, or parts of them
    r"|\b\d+(?:\.\d+)?(?:e-?\d+)?\s*(?:s|ms|us|ns|\u00b5s|sec|secs|seconds?|minutes?)\b"  # how long something took
)
WORD = re.compile(r"[\w./:-]+")
PIECE = re.compile(r"\w+|[^\w\s]")

KINDS = {
    "time": "times or durations",
    "id": "random ids, paths or addresses",
    "order": "an order",
    "number": "numbers",
    "text": "other text",
    "calls": "the number of calls",
    "tools": "the tools that are offered",
    "failure": "whether it fails",
}
"""What can vary, in words, by its name."""


def kind_of(before: str, after: str) -> str:
    """Return the name of what varies between two texts, which differ; see `KINDS`."""
    if sorted(PIECE.findall(before)) == sorted(PIECE.findall(after)):
        return "order"
    place = _shared(before, after)
    if all(_inside(TIMES, text, place) for text in (before, after)):
        return "time"
    one, other = (_inside(WORD, text, place) for text in (before, after))
    if not one or not other:
        return "text"
    if all(re.fullmatch(r"-?\d+(?:\.\d+)?", word) for word in (one, other)):
        return "number"
    return "id" if all(map(_is_id, (one, other))) else "text"


def _shared(one: str, other: str) -> int:
    return len(commonprefix([one, other]))  # noqa: RUF071 (no paths)


def _inside(pattern: re.Pattern[str], text: str, place: int) -> str:
    """Return the match around a position in a text, or ending there; empty if there is none."""
    return next((found[0] for found in pattern.finditer(text) if found.start() <= place <= found.end()), "")


def _is_id(word: str) -> bool:
    """Return whether a word looks random, like ids, hashes and paths."""
    runs = re.findall(r"[A-Za-z0-9_]{6,}", word)
    return any(any(c.isdigit() for c in run) and any(c.isalpha() for c in run) for run in runs) or "/tmp/" in word


def around(text: str, other: str) -> str:
    """Return the part of a text that begins shortly before it differs from another one."""
    place = max(0, _shared(text, other) - SHOWN // 3)
    cut = text[place : place + SHOWN]
    return f"{'...' * (place > 0)}{cut}{'...' * (place + SHOWN < len(text))}"


def text_of_message(message: Message) -> str:
    """Return the whole content of a message as one text."""
    calls = [each["function"] for each in message.get("tool_calls", ())]
    return message["content"] + "".join(f" {call['name']}({call['arguments']})" for call in calls)


def new_messages(messages: Sequence[Message], before: Sequence[Message]) -> int:
    """Return the index of the first message that a call adds to the one before; 0 if it does not continue that one."""
    return len(before) if list(messages[: len(before)]) == list(before) else 0


def differing(one: Sequence[Any], other: Sequence[Any]) -> int | None:
    """Return the first position where two lists differ; None if they are equal."""
    pairs = enumerate(zip(one, other, strict=False))
    place = next((place for place, (mine, theirs) in pairs if mine != theirs), None)
    return min(len(one), len(other)) if place is None and len(one) != len(other) else place


ORDER = "the order of calls"
"""Where two plays with the same calls differ."""


@dataclasses.dataclass(frozen=True, slots=True)
class Divergence:
    """Where the second play asked something else than the first."""

    task: str  # name of the task
    call: int  # number of the call, from 1
    where: str  # what differs: a message by its role, the tools, or the number of calls
    kind: str  # what varies there; see `turnwise.lab.diagnostics.harness_check.KINDS`
    before: str  # what the first play had there, shortened
    after: str  # what the second play had

    def __str__(self) -> str:
        """Describe it in one line."""
        return f"task {self.task}, call {self.call}, {self.where}: {self.before!r}, then {self.after!r}"


@dataclasses.dataclass(frozen=True)
class HarnessReport:
    """What two plays of a harness show about it."""

    tasks: int  # tasks that were played
    failed: int  # first plays that failed, and the most common cause
    cause: str  # this cause; empty if none failed
    repeated: int  # tasks whose second play asked the same, in any order, and gave the same reward
    prompts: int  # calls of the first plays, and those that recurred word for word
    prompts_again: int  # these
    states: int  # calls whose state key came again
    differences: list[Divergence]  # all differences, in the order of tasks and calls
    rewards_agree: int  # tasks with equal rewards in both plays
    rewards: list[float]  # rewards of the first plays
    successes: int  # first plays that succeeded
    read: float  # mean tokens of the prompts of a trajectory; a history counts at every call
    written: float  # mean generated tokens of a trajectory
    seconds: float  # mean seconds of a trajectory
    seconds_alone: float  # mean seconds of the second plays, where no model answers

    @property
    def played(self) -> int:
        """Tasks whose first play did not fail."""
        return self.tasks - self.failed

    @property
    def rate(self) -> float:
        """Share of the tasks that repeat."""
        return self.repeated / self.played

    @property
    def varies(self) -> dict[str, int]:
        """Number of differences by what varies, the most frequent first."""
        return dict(collections.Counter(each.kind for each in self.differences).most_common())


def check_harness(
    settings: HarnessConfig,
    tasks: Sequence[Task],
    names: Sequence[str],
    models: Models,
    rollout: RolloutConfig,
    *,
    seed: int = 0,
    on_turn: OnTurn = None,
) -> HarnessReport:
    """Play each task once with the policy, and once more with the answers of the first play.

    Raises:
        RunError: No task could be played.
    """
    how: Any = {"seed": seed, "on_turn": on_turn}
    starts = [Start(task, group, name) for group, (task, name) in enumerate(zip(tasks, names, strict=True))]
    heard, again = Witness(), Witness()
    first = play_starts(starts, make_request(models, Harnesses(settings, heard), rollout, **how))
    good = [number for number, each in enumerate(first) if each.usable]
    if not good:
        raise RunError(f"no task of {len(tasks)} could be played: {common_failure(first)}")
    given = [_given(starts[number], first[number]) for number in good]
    second = play_starts(given, make_request(models, Harnesses(settings, again), rollout, **how))
    name = import_named(settings.state_key) if settings.state_key else last_message
    key = lambda call: name(call.messages) if call.state_key is None else call.state_key  # noqa: E731
    prompts = prompts_again = states = repeated = agree = 0
    differences: list[Divergence] = []
    for place, number in enumerate(good):
        calls, others = heard.calls[number], again.calls.get(place, [])
        found = [*_differences(names[number], calls, others)]
        pairs = [*zip(calls, others, strict=False)]
        reordered = any(each.where == ORDER for each in found)  # which a replay may be
        equal = [reordered or (one.messages, one.tools) == (other.messages, other.tools) for one, other in pairs]
        prompts, prompts_again = prompts + len(calls), prompts_again + sum(equal)
        states += sum(key(one) == key(other) for one, other in pairs)
        same = second[place].failure is None and second[place].reward == first[number].reward
        agree += same
        repeated += same and all(equal) and len(calls) == len(others)
        differences += found
        if failure := second[place].failure:
            differences.append(Divergence(names[number], len(others), "the end", "failure", "a reward", failure))
    played = [first[number] for number in good]
    return HarnessReport(
        tasks=len(tasks),
        failed=len(tasks) - len(good),
        cause=common_failure(first) if len(good) < len(tasks) else "",
        repeated=repeated,
        prompts=prompts,
        prompts_again=prompts_again,
        states=states,
        differences=differences,
        rewards_agree=agree,
        rewards=[each.reward for each in played],
        successes=sum(each.success for each in played),
        read=float(np.mean([_read(each) for each in played])),
        written=float(np.mean([sum(turn.num_generated for turn in each.turns) for each in played])),
        seconds=float(np.mean([heard.seconds[number] for number in good])),
        seconds_alone=float(np.mean([*again.seconds.values()])),
    )


def _given(start: Start, first: Trajectory) -> Start:
    """Start a task with all turns of its first play. The second play's reward must not reach the turns of the first."""
    return dataclasses.replace(start, turns=tuple(dataclasses.replace(turn, reward=0.0) for turn in first.turns))


def _read(trajectory: Trajectory) -> int:
    """Count the tokens of all prompts."""
    total = context = 0
    for turn in trajectory.turns:
        context = len(turn.prompt_ids) if turn.fresh else context + len(turn.prompt_ids)
        total += context
        context += len(turn.response_ids)
    return total


def _differences(task: str, calls: Sequence[Call], others: Sequence[Call]) -> Iterator[Divergence]:
    """Yield what differs for the first time in each call; histories repeat earlier calls."""
    before: tuple[Sequence[Any], Sequence[Any]] = (), ()
    order = [[repr((each.messages, each.tools)) for each in asked] for asked in (calls, others)]
    if order[0] != order[1] and sorted(order[0]) == sorted(order[1]):
        number = (differing(*order) or 0) + 1
        texts = [shown(last_message(each[number - 1].messages)) for each in (calls, others)]
        yield Divergence(task, number, ORDER, "order", *texts)
        return
    for number, (one, other) in enumerate(zip(calls, others, strict=False), 1):
        begin = min(new_messages(one.messages, before[0]), new_messages(other.messages, before[1]))
        place = differing(one.messages[begin:], other.messages[begin:])
        before = one.messages, other.messages
        if one.tools != other.tools:
            texts = shown(one.tools), shown(other.tools)
            yield Divergence(task, number, "its tools", "tools", around(*texts), around(*reversed(texts)))
        elif place is not None:
            messages = [each.messages[begin + place :][:1] for each in (one, other)]
            texts = tuple(text_of_message(each[0]) if each else "" for each in messages)
            role = (messages[0] or messages[1])[0]["role"]
            kind = kind_of(*texts) if all(messages) and texts[0] != texts[1] else "text"
            where = f"message {begin + place + 1} ({role})"
            yield Divergence(task, number, where, kind, around(*texts), around(*reversed(texts)))
    if len(calls) != len(others):
        number = min(len(calls), len(others)) + 1
        yield Divergence(task, number, "the number of calls", "calls", f"{len(calls)} calls", f"{len(others)} calls")
