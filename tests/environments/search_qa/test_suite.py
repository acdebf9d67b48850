"""The suite: settings, demonstrations, words; those marked `data` on HotpotQA's files."""

from pathlib import Path
from typing import Any

import pytest
from tests.environments.search_qa.conftest import QUESTIONS, suite, world

from turnwise.config import EnvironmentConfig
from turnwise.environments.check import check_environment
from turnwise.environments.search_qa.files import load_corpus, load_questions
from turnwise.environments.search_qa.retrieval import Bm25
from turnwise.environments.search_qa.suite import SearchQa
from turnwise.environments.suites import make_suite
from turnwise.environments.words import split_words
from turnwise.errors import ConfigError


class Backwards(SearchQa):
    """A suite with a retriever of its own, which always finds the last passages."""

    def retriever(self, passages):
        return lambda query, k: passages[::-1][:k]


def test_a_retriever_may_be_given(folder):
    made: Any = make_suite(EnvironmentConfig(name=f"{__name__}:Backwards", options={"num_passages": 1}))
    played = made.environment(made.tasks("all")[0])
    played.start()
    assert played.step("search[oro]").observation.startswith("(1) Bees")
    assert check_environment(made, split="all") == []


@pytest.mark.parametrize("options", [{}, {"reward": "f1", "state_key": "passages", "num_passages": 1}])
def test_it_passes_the_conformance_check(folder, options):
    assert check_environment(suite(**options), split="all") == []


def test_the_settings_reach_the_world(folder):
    options = {"reward": "f1", "max_searches": 2, "num_passages": 1, "passage_words": 7}
    made = suite(max_steps=9, **options)
    played = made.environment(made.tasks("all")[0])
    assert options | {"max_steps": 9, "success_reward": 10.0} == {
        name: getattr(played, name) for name in (*options, "max_steps", "success_reward")
    }
    assert made.task_name(made.tasks("all")[2]) == "q3"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reward": "em"}, r"environment.options.reward='em': no such choice"),
        ({"state_key": "passage"}, r"Did you mean 'passages'\?"),
        ({"max_search": 3}, r"'search_qa' has no option 'max_search'. Did you mean 'max_searches'\?"),
        ({"max_searches": "3"}, "expected something like 3"),
    ],
)
def test_what_is_wrong_is_said_at_once(options, message):
    with pytest.raises(ConfigError, match=message):
        suite(**options)


@pytest.mark.parametrize("name", ["max_searches", "num_passages", "passage_words"])
def test_limits_are_checked(folder, name):
    with pytest.raises(ConfigError, match=f"search_qa: {name} is -1; it must be at least"):
        world(**{name: -1})


def test_demonstrations_read_before_they_answer(folder):
    made = suite(num_passages=1)
    turns = made.demonstrate(made.tasks("all")[0], noise=0.0, seed=0)
    assert [turn.response for turn in turns] == [
        "search[Where was the botanist born who named Lake Oro?]",
        "search[Ida Fern]",  # a title that stands in the first passage
        "answer[Klee]",
    ]
    assert all(turn.imitate for turn in turns)
    # with one search, the second passage cannot have been read
    assert suite(num_passages=1, max_searches=1).demonstrate(made.tasks("all")[0], noise=0.0, seed=0) is None
    assert suite(num_passages=1, max_steps=2).demonstrate(made.tasks("all")[0], noise=0.0, seed=0) is None
    # without supporting passages: the question, then the titles that it found, until no search is left
    unknown = made.demonstrate(made.tasks("all")[2], noise=0.0, seed=0)
    assert [turn.response for turn in unknown] == ["search[What is Klee known for?]", "search[Klee]", "answer[honey]"]


def test_demonstrations_with_stumbles_win_and_depend_on_the_seed_only(folder):
    made = suite(max_steps=30)
    task = made.tasks("all")[0]
    stumbles = set()
    for seed in range(30):
        turns = made.demonstrate(task, noise=0.4, seed=seed)
        assert turns == made.demonstrate(task, noise=0.4, seed=seed)
        if turns is None:
            continue
        played = made.environment(task)
        played.start()
        steps = [played.step(turn.response) for turn in turns]
        assert steps[-1].info["success"]
        assert all(step.valid for step, turn in zip(steps, turns, strict=True) if turn.imitate)
        stumbles |= {turn.response for turn in turns if not turn.imitate}
    assert any(response.startswith("search[") for response in stumbles)
    assert QUESTIONS[0]["question"] in stumbles


def test_a_small_corpus_has_words_for_a_tiny_policy(folder, monkeypatch):
    made = suite()
    known = set(made.words())
    for number, question in enumerate(QUESTIONS):
        played = world(number, passage_words=4)
        texts = [played.start().observation, played.step("nonsense").observation]
        texts += [played.step(response).observation for response in ("search[honey]", "search[xyzzy]", "search[lake]")]
        texts += [played.step("search[one more]").observation]
        texts += [turn.response for turn in made.demonstrate(played.question, noise=0.0, seed=0)]
        texts += [outcome.observation for answer in ("Bonn", question["answers"][0])
                  for outcome in [_answered(number, answer)]]  # fmt: skip
        assert not {word for text in texts for word in split_words(text)} - known
    monkeypatch.setattr("turnwise.environments.search_qa.suite.MAX_WORDS", 20)
    with pytest.raises(ConfigError, match=r"this corpus has \d\d different words, a tiny policy can learn 20 at most"):
        made.words()


def _answered(number: int, answer: str):
    played = world(number)
    played.start()
    return played.step(f"answer[{answer}]")


@pytest.mark.data
def test_bm25_finds_what_supports_hotpotqas_questions(hotpot):
    corpus = load_corpus(Path(hotpot["corpus"]))
    questions = load_questions(Path(hotpot["questions"]), {passage.id for passage in corpus})
    retrieve = Bm25(corpus)
    found = [{passage.id for passage in retrieve(question.text, 10)} for question in questions]
    pairs = zip(questions, found, strict=True)
    recall = [len(hits & set(question.supporting)) / len(set(question.supporting)) for question, hits in pairs]
    assert sum(recall) / len(recall) > 0.88


@pytest.mark.data
def test_hotpotqa_is_sound_and_can_be_demonstrated(hotpot):
    made = suite(max_steps=4, **hotpot)
    assert check_environment(made) == []
    tasks = made.tasks("train")
    played = [made.demonstrate(task, noise=0.0, seed=number) for number, task in enumerate(tasks)]
    assert sum(turns is not None for turns in played) / len(tasks) > 0.8
    with pytest.raises(ConfigError, match="a tiny policy can learn 5,000 at most"):
        made.words()
