"""Suites of generated and real ALFWorld games."""

import functools
import random
from collections.abc import Iterable, Sequence
from typing import Any

from turnwise.base.errors import ConfigError, did_you_mean
from turnwise.environments.base import Demonstrated, Environment, Task
from turnwise.environments.needs import check_counts
from turnwise.environments.settings import EnvironmentConfig
from turnwise.environments.words import split_words
from turnwise.worlds.alfworld.engine import BANNER, HELP, NOTHING_HAPPENS, GameEngine, display_names
from turnwise.worlds.alfworld.environment import AlfworldEnvironment
from turnwise.worlds.alfworld.expert import Expert
from turnwise.worlds.alfworld.files import find_games, load_game
from turnwise.worlds.alfworld.game import TABLES, GameData
from turnwise.worlds.alfworld.generate import generate_games
from turnwise.worlds.alfworld.rooms import FLOOR, KINDS, RECEPTACLES, TEMPLATES

DEEDS = ("take", "move", "clean", "heat", "cool", "slice", "use", "toggle")
"""Commands that end a subgoal; all others search for something."""


def with_subgoals(turns: Sequence[Demonstrated]) -> list[Demonstrated]:
    """Return the turns with their subgoals, such as "take mug" and "move mug to shelf".

    A subgoal names kinds of things, not the one that the expert finds later. Noise ends no subgoal.
    """
    result: list[Demonstrated] = []
    subgoal = "look"
    for turn in reversed(turns):
        if turn.imitate and turn.response.partition(" ")[0] in DEEDS:
            subgoal = _without_places(turn.response)
        result.append(turn._replace(subgoal=subgoal))
    return result[::-1]


def _without_places(command: str) -> str:
    """Return "take mug" for "take mug 1 from desk 2"."""
    words = [word for word in command.split() if not word.isdigit()]
    ends = [words.index(word) for word in ("from", "with") if word in words]
    return " ".join(words[: min(ends, default=len(words))])


class _Games:
    """Base of the suites of generated and real games."""

    def __init__(self, config: EnvironmentConfig, state_key: Any, demonstrator: str):
        self._config, self._state_key = config, state_key
        if demonstrator not in ("expert", "walkthrough"):
            raise ConfigError(f"environment.options.demonstrator={demonstrator!r}: expected 'expert' or 'walkthrough'")
        self._demonstrator = demonstrator

    def environment(self, task: Task) -> Environment:
        """Build a fresh environment."""
        return AlfworldEnvironment(
            task,
            max_steps=self._config.max_steps,
            success_reward=self._config.success_reward,
            state_key=self._state_key,
        )

    def words(self) -> list[str]:
        """Return every word of all generated games."""
        return words()

    def demonstrate(self, task: Task, *, noise: float, seed: int) -> list[Demonstrated] | None:
        """Let the expert play a task, or the game's own walkthrough, without noise; None unless it wins in time."""
        game = _game(task)
        if self._demonstrator == "walkthrough":
            turns = [Demonstrated(command, True) for command in game.walkthrough]
            return with_subgoals(turns) if 0 < len(turns) <= self._config.max_steps else None
        turns, won = self._lead(game, seed, noise=noise)
        return turns if won else None

    def correct(self, task: Task, played: Sequence[str], *, seed: int) -> list[Demonstrated]:
        """Let the expert continue after a policy's responses, even with too few turns left to win."""
        return self._lead(_game(task), seed, after=played)[0]

    def _lead(
        self, game: GameData, seed: int, *, noise: float = 0.0, after: Sequence[str] = ()
    ) -> tuple[list[Demonstrated], bool]:
        """Play given responses, then let the expert play; returns the turns, and whether the game is won."""
        rng = random.Random(seed)
        engine, expert = GameEngine(game), Expert(game, rng)
        turns: list[Demonstrated] = []
        while not engine.won and len(turns) < self._config.max_steps:
            advice = expert.act(engine.observation, engine.admissible, turns[-1].response if turns else None)
            if len(turns) < len(after):
                played = after[len(turns)]
            else:
                played = _noise_action(advice, engine, rng) if rng.random() < noise else advice
            turns.append(Demonstrated(played, played == advice))
            engine.step(played)
        return with_subgoals(turns), engine.won


def _game(task: Task) -> GameData:
    return task if isinstance(task, GameData) else load_game(task)


def _noise_action(advice: str, engine: GameEngine, rng: random.Random) -> str:
    """Return a noise action: another admissible command, or the right one with a wrong word.

    The second kind demonstrates how to continue after "Nothing happens.", which an expert never sees.
    """
    if rng.random() < 0.5:
        return rng.choice(
            [command for command in engine.admissible if command != "help"]
        )  # excludes help, whose text is long
    words = advice.split()
    place = rng.randrange(1, len(words)) if len(words) > 1 else 0
    if words[place].isdigit():
        words[place] = str(rng.randint(1, 3))
    else:
        words[place] = rng.choice([*engine.compiled.game.receptacles, *engine.compiled.game.things]).type.lower()
    return " ".join(words)


class Household(_Games):
    """Generated games; options: size, task_types, num_train, num_valid, state_key, demonstrator."""

    def __init__(
        self,
        config: EnvironmentConfig,
        *,
        num_train: int = 1000,
        num_valid: int = 256,
        state_key: str = "observation",
        demonstrator: str = "expert",
        **options: Any,
    ):
        super().__init__(config, state_key, demonstrator)
        self._counts = {"train": num_train, "valid": num_valid, "test": num_valid}
        check_counts("games", num_train=num_train, num_valid=num_valid)
        self._options = options

    @functools.cache  # noqa: B019 (one suite a process)
    def tasks(self, split: str) -> Sequence[Task]:
        """The tasks of a split."""
        if split not in self._counts:
            raise ConfigError(f"household has no split {split!r}.{did_you_mean(split, self._counts)}")
        return generate_games(split, self._counts[split], **self._options)

    def task_name(self, task: Task) -> str:
        """Name a task in records."""
        return task.name


class Alfworld(_Games):
    """ALFWorld's games, found through ALFWORLD_DATA; options: data, task_types, state_key, demonstrator."""

    def __init__(
        self,
        config: EnvironmentConfig,
        *,
        data: str | None = None,
        state_key: str = "observation",
        demonstrator: str = "walkthrough",
        **options: Any,
    ):
        super().__init__(config, state_key, demonstrator)
        self._find = functools.cache(functools.partial(find_games, data=data, **options))

    def tasks(self, split: str) -> Sequence[Task]:
        """The tasks of a split."""
        return self._find(split)

    def task_name(self, task: Task) -> str:
        """Name a task in records."""
        return "/".join(task.parts[-3:-1])


MAX_NUMBER = 40
"""Highest number after a type name ("cabinet 27") in the vocabulary of all games."""


def words(games: Iterable[GameData] | None = None) -> list[str]:
    """Return all words of games' observations, commands and task sentences, as `split_words` finds them, sorted.

    Args:
        games: Games whose words to add; None: the words of all generated games.
    """
    texts = [BANNER, HELP, NOTHING_HAPPENS, TABLES["forms"], " ".join(map(str, range(1, MAX_NUMBER + 1)))]
    texts += [sentence.format("", "") for sentences in TEMPLATES.values() for sentence in sentences]
    texts += [name.lower() for types in (KINDS, *RECEPTACLES.values(), *FLOOR.values()) for name in types]
    for game in games or ():
        texts.append(game.task)
        texts += display_names([entity.id for entity in (*game.receptacles, *game.things)]).values()
    return sorted({word for text in texts for word in split_words(text)})
