"""Assign credit to agents that follow subgoals, level by level.

Segments begin at turn 0 and at every `switch`, one segment per subgoal. A response has up to three parts: the decision
to keep or switch, the subgoal, the action. `credit_actions`, `credit_subgoals` and `credit_switches` compute the
advantages of one part; with one advantage per response, `mix` them. `credit_parts` gives each token that of its part.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np

from turnwise.base.shapes import Bool, Float
from turnwise.credit.batch import Batch
from turnwise.credit.segments import Labels, Segments
from turnwise.credit.trace import report_tokens
from turnwise.credit.transform import Credit, block
from turnwise.credit.transforms.values import td_errors_to_end, value_at_end

SubgoalEnd = Literal["zero", "repeat"]
"""Value after a truncated trajectory (`finished` is 0): 0, or its last value of the same kind."""


@dataclasses.dataclass(frozen=True)
class _Subgoals:
    """Subgoals of a batch.

    Attributes:
        begins: `[responses]` whether the response begins a subgoal.
        segments: Segments of responses, one a subgoal.
        trajectories: Segments of subgoals, one per trajectory.
        value: `[subgoals]` the planner's value where each begins.
    """

    begins: Bool[np.ndarray, " R"]
    segments: Segments
    trajectories: Segments
    value: Float[np.ndarray, " subgoals"]


def _subgoals(batch: Batch, needed_by: str) -> _Subgoals:
    begins_R = (batch.turn_R == 0) | (batch.column("switch", needed_by=needed_by) > 0)
    segments = Segments(np.append(np.flatnonzero(begins_R), batch.num_responses))
    num_N = batch.trajectories.sum(begins_R.astype(np.float64))
    value = segments.first(batch.column("value_high", needed_by=needed_by))
    return _Subgoals(begins_R, segments, Segments.from_lengths(num_N.astype(np.int64)), value)


def _needs(*columns: str) -> Callable[[Mapping[str, Any]], tuple[str, ...]]:
    def needs(options: Mapping[str, Any]) -> tuple[str, ...]:
        return (*columns, "value_high", "switch", *(("finished",) if options["unfinished"] == "repeat" else ()))

    return needs


def _standardized(values: Float[np.ndarray, " elements"]) -> Float[np.ndarray, " elements"]:
    everyone = Labels.single(len(values))
    return (values - everyone.mean(values)) / (everyone.std(values, ddof=0) + 1e-8)


def _across_groups(options: Mapping[str, Any]) -> bool:
    return options["standardize"]


@block(needs=_needs("value_low"), across_groups=_across_groups)
def credit_actions(
    credit_R: Credit,
    batch: Batch,
    *,
    discount: float = 1.0,
    decay: float = 1.0,
    standardize: bool = True,
    unfinished: SubgoalEnd = "zero",
) -> Credit:
    """Credit every response with the effect of its action on its subgoal (GAE within the segment).

        A_t = delta_t + discount * decay * A_{t+1}        within the segment
        delta_t = r_t + discount * value_low_{t+1} - value_low_t        at its end value_high of the next segment

    Args:
        credit_R: `[responses]` rewards.
        batch: Their batch, with the columns `value_low`, `value_high` and `switch`.
        discount: Factor per turn.
        decay: lambda within a segment.
        standardize: Subtract the mean over the batch's responses and divide by their population standard deviation +
            1e-8.
        unfinished: The value after a trajectory whose column `finished` is 0: 0, or its last `value_low`.
    """
    name, goals = "credit_actions", _subgoals(batch, "credit_actions")
    value_R = batch.column("value_low", needed_by=name)
    end_N = value_at_end(batch, batch.trajectories.last(value_R), unfinished=unfinished, needed_by=name)
    end = goals.trajectories.following(goals.value, end=end_N)
    stream_R = td_errors_to_end(credit_R, value_R, goals.segments, discount, decay, end=end)
    return _standardized(stream_R) if standardize else stream_R


@block(needs=_needs(), across_groups=_across_groups)
def credit_subgoals(
    credit_R: Credit,
    batch: Batch,
    *,
    discount: float = 1.0,
    decay: float = 0.95,
    standardize: bool = True,
    unfinished: SubgoalEnd = "zero",
) -> Credit:
    """Credit the response that begins a segment with its subgoal's effect on the trajectory; the others get 0.

        A_k = delta_k + discount^n_k * decay * A_{k+1}                     over its segments k of n_k turns
        delta_k = r_k + discount^n_k * value_high_{k+1} - value_high_k     r_k = sum_j discount^j r_{k,j}

    Args:
        credit_R: `[responses]` rewards.
        batch: Their batch, with the columns `value_high`, which is read where a segment begins, and `switch`.
        discount: Factor per turn.
        decay: lambda from segment to segment.
        standardize: Subtract the mean over the batch's segments and divide by their population standard deviation +
            1e-8.
        unfinished: The value after a trajectory whose column `finished` is 0: 0, or that at its last segment's
            beginning.
    """
    goals = _subgoals(batch, "credit_subgoals")
    end = _planned(batch, goals, unfinished, "credit_subgoals")
    factor = discount**goals.segments.lengths
    paid = goals.segments.first(goals.segments.suffix_sum(credit_R, discount=discount))
    stream = goals.trajectories.suffix_sum(paid + factor * end - goals.value, discount=factor * decay)
    return np.where(goals.begins, goals.segments.broadcast(_standardized(stream) if standardize else stream), 0.0)


@block(needs=_needs("value_switch"), across_groups=_across_groups)
def credit_switches(
    credit_R: Credit,
    batch: Batch,
    *,
    discount: float = 1.0,
    standardize: bool = True,
    unfinished: SubgoalEnd = "zero",
) -> Credit:
    """Credit every response with the outcome of keeping or switching the subgoal.

        A_t = sum_{j >= t} discount^(j - t) r_j + discount^(n - t) * value_high of the next segment - value_switch_t

    The sum runs to the end of the segment; n - t turns are left of it, t's own included.

    Args:
        credit_R: `[responses]` rewards.
        batch: Their batch, with the columns `value_switch`, `value_high` and `switch`.
        discount: Factor per turn.
        standardize: Subtract the mean over the batch's responses and divide by their population standard deviation +
            1e-8.
        unfinished: The value after a trajectory whose column `finished` is 0: 0, or that at its last segment's
            beginning.
    """
    goals = _subgoals(batch, "credit_switches")
    end = _planned(batch, goals, unfinished, "credit_switches")
    return_R = goals.segments.suffix_sum(credit_R + discount * goals.segments.at_last(end), discount=discount)
    stream_R = return_R - batch.column("value_switch", needed_by="credit_switches")
    return _standardized(stream_R) if standardize else stream_R


def _planned(batch: Batch, goals: _Subgoals, unfinished: SubgoalEnd, needed_by: str) -> Float[np.ndarray, " subgoals"]:
    """Return the planner's value at the end of every segment."""
    last_N = goals.trajectories.last(goals.value)
    end_N = value_at_end(batch, last_N, unfinished=unfinished, needed_by=needed_by)
    return goals.trajectories.following(goals.value, end=end_N)


@block(needs=_needs("value_low", "value_switch", "part_T"), across_groups=_across_groups)
def credit_parts(
    credit_R: Credit,
    batch: Batch,
    *,
    discount: float = 1.0,
    action_decay: float = 1.0,
    subgoal_decay: float = 0.95,
    standardize: bool = True,
    unfinished: SubgoalEnd = "zero",
) -> Credit:
    """Credit each token of a plan-and-act response with the advantage of its part.

    Tokens of the decision get that of `credit_switches`, tokens of the action that of `credit_actions`. Tokens of the
    subgoal get that of `credit_subgoals` where it begins a segment, and 0 where the response keeps its subgoal. Tokens
    of two parts, in a response without an action between tags, get the sum. The credit of a response is the mean over
    its tokens. A critic learns each advantage before standardising, plus its value; `value_high` is learned where a
    segment begins.

    Args:
        credit_R: `[responses]` rewards.
        batch: Their batch, with the columns of the three blocks and `part_T`.
        discount: Factor per turn.
        action_decay: lambda within a segment.
        subgoal_decay: lambda from segment to segment.
        standardize: Subtract the mean and divide by the population standard deviation + 1e-8, for each part over the
            responses with a token of it that gets its advantage.
        unfinished: As in the three blocks.
    """
    name, tokens = "credit_parts", batch.tokens
    part_T = batch.column("part_T", needed_by=name)
    assert tokens is not None, "a batch with a column per token has tokens"
    common: dict[str, Any] = {"discount": discount, "unfinished": unfinished}
    make: Any = (credit_switches, credit_subgoals, credit_actions)
    options = ({}, {"decay": subgoal_decay}, {"decay": action_decay})
    streams = [
        each.function(credit_R, batch, standardize=False, **common, **own)
        for each, own in zip(make, options, strict=True)
    ]
    begins_R = _subgoals(batch, name).begins
    credit_T = np.zeros(tokens.num_elements)
    for part, stream_R in enumerate(streams):
        own_T = (part_T == part) | (part_T == part + 3) | ((part == 2) & (part_T > 2))
        has_R = (tokens.sum(own_T.astype(np.float64)) > 0) & (begins_R | (part != 1))
        if has_R.any():
            own_R = np.zeros(len(credit_R))
            own_R[has_R] = _standardized(stream_R[has_R]) if standardize else stream_R[has_R]
            credit_T += np.where(own_T, tokens.broadcast(own_R), 0.0)
    columns = ("value_switch", "value_high", "value_low")
    targets = {
        column: stream_R + batch.column(column, needed_by=name)
        for column, stream_R in zip(columns, streams, strict=True)
    }
    targets["value_high"] = np.where(begins_R, targets["value_high"], np.nan)
    return report_tokens(name, credit_T, tokens, targets=targets)


@block(needs=("switch",))
def penalize_keeping(credit_R: Credit, batch: Batch, *, penalty: float = -0.3) -> Credit:
    """Penalise every response that keeps its subgoal: `r_t + penalty / num_turns`.

    Put it first: it changes the reward. In HiPER the penalty of a trajectory is `penalty * num_keeps / num_turns`, with
    -0.3 on ALFWorld and -3.5 on WebShop. A first response that keeps counts, although it begins a segment. A trajectory
    of one turn has none, as in HiPER's code.

    Args:
        credit_R: `[responses]` rewards.
        batch: Their batch, with the column `switch`.
        penalty: Penalty of a trajectory that keeps its subgoal at every turn, the first one included.

    Reference: arXiv 2602.16165; official code JonP07/HiPER-agent, `keep_penalty_mode="normalized"`, spread evenly.
    """
    keeps_R = batch.column("switch", needed_by="penalize_keeping") <= 0
    num_turns_R = batch.trajectories.broadcast(batch.trajectories.lengths)
    return credit_R + np.where(keeps_R & (num_turns_R > 1), penalty / num_turns_R, 0.0)


@block(needs=("subgoal_changed",))
def penalize_changing(credit_R: Credit, batch: Batch, *, penalty: float = -0.3) -> Credit:
    """Penalise every response that keeps its subgoal and states another one: `r_t + penalty`.

    Put it first: it changes the reward.

    Args:
        credit_R: `[responses]` rewards.
        batch: Their batch, with the column `subgoal_changed`.
        penalty: Penalty of each such response.

    Reference: arXiv 2602.16165; official code JonP07/HiPER-agent.
    """
    return credit_R + penalty * batch.column("subgoal_changed", needed_by="penalize_changing")
