"""Register turnwise's methods in verl, as estimators, trainers and an agent loop.

verl imports this module in every process once turnwise is installed (entry-point group `verl.plugins`). Check it with
`turnwise verl-check`. Then set in verl's configuration

    algorithm.adv_estimator=turnwise_rloo                              a method that needs no other columns
    algorithm.adv_estimator=turnwise trainer.v1.trainer_mode=turnwise_sync
    +algorithm.turnwise.method=gigpo+empg                              any other method
    +algorithm.turnwise.options.discount=0.9                           with its options
"""

import functools
import importlib.metadata
import logging
from collections.abc import Callable, Sequence
from typing import Any

from turnwise.base.errors import IntegrationError
from turnwise.integrations.trainers import check_version
from turnwise.integrations.verl_estimator import PREFIX, TABLES, estimate, seeing, servable

SUPPORTED = (0, 9), (0, 10)
"""Versions of verl: the first supported one, and the first untested one."""
log = logging.getLogger(__name__)


def register() -> None:
    """Register estimators, trainers and the agent loop with verl.

    Raises:
        IntegrationError: This version of verl is not supported, or a package that its trainers import is missing.
    """
    check_version("verl", importlib.metadata.version("verl"), SUPPORTED)
    from verl.trainer.ppo.core_algos import (  # pyright: ignore[reportMissingImports]
        ADV_ESTIMATOR_REGISTRY,
        register_adv_est,
    )

    names: dict[str, str | None] = {PREFIX: None} | {f"{PREFIX}_{name}": name for name in servable()}
    for name in names.keys() - ADV_ESTIMATOR_REGISTRY.keys():
        register_adv_est(name)(functools.partial(estimate, names[name]))
    try:
        from verl.trainer.ppo.v1 import trainer_base  # pyright: ignore[reportMissingImports]

        from turnwise.integrations import verl_agent_loop, verl_trainer  # noqa: F401
    except ModuleNotFoundError as error:
        raise IntegrationError(
            f"verl's trainers need {error.name}, which is not installed; pip install 'verl[verl-core]'"
        ) from error
    name = "compute_advantage_for_multi_trajectories"
    theirs = getattr(trainer_base, name)
    if not hasattr(theirs, "wrapped_by_turnwise"):
        setattr(trainer_base, name, _with_keys(theirs))


def _with_keys(compute: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap verl's function so that estimators know which rows belong to one session, and values of tokens.

    verl does not pass the names of the rows to estimators. Without them each row of a session looks like a trajectory.
    """

    @functools.wraps(compute)
    def wrapped(data: Any, batch_keys: Sequence[str], *args: Any, **kwargs: Any) -> Any:
        tables = {ours: data.batch[theirs] for theirs, ours in TABLES.items() if theirs in data.batch}
        with seeing(keys=batch_keys, scores=data.batch["token_level_scores"], token_tables=tables):
            return compute(data, batch_keys, *args, **kwargs)

    wrapped.wrapped_by_turnwise = True  # pyright: ignore[reportAttributeAccessIssue]
    return wrapped


try:
    register()
except Exception as error:
    log.error("turnwise is not available in verl: %s", error)  # verl does not report a plug-in that fails
    raise
