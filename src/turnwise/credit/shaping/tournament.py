"""Rank the trajectories of a group by tournaments of pairwise judgements (ArenaRL, arXiv 2601.06487).

    >>> import turnwise as tw
    >>> quality = [3.0, 9.0, 1.0, 7.0, 5.0]
    >>> arena = Arena(lambda pairs: [(quality[a], quality[b]) for a, b in pairs], len(quality))
    >>> single_elimination(arena).tolist(), arena.num_judged
    ([3.0, 0.0, 4.0, 1.0, 2.0], 12)
    >>> batch = tw.Batch(
    ...     tw.Segments([0, 5]), tw.Segments(range(6)), [0.0] * 5, {"rank": single_elimination(arena)}
    ... )
    >>> tw.arena_rl()(batch).round(2).tolist()
    [-0.63, 1.26, -1.26, 0.63, 0.0]

Judgements depend on the order of the two; each match is therefore judged in both orders. Every tournament takes an
`Arena`, or an `[N, N]` matrix of scores, and returns `[N]` ranks, 0 is best: the column `rank`.
"""

import math
from collections.abc import Callable, Sequence
from typing import Literal, get_args

import numpy as np

from turnwise.base.errors import ConfigError, did_you_mean

Judge = Callable[[Sequence[tuple[int, int]]], Sequence[tuple[float, float] | None]]
"""Function that judges ordered pairs (shown first, shown second): a score for both, or None if the judge failed."""

Byes = Literal["top", "release"]
"""Which trajectories skip the first round if their number is not a power of two: the best seeds, or as released."""


class Arena:
    """Judge matches within a group. Each match is judged once, in both orders, when a tournament first needs it.

    Args:
        judge: Function that judges pairs, see `Judge`.
        num: Number of trajectories.
        failed: Score of both sides if the judge failed.

    Attributes:
        num_judged: Number of judgements so far, two per match.
    """

    def __init__(self, judge: Judge, num: int, *, failed: float = 5.0):
        if num < 1:
            raise ConfigError(f"an arena needs at least one trajectory, got {num}")
        self.num, self.num_judged, self._judge, self._failed = num, 0, judge, failed
        self._scores: dict[tuple[int, int], float] = {}  # first against second, summed over both orders

    @classmethod
    def from_scores(cls, scores: np.ndarray) -> "Arena":
        """Build from `scores[a, b]`, the score of a against b, summed over both orders. The diagonal is ignored."""
        scores = np.asarray(scores, dtype=np.float64)
        if scores.ndim != 2 or scores.shape[0] != scores.shape[1]:
            raise ConfigError(f"scores must be square, one row and one column per trajectory, got shape {scores.shape}")
        arena = cls(lambda pairs: [], len(scores))
        arena._scores = {(a, b): float(scores[a, b]) for a in range(len(scores)) for b in range(len(scores)) if a != b}
        return arena

    def play(self, pairs: Sequence[tuple[int, int]]) -> list[tuple[float, float]]:
        """Return the scores of both sides of each match."""
        new = [(a, b) for a, b in dict.fromkeys(pairs) if (a, b) not in self._scores]
        orders = [order for a, b in new for order in ((a, b), (b, a))]
        judged = [(self._failed, self._failed) if j is None else j for j in self._judge(orders)] if orders else []
        if len(judged) != len(orders):
            raise ConfigError(
                f"the judge got {len(orders)} pairs and returned {len(judged)} results; it must return one per pair"
            )
        self.num_judged += len(orders)
        for (a, b), once, again in zip(new, judged[::2], judged[1::2], strict=True):
            self._scores[a, b], self._scores[b, a] = once[0] + again[1], once[1] + again[0]
        return [(self._scores[a, b], self._scores[b, a]) for a, b in pairs]


def single_elimination(matches: Arena | np.ndarray, *, anchor: int = 0, byes: Byes = "top") -> np.ndarray:
    """Rank by a knock-out tournament, seeded by matches with an anchor. About 2 (N - 1) matches.

    The seeding score is the score against the anchor, and for the anchor the mean of its scores. High seeds meet late.
    Ties go to the one placed first. Later losers rank better; losers of a round rank by their mean score over all
    matches.

    Args:
        matches: Arena or matrix of scores.
        anchor: Index of the trajectory that all others play first: the greedy one in the paper, the first one in the
            released code.
        byes: "top": the best seeds skip the first round. "release": gaps of the bracket are closed before pairing, so
            that with 3 trajectories the two best meet first and the worst skips the round.
    """
    if byes not in get_args(Byes):
        raise ConfigError(f"byes={byes!r} is not one of {get_args(Byes)}.{did_you_mean(str(byes), get_args(Byes))}")
    arena, scores = _start(matches)
    _play_anchor(arena, scores, anchor)
    seeds = sorted(range(arena.num), key=lambda n: -_mean(scores[n]))
    places = [0]
    while len(places) < arena.num:  # 1 meets 2 in the final, 1 and 2 meet 4 and 3 in the semifinals, and so on
        places = [place for seed in places for place in (seed, 2 * len(places) - 1 - seed)]
    slots: list[int | None] = [seeds[place] if place < arena.num else None for place in places]
    if byes == "release":
        slots = [slot for slot in slots if slot is not None]
    worst_first: list[list[int]] = []
    while len(slots) > 1:
        paired = list(zip(slots[::2], slots[1::2], strict=False))
        winners, losers = _round(arena, scores, [(a, b) for a, b in paired if a is not None and b is not None])
        won = iter(winners)
        slots = slots[2 * len(paired) :] + [next(won) if a is not None and b is not None else a for a, b in paired]
        worst_first.append(losers)
    return _ranked([[n for n in slots if n is not None], *reversed(worst_first)], scores)


def double_elimination(matches: Arena | np.ndarray, *, seed: int = 0) -> np.ndarray:
    """Rank by double elimination: losers play among themselves, and their winner plays the unbeaten trajectory.

    Args:
        matches: Arena or matrix of scores.
        seed: Seed of the random pairings.
    """
    arena, scores = _start(matches)
    generator = np.random.default_rng(seed)

    def play(field: list[int]) -> tuple[list[int], list[int]]:
        drawn = generator.permutation(field).tolist()
        excused = drawn[len(drawn) // 2 * 2 :]
        winners, losers = _round(arena, scores, list(zip(drawn[::2], drawn[1::2], strict=False)))
        return excused + winners, losers

    unbeaten, beaten_once, worst_first = list(range(arena.num)), [], []
    while len(unbeaten) > 1 or len(beaten_once) > 1:
        dropped: list[int] = []
        if len(unbeaten) > 1:
            unbeaten, dropped = play(unbeaten)
        beaten_once, out = (
            play(beaten_once + dropped) if len(beaten_once + dropped) > 1 else (beaten_once + dropped, [])
        )
        worst_first.append(out)
    winners, losers = _round(arena, scores, list(zip(unbeaten, beaten_once, strict=False)))
    return _ranked([winners or unbeaten, losers, *reversed(worst_first)], scores)


def round_robin(matches: Arena | np.ndarray) -> np.ndarray:
    """Rank by wins when all play each other, N (N - 1) / 2 matches. A draw is half a win; ties share the best rank."""
    arena, _ = _start(matches)
    pairs = [(a, b) for a in range(arena.num) for b in range(a)]
    wins = np.zeros(arena.num)
    for (a, b), (of_a, of_b) in zip(pairs, arena.play(pairs), strict=True):
        wins[a] += 0.5 + 0.5 * np.sign(of_a - of_b)
        wins[b] += 0.5 - 0.5 * np.sign(of_a - of_b)
    return _num_better(wins)


def anchor_only(matches: Arena | np.ndarray, *, anchor: int = 0) -> np.ndarray:
    """Rank by the score against the anchor, N - 1 matches. The anchor gets its mean score; ties share the best rank."""
    arena, scores = _start(matches)
    _play_anchor(arena, scores, anchor)
    return _num_better(np.array([_mean(of_one) for of_one in scores]))


def swiss(matches: Arena | np.ndarray, *, num_rounds: int | None = None, seed: int = 0) -> np.ndarray:
    """Rank by a Swiss tournament: rounds among trajectories of similar points, without repeated pairs if possible.

    A win or a bye is a point, a draw half a point. Ranks follow points, then the points of the opponents (Buchholz);
    ties share their mean rank.

    Args:
        matches: Arena or matrix of scores.
        num_rounds: Number of rounds; default ceil(log2 N).
        seed: Seed of the random pairings among equal points.
    """
    arena, _ = _start(matches)
    generator = np.random.default_rng(seed)
    points, met = np.zeros(arena.num), np.zeros((arena.num, arena.num), dtype=bool)
    wanted = math.ceil(math.log2(arena.num)) if num_rounds is None else num_rounds
    for _ in range(min(wanted, arena.num - 1)):
        waiting = sorted(generator.permutation(arena.num).tolist(), key=lambda n: -points[n])
        if len(waiting) % 2:
            points[waiting.pop()] += 1.0
        pairs = []
        while waiting:
            a = waiting.pop(0)
            b = next((n for n in waiting if not met[a, n]), waiting[0])
            waiting.remove(b)
            pairs.append((a, b))
        for (a, b), (of_a, of_b) in zip(pairs, arena.play(pairs), strict=True):
            points[a] += 0.5 + 0.5 * np.sign(of_a - of_b)
            points[b] += 0.5 - 0.5 * np.sign(of_a - of_b)
            met[a, b] = met[b, a] = True
    places = [(float(points[n]), float(points[met[n]].sum())) for n in range(arena.num)]
    order = sorted(places, reverse=True)
    return np.array([order.index(place) + (order.count(place) - 1) / 2 for place in places])


def _start(matches: Arena | np.ndarray) -> tuple[Arena, list[list[float]]]:
    """Return the arena, and an empty list of scores for each trajectory."""
    arena = matches if isinstance(matches, Arena) else Arena.from_scores(matches)
    return arena, [[] for _ in range(arena.num)]


def _play_anchor(arena: Arena, scores: list[list[float]], anchor: int) -> None:
    """Record the score of each trajectory against the anchor, and the anchor's mean score."""
    if not 0 <= anchor < arena.num:
        raise ConfigError(f"anchor={anchor} must be from 0 to {arena.num - 1}, the index of a trajectory")
    others = [n for n in range(arena.num) if n != anchor]
    played = arena.play([(n, anchor) for n in others])
    for n, (own, _) in zip(others, played, strict=True):
        scores[n].append(own)
    if played:
        scores[anchor].append(_mean([of_anchor for _, of_anchor in played]))


def _round(arena: Arena, scores: list[list[float]], pairs: list[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """Play matches, record the scores, and return winners and losers; the first of a tie wins."""
    winners, losers = [], []
    for (a, b), (of_a, of_b) in zip(pairs, arena.play(pairs), strict=True):
        scores[a].append(of_a)
        scores[b].append(of_b)
        winners.append(a if of_a >= of_b else b)
        losers.append(b if of_a >= of_b else a)
    return winners, losers


def _ranked(best_first: list[list[int]], scores: list[list[float]]) -> np.ndarray:
    """Rank trajectories by tier, then by mean score."""
    order = [n for tier in best_first for n in sorted(tier, key=lambda n: -_mean(scores[n]))]
    ranks = np.empty(len(order))
    ranks[order] = np.arange(len(order))
    return ranks


def _num_better(values: np.ndarray) -> np.ndarray:
    return (values[None, :] > values[:, None]).sum(axis=1).astype(np.float64)


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0
