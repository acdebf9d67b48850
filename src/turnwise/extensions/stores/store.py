"""Hold trajectories of a run for later steps: bounded, with the age and origin of every row."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np

from turnwise.base.errors import DataError, RunError
from turnwise.extensions.stores.rows import Row, read_store, write_store
from turnwise.extensions.stores.settings import StoreConfig

Settings = TypeVar("Settings", bound=StoreConfig, covariant=True)


class Store(Generic[Settings]):
    """Keep trajectories, oldest first.

    Args:
        settings: The `[store]` of a recipe.
        names: Function that names the task of a number, to check the tasks of `settings.start`.

    Raises:
        DataError: The store to start with cannot be read, or is of other tasks.
    """

    def __init__(self, settings: Settings, names: Callable[[int], str]):
        self.settings = settings
        self.rows: tuple[Row, ...] = ()  # the stored trajectories
        if settings.start is not None:
            rows = read_store(settings.start)
            for number, row in enumerate(rows, 1):
                name = names(row.task)
                if name != row.trajectory.task:
                    raise DataError(
                        f"{settings.start}, row {number}: task {row.task} is {row.trajectory.task!r} there and "
                        f"{name!r} here; use a store of the same environment and options, or remove store.start"
                    )
            last = max((row.step for row in rows), default=0)
            self.add([dataclasses.replace(row, step=row.step - last) for row in rows], step=0)

    def add(self, rows: Iterable[Row], *, step: int) -> None:
        """Add rows, and drop those that are too old or too many."""
        settings, kept, count = self.settings, list[Row](), Counter[int]()
        for row in reversed([*self.rows, *rows]):  # the latest first
            old = settings.max_age is not None and step - row.step > settings.max_age
            full = settings.per_task is not None and count[row.task] >= settings.per_task
            if not old and not full and len(kept) < settings.capacity:
                count[row.task] += 1
                kept.append(row)
        self.rows = tuple(reversed(kept))

    def clear(self) -> None:
        """Remove all rows."""
        self.rows = ()

    def of(self, task: int) -> list[Row]:
        """Return the rows of a task, oldest first."""
        return [row for row in self.rows if row.task == task]

    def metrics(self, step: int) -> dict[str, float]:
        """Return `stored` (rows), and mean and largest age (steps) if there are any."""
        ages = np.array([step - row.step for row in self.rows])
        metrics = {"stored": float(len(ages))}
        return metrics | ({"stored_age": float(ages.mean()), "stored_age_max": float(ages.max())} if len(ages) else {})

    def state_dict(self) -> "StoredRows":
        """Return the rows; a checkpoint saves them in a separate file."""
        return StoredRows(self.rows)

    def load_state_dict(self, state: Path | Sequence[Row]) -> None:
        """Restore the rows, or load them from the file of a checkpoint.

        Raises:
            RunError: The file is damaged, and the settings do not say to continue without it.
        """
        try:
            self.rows = tuple(read_store(state) if isinstance(state, Path) else state)
        except DataError as error:
            if self.settings.damaged == "refuse":
                raise RunError(
                    f"{error}; restore it from a copy, or resume with store.damaged=empty to continue with an empty "
                    "store"
                ) from None
            self.rows = ()


class StoredRows(tuple[Row, ...]):
    """Rows as a checkpoint keeps them; see `turnwise.train.checkpoint.OwnFile`."""

    __slots__ = ()

    def write(self, path: Path, **of: str | int) -> None:
        """Write the file of the rows."""
        write_store(path, self, **of)
