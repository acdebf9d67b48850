"""Search QA as a suite: tasks are questions, worlds share one retriever."""

import functools
import random
from collections.abc import Sequence
from typing import Any

from turnwise.config import EnvironmentConfig
from turnwise.environments.base import Demonstrated, Environment, Task
from turnwise.environments.needs import check_choices
from turnwise.environments.search_qa.dense import Dense
from turnwise.environments.search_qa.environment import CHOICES, FORMS, SearchQaEnvironment
from turnwise.environments.search_qa.files import (
    Passage,
    Question,
    find_file,
    load_corpus,
    load_questions,
    split_questions,
)
from turnwise.environments.search_qa.retrieval import Bm25, Retriever
from turnwise.environments.search_qa.searcher import Searcher, stumble
from turnwise.environments.words import split_words
from turnwise.errors import ConfigError

MAX_WORDS = 5000
"""The largest vocabulary for a policy that has a token a word."""


class SearchQa:
    """Questions over a corpus, found through `corpus` and `questions` or SEARCH_QA_DATA.

    For a retriever of your own, override `retriever` and name the class as `module:Class`.

    Options: corpus, questions (files), retrieval ("bm25" or "dense"), encoder (a folder, for "dense"), and those of `SearchQaEnvironment`.
    """

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
    ):
        check_choices(CHOICES, reward=reward, state_key=state_key, retrieval=retrieval)
        self._config, self._files = config, (corpus, questions)
        self._retrieval, self._encoder = retrieval, encoder
        self._world: dict[str, Any] = {"reward": reward, "state_key": state_key, "max_searches": max_searches}
        self._world |= {"num_passages": num_passages, "passage_words": passage_words}

    def retriever(self, passages: Sequence[Passage]) -> Retriever:
        """Build what finds passages; called once."""
        return Bm25(passages) if self._retrieval == "bm25" else Dense(passages, self._encoder)

    def tasks(self, split: str) -> Sequence[Task]:
        """The questions of a split: "train" (eight tenths), "valid", "test", or "all"."""
        return split_questions(self._questions, split)

    def environment(self, task: Task) -> Environment:
        """Build a fresh world."""
        return self._build(task)

    def task_name(self, task: Task) -> str:
        """Name a task in records."""
        return task.id

    def words(self) -> list[str]:
        """Every word of corpus and questions, where they are few enough for a tiny policy."""
        texts = [f"{passage.title} {passage.text}" for passage in self._passages]
        texts += [" ".join([question.text, *question.answers]) for question in self._questions]
        found = {word for text in texts for word in split_words(text)}
        if len(found) > MAX_WORDS:
            raise ConfigError(f"search_qa: this corpus has {len(found):,} different words, a tiny policy can learn "
                              f"{MAX_WORDS:,} at most: take a language model, or a smaller corpus.")  # fmt: skip
        numbers = map(str, range(1 + max(self._world["max_searches"], self._world["num_passages"])))
        return sorted(found.union(split_words(FORMS), numbers))

    def demonstrate(self, task: Task, *, noise: float, seed: int) -> list[Demonstrated] | None:
        """Let the scripted searcher play; None when it did not see all supporting passages: that would teach guessing."""
        world, rng = self._build(task), random.Random(seed)
        step = world.start()
        searcher = Searcher(world, {id: self._titles[id] for id in task.supporting})
        turns: list[Demonstrated] = []
        while not step.ended:
            advice = searcher.act()
            played = stumble(world, rng) if rng.random() < noise else advice
            turns.append(Demonstrated(played, played == advice))
            step = world.step(played)
        return turns if step.info["success"] and not world.supporting_left else None

    def _build(self, task: Question) -> SearchQaEnvironment:
        limits = {"max_steps": self._config.max_steps, "success_reward": self._config.success_reward}
        return SearchQaEnvironment(self._retrieve, task, **limits, **self._world)

    @functools.cached_property
    def _passages(self) -> list[Passage]:
        return load_corpus(find_file("corpus", self._files[0]))

    @functools.cached_property
    def _titles(self) -> dict[str, str]:
        return {passage.id: passage.title for passage in self._passages}

    @functools.cached_property
    def _questions(self) -> list[Question]:
        return load_questions(find_file("questions", self._files[1]), self._titles)

    @functools.cached_property
    def _retrieve(self) -> Retriever:
        return self.retriever(self._passages)
