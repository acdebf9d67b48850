"""turnwise: credit assignment for multi-turn LLM agents.

    import turnwise as tw

    batch, order = tw.Batch.from_arrays(group=..., trajectory=..., reward=..., columns={"entropy": ...})
    advantage[order] = tw.aem(tw.grpo())(batch)

To read the code, start with `segments`, `batch`, `transform`, `methods.grpo`, `methods.aem`, `train.loop`.

The public names are imported on first use, so that `import turnwise` is fast.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from turnwise.batch import Batch
    from turnwise.card import Card, Gradient
    from turnwise.columns import COLUMNS
    from turnwise.errors import BatchError, ConfigError, DataError, TurnwiseError
    from turnwise.methods import (
        METHODS,
        a2tgpo,
        a_grae,
        ace,
        adora,
        aem,
        arena_rl,
        arpo,
        bilevel_gae,
        canon,
        d3s,
        dr_grpo,
        egae,
        empg,
        gae,
        gigpo,
        grpo,
        grpo_n,
        hapo,
        hcapo,
        hgpo,
        hiper,
        igpo,
        infopo,
        mars,
        matchtir,
        mica,
        ngrpo,
        ppo,
        progrpo,
        proxmo,
        r3,
        rae,
        reinforce,
        reinforce_pp_baseline,
        rloo,
        spae,
        spo,
        srgpo,
        tp_grpo,
        tree_grpo,
        trloo,
        turn_ppo,
        unlikeliness,
        v05,
        verl_er,
    )
    from turnwise.segments import Labels, Partition, Segments
    from turnwise.trace import Trace
    from turnwise.transform import Transform, block, card_of, chain, method, mix, trial
    from turnwise.transforms import (
        add_clarity_bonus,
        add_confidence_gap,
        add_information,
        add_length_reward,
        add_penalty,
        add_potential_gain,
        add_rank_bonus,
        add_turn_gains,
        amplify_sure_errors,
        center_by_cluster,
        center_by_distinct,
        center_by_group,
        center_by_halves,
        center_by_similarity,
        compare_by_history,
        credit_actions,
        credit_parts,
        credit_subgoals,
        credit_switches,
        damp_after_saturation,
        discounted_return,
        entropy_coefficient,
        favor_unlikely,
        keep_extremes,
        keep_sign,
        mask_by_drift,
        modulate_by_entropy,
        outcome_return,
        penalize_changing,
        penalize_keeping,
        penalize_overlong,
        rank_failures,
        reject_by_profile,
        reject_mismatch,
        reward_gold_gain,
        reward_rank,
        reward_turning_points,
        scalarize,
        scale_by_group_std,
        share_between_forks,
        skip_uniform_success,
        spare_successes,
        standardize_by_tokens,
        standardize_by_tree,
        standardize_in_random_groups,
        standardize_turn_rewards,
        standardize_with_virtual,
        step_potential,
        subtract_leave_one_out,
        subtract_running_mean,
        subtract_shrunk_mean,
        success_return,
        sum_td_errors,
        sum_token_td_errors,
        sum_two_level_td_errors,
        take_column,
        tf_idf,
        weigh_by_hindsight,
        weigh_by_length_contrast,
        weigh_by_progress,
        weigh_by_success_rate,
        weigh_turn_rewards,
    )

__version__ = "0.2.0"

__all__ = [
    "COLUMNS",
    "METHODS",
    "Batch",
    "BatchError",
    "Card",
    "ConfigError",
    "DataError",
    "Gradient",
    "Labels",
    "Partition",
    "Segments",
    "Trace",
    "Transform",
    "TurnwiseError",
    "a2tgpo",
    "a_grae",
    "ace",
    "add_clarity_bonus",
    "add_confidence_gap",
    "add_information",
    "add_length_reward",
    "add_penalty",
    "add_potential_gain",
    "add_rank_bonus",
    "add_turn_gains",
    "adora",
    "aem",
    "amplify_sure_errors",
    "arena_rl",
    "arpo",
    "bilevel_gae",
    "block",
    "canon",
    "card_of",
    "center_by_cluster",
    "center_by_distinct",
    "center_by_group",
    "center_by_halves",
    "center_by_similarity",
    "chain",
    "compare_by_history",
    "credit_actions",
    "credit_parts",
    "credit_subgoals",
    "credit_switches",
    "d3s",
    "damp_after_saturation",
    "discounted_return",
    "dr_grpo",
    "egae",
    "empg",
    "entropy_coefficient",
    "favor_unlikely",
    "gae",
    "gigpo",
    "grpo",
    "grpo_n",
    "hapo",
    "hcapo",
    "hgpo",
    "hiper",
    "igpo",
    "infopo",
    "keep_extremes",
    "keep_sign",
    "mars",
    "mask_by_drift",
    "matchtir",
    "method",
    "mica",
    "mix",
    "modulate_by_entropy",
    "ngrpo",
    "outcome_return",
    "penalize_changing",
    "penalize_keeping",
    "penalize_overlong",
    "ppo",
    "progrpo",
    "proxmo",
    "r3",
    "rae",
    "rank_failures",
    "reinforce",
    "reinforce_pp_baseline",
    "reject_by_profile",
    "reject_mismatch",
    "reward_gold_gain",
    "reward_rank",
    "reward_turning_points",
    "rloo",
    "scalarize",
    "scale_by_group_std",
    "share_between_forks",
    "skip_uniform_success",
    "spae",
    "spare_successes",
    "spo",
    "srgpo",
    "standardize_by_tokens",
    "standardize_by_tree",
    "standardize_in_random_groups",
    "standardize_turn_rewards",
    "standardize_with_virtual",
    "step_potential",
    "subtract_leave_one_out",
    "subtract_running_mean",
    "subtract_shrunk_mean",
    "success_return",
    "sum_td_errors",
    "sum_token_td_errors",
    "sum_two_level_td_errors",
    "take_column",
    "tf_idf",
    "tp_grpo",
    "tree_grpo",
    "trial",
    "trloo",
    "turn_ppo",
    "unlikeliness",
    "v05",
    "verl_er",
    "weigh_by_hindsight",
    "weigh_by_length_contrast",
    "weigh_by_progress",
    "weigh_by_success_rate",
    "weigh_turn_rewards",
]

_HOMES = ("errors", "columns", "segments", "batch", "trace", "card", "transform", "transforms", "methods")
"""Modules that define the public names, lower layers first."""


def _find(name: str) -> Any:
    """Import a public name, or a module that defines some, on first use (PEP 562)."""
    if name in _HOMES:
        return import_module(f"{__name__}.{name}")
    if name in __all__:
        for home in _HOMES:
            module = import_module(f"{__name__}.{home}")
            if hasattr(module, name):
                globals()[name] = found = getattr(module, name)  # later uses skip this function
                return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name, obj=sys.modules[__name__])


if not TYPE_CHECKING:  # else a type checker would accept every name
    __getattr__ = _find


def __dir__() -> list[str]:
    """List the public names for tab completion, imported or not."""
    return sorted({*__all__, *_HOMES, *globals()})
