"""Provide token rules: published objectives that weigh, mask or clip each token, one paper per file.

Once per step, a rule sees all generated tokens under the policy at the start of the step. It returns a `TokenCredit` or
a `Corridor` for the passes over the step. The papers apply rules in every micro-batch, so that their gradients
depend on its size. Here micro-batch size, accumulation and packing cannot change the gradient. With one micro-batch,
the first pass equals the paper's.

A recipe chooses one by name: `update.tokens = {name = "steer", weight_min = 0.7}`, `update.entropy = {name = "epo"}`.
To add one: write its file, name it in `turnwise.base.register`. Its keyword-only arguments are its options. A rule that
reads columns of the batch declares them with `@reads(...)`.
"""

from turnwise.extensions.token_rules.adapo import adapo
from turnwise.extensions.token_rules.covariance import clip_cov, kl_cov
from turnwise.extensions.token_rules.epo import epo
from turnwise.extensions.token_rules.flexible import flexible_clip
from turnwise.extensions.token_rules.gain_clip import gain_clip
from turnwise.extensions.token_rules.hapo import hapo
from turnwise.extensions.token_rules.masks import d3s_mask, spo_mask
from turnwise.extensions.token_rules.repo import repo
from turnwise.extensions.token_rules.steer import steer

__all__ = [
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
