"""Provide token rules: published objectives that weigh, mask or clip each token, one paper per file.

Once per step, a rule sees all generated tokens under the policy at the start of the step. It returns a `TokenCredit` or
a `Corridor` for the passes over the step. The papers apply rules in every micro-batch, so that their gradients
depend on its size. Here micro-batch size, accumulation and packing cannot change the gradient. With one micro-batch,
the first pass equals the paper's.

A recipe chooses one by name: `update.tokens = {name = "steer", weight_min = 0.7}`, `update.entropy = {name = "epo"}`.
To add one: write its file, add it below. Its keyword-only arguments are its options. A rule that reads columns of the
batch declares them with `@reads(...)`.
"""

from collections.abc import Callable

from turnwise.extensions.token_rules.adapo import adapo
from turnwise.extensions.token_rules.covariance import clip_cov, kl_cov
from turnwise.extensions.token_rules.epo import epo
from turnwise.extensions.token_rules.flexible import flexible_clip
from turnwise.extensions.token_rules.gain_clip import gain_clip
from turnwise.extensions.token_rules.hapo import hapo
from turnwise.extensions.token_rules.masks import d3s_mask, spo_mask
from turnwise.extensions.token_rules.repo import repo
from turnwise.extensions.token_rules.steer import steer
from turnwise.objective.token_rules.base import Corridor, StepTokens, TokenCredit

TOKEN_RULES: dict[str, Callable[..., TokenCredit]] = {
    "clip_cov": clip_cov,
    "kl_cov": kl_cov,
    "steer": steer,
    "spo_mask": spo_mask,
    "d3s_mask": d3s_mask,
    "hapo": hapo,
    "flexible_clip": flexible_clip,
    "repo": repo,
    "adapo": adapo,
    "gain_clip": gain_clip,
}
"""Rules for `update.tokens` by name."""

ENTROPY_RULES: dict[str, Callable[..., Corridor]] = {"epo": epo}
"""Rules for `update.entropy` by name."""

__all__ = [
    "ENTROPY_RULES",
    "TOKEN_RULES",
    "Corridor",
    "StepTokens",
    "TokenCredit",
    "adapo",
    "clip_cov",
    "d3s_mask",
    "epo",
    "flexible_clip",
    "gain_clip",
    "hapo",
    "kl_cov",
    "repo",
    "spo_mask",
    "steer",
]
