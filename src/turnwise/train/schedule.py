"""Schedule the learning rate and the mini-batches of a step."""

from typing import Any

import numpy as np

from turnwise.base.streams import Stream
from turnwise.objective.settings import UpdateConfig


def draws(seed: int, step: int) -> np.random.Generator:
    """Return the generator that draws the mini-batches of a step."""
    return np.random.default_rng([seed, Stream.MINI_BATCHES, step])


def mini_batches(
    matters_N: np.ndarray, unit_N: np.ndarray | None, count: int, generator: np.random.Generator
) -> list[np.ndarray]:
    """Split trajectories into optimiser steps in random order. Units stay together; empty parts are dropped."""
    if unit_N is None:
        unit_N = np.arange(len(matters_N))
    units = generator.permutation(np.unique(unit_N[matters_N]))
    parts = [np.flatnonzero(np.isin(unit_N, part)) for part in np.array_split(units, count)]
    return [part for part in parts if len(part)]


def set_learning_rate(optimizer: Any, settings: UpdateConfig, step: int, steps: int, factor: float = 1.0) -> None:
    """Give all weights the learning rate of a step, counted from 1, times a factor."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate(settings, step, steps) * factor


def learning_rate(settings: UpdateConfig, step: int, steps: int) -> float:
    """Return the learning rate of a step, counted from 1."""
    rise = min(1.0, step / max(1, settings.warmup_steps))
    fall = 1.0 - (step - 1) / steps if settings.decay else 1.0
    return settings.learning_rate * rise * fall
