"""Refuse sections of a recipe that cannot be combined with demonstrations or a store."""

from collections.abc import Mapping
from typing import Any

from turnwise.gateway.settings import HarnessConfig
from turnwise.models.settings import CriticConfig
from turnwise.objective.settings import UpdateConfig
from turnwise.rollout.demonstrations.settings import DemonstrationsConfig
from turnwise.rollout.settings import RolloutConfig
from turnwise.rollout.stores.settings import StoreConfig


def check_demonstrations(
    demonstrations: DemonstrationsConfig,
    rollout: RolloutConfig,
    update: UpdateConfig,
    harness: HarnessConfig | None,
    critic: CriticConfig | None,
) -> None:
    """Raise a ValueError if `[demonstrations]` does not fit the other sections of a recipe."""
    collector = rollout.collector.name
    excluded: dict[str, Any] = {
        "[harness] plays without the environment's turns": harness,
        f"rollout.collector={collector!r} plays other groups": collector != "independent",
    }
    if demonstrations.name == "pivot_rl":
        excluded |= {
            "rollout.turn_budget limits trajectories, and PivotRL plays single turns": rollout.turn_budget,
            f"rollout.max_lag={rollout.max_lag} plays tasks, and PivotRL plays single turns": rollout.max_lag,
            "rollout.keep_spread chooses among groups of tasks": rollout.keep_spread,
        }
        _refuse(excluded, "demonstrations")
        return
    excluded |= {
        "rollout.filter drops the groups that a demonstration would teach": rollout.filter != "none",
        "rollout.keep_spread drops the groups that a demonstration would teach": rollout.keep_spread,
        "[critic] has no returns of demonstrations": critic,
        "update.passes has no turns of demonstrations": update.passes,
        "update.tokens compares all tokens of a step": update.tokens,
        "update.entropy compares all tokens of a step": update.entropy,
    }
    _refuse(excluded, "demonstrations")
    if demonstrations.gate > rollout.group_size:
        raise ValueError(
            f"demonstrations.gate={demonstrations.gate} is above rollout.group_size={rollout.group_size}; lower it"
        )


def check_store(
    store: StoreConfig,
    rollout: RolloutConfig,
    update: UpdateConfig,
    harness: HarnessConfig | None,
    critic: CriticConfig | None,
) -> None:
    """Raise a ValueError if `[store]` does not fit the other sections of a recipe."""
    collector = rollout.collector.name
    excluded: dict[str, Any] = {
        f"rollout.collector={collector!r} plays trajectories that belong together": collector != "independent"
    }
    if store.name == "prefix_sampling":
        excluded |= {
            "[harness] cannot start at a turn": harness,
            "rollout.turn_budget counts turns from the start of a task": rollout.turn_budget,
            f"rollout.max_lag={rollout.max_lag} plays before it is known where to start": rollout.max_lag,
        }
        _refuse(excluded, "store")
        return
    late = update.old_policy == "start" and update.mismatch_cap is None
    excluded |= {
        "[critic] would learn the returns of successes": critic,
        "update.scoring='engine' has the entropies of the weights that sampled": update.scoring == "engine",
        "update.old_policy='start' ignores that stored trajectories are of other weights": late,
    }
    _refuse(excluded, "store")


def _refuse(excluded: Mapping[str, Any], section: str) -> None:
    if reason := next((reason for reason, given in excluded.items() if given), None):
        mend = "set update.scoring=trainer" if "scoring" in reason else "remove one of them"
        raise ValueError(f"{reason}, so it cannot be combined with [{section}]; {mend}")
