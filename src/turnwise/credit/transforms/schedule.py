"""Let an option of a transform follow a schedule over the training steps that have something to learn from."""

from collections.abc import Callable

from turnwise.base.errors import ConfigError
from turnwise.credit.batch import Batch
from turnwise.credit.transform import Credit, State, Transform


def scheduled(make: Callable[[int], Transform], *, name: str, across_groups: bool | None = None) -> Transform:
    """Rebuild a stateless transform for each batch: `make(0)` for the first, `make(1)` for the second.

    Args:
        make: Function from the number of earlier batches to the transform; its needs must always be the same.
        name: Name for error messages.
        across_groups: Whether a group's credit depends on other groups in any batch; default: as in the first.

    Returns:
        A transform whose state is the number of earlier batches.

    Raises:
        ConfigError: `make` returns a transform with state.
    """
    first = make(0)
    if first.init is not None:
        raise ConfigError(f"{name}: {first.name} keeps state; only transforms without state can follow a schedule")

    def update(credit_R: Credit, state: State, batch: Batch) -> tuple[Credit, State]:
        step = 0 if state is None else int(state)
        return make(step).update(credit_R, None, batch)[0], step + 1

    across_groups = first.across_groups if across_groups is None else across_groups
    return Transform(name, update, init=int, needs=first.needs, across_groups=across_groups)


def linear(step: int, first: float, last: float, steps: int) -> float:
    """Interpolate from `first` at step 0 to `last` at step `steps`, and stay there; `steps=0`: always `last`."""
    return last if step >= steps else first + (last - first) * step / steps
