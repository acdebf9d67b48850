"""Compute turn rewards by matching tool calls with a reference (MatchTIR, arXiv 2601.10712).

>>> import turnwise as tw
>>> reference = [ToolCall("search", {"query": "Oslo", "top": 3}), ToolCall("open", {"page": 1})]
>>> good = [[ToolCall("search", {"query": "Oslo", "top": 5})], [ToolCall("open", {"page": 1})], []]
>>> poor = [[ToolCall("open", {"page": 2})], []]
>>> rewards = [
...     turn_rewards(good, reference, answer="It is Oslo.", gold="Oslo"),
...     turn_rewards(poor, reference, answer="Bergen", gold="Oslo"),
... ]
>>> [reward.round(3).tolist() for reward in rewards]
[[0.75, 1.0, 0.5], [0.667, 0.0]]
>>> turns = [[{"reward": 0.0, "step_reward": reward} for reward in trajectory] for trajectory in rewards]
>>> batch = tw.Batch.from_trajectories([turns])
>>> tw.matchtir()(batch).round(3).tolist()
[0.707, 0.707, 0.354, -0.707, -0.707]
"""

import dataclasses
import string
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np

from turnwise.base.errors import ConfigError, did_you_mean, install

Rule = Literal["assignment", "greedy", "transport"]
"""Matching rule: the best one-to-one assignment, the most similar pair first, or optimal transport."""


@dataclasses.dataclass(frozen=True, slots=True)
class ToolCall:
    """Tool call."""

    name: str  # name of the tool; case does not matter
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # values by name, as parsed from JSON


def similarity(predicted: ToolCall, reference: ToolCall) -> float:
    """Compute the similarity of two calls, `(1 + J + V) / (2 + number of reference arguments)`; 0 for different tools.

    J is the Jaccard index of the argument names (1 if neither has any), V the number of the reference's arguments that
    have the same value.
    """
    if predicted.name.lower() != reference.name.lower():
        return 0.0
    given, wanted = predicted.arguments, reference.arguments
    either = given.keys() | wanted.keys()
    shared = len(given.keys() & wanted.keys()) / len(either) if either else 1.0
    equal = sum(name in given and given[name] == value for name, value in wanted.items())
    return (1.0 + shared + equal) / (2.0 + len(wanted))


def match_calls(
    predicted: Sequence[ToolCall],
    reference: Sequence[ToolCall],
    *,
    rule: Rule = "assignment",
    unmatched: float = 0.0,
    reg: float = 0.1,
    per_call: bool = False,
) -> np.ndarray:
    """Reward every predicted call by its similarity to the matched reference call; returns `[calls]`.

    Args:
        predicted: Calls of one trajectory, all turns together.
        reference: Calls of the reference solution.
        rule: "assignment": the one-to-one assignment with the largest sum of similarities (the paper's hard rule, KM);
            needs scipy. "greedy": the most similar pair first, then the next (which the released code calls Hungarian).
            "transport": optimal transport between calls and references (the paper's soft rule, OT).
        unmatched: Reward of a call without a similar reference; the paper has 0.
        reg: Entropic regularisation of the transport.
        per_call: Multiply the rewards of the transport by the number of calls, because its plan sums to 1.
    """
    if rule not in get_args(Rule):
        raise ConfigError(f"rule={rule!r} is not one of {get_args(Rule)}.{did_you_mean(str(rule), get_args(Rule))}")
    scores = np.array([[similarity(p, r) for r in reference] for p in predicted]).reshape(
        len(predicted), len(reference)
    )
    if scores.size == 0:
        return np.full(len(predicted), 0.0 if rule == "transport" else unmatched)
    if rule == "transport":
        rewards = (transport_plan(scores, reg=reg) * scores).sum(axis=1)
        return rewards * len(predicted) if per_call else rewards
    rewards = np.full(len(predicted), float(unmatched))
    for call, other in _assigned(scores) if rule == "assignment" else _greedily(scores):
        if scores[call, other] > 0:
            rewards[call] = scores[call, other]
    return rewards


def transport_plan(
    scores: np.ndarray, *, reg: float = 0.1, tolerance: float = 1e-9, max_rounds: int = 10_000
) -> np.ndarray:
    """Compute the entropic optimal transport plan by Sinkhorn's iteration.

        argmax_T sum(T * scores) + reg * entropy(T)        every row of T sums to 1 / rows, every column to 1 / columns

    Args:
        scores: `[rows, columns]` similarities.
        reg: Regularisation; smaller values are closer to an assignment.
        tolerance: Largest error of a row's sum.
        max_rounds: Largest number of iterations.
    """
    if reg <= 0:
        raise ConfigError(f"transport_plan: reg={reg} must be positive")
    num_rows, num_columns = scores.shape
    rows, columns, plan = np.zeros(num_rows), np.zeros(num_columns), np.zeros_like(scores)
    for _ in range(max_rounds):  # in logarithms, so that a small reg does not overflow
        rows = -np.log(num_rows) - np.logaddexp.reduce(scores / reg + columns, axis=1)
        columns = -np.log(num_columns) - np.logaddexp.reduce(scores / reg + rows[:, None], axis=0)
        plan = np.exp(scores / reg + rows[:, None] + columns)
        if np.abs(plan.sum(axis=1) - 1 / num_rows).max() < tolerance:
            break
    return plan


def answer_f1(answer: str, gold: str) -> float:
    """Compute F1 of the word sets of two answers, in lower case and without punctuation; 0 if they share none."""
    said, meant = _words(answer), _words(gold)
    return 2 * len(said & meant) / (len(said) + len(meant)) if said & meant else 0.0


def turn_rewards(
    calls: Sequence[Sequence[ToolCall]],
    reference: Sequence[ToolCall],
    *,
    answer: str | None = None,
    gold: str | None = None,
    rule: Rule = "assignment",
    unmatched: float = 0.0,
    reg: float = 0.1,
    per_call: bool = False,
) -> np.ndarray:
    """Compute the reward of every turn: the mean over its calls, `answer_f1` for the answer, 0 without either.

    Args:
        calls: Calls of each turn of the trajectory. All calls are matched together.
        reference: Calls of the reference solution.
        answer: Answer of the last turn; None without an answer. The answer alone scores its turn.
        gold: Right answer, needed to score an answer.
        rule: Matching rule, see `match_calls`.
        unmatched: Reward of a call without a match.
        reg: Regularisation of the transport.
        per_call: Whether to scale the transport's rewards, see `match_calls`.

    Returns:
        `[turns]` rewards, for the column `step_reward` of a `Batch`, which `matchtir()` reads.
    """
    if answer is not None and gold is None:
        raise ConfigError("turn_rewards: an answer needs gold=... to be scored; set gold, or leave the answer out")
    if answer is not None:
        calls = [*calls[:-1], []]
    turn = np.repeat(np.arange(len(calls)), [len(of_turn) for of_turn in calls])
    flat = [call for of_turn in calls for call in of_turn]
    matched = match_calls(flat, reference, rule=rule, unmatched=unmatched, reg=reg, per_call=per_call)
    num_calls = np.bincount(turn, minlength=len(calls))
    rewards = np.bincount(turn, weights=matched, minlength=len(calls)) / np.maximum(num_calls, 1)
    if answer is not None and gold is not None:
        rewards[-1] = answer_f1(answer, gold)
    return rewards


def _assigned(scores: np.ndarray) -> list[tuple[int, int]]:
    try:
        from scipy.optimize import linear_sum_assignment
    except ImportError:
        raise ConfigError(f"rule='assignment' needs scipy; {install('shaping')}; or use another rule") from None
    calls, references = linear_sum_assignment(scores, maximize=True)
    return list(zip(calls.tolist(), references.tolist(), strict=True))


def _greedily(scores: np.ndarray) -> list[tuple[int, int]]:
    """Match the most similar pair first; ties go to the earlier call, then to the earlier reference."""
    free_calls, free_references = set(range(scores.shape[0])), set(range(scores.shape[1]))
    pairs = []
    for flat in np.argsort(-scores, axis=None, kind="stable").tolist():
        call, other = divmod(flat, scores.shape[1])
        if call in free_calls and other in free_references:
            pairs.append((call, other))
            free_calls.remove(call)
            free_references.remove(other)
    return pairs


def _words(text: str) -> set[str]:
    return set(text.lower().translate(str.maketrans(dict.fromkeys(string.punctuation, " "))).split())
