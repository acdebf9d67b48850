"""Demonstrate search QA with a scripted expert that knows the answer and the supporting passages."""

import random
import re
from collections.abc import Iterator, Mapping

from turnwise.worlds.search_qa.environment import SearchQaEnvironment, action


class Searcher:
    """Play one question.

    It searches for the question, then for titles of missing supporting passages that occur in what it has read, then
    for the titles found, best first. It answers once all supporting passages have been shown, or no search is left.

    Args:
        environment: The environment that it plays.
        supporting: Titles of the supporting passages, by id.
    """

    def __init__(self, environment: SearchQaEnvironment, supporting: Mapping[str, str]):
        self._environment, self._supporting = environment, supporting
        self._titles: dict[str, None] = {}
        self._read = environment.question.text.casefold()

    def act(self) -> str:
        """Return the next action."""
        environment = self._environment
        for passage in environment.found:
            self._titles[passage.title] = None
            self._read += f"\n{passage.title} {environment.show(passage)}".casefold()
        if environment.searches_left and (environment.supporting_left or not self._supporting):
            asked = {action("search", query) for query in environment.queries}
            for query in (action("search", text) for text in self._queries() if text):
                if query not in asked:
                    return query
        return action("answer", environment.question.answers[0])

    def _queries(self) -> Iterator[str]:
        yield self._environment.question.text
        # "Little Big Man (novel)" is read as "Little Big Man"
        wanted = [title for id, title in self._supporting.items() if id in self._environment.supporting_left]
        yield from (title for title in wanted if re.sub(r" \(.*\)$", "", title).casefold() in self._read)
        yield from self._titles


def noise_action(environment: SearchQaEnvironment, rng: random.Random) -> str:
    """Return a noise action: a malformed response, or a search for two words of the question."""
    if rng.random() < 0.5 or not environment.searches_left:
        return environment.question.text
    words = environment.question.text.split()
    return action("search", " ".join(rng.sample(words, min(2, len(words)))))
