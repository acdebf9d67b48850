"""Define the `[update]` section of a recipe.

Published objectives in its words:

    PPO, GRPO    importance token, clip ppo .2/.2, aggregate token-mean or response-mean
    DAPO         importance token, clip ppo .2/.28, aggregate token-mean
    NGRPO        importance token, clip ppo .16/.24
    GSPO         importance trajectory, clip ppo 3e-4/4e-4 (agents: 3e-3/4e-3), aggregate trajectory-mean
    SAMPO        importance response, clip ppo 3e-3/4e-3, aggregate response-mean, on `gigpo`
    ST-PPO       importance response, clip ppo .2/.2, clip_correction figure, aggregate trajectory-mean, on `ppo`
    CISPO        importance token, clip cispo, clip_low 1 (no lower bound)
    Clip-Cov     tokens clip_cov, clip ppo 1/1 (the official scripts; the paper's text: .2/.2)
    KL-Cov       tokens kl_cov, clip none (official scripts: frac 2e-3 for 7B, 2e-4 for 32B)
    STEER        tokens steer, clip ppo .2/.28, dual_clip 10
    HAPO         tokens hapo, clip ppo .2/.28, dual_clip 10, on `hapo`; rollout.token_temperature hapo
    A2TGPO       importance response, tokens gain_clip, clip ppo 3e-3/4e-3, aggregate trajectory-mean, on `a2tgpo`
    AEPO         importance token, clip keep, dual_clip 3, on `aepo`
    AT2PO        importance response, clip ppo 3e-3/4e-3, aggregate trajectory-mean, on `at2po`

Not included: SAMPO's optional mask, which leaves responses with A < 0 and a ratio below exp(-delta) out of the loss and
its denominator. Below 1 - clip_low such a response has no gradient anyway; the mask also gives the others more weight.
"""

from collections.abc import Iterator
from typing import ClassVar, Literal

import pydantic

from turnwise.base.facets import Facet, Part
from turnwise.base.register import TERMS
from turnwise.base.section import Named, Section, extensible
from turnwise.credit.transforms.selection import DoseBy
from turnwise.objective.token_rules.base import Aggregate, Clip, Estimator, LogRatio, Mismatch, Spread
from turnwise.objective.token_rules.build import build_entropy_rule, build_token_rule

MISMATCH = ("mismatch_floor", "mismatch", "mismatch_level", "mismatch_of")
"""Settings that shape what `mismatch_cap` switches on."""


class RuleConfig(Named):
    """Name and options of a rule or a loss term."""


@extensible("update")
class UpdateConfig(Section):
    """Settings of the policy update."""

    works_with: ClassVar = {f"clip_{side}": ("clip", ["ppo", "keep", "cispo"]) for side in ("low", "high")}

    learning_rate: float = pydantic.Field(default=3e-4, gt=0)
    """Learning rate of AdamW after the warm-up. The default suits `tiny`; SmolLM2's recipes use 1e-4 for the upper
    layers, and 6e-3 with only_norms."""
    warmup_steps: int = pydantic.Field(default=5, ge=0)
    """Steps over which the learning rate rises to its value, since Adam's first steps move every weight, however noisy
    its gradient."""
    decay: bool = False
    """Decay the learning rate linearly, to 0 at run.steps."""
    only_norms: bool = False
    """Train only the gains of normalisation layers among the weights that model.train names, as in arXiv 2312.11420.
    These few thousand weights have a less noisy gradient and need a far higher learning rate. The warm start ignores
    this."""
    weight_decay: float = pydantic.Field(default=0.0, ge=0)
    """Weight decay of AdamW, per unit of the learning rate."""
    max_grad_norm: float = pydantic.Field(default=1.0, gt=0)
    """Norm to which larger gradients are scaled down, per optimiser step."""
    importance: Literal["token", "response", "trajectory"] = "token"
    """Level of the probability ratio: each token has its own, or the geometric mean over its response (a turn) or
    trajectory (GSPO)."""
    clip: Clip = "ppo"
    """"ppo": no gradient where the ratio is outside clip_low and clip_high. "keep": a token with a positive advantage
    above the bound keeps its gradient, with the bound as factor. "cispo": the clipped ratio is a factor.
    "none": no clip."""
    clip_low: float = pydantic.Field(default=0.2, gt=0)
    """Distance of the clip below a ratio of 1: the ratio is clipped at 1 - clip_low. 0.2 is PPO's."""
    clip_high: float = pydantic.Field(default=0.2, gt=0)
    """Distance of the clip above a ratio of 1: the ratio is clipped at 1 + clip_high. DAPO uses 0.28."""
    dual_clip: float | None = pydantic.Field(default=None, gt=1)
    """Largest ratio of a token with a negative advantage. Above it, the token has no gradient (with "cispo": the ratio
    is clipped to it)."""
    log_ratio: LogRatio = "free"
    """"verl": clamp a token's log-ratio to [-20, 20] and k3 to 10, as verl does. "free": take them as they are."""
    clip_correction: Literal["figure"] | None = None
    """ST-PPO's correction, as a figure in the paper (arXiv 2511.20718) and a reviewer describe it; other descriptions
    differ. The gradient of each optimiser step is divided by the norm of the gradient that the clip leaves out, if that
    norm is above 1 (our bound). It takes a second pass over the step."""
    tokens: RuleConfig | None = None
    """Token rule: {name = "steer"}, {name = "clip_cov", frac = 2e-4} and others in `turnwise.objective.token_rules`."""
    epochs: int = pydantic.Field(default=1, ge=1)
    """Passes over a step's trajectories."""
    mini_batches: int = pydantic.Field(default=1, ge=1)
    """Optimiser steps per pass."""
    aggregate: Aggregate = "token-mean"
    """How the loss is averaged; see `turnwise.objective.losses.token_weights`."""
    kl: float = pydantic.Field(default=0.0, ge=0)
    """Coefficient of the KL divergence from the policy after the warm start."""
    kl_estimator: Estimator | None = None
    """Estimator of the divergence, named as in verl; a + has the gradient of k2. See
    `turnwise.objective.kl.kl_penalty`. Default: k3 in the loss, k1 in the reward."""
    kl_in: Literal["loss", "reward"] | None = None
    """"loss": a term with the estimator's gradient. "reward": each token's advantage minus its own estimate under the
    old policy, without gradient; k1 then has the gradient of k2 in the loss. Default: "loss" unless a server computes
    it."""
    entropy_bonus: float = 0.0
    """Coefficient of the mean token entropy; 0 switches it off."""
    entropy: RuleConfig | None = None
    """Published entropy term: {name = "epo"}."""
    policy: bool = True
    """Include the policy-gradient term in the loss; otherwise a step learns from the other terms alone."""
    dose: float | None = pydantic.Field(default=None, gt=0, le=1)
    """Largest effective sample size of a step, (sum |A|)^2 / sum A^2, as a share of its responses, to compare methods
    at equal doses. `turnwise audit` prints each method's."""
    dose_by: DoseBy = "sample"
    """How to reduce the dose of a step: learn from fewer responses, or with a smaller learning rate ("scale")."""
    terms: tuple[RuleConfig, ...] = ()
    """Your own loss terms: {name = "module:MyTerm", weight = 0.1}; see `turnwise.objective.terms.Term`."""
    old_policy: Literal["start", "behavior"] | None = None
    """Weights in the denominator of a token's probability ratio: those at the start of the step, or those that sampled
    the token ("behavior"). Default: "behavior" with rollout.max_lag or rollout.step_budget unless mismatch_cap corrects
    the lag, else "start"."""
    mismatch_cap: float | None = pydantic.Field(default=None, gt=0)
    """Upper bound of the importance weight pi_trainer / pi_engine, which corrects for differences between engine and
    trainer. Default: no correction."""
    mismatch_floor: float = pydantic.Field(default=0.0, ge=0)
    """Lower bound of that weight; 0 is none."""
    mismatch: Mismatch = "truncate"
    """Weights beyond the bounds: "truncate" moves them to the bound (TIS); "mask" sets them to 0 (IcePop by token, MIS
    by trajectory). "reject" also leaves these tokens out of the denominators, and does not weight others."""
    mismatch_level: Literal["token", "response", "trajectory"] = "token"
    """Tokens that share a weight: none, those of a response or those of a trajectory."""
    mismatch_of: Spread = "product"
    """Weight of a response or trajectory: the product of its tokens' ratios, or their geometric mean."""
    scoring: Literal["trainer", "engine"] = "trainer"
    """Source of the old policy's log-probabilities and entropies: a scoring pass of the trainer, or the engine, which
    skips the scoring pass but must measure entropies."""
    max_tokens: int | None = pydantic.Field(default=None, ge=1)
    """Padded tokens per micro-batch. This limits memory and does not affect the gradient. Default: 4,096 on a CPU,
    which is faster there, else 16,384."""

    @property
    def estimator(self) -> Estimator:
        """Return the estimator of the KL term."""
        return self.kl_estimator or ("k1" if self.kl_in == "reward" else "k3")

    def parts(self) -> Iterator[Part]:
        """Return what each setting breaks and needs; see `turnwise.base.facets`."""
        yield from super().parts()
        if self.old_policy == "start" and self.mismatch_cap is None:
            needs = {Facet.WEIGHTS: "relates ratios to the weights of the step"}
            mend = "remove update.old_policy, or add update.mismatch_cap=2 update.scoring=trainer"
            yield Part("update.old_policy='start'", needs=needs, mend=mend)
        yield from behavior_parts(self)
        if self.scoring == "engine":
            breaks = {Facet.SCORED: "takes probabilities and entropies from the engine"}
            needs = {Facet.DISTRIBUTION: "takes the probabilities that the engine reports"}
            yield Part("update.scoring='engine'", breaks, needs, mend="set update.scoring=trainer")
        if self.mismatch_cap is not None:
            needs = {Facet.SCORED: "weights tokens by the trainer's probabilities over the engine's"}
            yield Part(f"update.mismatch_cap={self.mismatch_cap:g}", needs=needs)
        yield from self._needs_of_loss()
        if self.kl and self.kl_in == "loss":
            yield Part("update.kl_in='loss'", needs={Facet.LOSS: "adds a term"}, mend="set update.kl_in=reward")
        if self.only_norms:
            needs = {Facet.UNFROZEN: "trains the gains of normalisation layers"}
            mend = "set update.only_norms=false, with a learning rate for adapters such as update.learning_rate=1e-4"
            yield Part("update.only_norms=true", needs=needs, mend=mend)

    def _needs_of_loss(self) -> Iterator[Part]:
        """Return the parts of settings that change the loss, or need more of the policy than log-probabilities."""
        of_loss = {
            f"importance={self.importance!r}": self.importance != "token",
            "tokens": self.tokens is not None,
            "dual_clip": self.dual_clip is not None,
            f"log_ratio={self.log_ratio!r}": self.log_ratio != "free",
            f"kl_estimator={self.kl_estimator!r}": "+" in (self.kl_estimator or ""),
            "terms": bool(self.terms),
            "policy=false": not self.policy,
        }
        for name in (name for name, given in of_loss.items() if given):
            yield Part(f"update.{name}", needs={Facet.LOSS: "changes it"})
        if self.tokens is not None:
            yield Part("update.tokens", needs={Facet.ENTROPY: "may read them"})
        of_weights = {
            "entropy_bonus": self.entropy_bonus,
            "entropy": self.entropy,
            "clip_correction": self.clip_correction,
        }
        for name in (name for name, given in of_weights.items() if given):
            yield Part(f"update.{name}", needs={Facet.HERE: "needs another gradient than that of log-probabilities"})

    @pydantic.model_validator(mode="after")
    def _parts_fit(self) -> "UpdateConfig":
        if self.clip_correction and (self.clip != "ppo" or not self.policy):
            raise ValueError(
                "update.clip_correction measures the gradient that the clip leaves out, which needs update.clip='ppo' "
                "and update.policy=true; remove it or set both"
            )
        of_policy = {name: getattr(self, name) for name in ("tokens", "dual_clip", "mismatch_cap", "dose")}
        if not self.policy and (given := next((name for name, value in of_policy.items() if value is not None), None)):
            raise ValueError(
                f"update.{given} shapes the policy term, which update.policy=false leaves out; remove one of them"
            )
        needed = {"kl": ("kl_estimator", "kl_in"), "mismatch_cap": MISMATCH, "dose": ("dose_by",)}
        fields = type(self).model_fields
        for name, depending in needed.items():
            idle = next((each for each in depending if getattr(self, each) != fields[each].default), None)
            if not getattr(self, name) and idle:
                raise ValueError(
                    f"update.{idle}={getattr(self, idle)!r} has no effect without update.{name}; set update.{name}"
                )
        if self.mismatch_cap and self.mismatch_floor > self.mismatch_cap:
            raise ValueError(
                f"update.mismatch_floor={self.mismatch_floor:g} is above update.mismatch_cap={self.mismatch_cap:g}"
            )
        if self.mismatch_of == "geometric" and self.mismatch_level == "token":
            raise ValueError(
                "update.mismatch_of='geometric' has no effect on single tokens; set update.mismatch_level=trajectory"
            )
        if self.kl_in == "reward" and not self.policy:
            raise ValueError(
                "update.kl_in='reward' changes the advantages of the policy term, which update.policy=false leaves out"
            )
        if self.kl_in == "reward" and "+" in (self.kl_estimator or ""):
            raise ValueError(
                f"update.kl_estimator={self.kl_estimator!r} names a gradient, and a reward has none; remove the +"
            )
        if self.old_policy == "behavior" and self.mismatch_cap is not None:
            raise ValueError(
                "update.old_policy='behavior' and update.mismatch_cap correct for the same difference; remove one"
            )
        others = [name for key in TERMS.values() if (name := key.removeprefix("update.")) != key] + ["terms"]
        if not self.policy and not any(getattr(self, name) for name in others):
            others = " or ".join(f"update.{name}" for name in others)
            raise ValueError(f"update.policy=false leaves nothing to learn from; set {others}")
        if self.tokens:
            build_token_rule(self.tokens.name, self.tokens.model_extra or {})
        if self.entropy:
            build_entropy_rule(self.entropy.name, self.entropy.model_extra or {})
        return self


def behavior_parts(update: UpdateConfig) -> Iterator[Part]:
    """Return the part of ratios that are relative to the weights that sampled."""
    if update.old_policy == "behavior":
        needs = {Facet.DISTRIBUTION: "relates ratios to the probabilities that the engine reports"}
        yield Part("update.old_policy='behavior'", needs=needs)
