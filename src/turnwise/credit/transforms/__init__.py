"""Provide the building blocks of credit assignment."""

from typing import TYPE_CHECKING

from turnwise.credit.transforms.asymmetry import add_confidence_gap as add_confidence_gap
from turnwise.credit.transforms.asymmetry import add_rank_bonus as add_rank_bonus
from turnwise.credit.transforms.asymmetry import amplify_sure_errors as amplify_sure_errors
from turnwise.credit.transforms.asymmetry import keep_extremes as keep_extremes
from turnwise.credit.transforms.asymmetry import keep_sign as keep_sign
from turnwise.credit.transforms.asymmetry import weigh_by_length_contrast as weigh_by_length_contrast
from turnwise.credit.transforms.asymmetry import weigh_by_progress as weigh_by_progress
from turnwise.credit.transforms.baselines import center_by_group as center_by_group
from turnwise.credit.transforms.baselines import subtract_leave_one_out as subtract_leave_one_out
from turnwise.credit.transforms.effects import predict_effects as predict_effects
from turnwise.credit.transforms.graphs import reward_nearness as reward_nearness
from turnwise.credit.transforms.hierarchy import credit_actions as credit_actions
from turnwise.credit.transforms.hierarchy import credit_parts as credit_parts
from turnwise.credit.transforms.hierarchy import credit_subgoals as credit_subgoals
from turnwise.credit.transforms.hierarchy import credit_switches as credit_switches
from turnwise.credit.transforms.hierarchy import penalize_changing as penalize_changing
from turnwise.credit.transforms.hierarchy import penalize_keeping as penalize_keeping
from turnwise.credit.transforms.history import compare_by_history as compare_by_history
from turnwise.credit.transforms.information import add_information as add_information
from turnwise.credit.transforms.information import add_turn_gains as add_turn_gains
from turnwise.credit.transforms.information import reward_gold_gain as reward_gold_gain
from turnwise.credit.transforms.information import standardize_turn_rewards as standardize_turn_rewards
from turnwise.credit.transforms.information import weigh_turn_rewards as weigh_turn_rewards
from turnwise.credit.transforms.modulation import add_clarity_bonus as add_clarity_bonus
from turnwise.credit.transforms.modulation import entropy_coefficient as entropy_coefficient
from turnwise.credit.transforms.modulation import mask_by_drift as mask_by_drift
from turnwise.credit.transforms.modulation import modulate_by_entropy as modulate_by_entropy
from turnwise.credit.transforms.nodes import keep_tried as keep_tried
from turnwise.credit.transforms.nodes import value_tree_nodes as value_tree_nodes
from turnwise.credit.transforms.outcomes import center_by_halves as center_by_halves
from turnwise.credit.transforms.outcomes import share_between_forks as share_between_forks
from turnwise.credit.transforms.outcomes import standardize_by_tokens as standardize_by_tokens
from turnwise.credit.transforms.outcomes import standardize_with_virtual as standardize_with_virtual
from turnwise.credit.transforms.outcomes import subtract_shrunk_mean as subtract_shrunk_mean
from turnwise.credit.transforms.outcomes import success_return as success_return
from turnwise.credit.transforms.pooling import center_by_distinct as center_by_distinct
from turnwise.credit.transforms.pooling import standardize_in_random_groups as standardize_in_random_groups
from turnwise.credit.transforms.pooling import take_column as take_column
from turnwise.credit.transforms.probes import add_potential_gain as add_potential_gain
from turnwise.credit.transforms.probes import damp_after_saturation as damp_after_saturation
from turnwise.credit.transforms.probes import spare_successes as spare_successes
from turnwise.credit.transforms.probes import step_potential as step_potential
from turnwise.credit.transforms.probes import weigh_by_hindsight as weigh_by_hindsight
from turnwise.credit.transforms.returns import add_penalty as add_penalty
from turnwise.credit.transforms.returns import discounted_return as discounted_return
from turnwise.credit.transforms.returns import outcome_return as outcome_return
from turnwise.credit.transforms.running import subtract_running_mean as subtract_running_mean
from turnwise.credit.transforms.scaling import scale_by_group_std as scale_by_group_std
from turnwise.credit.transforms.scaling import scale_by_largest as scale_by_largest
from turnwise.credit.transforms.selection import match_dose as match_dose
from turnwise.credit.transforms.selection import reject_by_profile as reject_by_profile
from turnwise.credit.transforms.selection import reject_mismatch as reject_mismatch
from turnwise.credit.transforms.shaping import add_length_reward as add_length_reward
from turnwise.credit.transforms.shaping import favor_unlikely as favor_unlikely
from turnwise.credit.transforms.shaping import penalize_overlong as penalize_overlong
from turnwise.credit.transforms.shaping import rank_failures as rank_failures
from turnwise.credit.transforms.shaping import reward_rank as reward_rank
from turnwise.credit.transforms.shaping import scalarize as scalarize
from turnwise.credit.transforms.shaping import skip_uniform_success as skip_uniform_success
from turnwise.credit.transforms.similarity import center_by_cluster as center_by_cluster
from turnwise.credit.transforms.similarity import center_by_similarity as center_by_similarity
from turnwise.credit.transforms.similarity import tf_idf as tf_idf
from turnwise.credit.transforms.success import weigh_by_success_rate as weigh_by_success_rate
from turnwise.credit.transforms.token_values import sum_token_td_errors as sum_token_td_errors
from turnwise.credit.transforms.token_values import sum_two_level_td_errors as sum_two_level_td_errors
from turnwise.credit.transforms.values import add_value_change as add_value_change
from turnwise.credit.transforms.values import compare_actions as compare_actions
from turnwise.credit.transforms.values import compare_with_state as compare_with_state
from turnwise.credit.transforms.values import reward_turning_points as reward_turning_points
from turnwise.credit.transforms.values import sum_td_errors as sum_td_errors
from turnwise.credit.transforms.values import sum_td_errors_of_states as sum_td_errors_of_states

if not TYPE_CHECKING:  # a type checker reads the imports
    __all__ = sorted(name for name, found in globals().items() if callable(found))
