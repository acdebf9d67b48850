"""Check sections of a recipe against each other: demonstrations, a store, and responses of earlier weights."""

from collections.abc import Collection, Mapping
from typing import Any

from turnwise.measures.plan import plan_measures
from turnwise.objective.settings import UpdateConfig
from turnwise.rollout.demonstrations.settings import DemonstrationsConfig
from turnwise.rollout.settings import RolloutConfig
from turnwise.rollout.stores.settings import StoreConfig
from turnwise.transform import Transform


def check_demonstrations(
    demonstrations: DemonstrationsConfig,
    rollout: RolloutConfig,
    update: UpdateConfig,
    others: Mapping[str, bool],
) -> None:
    """Raise a ValueError if `[demonstrations]` does not fit the other sections of a recipe.

    Args:
        demonstrations: The section.
        rollout: The `[rollout]` of the recipe.
        update: Its `[update]`.
        others: Whether it has the sections `harness`, `critic`, `continuations`, `reward_model`, and `critic.visits`.
    """
    collector = rollout.collector.name
    excluded: dict[str, Any] = {
        "[harness] plays without the environment's turns": others["harness"],
        f"rollout.collector={collector!r} plays other groups": collector != "independent",
    }
    if demonstrations.name == "pivot_rl":
        excluded |= {
            "rollout.turn_budget limits trajectories, and PivotRL plays single turns": rollout.turn_budget,
            f"{rollout.samples_earlier} plays tasks, and PivotRL plays single turns": rollout.samples_earlier,
            "[continuations] would play on without the turns before a state": others["continuations"],
            "critic.visits counts turns from the start of a task": others["visits"],
        }
    elif demonstrations.name == "adhint":
        excluded |= _given_turns(rollout, others, known_late="how hard a task is", turns="a hint")
    if demonstrations.name != "hpt":
        excluded["rollout.keep_spread chooses among groups of tasks"] = rollout.keep_spread
        _refuse(excluded, "demonstrations")
        return
    excluded |= {
        "rollout.filter drops the groups that a demonstration would teach": rollout.filter != "none",
        "rollout.keep_spread drops the groups that a demonstration would teach": rollout.keep_spread,
        "[critic] has no returns of demonstrations": others["critic"],
        "[reward_model] has no pairs with demonstrations": others["reward_model"],
        "update.passes has no turns of demonstrations": update.passes,
        "update.tokens compares all tokens of a step": update.tokens,
        "update.entropy compares all tokens of a step": update.entropy,
        "update.preference pairs trajectories that a demonstration replaces": update.preference
        and not demonstrations.beside,
    }
    _refuse(excluded, "demonstrations")
    if demonstrations.gate > rollout.group_size:
        raise ValueError(
            f"demonstrations.gate={demonstrations.gate} is above rollout.group_size={rollout.group_size}; lower it"
        )


def check_told(transform: Transform, label: str, sections: Mapping[str, Any], models: Collection[str]) -> None:
    """Raise a ValueError if a measure reads what an environment tells, where PivotRL's single turns ask none.

    Args:
        transform: Method of the recipe.
        label: Its name.
        sections: Sections of the recipe by name, None for those that it does not have.
        models: Which models the recipe has that measures use and only some runs have.
    """
    if sections["demonstrations"] is None or sections["demonstrations"].name != "pivot_rl":
        return
    needs, scoring = {f"method {label!r}": transform.needs}, sections["update"].scoring
    measures = plan_measures(needs, scoring=scoring, further=sections["measures"], models=models).measures
    told = {
        f"the measure {each.name!r} reads info[{each.reads[0]!r}] of an environment, and PivotRL asks none": True
        for each in measures
        if each.reads
    }
    _refuse(told, "demonstrations", mend="choose another method or measure, or remove [demonstrations]")


def check_passes(transform: Transform, label: str, update: UpdateConfig) -> None:
    """Raise a ValueError if `update.passes` would lose credit that a method gives single tokens.

    Args:
        transform: Method of the recipe.
        label: Its name.
        update: The `[update]` of the recipe.
    """
    if update.passes and any(name.endswith("_T") for name in transform.needs):
        raise ValueError(
            f"update.passes learns one advantage per response, and method {label!r} gives each token its own; remove "
            "update.passes, or choose another method"
        )


def check_store(
    store: StoreConfig,
    rollout: RolloutConfig,
    update: UpdateConfig,
    others: Mapping[str, bool],
) -> None:
    """Raise a ValueError if `[store]` does not fit the other sections of a recipe.

    Args:
        store: The section.
        rollout: The `[rollout]` of the recipe.
        update: Its `[update]`.
        others: Whether it has the sections `harness`, `critic`, `continuations`, `reward_model`, and `critic.visits`.
    """
    collector = rollout.collector.name
    excluded: dict[str, Any] = {
        f"rollout.collector={collector!r} plays trajectories that belong together": collector != "independent"
    }
    if store.name == "slea_rl":
        excluded |= {
            "[harness] makes its own prompts": others["harness"],
            "rollout.turn_budget has environments of its own": rollout.turn_budget,
            f"{rollout.samples_earlier} plays while the memory changes": rollout.samples_earlier,
            "[continuations] would play on without the memory": others["continuations"],
        }
        _refuse(excluded, "store")
        return
    if store.name == "prefix_sampling":
        excluded |= {
            "[harness] cannot start at a turn": others["harness"],
            **_given_turns(rollout, others, known_late="where to start", turns="a prefix"),
        }
        _refuse(excluded, "store")
        return
    if store.name == "r3":
        excluded |= {
            "[harness] makes its own prompts": others["harness"],
            "rollout.filter drops the groups that a replay would mix": rollout.filter != "none",
            "rollout.keep_spread drops the groups that a replay would mix": rollout.keep_spread,
            **_given_turns(rollout, others, known_late="which tasks failed", turns="a failure"),
        }
    late = update.old_policy == "start" and update.mismatch_cap is None
    excluded |= {
        "[critic] would learn the returns of successes": others["critic"],
        "update.old_policy='start' ignores that stored trajectories are of other weights": late,
    }
    _refuse(excluded, "store")
    scoring = {"update.scoring='engine' has the entropies of the weights that sampled": update.scoring == "engine"}
    _refuse(scoring, "store", mend="set update.scoring=trainer")


def with_corrected_ratios(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return plain data of a recipe with `update.old_policy = "behavior"` where responses may be of earlier weights.

    Raises:
        ValueError: `update.passes` cannot learn from these.
    """
    rollout, update, store = data.get("rollout"), data.get("update", {}), data.get("store")
    late = isinstance(rollout, Mapping) and next((n for n in ("max_lag", "step_budget") if rollout.get(n)), "")
    late = f"rollout.{late}" if late else ""
    if isinstance(store, Mapping) and store.get("name") in ("rlep", "r3"):
        late = "[store]"
    if not late or not isinstance(update, Mapping):
        return data
    if update.get("passes"):
        raise ValueError(f"update.passes needs responses from the weights of its step; remove {late}")
    corrected = any(update.get(name) not in (None, False) for name in ("old_policy", "mismatch_cap"))
    return data if corrected else {**data, "update": {**update, "old_policy": "behavior"}}


def _given_turns(rollout: RolloutConfig, others: Mapping[str, bool], *, known_late: str, turns: str) -> dict[str, Any]:
    """Return what does not fit trajectories that begin with turns of another one, each with whether it is given."""
    return {
        "rollout.turn_budget counts turns from the start of a task": rollout.turn_budget,
        f"{rollout.samples_earlier} plays before it is known {known_late}": rollout.samples_earlier,
        f"[continuations] would play on without the turns of {turns}": others["continuations"],
        "critic.visits counts turns from the start of a task": others["visits"],
    }


def _refuse(excluded: Mapping[str, Any], section: str, mend: str = "remove one of them") -> None:
    if reason := next((reason for reason, given in excluded.items() if given), None):
        raise ValueError(f"{reason}, so it cannot be combined with [{section}]; {mend}")
