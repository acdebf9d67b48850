"""Say which methods a run can train, and refuse environments that do not tell what a measure reads."""

from collections.abc import Iterable

from turnwise.environments.suites import Suite
from turnwise.errors import ConfigError
from turnwise.measures import MEASURES
from turnwise.measures.lacking import OPTIONAL
from turnwise.measures.plan import FROM_THE_BATCH, Plan

BY_RECIPE = {"critic": "a critic", "judge": "a judge", "plan": "prompt.plan", "reward_model": "a reward model"}
"""What a recipe adds for each of the `OPTIONAL` models."""
GIVEN_BY = {"gold": "search_qa", "role": "seats"}
"""Environments that give keys of `Step.info` that measures read."""


def how_to_train(needs: Iterable[str]) -> str:
    """Say whether a run can train a method.

    Returns:
        "yes", "with a critic", "with a judge", "with a reward model", "with prompt.plan", "with gold" for what the
        environment must tell, or
        "needs" and the columns without a measure.
    """
    model_of = {column: each.model for each in MEASURES.values() for column in each.provides}
    if missing := [column for column in needs if column not in {*model_of, *FROM_THE_BATCH}]:
        return f"needs {', '.join(missing)}"
    if optional := sorted({model_of[column] for column in needs if column in model_of} & OPTIONAL.keys()):
        return f"with {' and '.join(BY_RECIPE[model] for model in optional)}"
    keys = {key for each in MEASURES.values() if {*needs} & {*each.provides} for key in each.reads}
    return f"with {', '.join(sorted(keys))}" if keys else "yes"


def check_environment(plan: Plan, suite: Suite, environment: str) -> None:
    """Check that an environment fills the keys of `Step.info` that the measures read.

    Args:
        plan: Measures of a run.
        suite: The environment. It declares its keys in the attribute `gives`.
        environment: Name of the environment, for the error.

    Raises:
        ConfigError: It does not declare a key.
    """
    gives = getattr(suite, "gives", ())
    for each in plan.measures:
        if missing := [key for key in each.reads if key not in gives]:
            other = f"choose environment.name={GIVEN_BY[missing[0]]}, or " if missing[0] in GIVEN_BY else ""
            raise ConfigError(
                f"the measure {each.name!r} ({', '.join(each.provides)}) reads info[{missing[0]!r}], which environment "
                f"{environment!r} does not give; {other}let yours fill it and set the class attribute "
                f"gives = ({missing[0]!r},)"
            )


HELPERS = {"judge": "['rank'] or ['progress']", "reward_model": "['implicit']"}
"""Sections of a recipe without effect unless a measure asks them, and the measures that do."""


def refuse_idle(optional: Iterable[str], plan: Plan) -> None:
    """Raise a ConfigError if a run has a judge or a reward model that no measure of it asks.

    Args:
        optional: Names of the optional models that the recipe asks for.
        plan: Measures of the run.
    """
    for name in HELPERS.keys() & {*optional} - plan.models:
        raise ConfigError(
            f"{name} has no effect: neither the method nor measures read a column of its; choose a method that needs "
            f"one (`turnwise methods`), add measures={HELPERS[name]}, or remove {name}"
        )
