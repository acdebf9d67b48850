"""Write an environment, test it, and train a policy from random weights in it, in a few seconds on a CPU.

    python examples/environment_of_my_own.py

A kettle must boil before a guest gets the drink that was asked for. A cold drink is paid a little.
"""

import tempfile
from pathlib import Path

from turnwise.config import parse_config
from turnwise.environments.base import Step
from turnwise.environments.check import check_environment
from turnwise.environments.suites import Seeded
from turnwise.train.loop import train

DRINKS = ("tea", "coffee")


class Kettle:
    """Boil water, then serve what the guest wants, in at most three turns."""

    def __init__(self, seed: int, *, turns: int = 3):
        self.wanted, self.turns, self.hot = DRINKS[seed % len(DRINKS)], turns, False

    def start(self) -> str:
        """Return what the guest says."""
        return self.wanted

    def step(self, response: str) -> Step:
        """Boil or serve."""
        self.turns -= 1
        valid = response == "boil" or response in DRINKS
        served = response in DRINKS
        success = served and self.hot and response == self.wanted
        self.hot = self.hot or response == "boil"
        return Step(
            observation=f"{self.wanted} {'hot' if self.hot else 'cold'}",
            reward=1.0 if success else 0.3 * (response == self.wanted),
            terminated=served or self.turns == 0,
            valid=valid,
            admissible=["boil", *DRINKS],
            info={"success": success},
        )

    @staticmethod
    def words(**options) -> list[str]:
        """List the words of observations and responses, for policies made from scratch."""
        return ["tea coffee boil hot cold"]


def config(folder: Path, *, steps: int = 40):
    """Return the configuration of a short run; a recipe has the same keys."""
    return parse_config(
        {
            "run": {"name": "kettle", "folder": folder, "steps": steps, "threads": 1},
            "method": "trloo",  # compares with the same turn of the other trajectories
            "environment": {"name": "environment_of_my_own:Kettle"},
            "model": {"hidden_size": 32, "num_layers": 1, "max_context": 64},
            "warmstart": {"steps": 0},
            "rollout": {"groups": 6, "group_size": 16, "max_new_tokens": 2},
            "update": {"learning_rate": 1e-2, "mini_batches": 2},
            "evaluate": {"every": 0, "final_episodes": 60, "temperature": 1.0},
        }
    )


if __name__ == "__main__":
    print(check_environment(Seeded(Kettle, {})))  # []
    with tempfile.TemporaryDirectory() as temporary:
        records = train(config(Path(temporary))).metrics()
    before, after = (record["eval/success"] for record in records if "eval/success" in record)
    print(f"held-out success: {before:.2f} before, {after:.2f} after training")
    print(after > before + 0.3)  # True
