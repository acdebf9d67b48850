"""The objective of a training step: what `[update]` asks for, worked out once for all passes over the step's tokens.

Nothing in it depends on how the tokens are cut into micro-batches.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float

from turnwise.batch import Batch
from turnwise.config import Config, UpdateConfig
from turnwise.losses import entropy_loss, kl_loss, mismatch_weights, policy_loss, token_weights
from turnwise.token_rules import EntropyTerm, StepTokens, TokenCredit
from turnwise.token_rules.build import build_entropy_rule, build_token_rule

State = Mapping[str, Any] | None

RULE_STREAM = 6
"""Tells the draws of token rules from the other draws of a run's seed."""


@dataclasses.dataclass(frozen=True)
class Objective:
    """The loss on any of the step's tokens.

    Attributes:
        settings: The recipe's `[update]`.
        policy_T: Arguments of `policy_loss` that differ between tokens.
        weight_T: Weight of each token in the KL term, whatever a rule makes of its credit.
        reference_T: Log-probabilities under the reference policy, for the KL term.
        entropy_terms: Each with the weights of the tokens.
        matters_N: Trajectories that the loss depends on; the others can be left out of the passes (never out of the denominators).
        metrics: What was worked out once, for the record.
    """

    settings: UpdateConfig
    policy_T: dict[str, torch.Tensor]
    weight_T: torch.Tensor
    reference_T: torch.Tensor | None
    entropy_terms: list[tuple[EntropyTerm, torch.Tensor]]
    matters_N: Bool[np.ndarray, " N"]
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def loss(
        self, logprob: Float[torch.Tensor, " t"], entropy: Float[torch.Tensor, " t"], where: torch.Tensor
    ) -> tuple[torch.Tensor, dict[str, float]]:
        """The loss on the tokens of some trajectories, to be added up over micro-batches, and its metrics.

        Args:
            logprob: Under the current weights, with gradient (nats).
            entropy: Likewise.
            where: Indices of the tokens on `T`.
        """

        def here(column_T: torch.Tensor) -> torch.Tensor:
            return column_T[where].to(logprob.device)

        settings = self.settings
        options: dict[str, Any] = {"clip_low": settings.clip_low, "clip_high": settings.clip_high}
        options |= {name: here(column_T) for name, column_T in self.policy_T.items()}
        result = policy_loss(logprob, clip=settings.clip, dual_clip=settings.dual_clip, **options)
        moved = (logprob.detach() - options["old_logprob"]).abs()
        loss, metrics = result.loss, {"clipped_frac": result.clipped, "kl_old": result.kl}
        metrics["log_ratio_abs"] = (moved * here(self.weight_T)).sum().item()
        if self.reference_T is not None:
            kl = kl_loss(logprob, here(self.reference_T), here(self.weight_T))
            loss = loss + settings.kl * kl
            metrics["kl_reference"] = kl.item()
        for term, weight_T in self.entropy_terms:
            corridor = {"penalty": term.penalty, "low": term.low, "high": term.high}
            loss = loss + entropy_loss(entropy, here(weight_T), bonus=term.bonus, **corridor)
        return loss, metrics | {"loss": loss.item()}


def make_objective(
    batch: Batch,
    advantage_R: np.ndarray,
    old_logprob_T: np.ndarray,
    entropy_T: np.ndarray,
    config: Config,
    *,
    step: int,
    behavior_logprob_T: np.ndarray | None = None,
    reference_T: np.ndarray | None = None,
    state: State = None,
) -> tuple[Objective, State]:
    """Work out the objective of a step.

    Args:
        batch: The step's responses, with their tokens.
        advantage_R: Their advantages.
        old_logprob_T: Log-probabilities of the tokens at the start of the step (nats).
        entropy_T: Entropies at the start of the step (nats).
        config: Of the run.
        step: Number of the step, from 1.
        behavior_logprob_T: Log-probabilities that the engine reported (nats), for `update.mismatch_cap`.
        reference_T: Log-probabilities under the reference policy (nats); None without a KL term.
        state: What the step before returned, None in the first.

    Returns:
        The objective, and the state for the next step: that of the rules, None without one.
    """
    settings, responses = config.update, batch.tokens
    assert responses is not None
    credit, term = _apply_rules(responses.broadcast(advantage_R), old_logprob_T, entropy_T, config, step, state)

    def weights(aggregate: Any, kept_T: np.ndarray | None = None) -> np.ndarray:
        constant = config.rollout.max_new_tokens
        weight_T = token_weights(responses, batch.trajectories, aggregate=aggregate, constant=constant, kept=kept_T)
        return weight_T * settings.mini_batches  # a mini-batch stands for the whole step

    trajectories = batch.trajectories.of(responses)
    advantage_T = responses.broadcast(advantage_R) if credit.advantage_T is None else credit.advantage_T
    weight_T = weights(settings.aggregate, credit.kept_T)
    weight_T = weight_T if credit.factor_T is None else weight_T * credit.factor_T
    metrics = {}
    if settings.mismatch_cap is not None:
        assert behavior_logprob_T is not None
        spans = trajectories if settings.mismatch_level == "trajectory" else None
        factor_T, capped_T = mismatch_weights(old_logprob_T, behavior_logprob_T, cap=settings.mismatch_cap, spans=spans)
        weight_T = weight_T * factor_T
        metrics = {"mismatch_weight": float(factor_T.mean()), "mismatch_capped_frac": float(capped_T.mean())}
    columns = {
        "old_logprob": old_logprob_T,
        "advantage": advantage_T,
        "weight": weight_T,
        "clip_low": credit.clip_low_T,
        "clip_high": credit.clip_high_T,
        "tilt": credit.tilt_T,
        "penalty": credit.penalty_T,
    }
    spans = {"token": None, "response": responses, "trajectory": trajectories}[settings.importance]
    policy_T = {name: _tensor(column) for name, column in columns.items() if column is not None}
    terms = [EntropyTerm(settings.aggregate, settings.entropy_bonus)] if settings.entropy_bonus else []
    if term:
        terms.append(term)
    stake_T = np.abs(advantage_T) if credit.penalty_T is None else np.abs(advantage_T) + credit.penalty_T
    matters_N = trajectories.max(weight_T * stake_T) > 0
    objective = Objective(
        settings,
        policy_T if spans is None else policy_T | {"span": torch.tensor(spans.ids)},
        _tensor(weights(settings.aggregate)),
        None if reference_T is None else _tensor(reference_T),
        [(each, _tensor(weights(each.aggregate))) for each in terms],
        matters_N | bool(settings.kl or terms),
        metrics,
    )
    return objective, {"tokens": credit.state, "entropy": term.state if term else None}


def _apply_rules(
    advantage_T: np.ndarray,
    logprob_T: np.ndarray,
    entropy_T: np.ndarray,
    config: Config,
    step: int,
    state: State,
) -> tuple[TokenCredit, EntropyTerm | None]:
    """What the rules of the recipe say about the tokens."""
    settings, state = config.update, state or {"tokens": None, "entropy": None}
    tokens = StepTokens(
        advantage_T,
        logprob_T,
        entropy_T,
        clip_low=settings.clip_low,
        clip_high=settings.clip_high,
        steps_done=step - 1,
        steps=config.run.steps,
        seed=(config.run.seed, RULE_STREAM, step),
    )
    credit, term = TokenCredit(), None
    if settings.tokens:
        token_rule = build_token_rule(settings.tokens.name, settings.tokens.model_extra or {})
        credit = token_rule(dataclasses.replace(tokens, state=state["tokens"]))
    if settings.entropy:
        entropy_rule = build_entropy_rule(settings.entropy.name, settings.entropy.model_extra or {})
        term = entropy_rule(dataclasses.replace(tokens, state=state["entropy"]))
    return credit, term


def _tensor(column_T: np.ndarray) -> torch.Tensor:
    return torch.tensor(column_T, dtype=torch.float32)
