"""The suite: settings, demonstrations, words; those marked `data` on HotpotQA's files."""

import math
import pickle
from pathlib import Path
from typing import Any

import pytest
from tests.environments.search_qa.conftest import QUESTIONS, make_environment, suite, write
from tests.needs import needs

from turnwise.base.errors import ConfigError
from turnwise.environments.check import check_environment
from turnwise.environments.settings import EnvironmentConfig
from turnwise.environments.suites import SuiteEnvironments, make_suite
from turnwise.environments.words import split_words
from turnwise.worlds.search_qa.files import load_corpus, load_questions
from turnwise.worlds.search_qa.retrieval import Bm25
from turnwise.worlds.search_qa.suite import SearchQa


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


@needs("Stemmer")
@pytest.mark.parametrize("options", [{}, {"reward": "f1", "state_key": "passages", "num_passages": 1}])
def test_it_passes_the_conformance_check(folder, options):
    assert check_environment(suite(**options), split="all") == []


@needs("Stemmer")
def test_workers_share_our_index_and_make_another_retriever_themselves(folder):
    def loaded(**settings) -> set[str]:
        config = EnvironmentConfig(**{"name": "search_qa", **settings})
        copied = pickle.loads(pickle.dumps(SuiteEnvironments(config)))
        copied.preload_suite()
        return {"_passages", "_retrieve"} & vars(copied.suite).keys()

    assert loaded() == {"_passages", "_retrieve"}
    assert loaded(options={"retrieval": "dense"}) == {"_passages"}
    assert loaded(name=f"{__name__}:Backwards") == {"_passages"}


@needs("Stemmer")
def test_the_settings_reach_the_environment(folder):
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
        ({"max_searches": "3"}, "expected a whole number, such as 3"),
    ],
)
def test_what_is_wrong_is_said_at_once(options, message):
    with pytest.raises(ConfigError, match=message):
        suite(**options)


@needs("Stemmer")
@pytest.mark.parametrize("name", ["max_searches", "num_passages", "passage_words"])
def test_limits_are_checked(folder, name):
    with pytest.raises(ConfigError, match=f"search_qa: {name} is -1; it must be at least"):
        make_environment(**{name: -1})


@needs("Stemmer")
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


@needs("Stemmer")
def test_demonstrations_with_noise_actions_win_and_depend_on_the_seed_only(folder):
    made = suite(max_steps=30)
    task = made.tasks("all")[0]
    noise_actions = set()
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
        noise_actions |= {turn.response for turn in turns if not turn.imitate}
    assert any(response.startswith("search[") for response in noise_actions)
    assert QUESTIONS[0]["question"] in noise_actions


@needs("Stemmer")
def test_a_small_corpus_has_words_for_a_tiny_policy(folder, monkeypatch):
    made = suite()
    known = set(made.words())
    for number, question in enumerate(QUESTIONS):
        played = make_environment(number, passage_words=4)
        texts = [played.start().observation, played.step("nonsense").observation]
        texts += [played.step(response).observation for response in ("search[honey]", "search[xyzzy]", "search[lake]")]
        texts += [played.step("search[one more]").observation]
        texts += [turn.response for turn in made.demonstrate(played.question, noise=0.0, seed=0)]
        texts += [
            outcome.observation
            for answer in ("Bonn", question["answers"][0])
            for outcome in [_answered(number, answer)]
        ]
        assert not {word for text in texts for word in split_words(text)} - known
    monkeypatch.setattr("turnwise.worlds.search_qa.suite.MAX_WORDS", 20)
    with pytest.raises(ConfigError, match=r"this corpus has \d\d different words, a tiny policy can learn 20 at most"):
        made.words()


def _answered(number: int, answer: str):
    played = make_environment(number)
    played.start()
    return played.step(f"answer[{answer}]")


@needs("Stemmer")
def test_bm25s_constants_are_options(folder):
    retrieve = suite(k1=0, b=1)._retrieve
    assert retrieve._index._impacts.tolist() != suite()._retrieve._index._impacts.tolist()
    other = Bm25(list(retrieve._passages.values()), k1=0.0, b=1.0)
    assert retrieve._index._impacts.tolist() == other._index._impacts.tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k1": -0.1}, r"k1=-0.1: expected a number of at least 0"),
        ({"k1": math.inf}, r"k1=inf: expected"),
        ({"b": 1.5}, r"b=1.5: expected a number from 0 to 1"),
        ({"b": math.nan}, r"b=nan: expected"),
        ({"b": "0.4"}, r"b='0.4': expected a number, such as 0.75"),
        ({"b": 0.4, "retrieval": "dense"}, r"k1 and b are only for retrieval='bm25', not for 'dense'; remove them"),
    ],
)
def test_constants_out_of_range_are_refused(folder, options, message):
    with pytest.raises(ConfigError, match=message):
        suite(**options)


@pytest.mark.data
def test_bm25_finds_what_supports_hotpotqas_questions(hotpot):
    corpus = load_corpus(Path(hotpot["corpus"]))
    questions = load_questions(Path(hotpot["questions"]), {passage.id for passage in corpus})

    def recall(retrieve: Bm25, k: int) -> float:
        found = [{passage.id for passage in retrieve(question.text, k)} for question in questions]
        shares = [
            len(hits & set(q.supporting)) / len(set(q.supporting)) for q, hits in zip(questions, found, strict=True)
        ]
        return sum(shares) / len(shares)

    default, pyserini = Bm25(corpus), Bm25(corpus, k1=0.9, b=0.4)
    assert [round(recall(default, k), 3) for k in (3, 10)] == [0.686, 0.929]
    assert [round(recall(pyserini, k), 3) for k in (3, 10)] == [0.667, 0.91]


@pytest.mark.data
def test_hotpotqa_is_sound_and_can_be_demonstrated(hotpot):
    made = suite(max_steps=4, **hotpot)
    assert check_environment(made) == []
    tasks = made.tasks("train")
    played = [made.demonstrate(task, noise=0.0, seed=number) for number, task in enumerate(tasks)]
    assert sum(turns is not None for turns in played) / len(tasks) > 0.8
    with pytest.raises(ConfigError, match="a tiny policy can learn 5,000 at most"):
        made.words()


@needs("Stemmer")
def test_an_answer_that_was_not_read_is_not_taught(tmp_path, monkeypatch):
    """Without the supporting passages nobody knows whether it could be found."""
    write(tmp_path / "corpus.jsonl", [{"id": n, "title": f"Cat {n}", "text": "Cats sleep."} for n in range(3)])
    asked = {"question_id": "q", "question": "Who likes cats?"}
    questions = [{**asked, "answers": ["Zebulon"]}, {**asked, "question_id": "r", "answers": ["cats"]}]
    write(tmp_path / "questions.jsonl", questions)
    monkeypatch.setenv("SEARCH_QA_DATA", str(tmp_path))
    made = suite()
    unread, read = (made.demonstrate(task, noise=0.0, seed=0) for task in made.tasks("all"))
    assert unread is None
    assert read is not None
    assert read[-1].response == "answer[cats]"
