"""Say which methods a run can train, and refuse environments that do not tell what a measure reads."""

from collections.abc import Iterable

from turnwise.environments.suites import Suite
from turnwise.errors import ConfigError
from turnwise.measures import MEASURES
from turnwise.measures.lacking import OPTIONAL
from turnwise.measures.plan import FROM_THE_BATCH, Plan

BY_RECIPE = {"critic": "a critic", "judge": "a judge", "plan": "prompt.plan"}
"""What a recipe adds for each of the `OPTIONAL` models."""
GIVEN_BY = {"gold": "search_qa", "role": "seats"}
"""Environments that give keys of `Step.info` that measures read."""


def how_to_train(needs: Iterable[str]) -> str:
    """Say whether a run can train a method.

    Returns:
        "yes", "with a critic", "with a judge", "with prompt.plan", "with gold" for what the environment must tell, or
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


def refuse_idle_judge(has_judge: bool, plan: Plan) -> None:
    """Raise a ConfigError if there is a judge whom no measure of a run asks."""
    if has_judge and "judge" not in plan.models:
        raise ConfigError(
            "judge has no effect: neither the method nor measures read a column of its; choose a method that needs one "
            "(`turnwise methods`), add measures=['rank'] or ['progress'], or remove judge"
        )
