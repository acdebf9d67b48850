"""Bugs of this field as code, for the check suites to prove they catch them. To add one: an entry of `VARIANTS`."""

import dataclasses
from collections.abc import Callable

import numpy as np
from tests.known_wrong.checks import Credit
from tests.properties.strategies import Rows

import turnwise as tw

REAL: dict[str, Credit] = {
    "grpo": lambda rows: rows.credit(tw.grpo()),
    "rloo": lambda rows: rows.credit(tw.rloo()),
    "dr_grpo": lambda rows: rows.credit(tw.dr_grpo()),
    "grpo with penalty": lambda rows: rows.credit(tw.chain(tw.grpo(), tw.add_penalty())),
    "discounted returns": lambda rows: rows.credit(tw.reinforce(discount=0.5)),
    "gigpo without std": lambda rows: rows.credit(tw.gigpo(discount=0.5, scale=False)),
    "aem on dr_grpo": lambda rows: rows.credit(tw.aem(tw.dr_grpo())),
}
"""The real implementation of each suite."""


@dataclasses.dataclass(frozen=True)
class Variant:
    """One known bug.

    Attributes:
        suite: Whose checks must reject it.
        credit: The bug.
        source: Where it was met.
        rejected_by: Checks that must be among those that fail.
    """

    suite: str
    credit: Credit
    source: str
    rejected_by: tuple[str, ...]


# -- small pieces to build bugs from, none of them from turnwise -------------------------------------------------------


def outcomes(rows: Rows, reward: np.ndarray | None = None) -> np.ndarray:
    """Each row's return of its whole trajectory."""
    reward = rows.reward if reward is None else reward
    names = rows.names()
    return np.array([sum(r for r, other in zip(reward, names, strict=True) if other == name) for name in names])


def one_row_a_trajectory(rows: Rows) -> np.ndarray:
    """Mask of the first row of every trajectory."""
    names = rows.names()
    return np.array([name not in names[:row] for row, name in enumerate(names)])


def grouped(
    rows: Rows, values: np.ndarray, statistic: Callable[[np.ndarray], float], *, keys=None, counted=None
) -> np.ndarray:
    """A statistic of the counted rows (default: one a trajectory) that share a row's key (default: the prompt)."""
    keys = np.array([hash(key) for key in (rows.group if keys is None else keys)])
    counted = one_row_a_trajectory(rows) if counted is None else counted
    return np.array([statistic(values[(keys == key) & counted]) for key in keys])


def sample_std(values: np.ndarray) -> float:
    return float(values.std(ddof=1)) if len(values) > 1 else 0.0


def standardise(rows: Rows, values: np.ndarray, *, std=sample_std, **options) -> np.ndarray:
    centred = values - grouped(rows, values, np.mean, **options)
    return centred / (grouped(rows, values, std, **options) + 1e-6)


def centre(rows: Rows, values: np.ndarray, **options) -> np.ndarray:
    return values - grouped(rows, values, np.mean, **options)


def group_size(rows: Rows) -> np.ndarray:
    return grouped(rows, rows.reward, len)


def discounted(rows: Rows, discount: float, power: Callable[[int, int], int]) -> np.ndarray:
    """Sum over the trajectory's turns k >= t of `discount ** power(t, k) * reward`."""
    names = rows.names()
    turn = [names[:row].count(name) for row, name in enumerate(names)]
    return np.array(
        [
            sum(
                discount ** power(turn[row], turn[other]) * rows.reward[other]
                for other in range(len(rows))
                if names[other] == names[row] and turn[other] >= turn[row]
            )
            for row in range(len(rows))
        ]
    )


def coefficient(rows: Rows, *, keys=None, mean_one: bool = True, weights=None) -> np.ndarray:
    """AEM's coefficient over the rows that share a key; `weights` stands in for one vote a response."""
    everyone = np.ones(len(rows), dtype=bool)
    low = grouped(rows, rows.entropy, np.min, keys=keys, counted=everyone)
    spread = grouped(rows, rows.entropy, np.max, keys=keys, counted=everyone) - low
    weight = np.exp(-(rows.entropy - low) / np.where(spread > 0, spread, 1.0))
    votes = np.ones(len(rows)) if weights is None else weights
    mean = grouped(rows, weight * votes, np.sum, keys=keys, counted=everyone) / grouped(
        rows, votes, np.sum, keys=keys, counted=everyone
    )
    return np.where(spread < 0.1, 1.0, weight / mean if mean_one else weight)


def centred_outcome(rows: Rows) -> np.ndarray:
    return centre(rows, outcomes(rows))


# -- the bugs ----------------------------------------------------------------------------------------------------------


def lone_keeps_its_reward(rows: Rows) -> np.ndarray:
    return np.where(group_size(rows) == 1, outcomes(rows), standardise(rows, outcomes(rows)))


def lone_keeps_its_reward_rloo(rows: Rows) -> np.ndarray:
    size = group_size(rows)
    return np.where(size == 1, outcomes(rows), centred_outcome(rows) * size / np.maximum(size - 1, 1))


def labels_become_numbers(rows: Rows) -> np.ndarray:
    merged = rows.replace(group=tuple(int(label) for label in rows.group))
    names = list(zip(rows.group, rows.trajectory, strict=True))  # trajectories are still told apart
    return standardise(merged.replace(trajectory=tuple(names)), outcomes(rows))


def rows_duplicated_to_a_multiple_of_four(rows: Rows) -> np.ndarray:
    padding = np.arange(-len(rows) % 4)
    padded = rows.take(np.concatenate([np.arange(len(rows)), padding]))
    values = np.concatenate([outcomes(rows), outcomes(rows)[padding]])  # the returns were summed before
    return standardise(padded, values, counted=np.ones(len(padded), dtype=bool))[: len(rows)]


def duplicated_rows_before_the_returns(rows: Rows) -> np.ndarray:
    padded = rows.take(np.concatenate([np.arange(len(rows)), np.arange(-len(rows) % 4)]))
    return standardise(padded, outcomes(padded))[: len(rows)]


def penalty_inside_the_outcome(rows: Rows) -> np.ndarray:
    return standardise(rows, outcomes(rows, rows.reward + rows.penalty))


def entropies_in_order_of_length(rows: Rows) -> np.ndarray:
    """Dynamic batching packs rows by length; log-probs were put back, entropies were not."""
    packed = np.argsort([len(rows) - rows.names().index(name) for name in rows.names()], kind="stable")
    return REAL["aem on dr_grpo"](rows.replace(entropy=rows.entropy[packed]))


def anchor_states_across_prompts(rows: Rows) -> np.ndarray:
    returns = discounted(rows, 0.5, lambda t, k: k - t)
    everyone = np.ones(len(rows), dtype=bool)
    return centred_outcome(rows) + centre(rows, returns, keys=rows.state_key, counted=everyone)


def step_returns_without_discount(rows: Rows) -> np.ndarray:
    keys = list(zip(rows.group, rows.state_key, strict=True))
    returns = discounted(rows, 1.0, lambda t, k: 0)
    return centred_outcome(rows) + centre(rows, returns, keys=keys, counted=np.ones(len(rows), dtype=bool))


def centred_again(rows: Rows) -> np.ndarray:
    modulated = coefficient(rows) * centred_outcome(rows)
    return modulated - grouped(rows, modulated, np.mean, counted=np.ones(len(rows), dtype=bool))


AEM_MEAN = "the_mean_coefficient_of_a_prompt_is_one"
CARD = "one_success_of_four_equals_the_card"

VARIANTS: dict[str, Variant] = {
    "group mean and std over turn rows": Variant(
        "grpo",
        lambda rows: standardise(rows, outcomes(rows), counted=np.ones(len(rows), dtype=bool)),
        "verl-agent #138, its default compute_mean_std_cross_steps=True; agent-lightning #489",
        ("turns_do_not_vote", "credit_sums_to_zero_over_trajectories"),
    ),
    "group mean over turn rows": Variant(
        "dr_grpo",
        lambda rows: centre(rows, outcomes(rows), counted=np.ones(len(rows), dtype=bool)),
        "verl-agent #138",
        ("turns_do_not_vote", "credit_sums_to_zero_over_trajectories"),
    ),
    "a deviation where there is none": Variant(
        "dr_grpo",
        lambda rows: standardise(rows, outcomes(rows)),
        "TRL: loss_type='dr_grpo' with scale_rewards as it is by default",
        ("one_success_of_four_equals_the_card",),
    ),
    "a lone trajectory keeps its raw reward (GRPO)": Variant(
        "grpo",
        lone_keeps_its_reward,
        "verl 0.9.1, compute_grpo_outcome_advantage",
        ("a_lone_trajectory_gets_nothing",),
    ),
    "a lone trajectory keeps its raw reward (RLOO)": Variant(
        "rloo",
        lone_keeps_its_reward_rloo,
        "verl 0.9.1, compute_rloo_outcome_advantage",
        ("a_lone_trajectory_gets_nothing",),
    ),
    "labels coerced to numbers": Variant(
        "grpo", labels_become_numbers, "verl 0.9.1, as_torch_index", ("labels_are_names_not_numbers",)
    ),
    "batch mean instead of the group's": Variant(
        "dr_grpo",
        lambda rows: outcomes(rows) - outcomes(rows)[one_row_a_trajectory(rows)].mean(),
        "a reference bug of this project's first prototype",
        ("prompts_do_not_see_each_other",),
    ),
    "penalty inside the normalised outcome": Variant(
        "grpo with penalty",
        penalty_inside_the_outcome,
        "verl-agent: collapsed a small policy within 10 steps",
        ("a_penalty_falls_on_its_own_turn_at_its_own_size",),
    ),
    "padding rows duplicated before the advantage": Variant(
        "grpo",
        rows_duplicated_to_a_multiple_of_four,
        "verl-agent, adjust_batch(mode='copy'); #35",
        ("prompts_do_not_see_each_other",),
    ),
    "padding rows duplicated before the returns": Variant(
        "grpo", duplicated_rows_before_the_returns, "verl-agent, adjust_batch", ("prompts_do_not_see_each_other",)
    ),
    "entropies in another order than rows": Variant(
        "aem on dr_grpo",
        entropies_in_order_of_length,
        "verl-agent compute_log_prob under dynamic batching; JustRL #5 for verl <= 0.4",
        ("the_surer_response_counts_more",),
    ),
    "population std in place of the sample's": Variant(
        "grpo",
        lambda rows: standardise(rows, outcomes(rows), std=np.std),
        "torchtitan RL, pstdev: right there, wrong under the name of DeepSeekMath's formula",
        (CARD,),
    ),
    "coefficient normalised over the batch": Variant(
        "aem on dr_grpo",
        lambda rows: coefficient(rows, keys=[0] * len(rows)) * centred_outcome(rows),
        "EMPG's scope; a losing ablation of arXiv 2605.00425",
        ("prompts_do_not_see_each_other", AEM_MEAN),
    ),
    "coefficient normalised over tokens": Variant(
        "aem on dr_grpo",
        lambda rows: coefficient(rows, weights=np.exp(rows.entropy)) * centred_outcome(rows),  # the longer, the vaguer
        "public copies of EMPG scale per token segment; card EMPG, known bugs",
        (AEM_MEAN,),
    ),
    "modulated advantage centred again": Variant(
        "aem on dr_grpo",
        centred_again,
        "EMPG's last step, arXiv 2509.09265; AEM has none",
        ("the_surest_counts_e_times_the_most_hesitant",),
    ),
    "coefficient of another mean than one": Variant(
        "aem on dr_grpo",
        lambda rows: coefficient(rows, mean_one=False) * centred_outcome(rows),
        "shrinks every step: a hidden learning-rate change",
        (AEM_MEAN,),
    ),
    "the surer counts less": Variant(
        "aem on dr_grpo",
        lambda rows: coefficient(rows.replace(entropy=-rows.entropy)) * centred_outcome(rows),
        "the reversed ablation of arXiv 2605.00425, by a lost sign",
        ("the_surer_response_counts_more",),
    ),
    "the coefficient's excess in its place": Variant(
        "aem on dr_grpo",
        lambda rows: (coefficient(rows) - 1) * centred_outcome(rows),
        "alpha - 1 is what the analyses of arXiv 2605.00425 plot, not what multiplies the advantage",
        ("modulation_keeps_the_sign",),
    ),
    "no guard for a flat group": Variant(
        "aem on dr_grpo",
        lambda rows: coefficient(rows.replace(entropy=rows.entropy * 1e6)) * centred_outcome(rows),
        "arXiv 2605.00425 asks for a range of 0.1 nats",
        ("hardly_different_entropies_change_nothing",),
    ),
    "anchor states across prompts": Variant(
        "gigpo without std",
        anchor_states_across_prompts,
        "GiGPO card: a state key without its prompt",
        ("one_state_two_prompts_are_two_anchor_groups", "prompts_do_not_see_each_other"),
    ),
    "step returns without discount": Variant(
        "gigpo without std",
        step_returns_without_discount,
        "GiGPO card, formula 1; verl-agent #149, #155 (numbers that do not reproduce)",
        ("the_sooner_success_is_the_better_one",),
    ),
    "discounting from the start rather than to go": Variant(
        "discounted returns",
        lambda rows: discounted(rows, 0.5, lambda t, k: k),
        "gamma^k in place of gamma^(k - t)",
        ("later_rewards_count_less_by_their_distance",),
    ),
    "no discounting": Variant(
        "discounted returns",
        lambda rows: discounted(rows, 0.5, lambda t, k: 0),
        "a discount that is configured and never reaches the sum",
        ("later_rewards_count_less_by_their_distance",),
    ),
    "leave-one-out with n in place of n - 1": Variant(
        "rloo", centred_outcome, "RLOO as R - mean(R): Dr. GRPO under another name", (CARD,)
    ),
}
