"""Masks: the loss is the mean over the tokens that matter."""

import numpy as np

from turnwise.token_rules.base import Frac, StepTokens, TokenCredit


def spo_mask(tokens: StepTokens, *, threshold: Frac = 0.9, whiten: bool = False) -> TokenCredit:
    """SPO's probability mask: keep the tokens at which the policy had a choice.

        kept = exp(logprob) < threshold
        A = (A - mean(A)) / sqrt(var(A) + 1e-8)        whitened; sample variance, both over the kept tokens of the step

    A step without such a token has no policy gradient.

    Args:
        tokens: The step's.
        threshold: Probability from which on a token is left out.
        whiten: Standardise the advantages of what is kept, as SPO-chain does.

    Reference: Guo et al., Segment Policy Optimization, arXiv 2505.23564. Its segments and their values are not part of this.
    """
    kept_T = tokens.logprob_T < np.log(threshold)
    if not whiten or kept_T.sum() < 2:
        return TokenCredit(kept_T=kept_T)
    kept = tokens.advantage_T[kept_T]
    advantage_T = np.where(kept_T, (tokens.advantage_T - kept.mean()) / np.sqrt(kept.var(ddof=1) + 1e-8), 0.0)
    return TokenCredit(kept_T=kept_T, advantage_T=advantage_T)


def d3s_mask(tokens: StepTokens, *, first_frac: Frac, last_frac: Frac) -> TokenCredit:
    """D3S's tokens: keep those with the largest product of advantage and entropy.

        kept = the round(frac * T) tokens, at least one, with the largest |A| * H
        frac = first_frac + (last_frac - first_frac) * progress of the run

    Equal products are told apart by lot: the order of the batch means nothing. The paper keeps these tokens among trajectories
    chosen before, which is not part of this; its fractions are not known.

    Args:
        tokens: The step's.
        first_frac: Share of tokens kept at the start of the run.
        last_frac: Share at its end; larger, the paper goes from few to more.

    Reference: Dynamic Dual-Level Down-Sampling, arXiv 2509.22115.
    """
    frac = first_frac + (last_frac - first_frac) * tokens.progress
    lot_T = np.random.default_rng(tokens.seed).random(len(tokens))
    order = np.lexsort((lot_T, -np.abs(tokens.advantage_T) * tokens.entropy_T))
    kept_T = np.zeros(len(tokens), dtype=bool)
    kept_T[order[: max(1, round(frac * len(tokens)))]] = True
    return TokenCredit(kept_T=kept_T)
