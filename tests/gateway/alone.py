"""A harness for a process of its own, which starts without torch."""

from typing import Any

from tests.rollout.curious import ask


def play_color_alone(task: Any, endpoint: Any) -> float:
    ask(endpoint)
    return 0.5
