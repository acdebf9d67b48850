"""Define the policy-gradient term: `policy_loss` on every token, with an optional token rule."""

import functools
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch

from turnwise.objective.kl import reward_of_kl
from turnwise.objective.losses import policy_loss
from turnwise.objective.mismatch import step_mismatch
from turnwise.objective.part import own_part
from turnwise.objective.settings import UpdateConfig
from turnwise.objective.terms import Pass, StepView, TermLoss, Unit, as_tensor
from turnwise.objective.token_rules.base import TokenCredit, columns_of
from turnwise.objective.token_rules.build import build_token_rule
from turnwise.objective.token_rules.step import StepRule, of_kept

OLD = {"behavior": "behavior_logprob_T", "start": "logprob_T", None: "logprob_T"}  # what ratios are relative to


class PolicyTerm:
    """Policy-gradient term of `[update]`: importance, clip, aggregate, token rule, mismatch, KL as a reward."""

    name: ClassVar[str] = "policy"

    def __init__(self, settings: UpdateConfig):
        self._settings = settings
        rule = settings.tokens
        self._rule = StepRule(build_token_rule(rule.name, rule.model_extra or {}), settings) if rule else None
        self.unit: Unit = "trajectory" if settings.importance == "trajectory" else "sequence"
        self.needs: Sequence[str] = ("logprob_T", "entropy_T", "behavior_logprob_T")
        self.needs += columns_of(self._rule.rule) if self._rule else ()
        self._kl_in_reward = settings.kl > 0 and settings.kl_in == "reward"
        self.needs += ("ref_logprob_T",) if self._kl_in_reward else ()

    def prepare(self, step: StepView) -> TermLoss:
        """Compute weights, advantages and clip widths of all tokens."""
        settings, responses, metrics = self._settings, step.batch.tokens, {}
        assert responses is not None
        trajectories = step.batch.trajectories.of(responses)
        old_logprob_T = step.column(OLD[settings.old_policy], self.name)
        credit = own_part(of_kept(self._rule, step), step) if self._rule else TokenCredit()
        advantage_T = step.advantage_T if credit.advantage_T is None else credit.advantage_T
        if self._kl_in_reward:
            reward_T, metrics = reward_of_kl(step, old_logprob_T, settings)
            advantage_T = advantage_T + reward_T
        if settings.mismatch_cap is not None:
            of_engine, of_mismatch = step_mismatch(step, settings)
            credit, metrics = credit.corrected(of_engine.factor_T, of_engine.kept_T), metrics | of_mismatch
        weight_T = step.weights(settings.aggregate, credit.kept_T)
        weight_T = weight_T if credit.factor_T is None else weight_T * credit.factor_T
        columns = {
            "old_logprob": old_logprob_T,
            "advantage": advantage_T,
            "weight": weight_T,
            "share": step.shares(settings.aggregate),
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

        def loss(given: Pass, missing: bool = False) -> tuple[torch.Tensor, dict[str, float]]:
            options: dict[str, Any] = {"clip_low": settings.clip_low, "clip_high": settings.clip_high}
            options |= {name: given.here(column_T) for name, column_T in policy_T.items()}
            how: dict[str, Any] = {"dual_clip": settings.dual_clip, "bounds": settings.log_ratio}
            result = policy_loss(given.logprob, clip=settings.clip, **how, **options)
            moved = ((given.logprob.detach() - options["old_logprob"]).abs() * options["share"]).sum().item()
            loss_metrics = {"clipped_frac": result.clipped, "kl_old": result.kl, "log_ratio_abs": moved}
            return result.missing if missing else result.loss, loss_metrics

        missing = functools.partial(loss, missing=True) if settings.clip_correction else None
        return TermLoss(loss, trajectories.max(weight_T * stake_T) > 0, metrics, missing=missing)

    def state_dict(self) -> Any:
        """Return the state of the token rule."""
        return self._rule and self._rule.state

    def load_state_dict(self, state: Any) -> None:
        """Restore the state of the token rule."""
        if self._rule:
            self._rule.state = state
