"""The building blocks of credit assignment, verbs in the order in which a method applies them."""

from turnwise.transforms.baselines import center_by_group, subtract_leave_one_out
from turnwise.transforms.modulation import entropy_coefficient, modulate_by_entropy
from turnwise.transforms.returns import add_penalty, discounted_return, outcome_return
from turnwise.transforms.scaling import scale_by_group_std

__all__ = [
    "add_penalty",
    "center_by_group",
    "discounted_return",
    "entropy_coefficient",
    "modulate_by_entropy",
    "outcome_return",
    "scale_by_group_std",
    "subtract_leave_one_out",
]
