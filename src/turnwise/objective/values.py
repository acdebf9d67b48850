"""Read a critic's values from hidden states, and train it."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch

from turnwise.base.shapes import Bool, Float, Int
from turnwise.credit.segments import Segments
from turnwise.models.critic import Critic, join_beside
from turnwise.models.policy import autocast
from turnwise.models.settings import CriticConfig, ModelConfig, RidgeCriticConfig
from turnwise.objective.beside import beside_states
from turnwise.objective.gradient import Budget
from turnwise.objective.terms import Pass, StepView, TermLoss, Unit, as_tensor
from turnwise.objective.tokens import Sequences, States, generated_states
from turnwise.objective.transitions import Transitions
from turnwise.rollout.trajectory import Trajectory, Turn

CRITIC_COLUMNS = ("value", "value_action", "value_next", "value_T", "value_low", "value_high", "value_switch")
"""Columns that a critic can estimate."""
OF_SUBGOALS = ("value_low", "value_high", "value_switch")
"""Columns for policies that state subgoals."""


@dataclasses.dataclass(frozen=True)
class Places:
    """Places at which a critic reads a column."""

    tokens: Int[np.ndarray, " reads"]  # `[reads]` generated token at which each value is read
    after: bool  # whether the state after the token is read, or the one before it
    # What the critic sees in addition to the state, see `beside_states`; None: nothing
    beside: Float[np.ndarray, "reads extra"] | None = None

    def among(self, where: np.ndarray) -> tuple[np.ndarray, torch.Tensor]:
        """Return which reads fall on the tokens `where`, and at which index of `where`."""
        order = np.argsort(where)
        index = np.minimum(np.searchsorted(where, self.tokens, sorter=order), len(where) - 1)
        here = where[order[index]] == self.tokens
        return np.flatnonzero(here), torch.from_numpy(order[index][here])


def places_of(column: str, responses: Segments, settings: CriticConfig, action_R: np.ndarray | int = 0) -> Places:
    """Return where a column is read, one place per response or per token.

    Args:
        column: The column.
        responses: Segments of generated tokens, one per response.
        settings: Section `[critic]` of the recipe.
        action_R: `[responses]` tokens of each response before its action, for `value_low`.
    """
    if column == "value_T":
        return Places(np.arange(responses.num_elements), after=False)
    if column == "value_low":
        return Places(responses.offsets[:-1] + action_R, after=False)
    if column in OF_SUBGOALS or (column == "value" and settings.read == "before"):
        return Places(responses.offsets[:-1], after=False)
    return Places(responses.offsets[1:] - 1, after=True)


def sampled_states(turns: Sequence[Turn]) -> list[np.ndarray]:
    """List the states that the responses were sampled from; none if one is unknown or they are of different weights."""
    same_weights = len({turn.version for turn in turns}) == 1  # not if some are replays of an earlier step
    states = [state for turn in turns if (state := turn.extras.get("state")) is not None]
    return states if same_weights and len(states) == len(turns) else []


class Values:
    """Values of a step, read along the pass that scores the policy, on the engine's states, or in a separate pass.

    Args:
        critic: Critic that reads.
        sequences: Sequences of the step.
        places: Where each column is read.
        precision: Section `[model]` of the recipe.
        budget: Padded tokens per micro-batch.
        sampled: Hidden states that the responses were sampled from, one per response, if the values are of these.

    Attributes:
        places: Where each column is read.
        hidden: What was read at the places of each column, kept for ridge regression only.
    """

    def __init__(
        self,
        critic: Critic,
        sequences: Sequences,
        places: Mapping[str, Places],
        precision: ModelConfig,
        budget: Budget,
        sampled: Sequence[np.ndarray] = (),
    ):
        self.critic, self.places, self._sampled = critic, places, sampled
        self._sequences, self._precision, self._budget = sequences, precision, budget
        self._read: dict[str, np.ndarray] = {}
        self.hidden: dict[str, np.ndarray] = {}

    def watch(self, where: np.ndarray, states: States) -> None:
        """Read the values at the tokens of a micro-batch from the hidden states of its pass."""
        for column, places in self.places.items():
            reads, at = places.among(where)
            self._keep(column, reads, states.at(at.to(states.hidden.device), after=places.after).detach())

    def _keep(self, column: str, reads: np.ndarray, hidden: torch.Tensor) -> None:
        places = self.places[column]
        if places.beside is not None:
            hidden = join_beside(hidden, torch.from_numpy(places.beside[reads]).to(hidden))
        values = self._read.setdefault(column, np.full(len(places.tokens), np.nan))
        values[reads] = self.critic.measure(column, hidden).double().cpu().numpy()
        if self.critic.settings.kind == "ridge":
            kept = self.hidden.setdefault(column, np.zeros((len(places.tokens), hidden.shape[1]), np.float32))
            kept[reads] = hidden.float().cpu().numpy()

    def needs_no_pass(self, models: Collection[str]) -> bool:
        """Whether the policy's scoring pass, if one of `models` makes it, or the engine has computed the states."""
        return len(self._sampled) > 0 or ("policy" in models and self.critic.model is self.critic.policy)

    def column(self, name: str) -> Float[np.ndarray, " reads"]:
        """Return the values of a column, one per response or token."""
        if name not in self._read and len(self._sampled):
            hidden = torch.from_numpy(np.stack(self._sampled)).to(self.critic.policy.device)
            self._keep(name, np.arange(len(hidden)), hidden)
        elif name not in self._read:
            self._budget.spend(self._pass, shortest=self._sequences.shortest)
        return self._read[name]

    @torch.no_grad()
    def _pass(self, max_tokens: int) -> None:
        with autocast(self.critic.model, self._precision):
            for indices in self._sequences.micro_batches(max_tokens):
                states, _ = generated_states(self.critic.model, self._sequences, indices)
                self.watch(self._sequences.token_index(indices), states)


class ValueTerm:
    """Squared error of a critic's values, with a clip as in PPO.

        loss = mean over columns and reads of 1/2 max((V - target)^2, (clip(V, V_old - clip, V_old + clip) - target)^2)

    `V_old` is the measured value. `value_next` learns the target of the next response; after the last one it learns 0,
    or nothing if the trajectory is truncated.

    A critic that bootstraps learns separately; this term keeps the turns of earlier steps for it, and compares its
    values with returns.
    """

    name: ClassVar[str] = "value"
    unit: Unit = "sequence"
    whole: ClassVar[bool] = True
    of_policy: ClassVar[bool] = False

    def __init__(self, critic: Critic):
        self.critic = critic
        self.needs: Sequence[str] = (*critic.columns, *(("finished",) if "value_next" in critic.columns else ()))
        self.values: Values | None = None  # of the step
        kept = critic.learned.transitions if critic.learned and critic.bootstraps else 0
        self.transitions = Transitions(kept, critic.seed) if kept else None

    def begin(
        self, sequences: Sequences, trajectories: Sequence[Trajectory], precision: ModelConfig, budget: Budget
    ) -> Values:
        """Return the values of a new step, which are read on demand."""
        turns, critic = [turn for each in trajectories for turn in each.turns], self.critic
        responses = Segments.from_lengths([len(turn.response_ids) for turn in turns])
        action_R = 0
        if "value_low" in critic.columns:
            action_R = np.array([critic.format.planned(turn.response_ids).cuts[1] for turn in turns])
        places = {column: places_of(column, responses, critic.settings, action_R) for column in critic.columns}
        if isinstance(critic.settings, RidgeCriticConfig) and critic.settings.peers:
            beside_R = beside_states(trajectories, visits=critic.settings.visits)
            places = {
                column: dataclasses.replace(each, beside=beside_R[responses.ids[each.tokens]])
                for column, each in places.items()
            }
        reads_begins = critic.own is None and all(
            not each.after and np.array_equal(each.tokens, responses.offsets[:-1]) for each in places.values()
        )
        sampled = sampled_states(turns) if reads_begins else []
        self.values = Values(critic, sequences, places, precision, budget, sampled)
        return self.values

    def prepare(self, step: StepView) -> TermLoss:
        """Compute targets and weights of all reads; ridge regression learns here."""
        critic, metrics = self.critic, {}
        assert self.values is not None, "a step begins before its loss is prepared"
        parts = []
        for column in critic.columns:
            old, (target, known) = step.column(column, self.name), self._target(column, step)
            known = known & self._has_ended(column, step)
            metrics |= _metrics(column, old[known], target[known])
            if critic.settings.kind == "ridge" and known.any():
                critic.fit(column, self.values.hidden[column][known], target[known], step.batch.num_groups)
            weight = known * (step.mini_batches / (max(1, known.sum()) * len(critic.columns)))
            target = np.where(known, target, 0.0)
            parts.append((column, self.values.places[column], *map(as_tensor, (old, target, weight))))
        learns, clip = np.full(step.batch.num_trajectories, critic.learns_along), critic.learned and critic.learned.clip

        def loss(given: Pass) -> tuple[torch.Tensor, dict[str, float]]:
            if not critic.learns_along:
                return torch.zeros(()), {}
            assert given.states is not None
            states, where = given.states(critic.own), given.where.numpy()
            device = states.hidden.device
            total, clipped = torch.zeros((), device=device), 0.0
            for column, places, *tensors in parts:
                reads, at = places.among(where)
                old, target, weight = (tensor[torch.from_numpy(reads)].to(device) for tensor in tensors)
                value = critic.estimate(column, states.at(at.to(device), after=places.after))
                error = (value - target) ** 2
                if clip is not None:
                    near = old + (value - old).clamp(-clip, clip)
                    bounded = (near - target) ** 2
                    binds = (bounded > error) & ((value - old).abs() > clip)  # else the difference is rounding
                    clipped += float((weight * binds).sum())
                    error = torch.maximum(error, bounded)
                total = total + 0.5 * (weight * error).sum()
            loss_metrics = {"value_loss": total.item()}
            return total, loss_metrics if clip is None else loss_metrics | {"value_clipped_frac": clipped}

        return TermLoss(loss, learns, metrics)

    def _target(self, column: str, step: StepView) -> tuple[Float[np.ndarray, " reads"], Bool[np.ndarray, " reads"]]:
        """Return what the column should be at every read, and where that is known."""
        batch, turns = step.batch, step.batch.trajectories
        assert batch.tokens is not None
        targets = step.credit.targets if self.critic.settings.target == "method" else {}
        if column in targets:
            return targets[column], np.isfinite(targets[column])
        return_R = turns.suffix_sum(batch.reward_R, discount=self.critic.settings.discount)
        if column == "value_T":
            return batch.tokens.broadcast(return_R), np.ones(batch.tokens.num_elements, dtype=bool)
        if column != "value_next":
            return return_R, np.ones(batch.num_responses, dtype=bool)
        known_R = turns.following(np.ones(batch.num_responses), end=0.0) + step.column("finished", self.name) > 0
        return turns.following(targets.get("value", return_R)), known_R

    def _has_ended(self, column: str, step: StepView) -> Bool[np.ndarray, " reads"]:
        """Return which reads are of trajectories whose returns are the policy's.

        The return of one that continues in the next step is open, and a replay of a store was chosen by its outcome.
        """
        batch = step.batch
        none_R = np.zeros(batch.num_responses)
        ended_R = (batch.columns.get("unfinished", none_R) == 0) & (batch.columns.get("replayed", none_R) == 0)
        assert batch.tokens is not None
        return batch.tokens.broadcast(ended_R) if column == "value_T" else ended_R

    def state_dict(self) -> Any:
        """Return the turns of earlier steps, if it keeps them; the critic saves its own state."""
        return None if self.transitions is None else self.transitions.state_dict()

    def load_state_dict(self, state: Any) -> None:
        """Restore the turns that `state_dict` returned."""
        if self.transitions is not None:
            self.transitions.load_state_dict(state)


def _metrics(column: str, value: np.ndarray, target: np.ndarray) -> dict[str, float]:
    """Summarise measured values: mean, mean target, and share of the target's variance that they explain."""
    if not len(target):
        return {}
    spread = float(target.var())
    explained = 1.0 - float((target - value).var()) / spread if spread > 0 else 0.0
    return {
        f"{column}_mean": float(value.mean()),
        f"{column}_target": float(target.mean()),
        f"{column}_explained": explained,
    }
