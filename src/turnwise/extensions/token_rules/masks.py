"""Mask tokens: the loss is the mean over kept tokens."""

import numpy as np

from turnwise.objective.token_rules.base import Frac, StepTokens, TokenCredit


def spo_mask(tokens: StepTokens, *, threshold: Frac = 0.9, whiten: bool = False) -> TokenCredit:
    """Keep the tokens whose probability is below a threshold (SPO's mask).

        kept = exp(logprob) < threshold
        A = (A - mean(A)) / sqrt(var(A) + 1e-8)        whitened; sample variance, both over the kept tokens of the step

    A step without such a token has no policy gradient.

    Args:
        tokens: Generated tokens of the step.
        threshold: Probability from which a token is left out.
        whiten: Standardise the advantages of the kept tokens, as SPO-chain does.

    Reference: Guo et al., Segment Policy Optimization, arXiv 2505.23564. Its segments and values are the method `spo`.
    """
    kept_T = tokens.logprob_T < np.log(threshold)
    if not whiten or kept_T.sum() < 2:
        return TokenCredit(kept_T=kept_T)
    kept = tokens.advantage_T[kept_T]
    advantage_T = np.where(kept_T, (tokens.advantage_T - kept.mean()) / np.sqrt(kept.var(ddof=1) + 1e-8), 0.0)
    return TokenCredit(kept_T=kept_T, advantage_T=advantage_T)


def d3s_mask(tokens: StepTokens, *, first_frac: Frac, last_frac: Frac) -> TokenCredit:
    """Keep the tokens with the largest product of absolute advantage and entropy (D3S).

        kept = the round(frac * T) tokens, at least one, with the largest |A| * H
        frac = first_frac + (last_frac - first_frac) * progress of the run

    `T` counts the tokens with a nonzero advantage: those of the trajectories that the method `d3s` kept, but for kept
    ones whose advantage is 0, which teach nothing. If all advantages are 0, it counts all tokens. Ties are broken at
    random. The paper's fractions are unknown.

    Args:
        tokens: Generated tokens of the step.
        first_frac: Fraction of these tokens kept at the start of the run.
        last_frac: Fraction kept at its end; larger in the paper.

    Reference: Dynamic Dual-Level Down-Sampling, arXiv 2509.22115.
    """
    frac = first_frac + (last_frac - first_frac) * tokens.progress
    lot_T = np.random.default_rng(tokens.seed).random(len(tokens))
    product_T = np.abs(tokens.advantage_T) * tokens.entropy_T
    order = np.lexsort((lot_T, -product_T, tokens.advantage_T == 0))
    num_candidates = np.count_nonzero(tokens.advantage_T) or len(tokens)
    kept_T = np.zeros(len(tokens), dtype=bool)
    kept_T[order[: max(1, round(frac * num_candidates))]] = True
    return TokenCredit(kept_T=kept_T)
