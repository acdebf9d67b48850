"""Define the policy-gradient term: `policy_loss` on every token, with an optional token rule."""

import functools
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch

from turnwise.objective.losses import policy_loss
from turnwise.objective.mismatch import mismatch_weights
from turnwise.objective.settings import UpdateConfig
from turnwise.objective.terms import Pass, StepView, TermLoss, Unit, as_tensor
from turnwise.objective.token_rules.base import TokenCredit, columns_of
from turnwise.objective.token_rules.build import build_token_rule
from turnwise.objective.token_rules.step import step_tokens


class PolicyTerm:
    """Policy-gradient term of `[update]`: importance, clip, aggregate, token rule, mismatch correction."""

    name: ClassVar[str] = "policy"

    def __init__(self, settings: UpdateConfig):
        self._settings = settings
        rule = settings.tokens
        self._rule = build_token_rule(rule.name, rule.model_extra or {}) if rule else None
        self._state: Any = None
        self.unit: Unit = "trajectory" if settings.importance == "trajectory" else "sequence"
        self.needs: Sequence[str] = ("logprob_T", "entropy_T", "behavior_logprob_T")
        self.needs += columns_of(self._rule) if self._rule else ()

    def prepare(self, step: StepView) -> TermLoss:
        """Compute weights, advantages and clip widths of all tokens."""
        settings, responses = self._settings, step.batch.tokens
        assert responses is not None
        trajectories = step.batch.trajectories.of(responses)
        start_logprob_T = step.column("logprob_T", self.name)
        behavior_logprob_T = step.column("behavior_logprob_T", self.name)
        old_logprob_T = behavior_logprob_T if settings.old_policy == "behavior" else start_logprob_T
        advantage_T = step.advantage_T
        credit = TokenCredit()
        if self._rule:
            credit = self._rule(step_tokens(step, settings, self._state))
            self._state = credit.state
        advantage_T = advantage_T if credit.advantage_T is None else credit.advantage_T
        weight_T = step.weights(settings.aggregate, credit.kept_T)
        weight_T = weight_T if credit.factor_T is None else weight_T * credit.factor_T
        metrics = {}
        if settings.mismatch_cap is not None:
            spans = trajectories if settings.mismatch_level == "trajectory" else None
            factor_T, capped_T = mismatch_weights(
                start_logprob_T, behavior_logprob_T, cap=settings.mismatch_cap, spans=spans
            )
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
        policy_T = {name: as_tensor(column) for name, column in columns.items() if column is not None}
        spans = {"token": None, "response": responses, "trajectory": trajectories}[settings.importance]
        if spans is not None:
            policy_T["span"] = torch.tensor(spans.ids)
        stake_T = np.abs(advantage_T) if credit.penalty_T is None else np.abs(advantage_T) + credit.penalty_T
        plain_T = as_tensor(step.weights(settings.aggregate))

        def loss(given: Pass, missing: bool = False) -> tuple[torch.Tensor, dict[str, float]]:
            options: dict[str, Any] = {"clip_low": settings.clip_low, "clip_high": settings.clip_high}
            options |= {name: given.here(column_T) for name, column_T in policy_T.items()}
            result = policy_loss(given.logprob, clip=settings.clip, dual_clip=settings.dual_clip, **options)
            moved = (given.logprob.detach() - options["old_logprob"]).abs()
            told = {"clipped_frac": result.clipped, "kl_old": result.kl}
            told["log_ratio_abs"] = (moved * given.here(plain_T)).sum().item()
            return result.missing if missing else result.loss, told

        missing = functools.partial(loss, missing=True) if settings.clip_correction else None
        return TermLoss(loss, trajectories.max(weight_T * stake_T) > 0, metrics, missing=missing)

    def state_dict(self) -> Any:
        """Return the state of the token rule."""
        return self._state

    def load_state_dict(self, state: Any) -> None:
        """Restore the state of the token rule."""
        self._state = state
