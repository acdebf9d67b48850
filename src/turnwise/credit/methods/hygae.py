"""HyGAE: mix advantages over turns and over tokens at every token."""

from turnwise.credit.card import Gradient
from turnwise.credit.transform import Transform, chain, method
from turnwise.credit.transforms import mix_td_errors


@method("Hybrid GAE with a unified critic (HyGAE)", arxiv="2607.23605")
def hygae(
    *,
    share: float = 0.5,
    discount: float = 1.0,
    decay: float = 1.0,
    token_decay: float = 1.0,
    standardize: bool = True,
) -> Transform:
    """Mix generalised advantage estimates over turns and over tokens, with the critic of tokens and their clock.

        A_t = share A_k + (1 - share) A_token,t
        A_k = delta_k + discount^n decay A_{k+1}        delta_k = r_k + discount^n V_{k+1} - V_k

    n is the number of tokens of turn k + 1. `V_k` is `value_T` before the last token of turn k; `A_token` are the
    estimates of `ppo`. So time is counted in tokens, and in `bilevel_gae` in turns. The critic learns the same mix of
    both returns.

    Args:
        share: alpha: weight of the turns.
        discount: gamma per token; the paper's value was not read.
        decay: lambda of turns; not read.
        token_decay: lambda of tokens; 1 in the code.
        standardize: Subtract the mean over the batch's tokens and divide by their standard deviation.

    Expected gradient: biased: `V_k` has seen all but the last token of its turn, and `standardize` divides by a
        deviation.
    Use it when: as for `ppo`, when rewards come turn by turn.
    Reference: arXiv 2607.23605; official code wx-zhang/HYGAE, on VAGEN and verl, whose option to collect rewards inside
        a turn is not needed here: a response has one.
    """
    return chain(
        mix_td_errors(share=share, discount=discount, decay=decay, token_decay=token_decay, standardize=standardize),
        gradient=Gradient("biased", reason="the value before a turn's last token has seen the tokens before it"),
    )
