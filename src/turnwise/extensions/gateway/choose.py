"""Choose what plays the trajectories of a recipe, and where."""

from turnwise.base.errors import ConfigError
from turnwise.environments.hosts import Environments
from turnwise.environments.settings import EnvironmentConfig
from turnwise.environments.suites import Suite
from turnwise.environments.workers import make_environments
from turnwise.extensions.gateway.agents import Harnesses
from turnwise.extensions.gateway.settings import HarnessConfig
from turnwise.extensions.self_play.tables import check_roles
from turnwise.extensions.stores.recall import Memory
from turnwise.extensions.stores.reminded import Reminded
from turnwise.extensions.stores.store import Store
from turnwise.extensions.tempering import Tempered
from turnwise.extensions.turn_budget import Budgeted, TurnBudget
from turnwise.rollout.collectors import make_collector
from turnwise.rollout.groups import Collector
from turnwise.rollout.settings import RolloutConfig


def choose_environments(harness: HarnessConfig | None, environment: EnvironmentConfig, suite: Suite) -> Environments:
    """Make the environments of a recipe, or what plays in their place.

    Raises:
        ConfigError: The harness cannot be imported.
    """
    return make_environments(suite, environment) if harness is None else Harnesses(harness)


def choose_collector(
    rollout: RolloutConfig,
    environment: str,
    suite: Suite,
    environments: Environments,
    store: Store | None = None,
) -> Collector:
    """Make the collector of a recipe.

    Args:
        rollout: The `[rollout]` of a recipe.
        environment: Name of its environment.
        suite: Its tasks.
        environments: Where they are played.
        store: The store of the run, whose experiences turns are shown where it is a memory.

    Raises:
        ConfigError: The collector is unknown, or does not fit the environment.
    """
    _check_seats(rollout, environment, suite)
    collector = make_collector(rollout, environments, suite.task_name)
    if store and store.settings.name == "slea_rl":
        collector = Reminded(collector, Memory(store))
    if rollout.turn_budget:
        collector = Budgeted(collector, TurnBudget(rollout.turn_budget))
    if rollout.token_temperature:
        collector = Tempered(collector, rollout.token_temperature)
    return collector


def _check_seats(rollout: RolloutConfig, environment: str, suite: Suite) -> None:
    """Raise ConfigError unless an environment has the seats that self-play needs."""
    if rollout.collector.name != "self_play":
        return
    if "role" not in getattr(suite, "gives", ()):
        raise ConfigError(
            f"rollout.collector='self_play' needs an environment with seats, and {environment!r} has none; set "
            "environment.name=seats, or remove rollout.collector"
        )
    if roles := getattr(suite, "roles", ()):  # else the first matches tell
        check_roles(roles, (rollout.collector.model_extra or {}).get("train"), rollout.group_size)
