"""A walk on which failures end where successes pass by."""

from typing import Any

from turnwise.environments.base import Step


class Ways:
    """From "a" to "b" to a win. The word red goes on; another one stays, and the second turn is the last."""

    def __init__(self, seed: int, **options: Any):
        self.turn, self.place = 0, "a"

    @staticmethod
    def words(**options: Any) -> list[str]:
        return ["red", "pink"]

    def start(self) -> Step:
        return Step(observation=f"you are at {self.place}: go", state_key=self.place)

    def step(self, response: str) -> Step:
        self.turn += 1
        self.place = {"a": "b", "b": "won"}[self.place] if response == "red" else self.place
        over, won = self.turn == 2, self.place == "won"
        return Step(
            observation=f"you are at {self.place}", state_key=self.place, reward=float(won),
            terminated=won, truncated=over and not won, info={"success": won},
        )  # fmt: skip
