"""Assign credit to recorded rollouts again, and compare it with the run's."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from turnwise.base.errors import BatchError, DataError, RunError
from turnwise.base.shapes import Float
from turnwise.credit.batch import Batch
from turnwise.credit.metrics import returns_differ
from turnwise.credit.segments import Labels, Segments
from turnwise.credit.trace import Trace
from turnwise.credit.transform import Transform
from turnwise.rollout.record import write_table
from turnwise.train.folder import RunFolder, by_step
from turnwise.train.recorded import how_to_fill, lacking, read_step, recorded_batch

Values = Float[np.ndarray, " R"]


@dataclasses.dataclass(frozen=True)
class Recorded:
    """Hold the recorded responses that a step learned from.

    Attributes:
        step: Number of the step.
        batch: Responses with the columns that the trainer gave to the method.
        response_R: Texts of the responses.
        advantage_R: Advantages that the run trained with.
        row_R: Rows of the responses in the file.
    """

    step: int
    batch: Batch
    response_R: np.ndarray
    advantage_R: np.ndarray
    row_R: np.ndarray


Read = Callable[[int], Recorded | None]
"""Function from the number of a step to its record."""


def recorded_steps(folder: RunFolder) -> list[int]:
    """List the steps with recorded rollouts.

    Raises:
        RunError: There are none.
    """
    steps = list(by_step(folder.rollouts, ".parquet"))
    if not steps:
        raise RunError(f"{folder.path} has no rollouts, which recredit needs; choose a run that recorded them")
    return steps


def read_recorded(folder: RunFolder, step: int, *, invalid_penalty: float) -> Recorded | None:
    """Load the record of a step; None if it learned nothing.

    Args:
        folder: Folder of the run.
        step: Number of the step.
        invalid_penalty: `environment.invalid_penalty` of the run.

    Raises:
        DataError: The file is missing, damaged or of another version.
    """
    recorded = read_step(folder.rollouts / f"step-{step:06d}.parquet")
    kept = recorded.learned_R
    if not kept.any():
        return None
    batch, response_R = (
        recorded_batch(recorded, invalid_penalty=invalid_penalty),
        recorded.table["response"].to_numpy()[kept],
    )
    return Recorded(step, batch, response_R, recorded.values("advantage")[kept], np.flatnonzero(kept))


def replay(
    folder: RunFolder, method: Transform, *, invalid_penalty: float, only: int | None = None, read: Read | None = None
) -> Iterator[tuple[Recorded, Trace]]:
    """Assign credit to recorded steps in order.

    A method that keeps state (a running baseline) sees all steps from the first on, even with `only`.

    Args:
        folder: Folder of the run.
        method: Method, such as `turnwise.train.credit.make_transform` builds.
        invalid_penalty: `environment.invalid_penalty` of the run.
        only: Step to yield; default: every step.
        read: Reads a step, such as `functools.cache` of the default where several methods see the same steps.

    Yields:
        A step, and the trace of the credit that the method assigns to its responses.

    Raises:
        RunError: The step, or an earlier one that the method's state depends on, was not recorded.
        DataError: A file is damaged, or lacks a column that the method needs, such as files of early versions.
    """
    steps = recorded_steps(folder)
    if only is not None and only not in steps:
        raise RunError(
            f"{folder.path} has no rollouts of step {only}; recorded steps: {_ranges(steps)}. Choose one of these"
        )
    if method.init is None and only is not None:
        steps = [only]
    elif method.init is not None and steps != list(range(1, steps[-1] + 1)):
        raise RunError(
            f"{method.name} keeps state and needs the rollouts of all steps; {folder.path} has only {_ranges(steps)}"
        )
    state, read = None, read or functools.partial(read_recorded, folder, invalid_penalty=invalid_penalty)
    for step in steps:
        recorded = read(step)
        if recorded is None:
            continue
        if missing := lacking(recorded.batch, method.needs):
            mend = how_to_fill(missing[0], RunFolder.open(folder.path)[1].environment.name)
            raise DataError(
                f"the method needs the column {missing[0]!r}, which step {step} of {folder.path} does not have: {mend}"
            )
        try:
            trace, state = method.trace(recorded.batch, state)
        except BatchError as error:
            raise DataError(f"step {step} of {folder.path}: {error}") from None
        if only in (None, step):
            yield recorded, trace
        if step == only:
            return


def _ranges(steps: Sequence[int]) -> str:
    return f"{steps[0]} to {steps[-1]}" if len(steps) == steps[-1] - steps[0] + 1 else ", ".join(map(str, steps))


@dataclasses.dataclass(frozen=True)
class Statistics:
    """Compare a method's advantages with those that the run trained with.

    Attributes:
        agreement: Share of responses whose advantage has the same sign as the run's (0 counts as a separate sign).
        correlation: Pearson's, over responses; NaN if either is constant, or without signal.
        equal: Share of responses with exactly the run's advantage.
        variance: Mean squared advantage relative to the run's; 1 means the same scale.
        zero_frac: Share of responses without credit.
        share_K: `[thirds]` share of the absolute advantage in the first, middle and last third of the turns.
        signal_to_noise: Ratio of `signal_and_noise`; NaN if undefined.
        signal_frac: Share of groups whose returns differ. At 0, credit comes only from penalties and bonuses, which all
            methods share.
    """

    agreement: float
    correlation: float
    equal: float
    variance: float
    zero_frac: float
    share_K: np.ndarray
    signal_to_noise: float
    signal_frac: float


def as_recorded(credit_R: Values, batch: Batch) -> Values:
    """Return credit as a record has it: a response that trajectories share has the mean over them."""
    rows = Labels.of(batch.columns["prefix"])
    return rows.broadcast(rows.sum(credit_R) / rows.lengths)  # with the rounding of `write_rollouts`


def same_sign(x: np.ndarray, y: np.ndarray) -> float:
    """Return the share of entries with the same sign."""
    return float(np.mean(np.sign(x) == np.sign(y)))


def statistics(replayed: Sequence[tuple[Recorded, Trace]]) -> Statistics:
    """Compare a method's advantages with the run's, over all given steps."""
    new = np.concatenate([as_recorded(trace.advantage_R, recorded.batch) for recorded, trace in replayed])
    old = np.concatenate([recorded.advantage_R for recorded, _ in replayed])
    third = np.concatenate([_third(recorded.batch.trajectories) for recorded, _ in replayed])
    weight = np.bincount(third, np.abs(new), minlength=3)
    signal_G = np.concatenate([returns_differ(recorded.batch) for recorded, _ in replayed])
    varied = new.std() > 0 and old.std() > 0 and signal_G.any()
    signal, noise = np.sum([signal_and_noise(step, trace.advantage_R) for step, trace in replayed], axis=0)
    return Statistics(
        agreement=same_sign(new, old),
        correlation=float(np.corrcoef(new, old)[0, 1]) if varied else np.nan,
        equal=float(np.mean(new == old)),
        variance=float(np.mean(new**2) / np.mean(old**2)) if np.any(old) else np.nan,
        zero_frac=float(np.mean(new == 0)),
        share_K=weight / weight.sum() if weight.any() else weight * np.nan,
        signal_to_noise=float(signal / noise) if noise > 0 else np.nan,
        signal_frac=float(signal_G.mean()),
    )


def _third(trajectories: Segments) -> np.ndarray:
    """Return the third of its trajectory that each response's middle lies in: 0, 1 or 2."""
    return 3 * (2 * trajectories.positions + 1) // (2 * trajectories.broadcast(trajectories.lengths))


def signal_and_noise(recorded: Recorded, advantage_R: Values) -> tuple[float, float]:
    """Estimate signal and noise of a tabular policy gradient, summed over the groups of a step.

    The table has one row of logits per state (`state_key`) and one entry per response text. Its policy is the frequency
    of each response in that state among the group's trajectories:

        g_n = sum over the turns t of trajectory n of  A_t * (e[s_t, y_t] - pi(. | s_t))
        noise = sum_n |g_n - mean(g)|^2 / (N - 1) / N        variance of the mean of N trajectories
        signal = |mean(g)|^2 - noise                         squared length of the expected gradient

    Both are unbiased if the trajectories of a group are independent. A group method compares them, which biases both
    by O(1 / N). The ratio measures whether trajectories in the same state agree on what to do there, not what a neural
    policy learns from them.

    Reference: Roberts and Tedrake, Signal-to-Noise Ratio Analysis of Policy Gradient Algorithms, NIPS 2008. The
    estimator and the parameters are ours.
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
    """Return a code for each distinct pair."""
    return Labels.of(outer, inner).ids


def write_credit(path: Path, replayed: Sequence[tuple[Recorded, Trace]]) -> None:
    """Write a Parquet row per response.

    Columns: `step`, `row` in the rollout file, `recorded` advantage, and the new trace: `base`, `alpha`, `advantage`,
    and the result of each traced block.
    """
    columns = {
        "step": [np.full(len(recorded.row_R), recorded.step) for recorded, _ in replayed],
        "row": [recorded.row_R for recorded, _ in replayed],
        "recorded": [recorded.advantage_R for recorded, _ in replayed],
    }
    names = [name for name in replayed[0][1].columns if all(name in trace.columns for _, trace in replayed)]
    columns |= {name: [as_recorded(t.columns[name], each.batch) for each, t in replayed] for name in names}
    write_table(path, pa.table({name: np.concatenate(parts) for name, parts in columns.items()}))
