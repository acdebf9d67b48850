"""Reject responses by setting their advantage to 0, or leave them out of the loss.

Put these blocks last: a rejected response still counts in the baselines of others. With `rejected="zero"` its tokens
also count in the denominators of the loss. With "leave_out" turnwise's own loss leaves them out, as Dr. Kernel's code
does with its mask; so do its other terms, and in a `mix` the other parts. Rules of single tokens see what is kept.
"""

import math
import zlib
from typing import Literal

import numpy as np

from turnwise.base.errors import ConfigError
from turnwise.credit.batch import Batch
from turnwise.credit.metrics import effective_size
from turnwise.credit.trace import report_kept, report_rate
from turnwise.credit.transform import Credit, block
from turnwise.credit.transforms.baselines import UnweightedOver

DoseBy = Literal["sample", "scale"]
"""How an update gets a smaller dose: from fewer responses, or by a smaller step."""
Rejected = Literal["zero", "leave_out"]
"""What happens to a rejected response, whose advantage becomes 0: nothing else, or the loss leaves it out."""


def _without(name: str, credit_R: Credit, kept_R: np.ndarray, rejected: Rejected) -> np.ndarray:
    """Return the weights of the responses, and tell the loss which to leave out."""
    if rejected == "leave_out":
        report_kept(name, credit_R, kept_R)
    return kept_R.astype(np.float64)


@block(across_groups=lambda options: True, scales=True)
def match_dose(credit_R: Credit, batch: Batch, *, share: float, by: DoseBy = "sample", seed: int = 0) -> Credit:
    """Bound the effective sample size of a step, so that methods can be compared at equal doses.

        n = (sum |A|)^2 / sum A^2 <= share * responses

    Credit that is sparse or uneven has a smaller n than GRPO's, and so a smaller dose at the same number of responses.
    A step whose n is smaller is unchanged: match the smallest of the methods. It is a bound, so a method whose steps
    differ in n stays below it in some.

    Args:
        credit_R: `[responses]` advantages of any method, the penalty included.
        batch: Their batch.
        share: Largest effective sample size, as a share of the responses.
        by: "sample": the loss has as many responses, drawn at random, as have this size, so that the step is as long
            and noisier. "scale": it has all, and turnwise's update multiplies the step's learning rate by
            `sqrt(share * responses / n)`, as learning rates follow the batch. (Adam does not see a factor on the
            credit.)
        seed: Seed of the draws, which depend on the credit too.

    Reference: the demand is that of arXiv 2608.19760, the form is ours.
    """
    if not 0.0 < share <= 1.0:
        raise ConfigError(f"match_dose: share={share} must be above 0 and at most 1; it is a share of the responses")
    size, wanted = effective_size(credit_R), share * len(credit_R)
    if size <= wanted:
        return np.ones(len(credit_R))
    if by == "scale":
        report_rate("match_dose", credit_R, math.sqrt(wanted / size))
        return np.ones(len(credit_R))
    order = np.random.default_rng([seed, zlib.crc32(credit_R.tobytes())]).permutation(len(credit_R))
    first = np.abs(credit_R[order])
    size_R = np.cumsum(first) ** 2 / np.maximum(np.cumsum(first**2), np.finfo(float).tiny)
    kept_R = np.zeros(len(credit_R), dtype=bool)
    kept_R[order[: 1 + int(np.flatnonzero(size_R <= wanted).max(initial=0))]] = True  # one response is the least dose
    return _without("match_dose", credit_R, kept_R, "leave_out")


@block(needs=("learned",))
def leave_out_learned(credit_R: Credit, batch: Batch) -> Credit:
    """Leave responses that an earlier step has learned from out of the loss; the credit is unchanged.

    Args:
        credit_R: `[responses]` advantages of any method.
        batch: Their batch.
    """
    report_kept("leave_out_learned", credit_R, batch.column("learned", needed_by="leave_out_learned") == 0)
    return credit_R


@block(
    needs=lambda options: ("mismatch", "mismatch_min", *(("length",) if options["over"] == "trajectories" else ())),
    scales=True,
)
def reject_mismatch(
    credit_R: Credit,
    batch: Batch,
    *,
    over: UnweightedOver = "trajectories",
    low: float = 0.999,
    high: float = 1.001,
    min_ratio: float = 1e-4,
    rejected: Rejected = "zero",
) -> Credit:
    """Reject trajectories on which the probabilities of trainer and engine differ too much.

        keep if low <= exp(mean_t d_t) <= high and exp(min_t d_t) >= min_ratio          d_t = logprob trainer - logprob
        engine

    Mean and minimum run over the generated tokens of all turns, so that a trajectory is kept or rejected as a whole.

    Args:
        credit_R: `[responses]` advantages of any method.
        batch: Their batch, with the columns `mismatch` and `mismatch_min`, and `length` for whole trajectories.
        over: "trajectories": as in Dr. Kernel's shipped scripts ("geometric" there). "responses": keep or reject each
            turn by its own tokens ("turn_geo" there).
        low: Smallest geometric mean of the tokens' probability ratios.
        high: Largest geometric mean.
        min_ratio: Smallest ratio of a single token; 0 allows any.
        rejected: "leave_out": as the released code.

    Reference: Dr. Kernel, arXiv 2602.05885; released code hkust-nlp/KernelGYM.
    """
    mean_R = batch.column("mismatch", needed_by="reject_mismatch")
    least_R = batch.column("mismatch_min", needed_by="reject_mismatch")
    if over == "trajectories":
        turns = batch.trajectories
        num_tokens_R = batch.column("length", needed_by="reject_mismatch")
        mean_R = turns.broadcast(turns.mean(mean_R, count=num_tokens_R))
        least_R = turns.broadcast(turns.min(least_R))
    low_log, high_log, least_log = (math.log(ratio) if ratio > 0.0 else -math.inf for ratio in (low, high, min_ratio))
    kept_R = (mean_R >= low_log) & (mean_R <= high_log) & (least_R >= least_log)
    return _without("reject_mismatch", credit_R, kept_R, rejected)


@block(needs=("profile_frac",), needs_option="correct", across_groups=lambda options: True, scales=True)
def reject_by_profile(
    credit_R: Credit,
    batch: Batch,
    *,
    low: float = 0.3,
    width: float = 0.1,
    correct: str | None = None,
    seed: int = 0,
    rejected: Rejected = "zero",
) -> Credit:
    """Reject correct responses with a small share of the run time.

        keep with probability clip((profile_frac - low) / width, 0, 1) if correct, always if not

    Correct code that hardly affects the run time is not worth learning. Incorrect responses stay, because they have the
    negative advantages. The unit is the response (a turn). The random draws depend only on `seed` and on the batch.

    Args:
        credit_R: `[responses]` advantages of any method.
        batch: Their batch, with the column `profile_frac`.
        low: Share of the run time up to which no correct response is kept.
        width: Range of the share above `low` over which the probability rises to 1.
        correct: Column that is above 1/2 for correct responses. Default: a response is correct if its own reward is
            positive, as with Dr. Kernel's rewards.
        seed: Seed of the draws.
        rejected: "leave_out": as the released code.

    Reference: Dr. Kernel, arXiv 2602.05885; released code hkust-nlp/KernelGYM.
    """
    if width <= 0.0:
        raise ConfigError(f"reject_by_profile: width={width} must be positive; for a threshold, set a small width")
    share_R = batch.column("profile_frac", needed_by="reject_by_profile")
    paid_R = batch.reward_R if correct is None else batch.column(correct, needed_by="reject_by_profile") - 0.5
    generator = np.random.default_rng([seed, zlib.crc32(batch.reward_R.tobytes() + share_R.tobytes())])
    kept_R = (paid_R <= 0.0) | (generator.random(batch.num_responses) < (share_R - low) / width)
    return _without("reject_by_profile", credit_R, kept_R, rejected)
