"""A harness for a process of its own, which starts without torch."""

from typing import Any

from tests.rollout.curious import ask


def play_color_alone(task: Any, endpoint: Any) -> float:
    ask(endpoint)
    return 0.5


def play_with_numbers(task: Any, endpoint: Any) -> dict[str, Any]:
    import numpy as np

    ask(endpoint)
    return {"reward": np.float64(0.5), "info": {"found": np.int64(2), "at": np.array([1, 2])}}
