"""The optional features of training: the recipe of each, a test of its idea, and how the idea is switched off.

A feature earns its place by both. `run.py` switches each idea off and expects its test to fail. A feature has an entry
as soon as it is registered; see `test_ideas.py`.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Idea:
    """An optional feature.

    Attributes:
        test: Test that fails while the idea is switched off, below `tests/`.
        off: What to put where so that nothing is left of the idea: `module:attribute`, or `module:MAPPING/key`.
        recipe: Shipped recipe that trains with it; empty if none does.
    """

    test: str
    off: Mapping[str, Any]
    recipe: str = ""


def returns(value: Any) -> Callable[..., Any]:
    """Make a function that returns a value, whatever it is given."""
    return lambda *_, **__: value


def rule(name: str, test: str, recipe: str = "", *, module: str = "growth") -> Idea:
    """Let a branching rule ask for separate trajectories alone."""

    def separate(group: Any, **_: Any) -> Any:
        yield [None] * group.size

    off = {
        f"turnwise.extensions.branching.growth:RULES/{name}": separate,  # first: the table has names of functions
        f"turnwise.extensions.branching.{module}:{name}": separate,
    }
    return Idea(test, off, recipe)


def token_rule(name: str, module: str, test: str, recipe: str = "") -> Idea:
    """Let a token rule leave the loss as it is."""

    def nothing(*_: Any, **__: Any) -> Any:
        from turnwise.objective.token_rules.base import TokenCredit

        return TokenCredit()

    return Idea(f"token_rules/{test}", {f"turnwise.extensions.token_rules.{module}:{name}": nothing}, recipe)


def from_the_start(trajectory: Any, turn: int, task: Any, token: int = 0) -> Any:
    """Start a trajectory anew where it should fork."""
    from turnwise.rollout.starts import Start

    return Start(task, trajectory.group, trajectory.task, tree=trajectory.tree)


async def no_copy(*_: Any) -> None:
    """Copy no environment, so that its turns are played again."""


def plainly(self: Any, *arguments: Any, **named: Any) -> Any:
    """Collect the experience of a step as the source below does."""
    return self._source.next(*arguments, **named)


def separately(self: Any, *arguments: Any, **named: Any) -> Any:
    """Play the trajectories of a group separately."""
    from turnwise.rollout.collectors import Independent

    return Independent.play(self, *arguments, **named)


async def in_the_step(self: Any, pool: Any, step: int) -> None:
    """Start groups in the step that learns from them."""
    await pool.start(step, pool.settings.groups - len(pool.flights))


async def without_end(self: Any, playing: Any) -> int:
    """Play all trajectories to their ends, whatever the budget."""
    while True:
        await self._rest(playing)
        live = [line for group in playing for line in group.lines.values() if line.waits]
        if not live:
            return self._amount
        for line in live:
            line.grant(10_000)


@dataclasses.dataclass(frozen=True)
class Changed:
    """A replacement that is made of what it replaces."""

    change: Callable[[Any], Any]


def of_zeros(*columns: str) -> Changed:
    """Let a measure of responses return zeros."""

    def run(step: Any, _: Any) -> dict[str, np.ndarray]:
        return {column: np.zeros(len(step.turns)) for column in columns}

    return Changed(lambda measure: dataclasses.replace(measure, run=run))


def no_pairs(*_: Any, **__: Any) -> Any:
    """Find no pair among the trajectories of a step."""
    from turnwise.extensions.preference.term import Pairs

    none = np.zeros(0, dtype=np.int64)
    return Pairs(none, none)


BRANCHING = "trees/test_branching.py::test_"
TOKENS = "trees/test_token_growth.py::test_"

IDEAS: dict[str, Idea] = {
    # -- collectors
    "collector branching": Idea(
        BRANCHING + "a_group_is_complete_and_its_forks_share_turns",
        {"turnwise.extensions.branching.collector:fork": from_the_start},
        "frozen-lake-tiny-tree-grpo",
    ),
    "branching rule arpo": rule("arpo", BRANCHING + "arpo_starts_one_trajectory_whenever_none_is_unfinished"),
    "branching rule tree_grpo": rule(
        "tree_grpo",
        BRANCHING + "tree_grpo_draws_from_the_root_and_from_responses_that_do_not_end",
        "frozen-lake-tiny-tree-grpo",
    ),
    "branching rule at2po": rule(
        "at2po", BRANCHING + "at2po_samples_the_most_surprising_responses_again_and_spares_those_with_siblings"
    ),
    "branching rule carl": rule("carl", BRANCHING + "carl_forks_where_the_policy_is_unsure_and_has_tried_little"),
    "branching rule v05": rule("v05", "trees/test_v05.py::test_a_group_grows_while_its_outcomes_contradict_its_past"),
    "branching rule spo_tree": rule(
        "spo_tree", TOKENS + "spo_tree_parts_after_every_so_many_tokens", module="token_growth"
    ),
    "branching rule treerl": rule(
        "treerl", TOKENS + "treerl_forks_each_tree_before_its_most_surprising_tokens", module="token_growth"
    ),
    "branching rule rose": rule(
        "rose",
        TOKENS + "rose_forks_before_the_largest_product_of_entropy_and_spread_or_starts_anew",
        module="token_growth",
    ),
    "copies of environments": Idea(
        "trees/test_copies.py::test_no_step_is_played_twice_and_the_trees_are_those_of_replays",
        {"turnwise.extensions.branching.copies:Copies.fork": no_copy},
    ),
    "collector arrol": Idea(
        "rollout/test_pruning.py::test_half_of_each_group_ends_after_its_first_tokens",
        {"turnwise.extensions.arrol.collector:survivors": lambda chance_N, *_: np.ones(len(chance_N), dtype=bool)},
        "frozen-lake-tiny-arrol",
    ),
    "collector v0": Idea(
        "rollout/test_allotment.py::test_tasks_that_teach_get_the_trajectories",
        {"turnwise.extensions.v0.collector:allot": lambda p_G, budget, **_: np.full(len(p_G), budget // len(p_G))},
        "frozen-lake-tiny-v0",
    ),
    "collector self_play": Idea(
        "rollout/test_self_play.py::test_each_seat_of_a_match_is_a_trajectory_of_the_group",
        {"turnwise.extensions.self_play.collector:SelfPlay.play": separately},
        "kuhn-tiny-mars",
    ),
    "self-play against past selves": Idea(
        "rollout/test_self_play.py::test_a_past_self_plays_with_the_weights_of_its_step",
        {
            "turnwise.extensions.self_play.collector:SelfPlay._past_engine": lambda self, models, *_: (
                models.policy.sampler
            )
        },
        "tictactoe-tiny-mars",
    ),
    # -- stores
    "store rlep": Idea(
        "stores/test_replay.py::test_stored_successes_teach_a_policy_that_fails",
        {"turnwise.extensions.stores.replay:draw": returns(([], {"replayed": 0.0, "replayed_age": 0.0}))},
        "frozen-lake-tiny-rlep",
    ),
    "store prefix_sampling": Idea(
        "stores/test_prefixes.py::test_a_head_start_is_easier_and_a_handicap_harder",
        {"turnwise.extensions.stores.prefixes:replayed_turns": returns(0)},
        "frozen-lake-tiny-prefix-sampling",
    ),
    "store slea_rl": Idea(
        "stores/test_memory.py::test_remembered_successes_give_the_answer",
        {"turnwise.extensions.stores.reminded:lines_of": returns([])},
        "frozen-lake-tiny-slea-rl",
    ),
    "store r3": Idea(
        "stores/test_reflection.py::test_groups_without_contrast_get_the_other_outcome",
        {"turnwise.extensions.stores.reflection:ReplayAndReflection._lacked": returns({})},
        "frozen-lake-tiny-r3",
    ),
    "reflection of store r3": Idea(
        "stores/test_reflection.py::test_a_failure_in_the_prompt_gives_the_answer",
        {"turnwise.extensions.stores.reflection:shown": returns(())},
        "frozen-lake-tiny-r3",
    ),
    # -- demonstrations
    "demonstrations hpt": Idea(
        "demonstrations/test_hpt.py::test_a_policy_that_always_fails_learns_from_demonstrations",
        {"turnwise.extensions.demonstrations.taught:Taught.next": plainly},
        "frozen-lake-tiny-hpt",
    ),
    "demonstrations adhint": Idea(
        "demonstrations/test_hints.py::test_a_policy_that_mostly_fails_learns_from_hints",
        {"turnwise.extensions.demonstrations.hints:hint_turns": returns(0)},
        "frozen-lake-tiny-adhint",
    ),
    "demonstrations pivot_rl": Idea(
        "demonstrations/test_pivots.py::test_a_run_learns_the_task_from_single_turns",
        {"turnwise.extensions.demonstrations.pivots:OneTurn.step": lambda self, response: self._answer()},
        "frozen-lake-tiny-pivot-rl",
    ),
    "dagger": Idea(
        "train/test_dagger.py::test_a_policy_learns_to_recover_which_no_demonstration_shows",
        {"turnwise.train.warmstart:corrections": returns([])},
        "alfworld-tiny-dagger",
    ),
    "recorded conversations": Idea(
        "train/test_recorded_conversations.py::test_responses_weigh_1_and_all_else_as_observations_do",
        {"turnwise.extensions.gateway.taught:encode": lambda conversation, fmt, prompter: [(fmt.encode("red"), True)]},
        "storeroom-agent",
    ),
    # -- when and how far trajectories are played
    "continuations": Idea(
        "rollout/test_continuations.py::test_with_one_possible_continuation_the_return_is_what_is_left",
        {"turnwise.extensions.continuations.play:fork": from_the_start},
        "frozen-lake-tiny-vine-ppo",
    ),
    "continuations from cuts": Idea(
        "rollout/test_continued_cuts.py::test_a_state_inside_a_response_is_no_state_after_it",
        {"turnwise.extensions.continuations.play:fork": from_the_start},
    ),
    "turn budget": Idea(
        "rollout/test_turn_budget.py::test_a_limited_trajectory_is_the_beginning_of_the_whole_one",
        {"turnwise.extensions.turn_budget.budget:stops_after": returns(False)},
        "frozen-lake-tiny-turn-budget",
    ),
    "turn budget that is learned": Idea(
        "rollout/test_turn_budget.py::test_only_trajectories_without_a_limit_teach_the_quantile",
        {"turnwise.extensions.turn_budget.budget:quantile_of": returns(100)},
        "frozen-lake-tiny-turn-budget",
    ),
    "step budget": Idea(
        "train/test_step_budget.py::test_a_run_learns_from_the_tasks_of_one_without_a_budget_in_steps_of_equal_size",
        {"turnwise.extensions.step_budget.line:StepBudget.spend": without_end},
        "frozen-lake-tiny-step-budget",
    ),
    "step budget whose played tokens are learned": Idea(
        "train/test_windows.py::test_each_token_is_in_the_loss_once_in_the_step_that_played_it",
        {"turnwise.extensions.step_budget.line:StepBudget.spend": without_end},
        "frozen-lake-tiny-t-ppo",
    ),
    "lag": Idea(
        "train/test_lag.py::test_the_lag_is_bounded_and_the_tasks_are_those_of_lag_0",
        {"turnwise.rollout.take:WholeGroups._fill": in_the_step},
        "frozen-lake-tiny-lag",
    ),
    "token temperature": Idea(
        "rollout/test_tempering.py::test_a_run_tempers_from_its_second_step_on_and_resumes",
        {"turnwise.extensions.token_temperature.tempering:tempering_of": returns(None)},
        "frozen-lake-tiny-hapo",
    ),
    # -- which tasks and groups are learned from
    "select vade": Idea(
        "train/test_selection.py::test_tasks_solved_a_third_of_the_time_are_preferred",
        {"turnwise.extensions.vade.selector:information_gain": lambda p: np.zeros_like(p)},
        "frozen-lake-tiny-vade",
    ),
    "filter": Idea(
        "train/test_filters.py::test_mixed_groups_are_kept_and_the_others_replaced",
        {"turnwise.rollout.take:kept": lambda _, successes_G, __: np.ones(len(successes_G), dtype=bool)},
        "frozen-lake-tiny-dapo",
    ),
    "keep_spread": Idea(
        "train/test_filters.py::test_groups_are_learned_from_by_the_spread_of_their_rewards",
        {"turnwise.rollout.take:widest": lambda spread_G, *_: np.ones(len(spread_G), dtype=bool)},
        "frozen-lake-tiny-keep-spread",
    ),
    # -- token rules
    "token rule clip_cov": token_rule(
        "clip_cov", "covariance", "test_rules.py::test_clip_cov_takes_out_a_few_tokens_of_high_covariance"
    ),
    "token rule kl_cov": token_rule("kl_cov", "covariance", "test_rules.py::test_kl_cov_holds_the_highest_covariances"),
    "token rule steer": token_rule("steer", "steer", "test_rules.py::test_steer_by_worked_numbers"),
    "token rule spo_mask": token_rule("spo_mask", "masks", "test_rules.py::test_spo_keeps_tokens_below_the_threshold"),
    "token rule d3s_mask": token_rule(
        "d3s_mask", "masks", "test_rules.py::test_d3s_keeps_the_largest_products_on_its_schedule"
    ),
    "token rule hapo": token_rule(
        "hapo", "hapo", "test_entropy_rules.py::test_hapo_places_tokens_between_the_extremes", "frozen-lake-tiny-hapo"
    ),
    "token rule flexible_clip": token_rule(
        "flexible_clip", "flexible", "test_entropy_rules.py::test_flexible_widths_on_their_schedule"
    ),
    "token rule repo": token_rule("repo", "repo", "test_entropy_rules.py::test_repo_by_worked_numbers"),
    "token rule adapo": token_rule(
        "adapo", "adapo", "test_entropy_rules.py::test_adapo_widens_below_the_first_entropy_and_narrows_above"
    ),
    "token rule gain_clip": token_rule(
        "gain_clip", "gain_clip", "test_entropy_rules.py::test_gain_clip_by_worked_numbers"
    ),
    "entropy rule epo": token_rule("epo", "epo", "test_entropy_rules.py::test_epo_measures_against_the_past"),
    # -- what learns beside the policy, or in another way
    "reward model": Idea(
        "train/test_reward_model.py::test_it_learns_the_order_of_the_pairs",
        {"turnwise.extensions.reward_model.model:RewardModel.update": returns({})},
        "frozen-lake-tiny-istar",
    ),
    "judge": Idea(
        "judge/test_judge.py::test_a_rank_is_repeated_on_the_turns_of_its_trajectory_and_follows_the_setting",
        {"turnwise.extensions.judge.judge:Judge.__call__": lambda self, cases: [None] * len(cases)},
    ),
    "critic head": Idea(
        "train/test_critic.py::test_a_critic_learns_what_hidden_states_tell",
        {"turnwise.models.critic:Critic.step": returns(0.0)},
        "household-tiny-turn-ppo",
    ),
    "critic model": Idea(
        "train/test_critic.py::test_a_model_of_its_own_starts_as_the_policy_and_leaves_it_alone",
        {"turnwise.models.critic:Critic.own": property(returns(None))},
    ),
    "critic ridge": Idea(
        "train/test_critic.py::test_ridge_fits_the_last_steps_and_forgets_the_others",
        {"turnwise.models.critic:Ridge.fit": returns(None)},
        "household-tiny-turn-ppo-ridge",
    ),
    "critic that sees peers": Idea(
        "train/test_critic.py::test_peers_are_the_others_of_the_group",
        {"turnwise.objective.beside:_of_others": lambda values, *_: np.zeros(len(values))},
        "household-tiny-visits",
    ),
    "critic that sees visits": Idea(
        "train/test_critic.py::test_visits_are_those_of_others_to_the_same_state_of_the_same_task",
        {"turnwise.objective.beside:_of_others": lambda values, *_: np.zeros(len(values))},
        "household-tiny-visits",
    ),
    "critic of differences (ArCHer)": Idea(
        "train/test_archer.py::test_q_and_v_end_at_the_exact_values_of_the_policy",
        {"turnwise.train.critic:from_differences": returns(None)},
    ),
    "passes": Idea(
        "train/test_passes.py::test_the_last_turn_learns_first_and_corrects_those_before",
        {"turnwise.extensions.passes.passes:next_ratio": lambda ratio, *_, **__: ratio},
        "household-tiny-seeupo",
    ),
    "monitor": Idea(
        "measures/test_monitor.py::test_every_response_is_scored_in_the_context_of_each",
        {"turnwise.extensions.monitor.monitor:information": returns({"mutual_information": 0.0})},
        "frozen-lake-tiny-monitor",
    ),
    "preference simpo": Idea(
        "train/test_preference.py::test_simpo_by_hand",
        {"turnwise.extensions.preference.term:trajectory_pairs": no_pairs},
        "household-tiny-simpo",
    ),
    "preference dpo": Idea(
        "train/test_preference.py::test_dpo_by_hand", {"turnwise.extensions.preference.term:trajectory_pairs": no_pairs}
    ),
    "rejection sampling": Idea(
        "train/test_rejection.py::test_the_best_of_a_group_is_imitated_and_no_other",
        {"turnwise.extensions.preference.rejection:trajectory_pairs": no_pairs},
        "frozen-lake-tiny-dpa",
    ),
    # -- probes
    "probe information": Idea(
        "measures/test_hindsight.py::test_the_gain_of_an_observation_is_the_fall_without_it",
        {"turnwise.measures.edited:information": of_zeros("info_gain")},
        "frozen-lake-tiny-infopo",
    ),
    "probe hindsight": Idea(
        "measures/test_hindsight.py::test_hindsight_is_the_end_noted_in_the_prompt",
        {"turnwise.measures.edited:hindsight": of_zeros("hindsight_logprob")},
        "frozen-lake-tiny-hcapo",
    ),
    "probe gold": Idea(
        "measures/test_probes.py::test_the_gold_answer_is_scored_before_each_response",
        {"turnwise.measures.gold:gold": of_zeros("gold_logprob")},
    ),
    "probe answers": Idea(
        "measures/test_probes.py::test_sampled_answers_are_scored_place_by_place",
        {"turnwise.measures.gold:answers": of_zeros("accuracy", "confidence")},
    ),
    "probe left_out": Idea(
        "measures/test_hindsight.py::test_what_the_answer_loses_without_a_turn",
        {"turnwise.measures.edited:left_out": of_zeros("turn_drop")},
    ),
    "probe prompt": Idea(
        "measures/test_hindsight.py::test_a_prompt_is_scored_once_per_group",
        {"turnwise.measures.edited:prompt": of_zeros("prompt_logprob")},
    ),
    "probe ranks": Idea(
        "measures/test_hindsight.py::test_ranks_are_those_of_the_hidden_states",
        {"turnwise.measures.hidden_rank:ranks": of_zeros("effective_rank", "rank_velocity", "rank_acceleration")},
    ),
}
"""Features by name."""
