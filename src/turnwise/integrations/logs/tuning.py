"""Write data for fine-tuning: successes, or responses with credit, and pairs of a better and a worse one."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from turnwise.credit.metrics import is_apart
from turnwise.extensions.gateway.messages import history_keys
from turnwise.integrations.logs.chat_lines import ADVANTAGE, METHOD, columns, conversation
from turnwise.integrations.logs.logged import Logged, Response, conversations, messages_of
from turnwise.integrations.logs.messages import as_chat


def usable(logged: Sequence[Logged]) -> list[Logged]:
    """Return the trajectories that have a reward and a response, and did not fail."""
    return [each for each in logged if each.responses and not each.failure and each.rewarded]


def successes(logged: Sequence[Logged], method: str, least: float | None = None) -> Iterator[dict[str, Any]]:
    """Yield the conversations of trajectories whose return is at `least` this; default: that solved their task."""
    for each in usable(logged):
        solved = each.outcome.success if each.outcome else each.total > 0
        if solved if least is None else each.total >= least:
            for part in conversations(each):
                yield {**conversation(part, own=False), "return": each.total, **columns(part, method)}


def credited(logged: Sequence[Logged], method: str, least: float | None = None) -> Iterator[dict[str, Any]]:
    """Yield the responses whose advantage is `least` or more, each with its prompt; default: above 0."""
    for each in usable(logged):
        for response in each.responses:
            value = response.advantage
            if value is not None and (value > 0 if least is None else value >= least):
                yield {
                    "prompt": as_chat(response.history),
                    "completion": as_chat([*response.history, response.message])[-1:],
                    **({"tools": response.tools} if response.tools else {}),
                    **columns([response], method),
                }


def in_several(logged: Sequence[Logged]) -> int:
    """Count the usable trajectories that have several conversations, so that they are no pair as a whole."""
    return sum(len(conversations(each)) > 1 for each in usable(logged))


def pairs_of_groups(logged: Sequence[Logged], method: str) -> Iterator[dict[str, Any]]:
    """Yield the best and the worst trajectory of each group whose returns differ, and whose prompts are the same."""
    groups: dict[tuple[int, str, bytes], list[Logged]] = defaultdict(list)
    for each in usable(logged):
        if len(conversations(each)) == 1:
            first = each.responses[0]
            prompt = history_keys(first.history, first.tools)
            groups[each.step, each.group or each.task, prompt[-1] if prompt else b""].append(each)
    for members in groups.values():
        best, worst = max(members, key=lambda one: one.total), min(members, key=lambda one: one.total)
        if is_apart(best.total, worst.total):
            parts = [(each.responses, each.total) for each in (best, worst)]
            yield _pair(parts[0], parts[1], method)


def pairs_of_states(logged: Sequence[Logged], method: str) -> Iterator[dict[str, Any]]:
    """Yield two responses to the same messages: the one with the highest advantage, or return, and the lowest."""
    states: dict[tuple[int, bytes], list[tuple[list[Response], float]]] = defaultdict(list)
    for each in usable(logged):
        for response in each.responses:
            value = each.total if response.advantage is None else response.advantage
            keys = history_keys(response.history, response.tools)
            states[each.step, keys[-1] if keys else b""].append(([response], value))
    for found in states.values():
        best, worst = max(found, key=lambda one: one[1]), min(found, key=lambda one: one[1])
        if is_apart(best[1], worst[1]) and best[0][0].message != worst[0][0].message:
            yield _pair(best, worst, method)


def _pair(chosen: tuple[list[Response], float], rejected: tuple[list[Response], float], method: str) -> dict[str, Any]:
    prompt, tools = chosen[0][0].history, chosen[0][0].tools
    line: dict[str, Any] = {"prompt": as_chat(prompt)}
    credit: dict[str, Any] = {}
    for name, (part, value) in (("chosen", chosen), ("rejected", rejected)):
        line |= {name: as_chat(messages_of(part))[len(prompt) :], f"{name}_value": value}
        if each := columns(part, method):
            credit[name] = each[ADVANTAGE]
    line |= {ADVANTAGE: credit, METHOD: method} if credit else {}
    return {**line, **({"tools": tools} if tools else {})}
