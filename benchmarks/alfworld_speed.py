"""Measure the speed of the native ALFWorld engine and of TextWorld on the same games: load, reset, steps.

    ALFWORLD_DATA=... python benchmarks/alfworld_speed.py --games 20

TextWorld is measured where the official package can be imported (`pip install alfworld==0.4.2 jaxtyping`); otherwise
the report says that it is missing. Game by game in one process, both play the same 20 random commands. turnwise then
plays 2,000, for a steadier figure; TextWorld would take minutes per game. The figures are processor time, on which
other work on the machine has less influence.
"""

import argparse
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # the official environment may lack turnwise

from benchmarks.credit_speed import cpu

from turnwise.worlds.alfworld.engine import compile_game
from turnwise.worlds.alfworld.environment import AlfworldEnvironment
from turnwise.worlds.alfworld.files import find_games, load_game

FEW, MANY = 20, 2000
"""Steps of a game."""


class Native:
    """The native engine behind the environment protocol."""

    name = "turnwise"

    def __init__(self, steps: int):
        self.steps = steps

    def load(self, path: Path) -> None:
        """Read and compile a game."""
        compile_game.cache_clear()  # of an earlier load of the game
        self.game = load_game(path)
        compile_game(self.game)

    def reset(self) -> Sequence[str]:
        """Restart the game; return the admissible commands."""
        self.environment = AlfworldEnvironment(self.game, max_steps=sys.maxsize)
        return self.environment.start().admissible or ()

    def step(self, command: str) -> Sequence[str]:
        """Play a command; return the admissible commands."""
        step = self.environment.step(command)
        return self.reset() if step.ended else step.admissible or ()


class Official:
    """TextWorld, set up as in the official package."""

    name = "TextWorld"
    steps = FEW

    def __init__(self) -> None:
        import textworld
        from alfworld.agents.environment.alfred_tw_env import AlfredDemangler, AlfredInfos

        infos = textworld.EnvInfos(won=True, admissible_commands=True, extras=["gamefile"])
        self.open: Callable[[str], Any] = lambda path: textworld.start(path, infos, [AlfredDemangler(), AlfredInfos])

    def load(self, path: Path) -> None:
        """Open a game."""
        self.environment = self.open(str(path))

    def reset(self) -> Sequence[str]:
        """Restart the game; return the admissible commands."""
        return self.environment.reset()["admissible_commands"]

    def step(self, command: str) -> Sequence[str]:
        """Play a command; return the admissible commands."""
        return self.environment.step(command)[0]["admissible_commands"]


def timed(action: Callable[[], Any]) -> tuple[float, Any]:
    begun = time.process_time()
    answer = action()
    return time.process_time() - begun, answer


def measure(player: Native | Official, path: Path, seed: int) -> tuple[float, float, float]:
    """Measure the seconds of a load, a reset and a step."""
    generator = random.Random(seed)
    loading, _ = timed(lambda: player.load(path))
    resetting, admissible = timed(player.reset)

    def play() -> None:
        commands = admissible
        for _ in range(player.steps):
            commands = player.step(generator.choice(commands))

    playing, _ = timed(play)
    return loading, resetting, playing / player.steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--split", default="valid_seen")
    parser.add_argument("--games", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    games = find_games(options.split)
    games = random.Random(options.seed).sample(games, min(options.games, len(games)))
    players: list[Native | Official] = [Native(FEW), Native(MANY)]
    try:
        players.append(Official())
    except ImportError as error:
        print(f"TextWorld is not measured: {error}")

    print(f"{cpu()}; {len(games)} games of {options.split}")
    print(f"{'':<12}{'steps':>8}{'load ms':>10}{'reset ms':>10}{'steps/s':>10}")
    seconds = [[measure(player, path, options.seed) for player in players] for path in games]
    for player, measured in zip(players, zip(*seconds, strict=True), strict=True):
        load, reset, step = (sum(column) / len(games) for column in zip(*measured, strict=True))
        print(f"{player.name:<12}{player.steps:>8,}{load * 1000:>10.2f}{reset * 1000:>10.3f}{1 / step:>10.0f}")


if __name__ == "__main__":
    main()
