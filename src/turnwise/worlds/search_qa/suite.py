"""Suite of search QA: tasks are questions, environments share one retriever."""

import functools
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from turnwise.base.errors import ConfigError
from turnwise.environments.base import Demonstrated, Environment, Task
from turnwise.environments.needs import check_choices
from turnwise.environments.settings import EnvironmentConfig
from turnwise.environments.words import split_words
from turnwise.worlds.search_qa import files
from turnwise.worlds.search_qa.environment import CHOICES, FORMS, SearchQaEnvironment, action, normalise
from turnwise.worlds.search_qa.retrieval import K1, B, Bm25, Dense, Retriever, check_constants, find_encoder


class Searcher:
    """Play one question.

    It searches for the question, then for titles of missing supporting passages that occur in what it has read, then
    for the titles found, best first. It answers once all supporting passages have been shown, or no search is left.
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

    def has_read(self, answers: Sequence[str]) -> bool:
        """Return whether one of the answers occurs in what was shown."""
        read = f" {normalise(self._read)} "
        return any(f" {normalise(answer)} " in read for answer in answers)

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


MAX_WORDS = 5000
"""Largest vocabulary for a policy with one token per word."""


class SearchQa:
    """Questions over a corpus, found through `corpus` and `questions` or SEARCH_QA_DATA.

    For a retriever of your own, override `retriever` and name the class as `module:Class`.

    Options: corpus, questions (files), retrieval ("bm25" or "dense"), encoder (a folder, for "dense"), k1 and b (of
    BM25), and those of `SearchQaEnvironment`.
    """

    gives = ("gold",)

    def __init__(
        self,
        config: EnvironmentConfig,
        *,
        corpus: str | None = None,
        questions: str | None = None,
        reward: str = "exact_match",
        max_searches: int = 3,
        num_passages: int = 3,
        passage_words: int = 150,
        state_key: str = "observation",
        retrieval: str = "bm25",
        encoder: str | None = None,
        k1: float = K1,
        b: float = B,
    ):
        check_choices(CHOICES, reward=reward, state_key=state_key, retrieval=retrieval)
        check_constants(k1, b)
        if retrieval != "bm25" and (k1, b) != (K1, B):
            raise ConfigError(
                f"environment.options.k1 and b are only for retrieval='bm25', not for {retrieval!r}; remove them"
            )
        self._config, self._files = config, (corpus, questions)
        self._retrieval, self._encoder, self._constants = retrieval, encoder, {"k1": k1, "b": b}
        self._options: dict[str, Any] = {"reward": reward, "state_key": state_key, "max_searches": max_searches}
        self._options |= {"num_passages": num_passages, "passage_words": passage_words}

    def retriever(self, passages: Sequence[files.Passage]) -> Retriever:
        """Build the retriever; called once."""
        if self._retrieval == "bm25":
            return Bm25(passages, **self._constants)
        return Dense(passages, self._encoder)

    def preload(self) -> None:
        """Load the passages, and the index if it is ours; another retriever may need torch or start threads."""
        if type(self).retriever is SearchQa.retriever and self._retrieval == "bm25":
            self._retrieve  # noqa: B018 (cached)
        else:
            self._passages  # noqa: B018

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the questions of a split: "train" (eight tenths), "valid", "test", or "all"."""
        if self._retrieval == "dense" and type(self).retriever is SearchQa.retriever:
            find_encoder(self._encoder)  # a missing one should fail before a warm start
        return files.split_questions(self._questions, split)

    def environment(self, task: Task) -> Environment:
        """Build a fresh environment."""
        return self._build(task)

    def task_name(self, task: Task) -> str:
        """Name a task in records."""
        return task.id

    def words(self) -> list[str]:
        """Return every word of corpus and questions.

        Raises:
            ConfigError: There are too many words for a tiny policy.
        """
        texts = [f"{passage.title} {passage.text}" for passage in self._passages]
        texts += [" ".join([question.text, *question.answers]) for question in self._questions]
        found = {word for text in texts for word in split_words(text)}
        if len(found) > MAX_WORDS:
            raise ConfigError(
                f"search_qa: this corpus has {len(found):,} different words, a tiny policy can learn "
                f"{MAX_WORDS:,} at most: take a language model, or a smaller corpus."
            )
        numbers = map(str, range(1 + max(self._options["max_searches"], self._options["num_passages"])))
        return sorted(found.union(split_words(FORMS), numbers))

    def demonstrate(self, task: Task, *, noise: float, seed: int) -> list[Demonstrated] | None:
        """Let the scripted searcher play.

        None unless it saw all supporting passages, or where they are not known one with the answer: no guess is taught.
        """
        environment, rng = self._build(task), random.Random(seed)
        step = environment.start()
        searcher = Searcher(environment, {id: self._titles[id] for id in task.supporting})
        turns: list[Demonstrated] = []
        while not step.ended:
            advice = searcher.act()
            played = noise_action(environment, rng) if rng.random() < noise else advice
            turns.append(Demonstrated(played, played == advice))
            step = environment.step(played)
        seen = not environment.supporting_left if task.supporting else searcher.has_read(task.answers)
        return turns if step.info["success"] and seen else None

    def _build(self, task: files.SearchQuestion) -> SearchQaEnvironment:
        limits = {"max_steps": self._config.max_steps, "success_reward": self._config.success_reward}
        return SearchQaEnvironment(self._retrieve, task, **limits, **self._options)

    @functools.cached_property
    def _passages(self) -> list[files.Passage]:
        return files.load_corpus(files.find_file("corpus", self._files[0]))

    @functools.cached_property
    def _titles(self) -> dict[str, str]:
        return {passage.id: passage.title for passage in self._passages}

    @functools.cached_property
    def _questions(self) -> list[files.SearchQuestion]:
        return files.load_questions(files.find_file("questions", self._files[1]), self._titles)

    @functools.cached_property
    def _retrieve(self) -> Retriever:
        return self.retriever(self._passages)
