"""Assign credit to single tokens from a critic's value before each of them.

The credit of a response is the mean over its tokens; each token's difference is reported to the trace
(`Trace.advantage_T`). Later blocks scale all tokens of a response by their coefficient, weight or mask, or shift them.
"""

from typing import Literal

import numpy as np

from turnwise.base.errors import ConfigError
from turnwise.base.shapes import Float
from turnwise.credit.batch import Batch
from turnwise.credit.segments import Segments
from turnwise.credit.trace import report_tokens, report_values
from turnwise.credit.transform import Credit, block
from turnwise.credit.transforms.values import td_errors_to_end, value_at_end

Tokens = Float[np.ndarray, " T"]


@block(
    needs=lambda options: ("value_T", *(("finished",) if options["unfinished"] == "repeat" else ())),
    across_groups=lambda options: options["standardize"],
)
def sum_token_td_errors(
    credit_R: Credit,
    batch: Batch,
    *,
    discount: float = 1.0,
    decay: float = 1.0,
    standardize: bool = True,
    unfinished: Literal["zero", "repeat"] = "zero",
) -> Credit:
    """Compute generalised advantage estimates over the generated tokens of a trajectory.

        A_t = delta_t + discount * decay * A_{t+1}        delta_t = r_t + discount * value_{t+1} - value_t

    The next token of a response's last token is the first of the next response: observations are skipped. The reward
    of a response is on its last token, and the value after the last token of a trajectory is 0, or `unfinished` says.

    A critic learns `A_t + value_t`.

    Args:
        credit_R: `[responses]` rewards.
        batch: Their batch, with the column `value_T`.
        discount: Factor per token on later rewards.
        decay: lambda: 0 gives the TD error alone, 1 the return minus the value.
        standardize: Standardise over the batch's tokens.
        unfinished: Value after the last token of a trajectory with `finished` 0: 0, or that before it ("repeat").
    """
    name = "sum_token_td_errors"
    value_T, tokens = _values(batch, name)
    spans = batch.trajectories.of(tokens)
    end_N = value_at_end(batch, spans.last(value_T), unfinished=unfinished, needed_by=name)
    advantage_T = td_errors_to_end(tokens.at_last(credit_R), value_T, spans, discount, decay, end=end_N)
    return _credit(name, advantage_T, value_T, tokens, standardize)


@block(needs=("value_T",), across_groups=lambda options: options["standardize"])
def sum_two_level_td_errors(
    credit_R: Credit,
    batch: Batch,
    *,
    turn_discount: float = 0.95,
    discount: float = 1.0,
    decay: float = 1.0,
    standardize: bool = True,
) -> Credit:
    """Compute generalised advantage estimates over turns, then over the tokens inside each turn.

        A_k = delta_k + turn_discount * decay * A_{k+1}     delta_k = r_k + turn_discount * V_{k+1} - V_k
        A_t = delta_t + discount * decay * A_{t+1}          delta_t = r_t + discount * value_{t+1} - value_t

    `V_k` is the value before the last token of turn k. Inside the turn, the reward of its last token is `A_k + V_k`,
    all others are 0, and nothing follows the last token.

    A critic learns `A_t + value_t`.

    Args:
        credit_R: `[responses]` rewards.
        batch: Their batch, with the column `value_T`.
        turn_discount: Factor per turn on later rewards.
        discount: Factor per token inside a turn.
        decay: lambda of both levels.
        standardize: Standardise over the batch's tokens.
    """
    name = "sum_two_level_td_errors"
    value_T, tokens = _values(batch, name)
    value_R = tokens.last(value_T)
    of_turn_R = td_errors_to_end(credit_R, value_R, batch.trajectories, turn_discount, decay) + value_R
    advantage_T = td_errors_to_end(tokens.at_last(of_turn_R), value_T, tokens, discount, decay)
    return _credit(name, advantage_T, value_T, tokens, standardize)


@block(needs=("value_T",), across_groups=lambda options: options["standardize"])
def mix_td_errors(
    credit_R: Credit,
    batch: Batch,
    *,
    share: float = 0.5,
    discount: float = 1.0,
    decay: float = 1.0,
    token_decay: float = 1.0,
    standardize: bool = True,
) -> Credit:
    """Mix generalised advantage estimates over turns and over tokens, with one critic and one clock, that of tokens.

        A_t = share A_k + (1 - share) A_token,t
        A_k = delta_k + discount^n decay A_{k+1}        delta_k = r_k + discount^n V_{k+1} - V_k

    n is the number of tokens of turn k + 1. `V_k` is the value before the last token of turn k, and `A_token` is that
    of `sum_token_td_errors`. The critic learns the same mix of `A_token + value_t` and of `A_k + V_k`, discounted from
    the end of the turn.

    Args:
        credit_R: `[responses]` rewards.
        batch: Their batch, with the column `value_T`.
        share: Weight of the turns.
        discount: Factor per token.
        decay: lambda of turns.
        token_decay: lambda of tokens.
        standardize: Standardise over the batch's tokens.
    """
    if not 0.0 <= share <= 1.0:
        raise ConfigError(f"mix_td_errors: share={share} must lie in [0, 1]")
    name, turns = "mix_td_errors", batch.trajectories
    value_T, tokens = _values(batch, name)
    value_R = tokens.last(value_T)
    factor_R = discount ** turns.following(tokens.lengths.astype(np.float64), end=1.0)
    error_R = credit_R + factor_R * turns.following(value_R) - value_R
    of_turn_R = turns.suffix_sum(error_R, discount=factor_R * decay)
    of_token_T = td_errors_to_end(tokens.at_last(credit_R), value_T, turns.of(tokens), discount, token_decay)
    to_end_T = tokens.broadcast(tokens.lengths) - 1 - tokens.positions
    target_T = share * discount**to_end_T * tokens.broadcast(of_turn_R + value_R)
    target_T = target_T + (1 - share) * (of_token_T + value_T)
    advantage_T = share * tokens.broadcast(of_turn_R) + (1 - share) * of_token_T
    return _credit(name, advantage_T, target_T - advantage_T, tokens, standardize)


@block(needs=("value_T",))
def spread_token_td_errors(
    credit_R: Credit, batch: Batch, *, weight: float = 1.0, discount: float = 1.0, decay: float = 1.0
) -> Credit:
    """Distinguish the tokens of a response by a critic's estimates, and keep the credit of the response.

        A_t = A_response + weight (A_token,t - mean of A_token over the response)

    `A_token` is that of `sum_token_td_errors`, from the batch's rewards; its critic learns `A_token + value_t`.

    Args:
        credit_R: `[responses]` advantages.
        batch: Their batch, with the column `value_T`.
        weight: Weight of the differences between tokens.
        discount: Factor per token.
        decay: lambda.
    """
    name = "spread_token_td_errors"
    value_T, tokens = _values(batch, name)
    spans = batch.trajectories.of(tokens)
    advantage_T = td_errors_to_end(tokens.at_last(batch.reward_R), value_T, spans, discount, decay)
    within_T = weight * (advantage_T - tokens.broadcast(tokens.mean(advantage_T)))
    report_values(name, credit_R, targets={"value_T": advantage_T + value_T}, within_T=within_T)
    return credit_R


@block(needs=("entropy_T",), across_groups=lambda options: True)
def weigh_tokens_by_entropy(credit_R: Credit, batch: Batch, *, weight: float = 0.2) -> Credit:
    """Weight each token by its entropy among those of the batch: `A (1 + weight z(H_t))`; its sign may change.

    z is `(H - mean) / std` over all tokens (sample deviation, 1 where all are equal).

    Args:
        credit_R: `[responses]` advantages.
        batch: Their batch, with the column `entropy_T`.
        weight: Weight of the entropy.
    """
    entropy_T, tokens = batch.column("entropy_T", needed_by="weigh_tokens_by_entropy"), batch.tokens
    assert tokens is not None, "a batch with a column per token has tokens"
    std = entropy_T.std(ddof=1) if len(entropy_T) > 1 else 0.0
    z_T = (entropy_T - entropy_T.mean()) / (std if std > 1e-9 * np.abs(entropy_T).max() else 1.0)  # else it is rounding
    weight_T = 1 + weight * z_T
    return report_tokens("weigh_tokens_by_entropy", tokens.broadcast(credit_R) * weight_T, tokens, scale_T=weight_T)


@block(needs=("teacher_gap_T",))
def follow_teacher(credit_R: Credit, batch: Batch, *, balance: float = 0.0) -> Credit:
    """Credit each token with how much more likely it is under a teacher; see `opd`.

    Args:
        credit_R: Not used.
        batch: The batch, with the column `teacher_gap_T`.
        balance: 0: tokens count equally. 1: the turns of a trajectory do.
    """
    if not 0.0 <= balance <= 1.0:
        raise ConfigError(f"follow_teacher: balance={balance} must lie in [0, 1]")
    gap_T, tokens = batch.column("teacher_gap_T", needed_by="follow_teacher"), batch.tokens
    assert tokens is not None, "a batch with a column per token has tokens"
    turns, length_R = batch.trajectories, tokens.lengths.astype(np.float64)
    even_R = turns.broadcast(turns.sum(length_R) / turns.lengths) / length_R
    return report_tokens("follow_teacher", gap_T * tokens.broadcast(1 - balance + balance * even_R), tokens)


def _values(batch: Batch, needed_by: str) -> tuple[Tokens, Segments]:
    value_T = batch.column("value_T", needed_by=needed_by)
    assert batch.tokens is not None, "a batch with a column per token has tokens"
    return value_T, batch.tokens


def _credit(name: str, advantage_T: Tokens, value_T: Tokens, tokens: Segments, standardize: bool) -> Credit:
    """Report the tokens' credit and the critic's targets; return the mean of each response."""
    credit_T = advantage_T
    if standardize:
        ddof = 1 if len(advantage_T) > 1 else 0
        credit_T = (advantage_T - advantage_T.mean()) / np.sqrt(advantage_T.var(ddof=ddof) + 1e-8)
    return report_tokens(name, credit_T, tokens, targets={"value_T": advantage_T + value_T})
