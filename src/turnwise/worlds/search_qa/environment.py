"""Play search QA: answer a question after several searches."""

import re
import string
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any, Literal

from turnwise.base.errors import ConfigError, EnvironmentFault
from turnwise.environments.base import Step
from turnwise.environments.needs import check_choices
from turnwise.worlds.search_qa.files import Passage, SearchQuestion
from turnwise.worlds.search_qa.retrieval import Retriever

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_CLOSED = {"yes", "no", "noanswer"}


def normalise(answer: str) -> str:
    """Lower-case an answer, and remove punctuation, articles and extra white space.

    An answer with nothing else ("The The", "!!!") is kept; otherwise all such answers would be equal.
    """
    words = _ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split()
    return " ".join(words or answer.lower().split())


def exact_match(answer: str, gold: Sequence[str]) -> bool:
    """Return whether an answer equals a gold answer, both normalised.

    Reference: P. Rajpurkar et al., arXiv 1606.05250.
    """
    return normalise(answer) in map(normalise, gold)


def f1(answer: str, gold: Sequence[str]) -> float:
    """Compute the word-level F1 of an answer with its best matching gold answer.

        f1 = 2 * shared / (words of the answer + words of the gold answer)

    "yes" and "no" match only exactly, so that "yes or no" earns nothing (HotpotQA's rule).

    Reference: P. Rajpurkar et al., arXiv 1606.05250; Z. Yang et al., arXiv 1809.09600.
    """
    return max(_f1(normalise(answer), normalise(right)) for right in gold)


def _f1(answer: str, right: str) -> float:
    if answer == right:
        return 1.0
    if answer in _CLOSED or right in _CLOSED:
        return 0.0
    given, wanted = Counter(answer.split()), Counter(right.split())
    return 2 * (given & wanted).total() / (given.total() + wanted.total())


CHOICES = {
    "reward": ("exact_match", "f1"),
    "state_key": ("observation", "passages"),
    "retrieval": ("bm25", "dense"),
}
CUT = "[cut]"
"""Marks the end of a shortened passage."""
ACTIONS = "write search[query] or answer[text]"
FORMS = f"""Question: Actions: {ACTIONS}. Searches left: 3. (1) -: {CUT} Nothing was found.
That is no action: {ACTIONS}. No search is left: That is right. That is wrong."""
"""All words of the environment's own texts."""

# White space is optional: tiny policies put it around every character of punctuation.
_ACTION = re.compile(r"\s*(search|answer)\s*\[([^\[\]]*)\]\s*")


def action(name: str, argument: str) -> str:
    """Format an action; brackets are removed from the argument, because neither search nor score reads them."""
    return f"{name}[{' '.join(argument.replace('[', ' ').replace(']', ' ').split())}]"


class SearchQaEnvironment:
    """One trajectory: `search[query]` shows passages, `answer[text]` ends it.

    Any other response, or a search when none is left, changes nothing, counts as a step and is marked invalid. `info`
    has success (exact match), exact_match, f1, the answer and num_searches. If the supporting passages are known, it
    also has supporting_frac, the fraction of them that was shown. For methods that score the right answer, it has gold,
    the first of the answers, and gold_form.

    Args:
        retrieve: Finds passages.
        question: The question.
        max_steps: The trajectory is truncated after this many steps.
        success_reward: Reward of a right answer.
        reward: "exact_match": all or nothing; "f1": proportional to F1. The best match among several gold answers
            counts.
        max_searches: Searches per trajectory. The default, with the answer, gives the four turns of GiGPO.
        num_passages: Passages shown per search.
        passage_words: Words shown per passage; an omission is marked.
        state_key: State key for credit that compares equal states: "observation", its text, which is equal for queries
            with equal results; "passages", all passages shown so far, in any order, with the number of searches left.

    Reference: L. Feng et al., arXiv 2505.10978 (GiGPO); B. Jin et al., arXiv 2503.09516 (Search-R1).
    """

    def __init__(
        self,
        retrieve: Retriever,
        question: SearchQuestion,
        *,
        max_steps: int = 8,
        success_reward: float = 10.0,
        reward: Literal["exact_match", "f1"] = "exact_match",
        max_searches: int = 3,
        num_passages: int = 3,
        passage_words: int = 150,
        state_key: Literal["observation", "passages"] = "observation",
    ):
        check_choices(CHOICES, reward=reward, state_key=state_key)
        limits = {"max_steps": max_steps, "num_passages": num_passages, "passage_words": passage_words}
        for name, value in (limits | {"max_searches": max_searches}).items():
            least = 0 if name == "max_searches" else 1
            if value < least:
                raise ConfigError(f"search_qa: {name} is {value}; it must be at least {least}.")
        self.question, self.max_steps, self.success_reward, self.reward = question, max_steps, success_reward, reward
        self.max_searches, self.num_passages, self.passage_words = max_searches, num_passages, passage_words
        self._retrieve, self._by_passages = retrieve, state_key == "passages"
        self.found: Sequence[Passage] = ()
        """Results of the last search."""
        self.queries: list[str] = []
        """All searches so far."""
        self._shown: set[str] = set()
        self._num_steps = 0
        self._begun = self._ended = False

    @property
    def searches_left(self) -> int:
        """Number of searches left."""
        return self.max_searches - len(self.queries)

    @property
    def supporting_left(self) -> set[str]:
        """Ids of the supporting passages not shown yet."""
        return set(self.question.supporting) - self._shown

    def show(self, passage: Passage) -> str:
        """Return the part of a passage's text that is shown."""
        words = passage.text.split()
        return passage.text if len(words) <= self.passage_words else " ".join([*words[: self.passage_words], CUT])

    def start(self) -> Step:
        """Start the trajectory; returns the question."""
        self._begun = True
        return self._step(f"Question: {self.question.text}\nActions: {ACTIONS}.\n{self._budget()}")

    def step(self, response: str) -> Step:
        """Play an action; before `start` and after the end, raise an `EnvironmentFault`."""
        if self._ended or not self._begun:
            when = "after the end" if self._ended else "before start()"
            raise EnvironmentFault(f"step() {when} of question {self.question.id}.")
        self._num_steps += 1
        self._ended = self._num_steps >= self.max_steps
        match = _ACTION.fullmatch(response)
        name, argument = (match[1], " ".join(match[2].split())) if match else ("", "")
        if not argument:
            return self._step(f"That is no action: {ACTIONS}.\n{self._budget()}", valid=False)
        if name == "answer":
            return self._answer(argument)
        if not self.searches_left:
            return self._step("No search is left: write answer[text].", valid=False)
        self.queries.append(argument)
        self.found = self._retrieve(argument, self.num_passages)
        self._shown.update(passage.id for passage in self.found)
        shown = [
            f"({number}) {passage.title or '-'}: {self.show(passage)}" for number, passage in enumerate(self.found, 1)
        ]
        return self._step("\n".join([*(shown or ["Nothing was found."]), self._budget()]))

    def _answer(self, text: str) -> Step:
        self._ended = True
        right, likeness = exact_match(text, self.question.answers), f1(text, self.question.answers)
        reward = self.success_reward * (likeness if self.reward == "f1" else float(right))
        scores = {"success": right, "exact_match": float(right), "f1": likeness, "answer": text}
        return self._step(f"That is {'right' if right else 'wrong'}.", reward=reward, terminated=True, scores=scores)

    def _budget(self) -> str:
        return f"Searches left: {self.searches_left}."

    def _step(self, observation: str, scores: dict[str, Any] | None = None, **outcome: Any) -> Step:
        info = {"success": False, "exact_match": 0.0, "f1": 0.0, **(scores or {}), "num_searches": len(self.queries)}
        if self.question.answers:
            info |= {"gold": self.question.answers[0], "gold_form": "answer[{gold}]"}
        if self.question.supporting:
            info["supporting_frac"] = 1 - len(self.supporting_left) / len(set(self.question.supporting))
        key: Hashable = (tuple(sorted(self._shown)), self.searches_left) if self._by_passages else None
        outcome.setdefault("truncated", self._ended and not outcome.get("terminated", False))
        return Step(observation=observation, state_key=key, admissible=self._admissible(), info=info, **outcome)

    def _admissible(self) -> list[str]:
        """List searches for the question and the titles last found; gold answers are not revealed."""
        if self._ended:
            return []
        titles = [passage.title for passage in self.found if passage.title]
        searches = [action("search", text) for text in (self.question.text, *titles)] if self.searches_left else []
        return searches + [action("answer", title) for title in titles or [self.question.text]]
