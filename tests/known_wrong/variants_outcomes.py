"""Misreadings of outcome baselines and of asymmetric modulation, as credit that the suites must reject.

Credit here is a function of nested responses, `groups[g][n][t]`, as `Batch.from_trajectories` takes them.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from tests.known_wrong.variants import Variant
from tests.properties.strategies import advantage

import turnwise as tw

Groups = list[list[list[dict[str, Any]]]]
Credit = Callable[[Groups], np.ndarray]
Check = Callable[[Credit], None]


def prompt(**columns) -> list[list[dict[str, Any]]]:
    """A group of one-turn trajectories; the success is the reward where no other is given."""
    columns = {"reward": columns.get("success"), **columns}
    return [[dict(zip(columns, values, strict=True))] for values in zip(*columns.values(), strict=True)]


def real(method: tw.Transform) -> Credit:
    return lambda groups: advantage(method, tw.Batch.from_trajectories(groups))


def by_group(credit: Callable[..., np.ndarray]) -> Credit:
    """Credit of one-turn trajectories from the columns of each group alone."""

    def whole(groups: Groups) -> np.ndarray:
        return np.concatenate(
            [
                credit(**{name: np.array([trajectory[0][name] for trajectory in group]) for name in group[0][0]})
                for group in groups
            ]
        )

    return whole


def equals(name: str, groups: Groups, *expected: float, atol: float = 1e-4) -> Check:
    """A check by one worked example, of which the cards give four digits."""

    def check(credit: Credit) -> None:
        np.testing.assert_allclose(credit(groups), expected, rtol=0, atol=atol)

    check.__name__ = name
    return check


def standardised(values: np.ndarray, *, ddof: int = 1) -> np.ndarray:
    return (values - values.mean()) / (values.std(ddof=ddof) + 1e-6)


# -- CANON -------------------------------------------------------------------------------------------------------------


def halves(success, metric, *, own: bool = False, keep: tuple[float, float] = (1.0, 1.0)) -> np.ndarray:
    """Compared with the other half (or the own one); `keep` scales the returns of the lower and of the higher half."""
    low = np.argsort(np.argsort(metric)) < len(metric) // 2
    counted = np.asarray(success, dtype=float) * np.where(low, *keep)
    means = np.array([counted[~low].mean(), counted[low].mean()])
    return counted - means[(low == own).astype(int)]


CANON = prompt(success=[1, 0, 0, 0], entropy=[0.1, 0.2, 0.3, 0.4], length=[4, 2, 3, 1])
SURE = prompt(success=[0, 1, 1, 0], entropy=[1.1, 1.2, 1.3, 1.4], length=[1, 1, 1, 1])
SPLIT = prompt(success=[1, 0, 1, 0], entropy=[0.1, 0.2, 0.3, 0.4], length=[1, 1, 1, 1])
# the mean of 0.3, -0.5, 0.6, -0.4 (efficiency 0.8, the other half) and of +-0.5 (the own half as it is)
MIXED_HALVES = [0.4, -0.5, 0.55, -0.45]
WINS = prompt(success=[1, 1, 1, 0], entropy=[0.1, 0.2, 0.3, 0.4], length=[1, 1, 1, 1])

# -- V_0.5 (V = 0.8) ---------------------------------------------------------------------------------------------------


def shrunk(
    success, *, task=None, reward=None, low=-1.0, variance: Callable[[int], float] = lambda k: 1 / k
) -> np.ndarray:
    values = low + (1 - low) * success
    excess = max(0.0, (values.mean() - 0.8) ** 2 - variance(len(values)))
    weight = excess / (excess + 1 / len(values))
    return values - weight * values.mean() - (1 - weight) * 0.8


FAILS = prompt(success=[0, 0, 0, 0], task=["q"] * 4)
MOST = prompt(success=[1, 1, 1, 0], task=["r"] * 4)

# -- ADORA -------------------------------------------------------------------------------------------------------------


def contrast(
    success, length, truncated, reward, *, of_correct=np.max, of_wrong=np.mean, drop_truncated=True
) -> np.ndarray:
    wrong = (success == 0) & ~((truncated == 1) & drop_truncated)
    longer = of_correct(length[success == 1]) > of_wrong(length[wrong])
    return standardised(success) * (1 if longer else 0.1)


ADORA_CUT = prompt(success=[1, 1, 0, 0], length=[2, 6, 4, 20], truncated=[0, 0, 0, 1])
ADORA_MAX = prompt(success=[1, 1, 0, 0], length=[2, 6, 3, 6], truncated=[0, 0, 0, 0])
A = float(standardised(np.array([1.0, 1, 0, 0]))[0])

# -- A-GRAE ------------------------------------------------------------------------------------------------------------


def progress(groups: Groups, *, release: bool = False, own_rate: bool = False, held: bool = True) -> np.ndarray:
    rates = [np.mean([trajectory[0]["success"] for trajectory in group]) for group in groups]
    result = []
    for group, p in zip(groups, rates, strict=True):
        w = p if own_rate else np.mean(rates)
        easy = 1 - np.sqrt(p) if release else np.sqrt(1 - p)
        values = standardised(np.array([t[0]["success"] for t in group], dtype=float))
        values = values * (w / 2 / np.sqrt(p) + (1 - w) / 2 / easy)
        result.append(np.where(values > 0, values * min(1, w), values) if held else values)
    return np.concatenate(result)


PROGRESS = [prompt(success=[1, 0, 0, 0]), prompt(success=[1, 1, 1, 0])]

# -- HAPO --------------------------------------------------------------------------------------------------------------

# a success in two responses of 1 and 5 tokens, and a failure of 2: six tokens of 1, two of 0
TOKENS = [[[{"reward": 0, "length": 1}, {"reward": 1, "length": 5}], [{"reward": 0, "length": 2}]]]


def over_rows(groups: Groups, *, weights: Callable[[list[list[dict]]], list[int]], ddof: int = 0) -> np.ndarray:
    """Outcomes standardised where the n-th trajectory counts `weights[n]` times."""
    result = []
    for group in groups:
        outcomes = np.array([sum(turn["reward"] for turn in trajectory) for trajectory in group], dtype=float)
        rows = np.repeat(outcomes, weights(group))
        values = (outcomes - rows.mean()) / (rows.std(ddof=ddof) + 1e-6)
        result.append(np.repeat(values, [len(trajectory) for trajectory in group]))
    return np.concatenate(result)


# -- D3S ---------------------------------------------------------------------------------------------------------------


def chosen(groups: Groups, key: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """The half of the batch that comes first by a key."""
    values = np.array([trajectory[0]["reward"] for group in groups for trajectory in group], dtype=float)
    kept = np.argsort(key(values), kind="stable")[: len(values) // 2]
    return np.where(np.isin(np.arange(len(values)), kept), values, 0.0)


def tails(values: np.ndarray) -> np.ndarray:
    """Alternately the largest and the smallest, the earlier of equal ones first."""
    order = np.argsort(values, kind="stable")
    place = np.empty(len(values), dtype=int)
    place[order] = np.arange(len(values))
    return np.minimum(place, len(values) - 1 - place)


def the_kept_ones_of_equal_advantages_are_drawn_by_lot(credit: Credit) -> None:
    """Eight of 1 and eight of -1 (by other names each time), four of each are kept: not always the same."""
    kept = {
        tuple(np.flatnonzero(credit([prompt(reward=[float(size)] * 8 + [-float(size)] * 8)])).tolist())
        for size in range(1, 9)
    }
    assert len(kept) > 1, f"always {kept}"


BOTH = [prompt(reward=[9.0, 8.0]), prompt(reward=[1.0, -7.0])]
ONE_SIDED = [prompt(reward=[9.0, 8.0, 7.5, 1.0])]

# -- ACE (on the reward itself) ----------------------------------------------------------------------------------------


def amplified(reward, logprob, ref_logprob, *, shape=lambda c: np.log1p(np.exp(c)), all_signs=False) -> np.ndarray:
    return np.where((reward < 0) | all_signs, reward * (1 + shape(logprob - ref_logprob)), reward)


ERRORS = prompt(reward=[-1.0, -1.0, 2.0], logprob=[-1.0, -3.0, -1.0], ref_logprob=[-1.0, -1.0, -2.0])

# -- ProGRPO (weight 1, on the reward itself) --------------------------------------------------------------------------

LOGS = {"prompt_logprob": np.log([0.5, 0.5]), "rare_logprob": np.log([0.2, 0.9])}
MIXED = prompt(success=[1, 0], reward=[3.0, -3.0], **LOGS)
UNIFORM = prompt(success=[1, 1], reward=[3.0, 2.0], **LOGS)


def gap(reward, success, prompt_logprob, rare_logprob, *, sign=1.0, mixed_only=True) -> np.ndarray:
    moved = reward + sign * (np.exp(prompt_logprob) - np.exp(rare_logprob))
    return reward if mixed_only and len(set(success)) == 1 else moved


# -- VERL's ranks (on the reward itself) -------------------------------------------------------------------------------

RANKS = prompt(
    reward=[1.0, 1.0, -0.2], effective_rank=[2.0, 5.0, 5.0], rank_velocity=[1.0] * 3, rank_acceleration=[0.5] * 3
)


def rank_bonus(reward, effective_rank, rank_velocity, rank_acceleration, *, start=None, bounded=True) -> np.ndarray:
    def deviation(metric):
        usual = metric.mean() if start is None else start
        return np.clip((metric - usual) / (abs(usual) + 1e-8), -5, 5)

    beta = 1 / (1 + np.exp(-2 * deviation(rank_acceleration)))
    bonus = np.maximum(0, beta * np.tanh(deviation(effective_rank)) + (1 - beta) * np.tanh(deviation(rank_velocity)))
    return reward + (np.minimum(bonus, np.abs(reward) / 2) if bounded else bonus)


T = float(np.tanh(0.25) / 2)  # ranks 2, 5, 5 of mean 4: deviations -1/2, 1/4, 1/4; beta = 1/2

# -- RAE ---------------------------------------------------------------------------------------------------------------

GAMES = prompt(reward=[1, 1, -1, -1], player=["a", "a", "a", "b"])


def running(groups: Groups, *, apart: bool = True, late: bool = False, step: bool = False) -> np.ndarray:
    """Less a running mean of 0.95: one for all players unless `apart`, `late` after the own return, or once a step."""
    average: dict[str, float] = {}
    credit = []
    for turns in (turns for group in groups for turns in group):
        paid, who = sum(turn["reward"] for turn in turns), turns[0]["player"] if apart else ""
        before = average.get(who, 0.0)
        average[who] = 0.95 * before + 0.05 * paid
        credit += [paid - (average[who] if late else 0.0 if step else before)] * len(turns)
    return np.array(credit)


SUITES: dict[str, list[Check]] = {
    "rae": [equals("each_player_reads_its_mean_and_then_moves_it", [GAMES], 1, 0.95, -1.0975, -1)],
    "canon": [
        equals("compares_with_the_other_half", [CANON], 1, 0, -0.5, -0.5),
        equals("halves_are_the_prompts_own", [CANON, SURE], 1, 0, -0.5, -0.5, -0.5, 0.5, 0.5, -0.5),
    ],
    "canon, efficiency by entropy": [equals("the_surer_half_is_the_one_to_leave", [WINS], 0.3, 0.3, 0.2, -0.8)],
    "canon, half of each": [equals("efficiency_is_for_the_other_half_only", [SPLIT], *MIXED_HALVES)],
    "ngrpo": [
        equals("one_success_of_eight_is_the_cards", [prompt(success=[1] + [0] * 7)], 1.7638, *[-0.5040] * 7),
        equals("a_group_that_only_fails_is_pushed_down", [prompt(success=[0] * 8)], *[-1 / 3] * 8),
        equals("rewards_of_ten_change_nothing", [prompt(success=[1, 1, 0], reward=[10, 10, 0])], 0.5, 0.5, -1.5),
    ],
    "v05": [
        equals("a_wrong_prior_counts_for_little", [FAILS], *[-1 + 0.861] * 4, atol=5e-4),
        equals("a_prior_within_the_noise_stays", [MOST], 0.2, 0.2, 0.2, -1.8),
    ],
    "adora": [
        equals("truncated_failures_do_not_count", [ADORA_CUT], A, A, -A, -A),
        equals("the_longest_success_meets_the_mean_failure", [ADORA_MAX], A, A, -A, -A),
    ],
    "a_grae": [equals("the_cards_example", PROGRESS, 0.5915, *[-0.3943] * 3, *[0.1972] * 3, -1.1830)],
    "grpo_n": [equals("failures_are_what_is_left", [prompt(success=[1, 0, 0, 0])], 0, -0.5, -0.5, -0.5)],
    "hapo": [
        equals("every_token_has_a_vote", TOKENS, 1 / np.sqrt(3), 1 / np.sqrt(3), -np.sqrt(3)),
    ],
    "d3s": [
        equals("both_tails_of_the_batch_are_kept", BOTH, 9, 0, 0, -7),
        equals("variance_counts_not_size", ONE_SIDED, 9, 0, 0, 1),
        the_kept_ones_of_equal_advantages_are_drawn_by_lot,
    ],
    "ace": [equals("every_error_is_amplified_and_nothing_else", [ERRORS], -1.6931, -1.1269, 2)],
    "progrpo": [
        equals("a_mixed_group_moves_towards_the_unsure", [MIXED], 3.3, -3.4),
        equals("a_uniform_group_stays", [UNIFORM], 3, 2),
    ],
    "verl_er": [equals("the_bonus_is_relative_and_bounded", [RANKS], 1, 1 + T, -0.1)],
}

REAL: dict[str, Credit] = {
    "rae": real(tw.rae()),
    "canon": real(tw.canon()),
    "canon, efficiency by entropy": real(tw.canon(efficiency=0.8)),
    "canon, half of each": real(tw.canon(mu=0.5, efficiency=0.8)),
    "ngrpo": real(tw.ngrpo()),
    "v05": real(tw.v05(unseen=0.8)),
    "adora": real(tw.adora()),
    "a_grae": real(tw.a_grae()),
    "grpo_n": real(tw.grpo_n()),
    "hapo": real(tw.hapo()),
    "d3s": real(tw.d3s(tw.reinforce(), kept_frac=0.5)),
    "ace": real(tw.ace(tw.reinforce(), weight=1.0)),
    "progrpo": real(tw.progrpo(tw.reinforce(), weight=1.0)),
    "verl_er": real(tw.verl_er(tw.reinforce())),
}

OTHER = "compares_with_the_other_half"
MOVED = ("each_player_reads_its_mean_and_then_moves_it",)
VARIANTS: dict[str, Variant] = {
    "RAE with one baseline for all players": Variant(
        "rae", lambda groups: running(groups, apart=False), "RAE card: one baseline leaves a bias per role", MOVED),
    "RAE that moves the mean before it reads it": Variant(
        "rae", lambda groups: running(groups, late=True), "RAE card, formula 1: b before the update", MOVED),
    "RAE that moves the mean once a step": Variant(
        "rae", lambda groups: running(groups, step=True), "RAE card: the update is sequential", MOVED),
    "CANON with the own half for the other": Variant(
        "canon", by_group(lambda success, reward, entropy, length: halves(success, entropy, own=True)),
        "CANON card, formula 2: intra and inter", (OTHER,)),
    "CANON by the wrong metric": Variant(
        "canon", by_group(lambda success, reward, entropy, length: halves(success, length)),
        "CANON card: entropy and length are two methods", (OTHER,)),
    "CANON with the median of the batch": Variant(
        "canon", lambda groups: by_group(lambda success, reward, entropy, length: halves(success, entropy))(
            [[trajectory for group in groups for trajectory in group]]),
        "CANON card, formula 1: per prompt", ("halves_are_the_prompts_own",)),
    "CANON's efficiency for the vaguer half": Variant(
        "canon, efficiency by entropy",
        by_group(lambda success, reward, entropy, length: halves(success, entropy, keep=(1.0, 0.8))),
        "CANON card, formula 4: the entropy version is mirrored", ("the_surer_half_is_the_one_to_leave",)),
    "CANON's efficiency in both comparisons": Variant(
        "canon, half of each",
        by_group(lambda success, reward, entropy, length: 0.5 * (
            halves(success, entropy, keep=(0.8, 1.0)) + halves(success, entropy, own=True, keep=(0.8, 1.0)))),
        "turnwise before the code was read: CANON card, efficiency acts on the inter part only",
        ("efficiency_is_for_the_other_half_only",)),
    "NGRPO with the population std": Variant(
        "ngrpo", by_group(lambda success, reward: standardised(np.append(success, 1.0), ddof=0)[:-1]),
        "NGRPO card: the printed equation, not the figure or the code", ("a_group_that_only_fails_is_pushed_down",)),
    "NGRPO without its virtual success": Variant(
        "ngrpo", by_group(lambda success, reward: standardised(success)),
        "GRPO under another name", ("a_group_that_only_fails_is_pushed_down", "one_success_of_eight_is_the_cards")),
    "NGRPO with a virtual reward of 1 beside rewards of 10": Variant(
        "ngrpo", by_group(lambda success, reward: standardised(np.append(reward, 1.0))[:-1]),
        "NGRPO card: rewards above r_max break the idea", ("rewards_of_ten_change_nothing",)),
    "V_0.5 with rewards of 0 and 1": Variant(
        "v05", by_group(lambda **columns: shrunk(low=0.0, **columns)),
        "V_0.5 card: rewards must be rescaled to +-1", ("a_wrong_prior_counts_for_little",)),
    "V_0.5 that takes noise for bias": Variant(
        "v05", by_group(lambda **columns: shrunk(variance=lambda k: 0.0, **columns)),
        "V_0.5 card, formula 1: less 1/k", ("a_prior_within_the_noise_stays",)),
    "V_0.5 standardised": Variant(
        "v05", by_group(lambda success, task, reward: standardised(success)),
        "V_0.5 card: no std; uniform groups teach", ("a_wrong_prior_counts_for_little",)),
    "ADORA with truncated failures": Variant(
        "adora", by_group(lambda **columns: contrast(drop_truncated=False, **columns)),
        "ADORA card, formula 1", ("truncated_failures_do_not_count",)),
    "ADORA of maximum and maximum": Variant(
        "adora", by_group(lambda **columns: contrast(of_wrong=np.max, **columns)),
        "ADORA card, formula 2", ("the_longest_success_meets_the_mean_failure",)),
    "ADORA of mean and mean": Variant(
        "adora", by_group(lambda **columns: contrast(of_correct=np.mean, **columns)),
        "ADORA card, formula 2", ("the_longest_success_meets_the_mean_failure",)),
    "A-GRAE's release under the paper's name": Variant(
        "a_grae", lambda groups: progress(groups, release=True),
        "A-GRAE card: the code divides by 1 - sqrt(p)", ("the_cards_example",)),
    "A-GRAE with the prompt's own progress": Variant(
        "a_grae", lambda groups: progress(groups, own_rate=True),
        "A-GRAE card: w is the mean over prompts", ("the_cards_example",)),
    "A-GRAE that holds nothing back": Variant(
        "a_grae", lambda groups: progress(groups, held=False), "A-GRAE card, formula 3", ("the_cards_example",)),
    "GRPO-N that keeps the successes": Variant(
        "grpo_n", by_group(lambda success, reward: np.maximum(standardised(success), 0)),
        "GRPO-P, the dual", ("failures_are_what_is_left",)),
    "HAPO over trajectories": Variant(
        "hapo", lambda groups: over_rows(groups, weights=lambda group: [1] * len(group)),
        "HAPO card, part B: over all tokens of the group", ("every_token_has_a_vote",)),
    "HAPO over responses": Variant(
        "hapo", lambda groups: over_rows(groups, weights=lambda group: [len(trajectory) for trajectory in group]),
        "rows of turns taken for tokens", ("every_token_has_a_vote",)),
    "HAPO with the sample std": Variant(
        "hapo", lambda groups: over_rows(groups, ddof=1, weights=lambda group: [
            sum(turn["length"] for turn in trajectory) for trajectory in group]),
        "HAPO card, part B: population std", ("every_token_has_a_vote",)),
    "D3S by size": Variant(
        "d3s", lambda groups: chosen(groups, lambda values: -np.abs(values)),
        "D3S card, formula 1: variance", ("both_tails_of_the_batch_are_kept", "variance_counts_not_size")),
    "D3S within each prompt": Variant(
        "d3s", lambda groups: np.concatenate([chosen([group], tails) for group in groups]),
        "PODS: the same idea inside one prompt; D3S card, formula 1", ("both_tails_of_the_batch_are_kept",)),
    "D3S by place": Variant(
        "d3s", lambda groups: chosen(groups, tails),
        "D3S card: break ties at random, never by index", ("the_kept_ones_of_equal_advantages_are_drawn_by_lot",)),
    "ACE that spares errors of falling likelihood": Variant(
        "ace", by_group(lambda **columns: amplified(shape=lambda c: np.log1p(np.exp(c)) * (c >= 0), **columns)),
        "ACE card: a third-party note clamps c at 0", ("every_error_is_amplified_and_nothing_else",)),
    "ACE on successes too": Variant(
        "ace", by_group(lambda **columns: amplified(all_signs=True, **columns)),
        "ACE card, formula 2: A < 0", ("every_error_is_amplified_and_nothing_else",)),
    "ProGRPO in uniform groups": Variant(
        "progrpo", by_group(lambda **columns: gap(mixed_only=False, **columns)),
        "ProGRPO card, formula 3: mixed groups only", ("a_uniform_group_stays",)),
    "ProGRPO towards the sure": Variant(
        "progrpo", by_group(lambda **columns: gap(sign=-1.0, **columns)),
        "ProGRPO card, formula 3: c_q - c_o", ("a_mixed_group_moves_towards_the_unsure",)),
    "VERL with averages that start at 0": Variant(
        "verl_er", by_group(lambda **columns: rank_bonus(start=0.0, **columns)),
        "VERL card: the first active step saturates", ("the_bonus_is_relative_and_bounded",)),
    "VERL without the bound": Variant(
        "verl_er", by_group(lambda **columns: rank_bonus(bounded=False, **columns)),
        "VERL card, formula 6", ("the_bonus_is_relative_and_bounded",)),
}  # fmt: skip
