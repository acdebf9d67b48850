"""Values for every column that methods know, so that each law runs on every method.

A value depends on the identity of its response (or trajectory) and on the column's name only: wherever a response goes,
its values go with it.
"""

import zlib

import numpy as np

from turnwise.credit.columns import COLUMNS

RANGES: dict[str, tuple[float, float]] = {
    "entropy": (0.0, 2.0),
    "peak_entropy": (1.0, 4.0),
    "logprob": (-2.0, -0.1),
    "rare_logprob": (-5.0, -1.0),
    "mismatch": (-0.003, 0.003),
    "mismatch_min": (-12.0, 0.0),
    "length": (1, 12),
    "penalty": (-1.0, 0.0),
    "success": (0, 1),
    "finished": (0, 1),
    "truncated": (0, 1),
    "replayed": (0, 1),
    "learned": (0, 1),
    "unfinished": (0, 1),
    "num_paths": (1, 4),
    "step_reward": (0, 1),
    "progress": (-2.0, 3.0),
    "rubric": (0.0, 1.0),
    "profile_frac": (0.0, 1.0),
    "checks": (0.0, 1.0),
    "turn_drop": (-0.5, 1.0),
    "ref_logprob": (-2.0, -0.1),
    "prompt_logprob": (-3.0, -1.0),
    "gold_logprob": (-4.0, -0.1),
    "hindsight_logprob": (-2.0, -0.1),
    "info_gain": (-0.5, 1.0),
    "confidence": (0.0, 1.0),
    "accuracy": (0.0, 1.0),
    "implicit_reward": (-3.0, 3.0),
    "value": (-1.0, 1.0),
    "value_action": (-1.0, 1.0),
    "value_next": (-1.0, 1.0),
    "value_after": (-1.0, 1.0),
    "value_T": (-1.0, 1.0),
    "token_T": (0, 9),
    "teacher_gap_T": (-2.0, 2.0),
    "entropy_T": (0.0, 2.0),
    "cut_T": (0, 1),
    "cut_value_T": (-1.0, 1.0),
    "value_low": (-1.0, 1.0),
    "value_high": (-1.0, 1.0),
    "value_switch": (-1.0, 1.0),
    "switch": (0, 1),
    "subgoal_changed": (0, 1),
    "part_T": (0, 4),
    "effective_rank": (1.0, 8.0),
    "rank_velocity": (-1.0, 1.0),
    "rank_acceleration": (-1.0, 1.0),
}
"""Least and greatest value; whole numbers in between where both are written as such."""

LABELS = {
    "state_key": 3,
    "end_key": 4,  # one of them is nobody's state
    "action_key": 2,
    "role": 2,
    "prefix": 4,
    "tree": 2,
    "task": 5,
    "state_text": 4,
    "player": 3,
}
"""How many different names."""

OF_TRAJECTORY = {"success", "finished", "unfinished", "replayed", "rank", "tree", "player", "end_key"}
OF_GROUP = {"task", "prompt_logprob"}


def make_columns(names, identity, trajectory, group, place) -> dict[str, np.ndarray | list[str]]:
    """Columns of responses, given by who they are. A column of tokens has one array per response, `length` long.

    Args:
        names: Columns wanted.
        identity: `[rows]` number of each response.
        trajectory: `[rows]` number of its trajectory.
        group: `[rows]` number of its group.
        place: `[rows]` number of its trajectory within the group, from 0.
    """
    made = {name: _column(name, identity, trajectory, group, place) for name in names if not name.endswith("_T")}
    lengths = _column("length", identity, trajectory, group, place).astype(int)
    token = [np.arange(length) + 1000 * (1 + int(who)) for who, length in zip(identity, lengths, strict=True)]
    flat, ends = np.concatenate(token).astype(np.uint64), np.cumsum(lengths)[:-1]
    for name in names:
        if name.endswith("_T"):
            made[name] = np.split(_in_range(name, _chance(name, flat)), ends)
    return made


def _column(name, identity, trajectory, group, place):
    if name == "rank":
        return np.asarray(place, dtype=np.float64)
    whose = group if name in OF_GROUP else trajectory if name in OF_TRAJECTORY else identity
    chance = _chance(name, np.asarray(whose, dtype=np.uint64))
    if name in LABELS:
        number = (chance * LABELS[name]).astype(int)
        if COLUMNS[name].kind == "text":
            return [f"you see {'lamp desk ' * (1 + n)}and a {('mug', 'fork')[n % 2]}" for n in number]
        return number
    return _in_range(name, chance)


def _in_range(name: str, chance: np.ndarray) -> np.ndarray:
    low, high = RANGES[name]
    return np.floor(low + chance * (high - low + 1)) if isinstance(low, int) else low + chance * (high - low)


def _chance(name: str, number: np.ndarray) -> np.ndarray:
    """A fixed uniform number in [0, 1) of every number, another for every name (splitmix64)."""
    with np.errstate(over="ignore"):
        z = (number + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(zlib.crc32(name.encode()))
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    return (z >> np.uint64(11)).astype(np.float64) / 2**53


def test_every_column_has_values():
    assert set(RANGES) | set(LABELS) | {"rank"} == set(COLUMNS)
    assert all((COLUMNS[name].kind != "value") == (name in LABELS) for name in COLUMNS)
