"""Remember the turns of earlier steps, for a critic that learns from them again."""

import dataclasses
from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np

from turnwise.base.shapes import Float
from turnwise.base.streams import Stream
from turnwise.credit.batch import Batch
from turnwise.credit.segments import Segments
from turnwise.objective.tokens import Sequences, ranges


@dataclasses.dataclass(frozen=True)
class Turns:
    """Hold the turns of some trajectories as a critic reads them."""

    sequences: Sequences  # their tokens
    trajectories: Segments  # segments of responses, one per trajectory
    tokens: Segments  # segments of generated tokens, one per response
    reward_R: Float[np.ndarray, " R"]  # `[responses]` rewards

    @classmethod
    def of_step(cls, sequences: Sequences, batch: Batch) -> "Turns":
        """Return the turns of a step."""
        assert batch.tokens is not None
        return cls(sequences, batch.trajectories, batch.tokens, batch.reward_R)


class Transitions:
    """Remember the turns of earlier steps, and draw trajectories from all of them.

    Tokens and rewards are kept, so that a critic reads old states with its current weights. The oldest step is dropped
    while the others hold `size` responses.

    Args:
        size: Responses to remember.
        seed: Seed of the run.
    """

    def __init__(self, size: int, seed: int):
        self._size, self._seed = size, seed
        self._steps: deque[dict[str, np.ndarray]] = deque()

    def __len__(self) -> int:
        return sum(len(step["reward_R"]) for step in self._steps)

    def add(self, turns: Turns) -> None:
        """Remember the turns of a step."""
        sequences = turns.sequences
        self._steps.append(
            {
                "token_ids": np.concatenate(sequences.token_ids).astype(np.int32),
                "ids": np.array([len(ids) for ids in sequences.token_ids]),  # of each sequence, like the next two
                "generated": sequences.tokens.lengths,
                "trajectory": sequences.trajectory,
                "places": np.concatenate(sequences.generated).astype(np.int32),
                "responses": turns.trajectories.lengths,  # of each trajectory
                "tokens": turns.tokens.lengths,  # of each response, like the rewards
                "reward_R": turns.reward_R,
            }
        )
        while len(self) - len(self._steps[0]["reward_R"]) >= self._size:
            self._steps.popleft()

    def generator(self, step: int) -> np.random.Generator:
        """Return the random generator of a step."""
        return np.random.default_rng([self._seed, Stream.TRANSITIONS, step])

    def draw(self, number: int, generator: np.random.Generator) -> Turns:
        """Draw from the remembered trajectories uniformly, with replacement."""
        owner = np.repeat(np.arange(len(self._steps)), [len(step["responses"]) for step in self._steps])
        chosen = np.sort(generator.integers(len(owner), size=number))
        token_ids: list[np.ndarray] = []
        places: list[np.ndarray] = []
        whose, responses, tokens, rewards = [], [], [], []
        for k in np.unique(owner[chosen]):
            step, among = self._steps[k], chosen[owner[chosen] == k] - np.searchsorted(owner, k)
            by_trajectory = Segments.from_lengths(np.bincount(step["trajectory"], minlength=len(step["responses"])))
            rows = ranges(by_trajectory.offsets[among], by_trajectory.lengths[among])
            token_ids += _pieces(step["token_ids"], step["ids"], rows)
            places += _pieces(step["places"], step["generated"], rows)
            whose.append(by_trajectory.lengths[among])
            own = Segments.from_lengths(step["responses"])
            rows = ranges(own.offsets[among], own.lengths[among])
            responses.append(own.lengths[among])
            tokens.append(step["tokens"][rows])
            rewards.append(step["reward_R"][rows])
        sequences = Sequences(
            token_ids,
            places,
            Segments.from_lengths([len(each) for each in places]),
            np.repeat(np.arange(number), np.concatenate(whose)),
        )
        turns, parts = (Segments.from_lengths(np.concatenate(lengths)) for lengths in (responses, tokens))
        return Turns(sequences, turns, parts, np.concatenate(rewards))

    def state_dict(self) -> list[dict[str, np.ndarray]]:
        """Return the remembered steps."""
        return list(self._steps)

    def load_state_dict(self, state: Sequence[Mapping[str, np.ndarray]]) -> None:
        """Restore the steps that `state_dict` returned."""
        self._steps = deque(dict(step) for step in state)


def _pieces(values: np.ndarray, lengths: np.ndarray, rows: np.ndarray) -> list[np.ndarray]:
    """Return some of the pieces of these lengths that make up the values."""
    ends = np.cumsum(lengths)
    return [values[ends[row] - lengths[row] : ends[row]].astype(np.int64) for row in rows]
