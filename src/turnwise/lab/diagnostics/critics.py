"""Provide a critic's values without training, by ridge regression on additional groups.

The critic learns returns of the measured policy from trajectories of other tasks, whose outcomes no method sees. So it
is as good as this kind of critic gets, without what training adds: weights of a few steps ago.
"""

from collections.abc import Iterable

import numpy as np

from turnwise.base.errors import ConfigError
from turnwise.base.shapes import Float, Int
from turnwise.credit.trace import Trace
from turnwise.credit.transform import Transform
from turnwise.lab.diagnostics.paid import paid_measures
from turnwise.lab.diagnostics.stage import Stage
from turnwise.lab.diagnostics.values import estimated_values
from turnwise.measures.plan import Plan, plan_measures
from turnwise.models.critic import Critic
from turnwise.models.settings import RidgeCriticConfig
from turnwise.objective.terms import StepView
from turnwise.objective.values import ValueTerm
from turnwise.train.critic import critic_columns

SEES = {
    "": ("state", {}),
    "+peers": ("state and peers", {"peers": True}),
    "+visits": ("state, peers and visits", {"peers": True, "visits": True}),
}
"""What a method's critic sees, by the suffix of the method's name: in words, and as settings of `[critic]`."""
FURTHER = 4
"""Groups that a critic learns from, per measured group, unless a number is asked for."""


def split_sight(name: str) -> tuple[str, str]:
    """Split the name of a method before the suffix that says what its critic sees, a key of `SEES`."""
    end = next((end for end in SEES if end and name.endswith(end)), "")
    return name.removesuffix(end), end


def needs_critic(method: Transform) -> bool:
    """Whether a critic estimates what a method reads, or what a measure that it needs reads.

    A method that pays for columns needs none: continuations also give values.

    Raises:
        ConfigError: A column cannot be measured without training.
    """
    return (
        not paid_measures(method)
        and "critic" in plan_measures({f"method {method.name!r}": method.needs}, models=["critic"]).models
    )


def check_others(stage: Stage, groups: int) -> None:
    """Raise a ConfigError if critics have no tasks to learn from other than those of the measured groups."""
    if len(stage.suite.tasks(stage.config.environment.train_split)) <= groups:
        raise ConfigError(
            f"groups={groups} take all training tasks, and a critic has to learn from others; lower --groups, or leave "
            "out methods that need a critic"
        )


def learn_critics(
    stage: Stage, plan: Plan, ends: Iterable[str], *, groups: int, seed: int, others: int | None = None
) -> dict[str, ValueTerm]:
    """Train critics with different inputs on the same trajectories; returns them by what they see.

    Their penalty is that of the run's critic, if it has one of this kind.

    Args:
        stage: Plays them.
        plan: Measures, which say what the critics estimate.
        ends: What each sees, a key of `SEES`.
        groups: Number of groups measured with the same seed; the critics learn from others.
        seed: Seed of tasks and draws.
        others: Number of other groups that the critics learn from; default: `FURTHER` per measured group.
    """
    trajectories, _ = stage.play_groups(others or FURTHER * groups, seed, after=groups)
    critics = {}
    own = stage.config.critic
    fit = own.model_dump(include={"penalty", "prior_groups"}) if isinstance(own, RidgeCriticConfig) else {}
    for end in ends:
        settings = RidgeCriticConfig(target="return", **fit, **SEES[end][1])
        critics[end] = ValueTerm(Critic(stage.policy, settings, critic_columns(settings, plan), seed=seed))
    needs = {"a critic": [column for critic in critics.values() for column in critic.needs]}
    batches, _ = stage.measure_with(stage.plan(needs, models=["critic"]), trajectories, critics)
    for end, critic in critics.items():
        critic.prepare(StepView(batches[end], Trace(np.zeros(batches[end].num_responses), ())))
    return critics


def explained(
    value_R: Float[np.ndarray, " R"], before_R: Int[np.ndarray, " R"], return_HK: Float[np.ndarray, "H K"]
) -> float:
    """Compute the share of the variance of true values, over responses, that a critic explains.

        1 - (mean (V - mean_K)^2 - noise) / (var mean_K - noise)        noise = mean var_K / K

    Args:
        value_R: Values of the critic before the responses.
        before_R: History before each response, an index of `return_HK`.
        return_HK: `[histories, continuations]` returns, nan where a continuation failed.

    Returns:
        The share, below 0 for values that are worse than a constant; nan if true values do not differ.
    """
    true_R, noise_R = (of_H[before_R] for of_H in estimated_values(return_HK))
    known_R = np.isfinite(true_R)
    noise = noise_R[known_R].mean()
    spread = true_R[known_R].var() - noise
    error = np.square(value_R - true_R)[known_R].mean() - noise
    return float(1 - error / spread) if spread > 0 else float("nan")
