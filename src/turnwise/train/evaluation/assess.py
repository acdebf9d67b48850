"""Measure a policy by its probabilities in all situations of an environment, without sampling.

An environment can be measured if its suite has two methods: `situations` lists what the policy can have read and said,
and `assess` computes metrics from the probabilities of the admissible actions there.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from turnwise.credit.segments import Segments
from turnwise.engines.models import Models
from turnwise.environments.base import Step
from turnwise.models.policy import Policy, autocast
from turnwise.models.remote import RemoteModel
from turnwise.models.settings import ModelConfig
from turnwise.objective.tokens import Sequences, score
from turnwise.rollout.context import make_context
from turnwise.rollout.settings import RolloutConfig
from turnwise.rollout.trajectory import Trajectory, Turn


class Moment(NamedTuple):
    """A conversation up to the policy's next response: the steps that it read, and its responses, one fewer."""

    steps: Sequence[Step]
    responses: Sequence[str]


@runtime_checkable
class Assessed(Protocol):
    """A suite that can be measured without sampling."""

    def situations(self) -> Sequence[tuple[Sequence[Step], Sequence[str]]]:
        """List all conversations after which the policy responds; the last step has the admissible actions."""
        ...

    def assess(self, chances: Sequence[np.ndarray]) -> Mapping[str, float]:
        """Compute metrics from the probabilities of the admissible actions, `[situations]` arrays `[actions]`."""
        ...


def assess(
    suite: Any,
    models: Models,
    model: ModelConfig,
    rollout: RolloutConfig,
    temperature: float,
) -> dict[str, float]:
    """Measure a policy in all situations; empty if the suite does not allow it, or responses are not just actions.

    Args:
        suite: The environment with its tasks.
        models: Models of the run; the policy is measured.
        model: `[model]` section of the recipe, for its precision.
        rollout: `[rollout]` section, for the context and the longest response.
        temperature: Sampling temperature.
    """
    policy = models.policy.policy
    if (
        not isinstance(suite, Assessed)
        or isinstance(policy.model, RemoteModel)
        or policy.format.think
        or policy.format.plan
    ):
        return {}
    moments = [Moment(*each) for each in suite.situations()]
    if not moments:
        return {}
    trajectories, possible = [], []
    for moment in moments:
        prompt = _prompt(policy, moment, rollout.remembered)
        for action in moment.steps[-1].admissible or ():
            ids = policy.format.response_ids(action)
            possible.append(len(ids) <= rollout.max_new_tokens + 1)
            ids = ids[: rollout.max_new_tokens]  # a response at the limit needs no stop token
            trajectories.append(Trajectory(0, "", [Turn("", "", prompt, ids, [0.0] * len(ids), action, False)]))
    sequences = Sequences.from_trajectories(trajectories)
    with autocast(policy.model, model):
        logprob_T, _ = score(policy.model, sequences, temperature=max(temperature, 1e-6))
    tokens = Segments.from_lengths([len(trajectory.turns[0].response_ids) for trajectory in trajectories])
    chance = np.where(possible, np.exp(tokens.sum(logprob_T)), 0.0)
    counts = [len(moment.steps[-1].admissible or ()) for moment in moments]
    return dict(suite.assess(np.split(chance, np.cumsum(counts)[:-1])))


def _prompt(policy: Policy, moment: Moment, window: int | None) -> list[int]:
    """Return the tokens that the policy reads before its response."""
    context = make_context(policy.format, 0, window=window, stride=1)
    for number, step in enumerate(moment.steps):
        context.observe(step)
        if number < len(moment.responses):
            context.respond(policy.format.response_ids(moment.responses[number]))
    return list(context.ids)
