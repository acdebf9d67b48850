"""Measure the effective rank of a response's hidden states and its growth, which `verl_er` uses."""

from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from turnwise.measures.base import Columns, Played, measure
from turnwise.segments import Segments

if TYPE_CHECKING:  # the functions on one response need NumPy alone
    import torch

STRIDE, LAST = 40, 512
"""Tokens from one prefix to the next, and tokens at the end of a response that growth is measured on."""
VALUES_AT_ONCE = 2**23
"""Hidden values whose ranks are computed at once (64 MiB)."""


@measure(provides=("effective_rank", "rank_velocity", "rank_acceleration"), model="probe")
def ranks(step: Played, columns: Columns) -> Columns:
    """Compute effective rank, velocity and acceleration of each response in a pass over its hidden states.

    They are those of `rank_metrics` with the release's prefixes. A response of fewer than 81 tokens has velocity 0, one
    of fewer than 121 acceleration 0.

    Reference: VERL, arXiv 2509.23808.
    """
    lengths = step.tokens.lengths
    result = np.zeros((3, len(lengths)))

    def see(where: np.ndarray, hidden: "torch.Tensor") -> None:
        inside = np.flatnonzero(np.isin(step.tokens.offsets[:-1], where))  # whole responses, maybe in another order
        order = np.argsort(where)
        begin = order[np.searchsorted(where, step.tokens.offsets[inside], sorter=order)]
        result[:, inside] = _rank_metrics(hidden, begin, lengths[inside])

    step.probe.read(see)
    return dict(zip(ranks.provides, result, strict=True))


def _rank_metrics(hidden: "torch.Tensor", begin: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Compute `rank_metrics` of responses that begin at some rows of `hidden`, `[3, responses]`."""
    end = begin + lengths
    window = np.maximum(begin, end - LAST)
    num = (end - window - 1) // STRIDE  # prefixes of j * stride + 1 tokens
    prefixes = Segments.from_lengths(np.maximum(num, 1))  # a response without prefixes has one that is not used
    stop = prefixes.broadcast(window) + (prefixes.positions + 1) * STRIDE + 1
    used = prefixes.broadcast(num) > 0
    first = np.concatenate([begin, prefixes.broadcast(window)[used]])
    rank = effective_ranks(hidden, first, np.concatenate([end, stop[used]]))
    whole, prefix = rank[: len(begin)], np.zeros(len(stop))
    prefix[used] = rank[len(begin) :]
    so_far = prefixes.broadcast(prefixes.sum(prefix)) - prefixes.suffix_sum(prefix) + prefix
    mean = so_far / (prefixes.positions + 1)
    excess = np.where(prefixes.positions > 0, prefix - prefixes.preceding(mean), 0.0)
    change = np.where(prefixes.positions > 1, excess - prefixes.preceding(excess), 0.0)
    return np.stack(
        [whole, prefixes.sum(excess) / np.maximum(num - 1, 1), prefixes.sum(change) / np.maximum(num - 2, 1)]
    )


def effective_ranks(hidden: "torch.Tensor", first: np.ndarray, stop: np.ndarray) -> np.ndarray:
    """Compute the effective ranks of many stretches of hidden states, from the eigenvalues of their Gram matrices.

    Args:
        hidden: `[tokens, width]` hidden states.
        first: `[stretches]` first token of each.
        stop: `[stretches]` token after the last.

    Returns:
        `[stretches]` values of `effective_rank`, to about five digits.
    """
    import torch

    length, width = stop - first, hidden.shape[1]
    result = np.zeros(len(first))
    order = np.argsort(-length, kind="stable")
    while len(order):
        longest = int(length[order[0]])
        part, order = np.split(order, [max(1, VALUES_AT_ONCE // (longest * max(width, longest)))])
        place = np.arange(longest)
        inside = place < length[part, None]
        index = torch.from_numpy(np.where(inside, first[part, None] + place, 0)).to(hidden.device)
        mask = torch.from_numpy(inside)[..., None].to(hidden.device)
        states = hidden[index].double() * mask
        states = (states - states.sum(1, keepdim=True) / mask.sum(1, keepdim=True)) * mask
        gram = states @ states.mT if longest < width else states.mT @ states
        energy = torch.linalg.eigvalsh(gram).clamp(min=0.0)
        energy = energy.masked_fill(energy <= 1e-13 * energy.amax(-1, keepdim=True), 0.0)  # rounding, not rank
        sigma = energy.sqrt()
        share = sigma / sigma.sum(-1, keepdim=True).clamp(min=1e-300)
        rank = torch.exp(-torch.special.xlogy(share, share).sum(-1))
        flat = torch.from_numpy(length[part] < 2).to(rank.device) | (energy.amax(-1) <= 1e-12)
        result[part] = rank.masked_fill(flat, 0.0).cpu().numpy()
    return result


def effective_rank(hidden: Float[np.ndarray, "tokens width"]) -> float:
    """Compute the effective rank: the exponential of the entropy of the singular values.

        ER = exp(-sum_j q_j log q_j)        q_j = sigma_j / sum(sigma), of the hidden states less their mean

    Args:
        hidden: `[tokens, width]` hidden states of one response.

    Returns:
        From 1 to min(tokens - 1, width); 0 for fewer than two tokens or equal ones.

    Reference: arXiv 2509.23808; Roy and Vetterli, The effective rank, 2007.
    """
    if len(hidden) < 2 or (hidden == hidden[0]).all():
        return 0.0
    hidden = np.asarray(hidden, dtype=np.float64)
    sigma = np.linalg.svd(hidden - hidden.mean(axis=0), compute_uv=False)
    share = sigma[sigma > 0] / sigma.sum()
    return float(np.exp(-(share * np.log(share)).sum()))


def rank_metrics(
    hidden: Float[np.ndarray, "tokens width"], *, stride: int = STRIDE, last: int = LAST
) -> tuple[float, float, float]:
    """Measure the effective rank of a response, its velocity and its acceleration from prefix to prefix.

        velocity     = mean of d_j over j >= 2        d_j = m_j - mean(m_1 .. m_{j-1})
        acceleration = mean of d_j - d_{j-1} over j >= 3

    `m_j` is the effective rank of the first `j * stride + 1` of the last `last` tokens, as in the released code.
    There is such a prefix for every `j * stride` below their number.

    Args:
        hidden: `[tokens, width]` hidden states of one response.
        stride: Tokens from one prefix to the next.
        last: Number of tokens at the end of the response that velocity and acceleration look at. The rank itself is
            that of all tokens.

    Returns:
        Values for the columns `effective_rank`, `rank_velocity` (0 for fewer than two prefixes) and `rank_acceleration`
        (0 for fewer than three).

    Reference: arXiv 2509.23808; released code hf618/VERL, `calculate_diffs_for_single_sample_original`. Another commit
        of the release takes prefixes of `j * stride` tokens, and the whole response as one more.
    """
    end = hidden[-last:]
    prefix = np.array([effective_rank(end[: stop + 1]) for stop in range(stride, len(end), stride)])
    earlier = np.cumsum(prefix)[:-1] / np.arange(1, len(prefix))
    excess = prefix[1:] - earlier
    velocity = float(excess.mean()) if len(excess) else 0.0
    acceleration = float(np.diff(excess).mean()) if len(excess) > 1 else 0.0
    return effective_rank(hidden), velocity, acceleration
