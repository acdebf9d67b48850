"""Define the preference term of the loss: pairs from a group, best against worst, as in SimPO and DPO."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch

from turnwise.base.shapes import Bool, Float, Int
from turnwise.credit.batch import Batch
from turnwise.credit.segments import Labels, Partition, Segments, components
from turnwise.extensions.preference.settings import PreferenceConfig
from turnwise.objective.terms import Pass, Stateless, StepView, TermLoss, Unit, as_tensor

LEAST_DIFFERENCE = 1e-9
"""Returns closer than this are equal: their responses do not form a pair."""


@dataclasses.dataclass(frozen=True)
class Pairs:
    """Pairs of items, each a trajectory or a response."""

    better: Int[np.ndarray, " pairs"]  # `[pairs]` number of the item with the higher return
    worse: Int[np.ndarray, " pairs"]  # `[pairs]` number of the other one

    def __len__(self) -> int:
        return len(self.better)

    def among(self, item_I: Bool[np.ndarray, " I"]) -> "Pairs":
        """Return the pairs whose items are both among these."""
        both = item_I[self.better] & item_I[self.worse]
        return Pairs(self.better[both], self.worse[both])


def extreme_pairs(return_I: Float[np.ndarray, " I"], classes: Partition, *, equal: bool = False) -> Pairs:
    """Pair the best with the worst item of each class, the first of equals. A class of equal returns has no pair.

    Args:
        return_I: `[items]` return of each item.
        classes: Which items are compared.
        equal: Pair the first item of a class of equal returns with itself.
    """
    better, worse = _first_least(-return_I, classes), _first_least(return_I, classes)
    differ = return_I[better] - return_I[worse] > LEAST_DIFFERENCE
    return Pairs(better, worse) if equal else Pairs(better[differ], worse[differ])


def _first_least(value_I: np.ndarray, classes: Partition) -> np.ndarray:
    """Return the first item of least value in each class, `[classes]`."""
    order = np.lexsort((np.arange(len(value_I)), value_I, classes.ids))
    return order[np.searchsorted(classes.ids[order], np.arange(len(classes)))]


def trajectory_pairs(batch: Batch, *, equal: bool = False) -> Pairs:
    """Pair the trajectories of best and of worst return in each group; items are trajectories."""
    return extreme_pairs(batch.trajectories.sum(batch.reward_R), batch.groups, equal=equal)


def success_pairs(batch: Batch) -> Pairs:
    """Pair every trajectory that succeeded with every other of its group that did not; items are trajectories."""
    succeeds_N = batch.trajectories.first(batch.column("success", needed_by="reward_model")) > 0.5
    group_N = batch.groups.ids
    winners, losers = np.flatnonzero(succeeds_N), np.flatnonzero(~succeeds_N)
    count_G = np.bincount(group_N[losers], minlength=batch.num_groups)
    begin_G = np.cumsum(count_G) - count_G  # losers are sorted by group
    count = count_G[group_N[winners]]
    place = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    return Pairs(np.repeat(winners, count), losers[np.repeat(begin_G[group_N[winners]], count) + place])


def turn_pairs(batch: Batch) -> Pairs:
    """Pair the responses with the best and with the worst return to go in each state of a group; items are responses.

    Two equal responses at a state that ended differently cancel: their gradients are the same.
    """
    states = batch.column("state_key", needed_by="update.preference")
    to_go_R = batch.trajectories.suffix_sum(batch.reward_R)
    return extreme_pairs(to_go_R, Labels.of(batch.group_responses.ids, states))


class PreferenceTerm(Stateless):
    """Loss on pairs of trajectories, or of responses at the same state, of one group.

        simpo: z = beta * (mean log pi(better) - mean log pi(worse)) - margin
        dpo:   z = beta * (log pi / ref (better) - log pi / ref (worse)), sums over tokens
        loss = weight * mean over pairs of -(1 - smoothing) log sigmoid(z) - smoothing log sigmoid(-z)

    The better one has the highest return of the group (at level "turn": the highest return to go of the responses to
    the same state), the worse one the lowest; groups without a difference have no pair. Observations are not part of
    the log-probabilities.

    Reference: SimPO, Meng et al., arXiv 2405.14734; DPO, Rafailov et al., arXiv 2305.18290. Pairs per turn are ours.
    """

    name: ClassVar[str] = "preference"
    unit: Unit = "pair"
    whole: ClassVar[bool] = True

    def __init__(self, settings: PreferenceConfig):
        self._settings = settings
        self.needs: Sequence[str] = (
            *(("state_key",) if settings.level == "turn" else ()),
            *(("ref_logprob_T",) if settings.name == "dpo" else ()),
        )

    def prepare(self, step: StepView) -> TermLoss:
        """Find the pairs of the step."""
        settings, batch = self._settings, step.batch
        assert batch.tokens is not None
        by_turn = settings.level == "turn"
        items: Segments = batch.tokens if by_turn else batch.trajectories.of(batch.tokens)
        kept_T = batch.tokens.broadcast(step.credit.in_loss_R.astype(np.float64))
        num_I = items.sum(kept_T)  # tokens that the loss has
        pairs = (turn_pairs(batch) if by_turn else trajectory_pairs(batch)).among(num_I > 0)
        owner_I = batch.trajectories.ids if by_turn else np.arange(len(items))  # its trajectory
        owners = np.stack([owner_I[pairs.better], owner_I[pairs.worse]])
        matters_N = np.isin(np.arange(batch.num_trajectories), owners)
        pair_N = components(owners, batch.num_trajectories)
        metrics = {"preference_pairs": float(len(pairs))}
        if not len(pairs):
            return TermLoss(lambda given: (given.logprob.sum() * 0.0, {}), matters_N, metrics, pair_N)
        means = settings.name == "simpo"
        scale_T = kept_T / items.broadcast(np.maximum(num_I, 1.0)) if means else kept_T
        offset = np.full(len(pairs), settings.margin)
        if not means:
            reference_I = items.sum(kept_T * step.column("ref_logprob_T", self.name))
            offset = settings.strength * (reference_I[pairs.better] - reference_I[pairs.worse])
        columns = as_tensor(scale_T), as_tensor(offset)
        item_T = torch.from_numpy(np.array(items.ids))
        better, worse = torch.from_numpy(pairs.better), torch.from_numpy(pairs.worse)
        share = step.mini_batches / len(pairs)

        def loss(given: Pass) -> tuple[torch.Tensor, dict[str, float]]:
            scale, device = given.here(columns[0]), given.logprob.device
            item = item_T[given.where].to(device)
            total_I = given.logprob.new_zeros(len(items)).index_add(0, item, scale * given.logprob)
            here_I = torch.zeros(len(items), dtype=torch.bool, device=device).index_fill(0, item, True)
            here = here_I[better.to(device)] & here_I[worse.to(device)]
            first, second = better.to(device)[here], worse.to(device)[here]
            z = settings.strength * (total_I[first] - total_I[second]) - columns[1].to(device)[here]
            softplus = torch.nn.functional.softplus
            per_pair = (1 - settings.smoothing) * softplus(-z) + settings.smoothing * softplus(z)
            right = (z + (columns[1].to(device)[here] if means else 0.0) > 0).float().sum()
            loss_metrics = {
                "preference_loss": share * per_pair.sum().item(),
                "preference_right_frac": share * right.item(),
            }
            return settings.weight * share * per_pair.sum(), loss_metrics

        return TermLoss(loss, matters_N, metrics, pair_N)
