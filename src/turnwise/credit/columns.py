"""List the named columns that methods read in addition to the reward: meaning, unit, and source.

A batch may have other columns of any name. A column holds one value per response, or one per token if its name ends
in `_T`; a value of a trajectory, such as `success`, is repeated on its responses.
"""

import dataclasses
import math
from typing import Literal


@dataclasses.dataclass(frozen=True, slots=True)
class Column:
    """Describe one column.

    Attributes:
        kind: "value" (a finite number), "label" (compared by equality only, even if it is a number) or "text".
        meaning: Meaning in one line, with its unit.
        source: "trainer": every run can fill it from the rollout. "measured": it needs another pass or model, or an
            environment that reports it; `turnwise methods` says which the trainer makes.
        like: Column whose labels this one shares: equal labels are equal across the two. Empty: it has its own.
        least: Smallest value.
    """

    kind: Literal["value", "label", "text"]
    meaning: str
    source: Literal["trainer", "measured"] = "measured"
    like: str = ""
    least: float = -math.inf


COLUMNS: dict[str, Column] = {
    # from every rollout
    "entropy": Column("value", "mean token entropy of the response under the policy that sampled it, nats", "trainer"),
    "logprob": Column("value", "mean log-probability of its tokens under that policy, nats", "trainer"),
    "rare_logprob": Column("value", "mean log-probability of its least likely fifth of tokens, nats", "trainer"),
    "peak_entropy": Column("value", "mean entropy of its most uncertain fifth of tokens, nats", "trainer"),
    "mismatch": Column("value", "mean of trainer's minus engine's log-probability of its tokens, nats", "trainer"),
    "mismatch_min": Column("value", "least of these differences over its tokens, nats", "trainer"),
    "length": Column("value", "generated tokens of the response; derived if there are tokens", "trainer", least=1.0),
    "state_key": Column("label", "identifies the state in which the response was given", "trainer"),
    "end_key": Column("label", "identifies the state in which the trajectory ended", "trainer", like="state_key"),
    "action_key": Column("label", "identifies what the response asks of the environment", "trainer"),
    "state_text": Column("text", "text of the state in which the response was given", "trainer"),
    "penalty": Column(
        "value", "penalty for the form of a response, such as an invalid action; not in the reward", "trainer"
    ),
    "success": Column("value", "success of the trajectory, 0 to 1", "trainer"),
    "task": Column("text", "identifies the prompt across steps", "trainer"),
    "finished": Column("value", "1 if the trajectory terminated, 0 if it was truncated", "trainer"),
    "truncated": Column("value", "1 if the response hit its length limit", "trainer"),
    "learned": Column("value", "1 if an earlier step has learned from the response", "trainer"),
    "unfinished": Column("value", "1 if the trajectory continues in the next step", "trainer"),
    "prefix": Column("label", "identifies the response; equal where forked trajectories share it", "trainer"),
    "replayed": Column("value", "1 if the trajectory is of an earlier step, from a store", "trainer"),
    "num_paths": Column("value", "number of the step's trajectories that contain the response", "trainer"),
    "tree": Column("label", "identifies the trajectory's tree; trajectories forked from each other are one", "trainer"),
    "token_T": Column("value", "number of the generated token; equal where forked trajectories share it", "trainer"),
    "entropy_T": Column("value", "entropy of the token's distribution when it was sampled, nats", "trainer"),
    "teacher_gap_T": Column("value", "log-probability of the token under a teacher minus that under the policy"),
    # from some environments
    "role": Column("label", "which player or agent gave the response"),
    "player": Column("text", "game and role that gave the response, the same name in every step"),
    "step_reward": Column("value", "verifiable reward of the single response, not in the outcome"),
    "rank": Column("value", "place of the trajectory in its group's tournament, 0 is best"),
    "rubric": Column("value", "share of the criteria of a judge's rubric that the response meets, by weight"),
    "progress": Column("value", "increase of a judge's rating of the trajectory by the response, points of 10"),
    "checks": Column("value", "share of the task's acceptance checks that hold after the response, 0 to 1"),
    "turn_drop": Column("value", "decrease of the gold answer's log-probability if the turn is left out, nats"),
    "profile_frac": Column("value", "share of the run time that the generated code accounts for, 0 to 1"),
    # from another pass of the policy or another model
    "ref_logprob": Column("value", "mean log-probability of its tokens under the reference model, nats"),
    "prompt_logprob": Column("value", "mean log-probability of the prompt's tokens under the policy, nats"),
    "gold_logprob": Column("value", "mean log-probability of the gold answer in the state before the response, nats"),
    "hindsight_logprob": Column("value", "mean log-probability of its tokens given the final state, nats"),
    "info_gain": Column("value", "increase in the next response's log-probability by its observation, nats per token"),
    "confidence": Column("value", "confidence of answers sampled after the response, 0 to 1"),
    "accuracy": Column("value", "probability of the gold answer in answers sampled after the response, 0 to 1"),
    "implicit_reward": Column(
        "value", "log-probability of the response under the implicit reward model minus that under the policy, nats"
    ),
    "value": Column("value", "estimated return from the state before the response"),
    "value_action": Column("value", "estimated return from the state before the response, given the response"),
    "value_next": Column("value", "estimated return from the state after the response, if the trajectory is truncated"),
    "value_after": Column("value", "mean return of continuations from the state after the response; 0 at the end"),
    "value_T": Column("value", "estimated return from the state before the token"),
    "cut_T": Column("value", "1 for the first token of a segment of the trajectory, 0 for the others"),
    "cut_value_T": Column("value", "mean return of continuations from the cut that begins the token's segment"),
    "value_low": Column("value", "estimated return from the state before the response given its subgoal"),
    "value_high": Column("value", "the planner's estimate of the return from the state before the response"),
    "value_switch": Column("value", "estimated return of the decision to keep or switch the subgoal"),
    "switch": Column("value", "1 if the response decides to switch the subgoal, 0 if it keeps it or does not say"),
    "subgoal_changed": Column("value", "1 if the response keeps its subgoal but states another one"),
    "part_T": Column(
        "value",
        "part of its response: 0 the decision to keep or switch, 1 the subgoal, 2 the action; 3 decision and action, 4 "
        "subgoal and action",
    ),
    "effective_rank": Column("value", "effective rank of the response's hidden states"),
    "rank_velocity": Column("value", "mean excess of its effective rank over that of its earlier prefixes"),
    "rank_acceleration": Column("value", "mean growth of that excess from prefix to prefix"),
}
"""Name to description. To add a column, add a line here and a range in `tests/columns.py`."""
