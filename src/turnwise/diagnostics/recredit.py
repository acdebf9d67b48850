"""Credit assigned anew to recorded rollouts, and how two ways of giving it differ on the same responses."""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from jaxtyping import Float

from turnwise.batch import Batch
from turnwise.config import Config
from turnwise.errors import BatchError, DataError, RunError
from turnwise.rollout.record import write_table
from turnwise.segments import Segments
from turnwise.train.folder import RunFolder, by_step
from turnwise.train.recorded import read_step as recorded_step
from turnwise.train.recorded import recorded_batch
from turnwise.transform import Transform

Values = Float[np.ndarray, " R"]


@dataclasses.dataclass(frozen=True)
class Recorded:
    """What a step learned from, as its file tells.

    Attributes:
        step: Its number.
        batch: The responses with the columns that the trainer gave to the method.
        response_R: Texts of the responses.
        advantage_R: The advantages that the run trained with.
        row_R: Their rows in the file.
    """

    step: int
    batch: Batch
    response_R: np.ndarray
    advantage_R: np.ndarray
    row_R: np.ndarray


def recorded_steps(folder: RunFolder) -> list[int]:
    """Steps whose rollouts are there.

    Raises:
        RunError: None is.
    """
    steps = list(by_step(folder.rollouts, ".parquet"))
    if not steps:
        raise RunError(f"{folder.path} has no rollouts; only runs that have kept them can be credited anew")
    return steps


def read_step(folder: RunFolder, config: Config, step: int) -> Recorded | None:
    """Read a step back; None where it learned from nothing.

    Raises:
        DataError: The file is missing, damaged or of another version.
    """
    recorded = recorded_step(folder.rollouts / f"step-{step:06d}.parquet")
    kept = recorded.learned_R
    if not kept.any():
        return None
    batch, response_R = recorded_batch(recorded, config), recorded.table["response"].to_numpy()[kept]
    return Recorded(step, batch, response_R, recorded.values("advantage")[kept], np.flatnonzero(kept))


def replay(
    folder: RunFolder, config: Config, method: Transform, *, only: int | None = None
) -> Iterator[tuple[Recorded, Values]]:
    """Assign credit to the recorded steps in their order.

    A method that keeps state (a running baseline) sees all steps from the first one on, whichever is asked for.

    Args:
        folder: Of the run.
        config: Of the run.
        method: Of `turnwise.train.credit.make_credit`.
        only: Yield this step alone; default: every step.

    Yields:
        A step and the advantages that the method gives to its responses.

    Raises:
        RunError: The step was not recorded, or earlier ones that the method's state depends on were not.
        DataError: A file is damaged, or lacks a column that the method needs, as files of early versions do.
    """
    steps = recorded_steps(folder)
    if only is not None and only not in steps:
        raise RunError(f"{folder.path} has no rollouts of step {only}; it has those of {_ranges(steps)}")
    if method.init is None and only is not None:
        steps = [only]
    elif method.init is not None and steps != list(range(1, steps[-1] + 1)):
        raise RunError(
            f"{method.name} keeps state and needs the rollouts of all steps; {folder.path} has those of {_ranges(steps)}"
        )
    state = method.init() if method.init else None
    for step in steps:
        recorded = read_step(folder, config, step)
        if recorded is None:
            continue
        try:
            advantage_R, state = method.update(recorded.batch.reward_R, state, recorded.batch)
        except BatchError as error:
            raise DataError(f"step {step} of {folder.path}: {error}") from None
        if only in (None, step):
            yield recorded, advantage_R
        if step == only:
            return


def _ranges(steps: Sequence[int]) -> str:
    return f"{steps[0]} to {steps[-1]}" if len(steps) == steps[-1] - steps[0] + 1 else ", ".join(map(str, steps))


@dataclasses.dataclass(frozen=True)
class Statistics:
    """How a method's advantages look, beside those that the run trained with.

    Attributes:
        agreement: Share of responses whose advantage has the same sign as the run's (0 is a sign of its own).
        correlation: Pearson's, over responses; NaN where one of the two is constant.
        equal: Share of responses with exactly the run's advantage.
        variance: Mean squared advantage in units of the run's: 1 means steps of the same size.
        zero_frac: Share of responses without credit.
        share_K: `[thirds]` share of the absolute advantage that falls on the first, middle and last third of a trajectory's turns.
        signal_to_noise: See `signal_to_noise`; NaN where it cannot be told.
    """

    agreement: float
    correlation: float
    equal: float
    variance: float
    zero_frac: float
    share_K: np.ndarray
    signal_to_noise: float


def same_sign(x: np.ndarray, y: np.ndarray) -> float:
    """Share of places where both have the same sign."""
    return float(np.mean(np.sign(x) == np.sign(y)))


def statistics(replayed: Sequence[tuple[Recorded, Values]]) -> Statistics:
    """Compare a method's advantages with those that the run trained with, over all given steps."""
    new = np.concatenate([advantage_R for _, advantage_R in replayed])
    old = np.concatenate([recorded.advantage_R for recorded, _ in replayed])
    third = np.concatenate([_third(recorded.batch.trajectories) for recorded, _ in replayed])
    weight = np.bincount(third, np.abs(new), minlength=3)
    varied = new.std() > 0 and old.std() > 0
    signal, noise = np.sum([signal_and_noise(*step) for step in replayed], axis=0)
    return Statistics(
        agreement=same_sign(new, old),
        correlation=float(np.corrcoef(new, old)[0, 1]) if varied else np.nan,
        equal=float(np.mean(new == old)),
        variance=float(np.mean(new**2) / np.mean(old**2)) if np.any(old) else np.nan,
        zero_frac=float(np.mean(new == 0)),
        share_K=weight / weight.sum() if weight.any() else weight * np.nan,
        signal_to_noise=float(signal / noise) if noise > 0 else np.nan,
    )


def _third(trajectories: Segments) -> np.ndarray:
    """Third of its trajectory that the middle of each response is in: 0, 1 or 2; an only response is in the middle, of two none is."""
    return 3 * (2 * trajectories.positions + 1) // (2 * trajectories.broadcast(trajectories.lengths))


def signal_and_noise(recorded: Recorded, advantage_R: Values) -> tuple[float, float]:
    """Signal and noise of the policy gradient, without the policy: sums over the groups of a step, whose ratio is the signal to noise.

    The gradient is that of a table of logits with a row a state (`state_key`) and an entry a response text, the policy being how often the
    group's trajectories said what in that state:

        g_n = sum over the turns t of trajectory n of  A_t * (e[s_t, y_t] - pi(. | s_t))
        noise = sum_n |g_n - mean(g)|^2 / (N - 1) / N                      variance of the mean of N trajectories, unbiased
        signal = |mean(g)|^2 - noise                                       squared length of the expected gradient, unbiased

    if the trajectories of a group are independent. Their advantages are not quite, since a group method compares them with each other, which
    biases both by O(1 / N). The ratio of a gradient's squared mean to its variance as a measure of learning speed is Roberts and Tedrake's
    (Signal-to-Noise Ratio Analysis of Policy Gradient Algorithms, NIPS 2008), in our choice of estimator and parameters: it says whether
    trajectories that met in a state agree on what to do there, not what a neural policy would make of it.
    """
    batch = recorded.batch
    group_R, trajectory_R = batch.group_responses.ids, batch.trajectories.ids
    state_R = _codes(group_R, batch.columns["state_key"])
    entry_R = _codes(state_R, np.unique(recorded.response_R, return_inverse=True)[1])
    count_S = np.bincount(state_R)
    state_of_entry = np.zeros(entry_R.max() + 1, dtype=np.int64)
    state_of_entry[entry_R] = state_R
    pi_Y = np.bincount(entry_R) / count_S[state_of_entry]
    group_of_entry = np.zeros(len(state_of_entry), dtype=np.int64)
    group_of_entry[entry_R] = group_R
    signal = noise = 0.0
    for group in range(batch.num_groups):
        mine = group_R == group
        entries = np.flatnonzero(group_of_entry == group)
        place = np.searchsorted(entries, entry_R[mine])
        members, row = np.unique(trajectory_R[mine], return_inverse=True)
        if len(members) < 2:
            continue
        states, column = np.unique(state_of_entry[entries], return_inverse=True)
        gradient = np.zeros((len(members), len(entries)))
        np.add.at(gradient, (row, place), advantage_R[mine])
        visited = np.zeros((len(members), len(states)))
        np.add.at(visited, (row, column[place]), advantage_R[mine])
        gradient -= visited[:, column] * pi_Y[entries]
        mean = gradient.mean(axis=0)
        group_noise = ((gradient - mean) ** 2).sum() / (len(members) - 1) / len(members)
        noise += group_noise
        signal += float(mean @ mean) - group_noise
    return signal, noise


def _codes(outer: np.ndarray, inner: np.ndarray) -> np.ndarray:
    """A code for each distinct pair."""
    return np.unique(np.stack([outer, inner]), axis=1, return_inverse=True)[1].ravel()


def write_credit(path: Path, replayed: Sequence[tuple[Recorded, Values]]) -> None:
    """Write a Parquet row a response: `step`, its `row` in the rollout file, the `recorded` advantage and the new `advantage`."""
    columns = {
        "step": [np.full(len(advantage_R), recorded.step) for recorded, advantage_R in replayed],
        "row": [recorded.row_R for recorded, _ in replayed],
        "recorded": [recorded.advantage_R for recorded, _ in replayed],
        "advantage": [advantage_R for _, advantage_R in replayed],
    }
    write_table(path, pa.table({name: np.concatenate(parts) for name, parts in columns.items()}))
