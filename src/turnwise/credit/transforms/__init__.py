"""Provide the building blocks of credit assignment."""

from turnwise.credit.transforms.actions import shrink_to_state, weigh_by_evidence
from turnwise.credit.transforms.asymmetry import (
    add_confidence_gap,
    add_rank_bonus,
    amplify_sure_errors,
    keep_extremes,
    keep_sign,
    weigh_by_length_contrast,
    weigh_by_progress,
)
from turnwise.credit.transforms.baselines import center_by_group, subtract_leave_one_out
from turnwise.credit.transforms.effects import predict_effects
from turnwise.credit.transforms.graphs import reward_nearness, value_next_state, weigh_by_failures
from turnwise.credit.transforms.hierarchy import (
    credit_actions,
    credit_parts,
    credit_subgoals,
    credit_switches,
    penalize_changing,
    penalize_keeping,
)
from turnwise.credit.transforms.history import compare_by_history
from turnwise.credit.transforms.information import (
    add_information,
    add_turn_gains,
    reward_gold_gain,
    standardize_turn_rewards,
    weigh_turn_rewards,
)
from turnwise.credit.transforms.memory import reward_remembered_nearness, standardize_with_earlier
from turnwise.credit.transforms.modulation import (
    add_clarity_bonus,
    entropy_coefficient,
    mask_by_drift,
    modulate_by_entropy,
)
from turnwise.credit.transforms.nodes import compare_siblings, keep_tried, value_tree_nodes
from turnwise.credit.transforms.outcomes import (
    center_by_halves,
    share_between_forks,
    standardize_by_tokens,
    standardize_with_virtual,
    subtract_shrunk_mean,
    success_return,
)
from turnwise.credit.transforms.pooling import center_by_distinct, standardize_in_random_groups, take_column
from turnwise.credit.transforms.probes import (
    add_potential_gain,
    damp_after_saturation,
    spare_successes,
    step_potential,
    weigh_by_hindsight,
)
from turnwise.credit.transforms.returns import add_penalty, discounted_return, outcome_return
from turnwise.credit.transforms.running import subtract_running_mean
from turnwise.credit.transforms.scaling import scale_by_group_std, scale_by_largest
from turnwise.credit.transforms.selection import match_dose, reject_by_profile, reject_mismatch
from turnwise.credit.transforms.shaping import (
    add_length_reward,
    favor_unlikely,
    penalize_overlong,
    rank_failures,
    reward_rank,
    scalarize,
    skip_uniform_success,
)
from turnwise.credit.transforms.similarity import center_by_cluster, center_by_similarity, tf_idf
from turnwise.credit.transforms.success import weigh_by_success_rate
from turnwise.credit.transforms.token_values import (
    follow_teacher,
    mix_td_errors,
    spread_token_td_errors,
    sum_token_td_errors,
    sum_two_level_td_errors,
    weigh_tokens_by_entropy,
)
from turnwise.credit.transforms.turn_rewards import (
    add_gold_window,
    add_progress,
    add_turn_drop,
    credit_first_turn,
)
from turnwise.credit.transforms.values import (
    add_value_change,
    compare_actions,
    compare_with_state,
    reward_turning_points,
    sum_td_errors,
    sum_td_errors_of_states,
)

__all__ = [
    "add_clarity_bonus",
    "add_confidence_gap",
    "add_gold_window",
    "add_information",
    "add_length_reward",
    "add_penalty",
    "add_potential_gain",
    "add_progress",
    "add_rank_bonus",
    "add_turn_drop",
    "add_turn_gains",
    "add_value_change",
    "amplify_sure_errors",
    "center_by_cluster",
    "center_by_distinct",
    "center_by_group",
    "center_by_halves",
    "center_by_similarity",
    "compare_actions",
    "compare_by_history",
    "compare_siblings",
    "compare_with_state",
    "credit_actions",
    "credit_first_turn",
    "credit_parts",
    "credit_subgoals",
    "credit_switches",
    "damp_after_saturation",
    "discounted_return",
    "entropy_coefficient",
    "favor_unlikely",
    "follow_teacher",
    "keep_extremes",
    "keep_sign",
    "keep_tried",
    "mask_by_drift",
    "match_dose",
    "mix_td_errors",
    "modulate_by_entropy",
    "outcome_return",
    "penalize_changing",
    "penalize_keeping",
    "penalize_overlong",
    "predict_effects",
    "rank_failures",
    "reject_by_profile",
    "reject_mismatch",
    "reward_gold_gain",
    "reward_nearness",
    "reward_rank",
    "reward_remembered_nearness",
    "reward_turning_points",
    "scalarize",
    "scale_by_group_std",
    "scale_by_largest",
    "share_between_forks",
    "shrink_to_state",
    "skip_uniform_success",
    "spare_successes",
    "spread_token_td_errors",
    "standardize_by_tokens",
    "standardize_in_random_groups",
    "standardize_turn_rewards",
    "standardize_with_earlier",
    "standardize_with_virtual",
    "step_potential",
    "subtract_leave_one_out",
    "subtract_running_mean",
    "subtract_shrunk_mean",
    "success_return",
    "sum_td_errors",
    "sum_td_errors_of_states",
    "sum_token_td_errors",
    "sum_two_level_td_errors",
    "take_column",
    "tf_idf",
    "value_next_state",
    "value_tree_nodes",
    "weigh_by_evidence",
    "weigh_by_failures",
    "weigh_by_hindsight",
    "weigh_by_length_contrast",
    "weigh_by_progress",
    "weigh_by_success_rate",
    "weigh_tokens_by_entropy",
    "weigh_turn_rewards",
]
