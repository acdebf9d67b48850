"""Collect the words of ALFWorld's texts, for word-level tokenizers.

words()             # what generated games can ever say, and the real ones but for a few rare words
words(real_games)   # and every word of these games
"""

from collections.abc import Iterable

from turnwise.environments.words import split_words
from turnwise.worlds.alfworld.engine import BANNER, HELP, NOTHING_HAPPENS, display_names
from turnwise.worlds.alfworld.game import Game
from turnwise.worlds.alfworld.rooms import FLOOR, KINDS, RECEPTACLES, TEMPLATES

MAX_NUMBER = 40
"""Highest number after a type name ("cabinet 27") in the vocabulary of all games."""

# One text of each form that observations and commands take, without the names.
_FORMS = """
You are in the middle of a room. Looking quickly around you, you see a, a, and nothing.
Your task is to:
You are facing the. Next to it, you see.
You arrive at. The is closed. The is open. In it, you see. On the, you see.
You open the. You close the. You pick up the from the. You move the to the. You turn on the.
You heat the using the. You cool the using the. You clean the using the. You sliced the with the.
You are carrying: a. You are not carrying anything.
This is a normal. This is a hot and clean sliced. This is a cool and clean. This is a cold. This is on.
There's nothing special about.
look inventory help; go to, open, close, examine, take from, move to, use, heat with, clean with, cool with,
slice with.
"""


def words(games: Iterable[Game] | None = None) -> list[str]:
    """Return all words of games' observations, commands and task sentences, as `split_words` finds them, sorted.

    Args:
        games: Games whose words to add; None: the words of all generated games.
    """
    texts = [BANNER, HELP, NOTHING_HAPPENS, _FORMS, " ".join(map(str, range(1, MAX_NUMBER + 1)))]
    texts += [sentence.format("", "") for sentences in TEMPLATES.values() for sentence in sentences]
    texts += [name.lower() for types in (KINDS, *RECEPTACLES.values(), *FLOOR.values()) for name in types]
    for game in games or ():
        texts.append(game.task)
        texts += display_names([entity.id for entity in (*game.receptacles, *game.things)]).values()
    return sorted({word for text in texts for word in split_words(text)})
