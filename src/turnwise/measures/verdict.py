"""Decide which methods a run can train, and refuse environments that do not provide what a measure reads."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from turnwise.base.errors import ConfigError
from turnwise.base.register import EXTENSIONS, GIVEN_BY
from turnwise.measures import MEASURES
from turnwise.measures.lacking import BY_RECIPE
from turnwise.measures.plan import FROM_THE_BATCH, Plan

if TYPE_CHECKING:
    from turnwise.environments.base import Task
    from turnwise.environments.suites import Suite


def how_to_train(needs: Iterable[str]) -> str:
    """Return whether a run can train a method.

    Returns:
        "yes", "with a critic or continuations", "with a judge", "with a reward model", "with prompt.plan", "with gold"
        for what the environment must provide, or "needs" and the columns without a measure.
    """
    models_of = {
        column: frozenset(each.model for each in MEASURES.values() if column in each.provides)
        for column in needs
        if column not in FROM_THE_BATCH
    }
    if missing := [column for column, models in models_of.items() if not models]:
        return f"needs {', '.join(missing)}"
    optional = {models for models in models_of.values() if models <= BY_RECIPE.keys()}
    least = [models for models in optional if not any(other < models for other in optional)]
    if recipes := sorted(" or ".join(sorted(BY_RECIPE[model] for model in models)) for models in least):
        return f"with {' and '.join(recipes)}"
    keys = {key for each in MEASURES.values() if {*needs} & {*each.provides} for key in each.reads}
    return f"with {', '.join(sorted(keys))}" if keys else "yes"


def check_environment(plan: Plan, suite: "Suite", environment: str, tasks: "Sequence[Task]" = ()) -> None:
    """Check that an environment fills the keys of `Step.info` that the measures read, and repeats if they need that.

    Args:
        plan: Measures of a run.
        suite: The environment. It declares its keys in the attribute `gives`.
        environment: Name of the environment, for the error.
        tasks: Some of its tasks.

    Raises:
        ConfigError: It does not declare a key, or declares that it does not repeat.
    """
    from turnwise.environments.suites import refuse_unrepeatable

    for model in plan.models:
        if tasks and model in EXTENSIONS and EXTENSIONS[model].repeats:
            refuse_unrepeatable(suite, tasks, environment, model)
    gives = getattr(suite, "gives", ())
    for each in plan.measures:
        if missing := [key for key in each.reads if key not in gives]:
            other = f"choose environment.name={GIVEN_BY[missing[0]]}, or " if missing[0] in GIVEN_BY else ""
            agent = {"role": "X-Turnwise-Actor in each call"}.get(missing[0], "the info of its result")
            raise ConfigError(
                f"the measure {each.name!r} ({', '.join(each.provides)}) reads info[{missing[0]!r}], which environment "
                f"{environment!r} does not provide; {other}let yours fill it (an agent: by {agent}) and set the class "
                f"attribute gives = ({missing[0]!r},)"
            )


def refuse_idle(services: Iterable[str], plan: Plan) -> None:
    """Raise a ConfigError if a run has a service of an extension that no measure asks for."""
    for service in {*services} & EXTENSIONS.keys() - plan.models:
        asking = " or ".join(str([name]) for name, each in MEASURES.items() if each.model == service)
        raise ConfigError(
            f"{service} has no effect: neither the method nor measures read its columns; choose a method that "
            f"needs one (`turnwise methods`), add measures={asking}, or remove {service}"
        )
