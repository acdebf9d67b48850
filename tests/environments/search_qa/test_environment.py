"""One question played: searches, answers, rewards, limits."""

import pickle

import pytest
from tests.environments.search_qa.conftest import QUESTIONS, make_environment
from tests.needs import needs

from turnwise.base.errors import EnvironmentFault
from turnwise.worlds.search_qa.environment import CUT, action
from turnwise.worlds.search_qa.files import Passage
from turnwise.worlds.search_qa.retrieval import Bm25


@needs("Stemmer")
def test_a_question_is_searched_and_answered(folder):
    played = make_environment()
    first = played.start()
    assert "Question: Where was the botanist born who named Lake Oro?" in first.observation
    assert "Searches left: 3." in first.observation
    found = played.step("search[botanist of lake oro]")
    assert (found.valid, found.ended, found.reward) == (True, False, 0.0)
    assert found.observation.splitlines()[0] == (
        "(1) Lake Oro: Lake Oro is a lake. It was named by the botanist Ida Fern."
    )
    assert found.observation.splitlines()[-1] == "Searches left: 2."
    assert found.info["supporting_frac"] == 0.5
    assert played.step(" search [ Ida Fern ]\n").info["supporting_frac"] == 1  # as tiny policies write
    last = played.step("answer[the Village of KLEE]")
    assert (last.reward, last.terminated, last.truncated, last.admissible) == (10.0, True, False, [])
    assert last.info == {
        "success": True,
        "exact_match": 1.0,
        "f1": 1.0,
        "answer": "the Village of KLEE",
        "gold": "Klee",
        "gold_form": "answer[{gold}]",
        "num_searches": 2,
        "supporting_frac": 1.0,
    }
    with pytest.raises(EnvironmentFault, match="after the end of question q1"):
        played.step("answer[Klee]")


@needs("Stemmer")
def test_f1_pays_in_proportion_and_exact_match_does_not(folder):
    rewards = {}
    for reward in ("exact_match", "f1"):
        played = make_environment(reward=reward)
        played.start()
        last = played.step("answer[Klee Bonn]")
        assert (last.terminated, last.info["success"]) == (True, False)
        rewards[reward] = last.reward
    assert rewards == {"exact_match": 0.0, "f1": pytest.approx(10 * 2 / 3)}


@needs("Stemmer")
@pytest.mark.parametrize(
    "response",
    [
        "",
        "Klee",
        "search[]",
        "answer[ ]",
        "search[a] search[b]",
        "I think answer[Klee]",
        "Search[a]",
        "lookup[a]",
        "search[a",
        "search[a]]",
        "answer[[Klee]]",
    ],
)
def test_what_is_no_action_is_said_and_costs_a_step_but_no_search(folder, response):
    played = make_environment(max_steps=2)
    played.start()
    step = played.step(response)
    assert (step.valid, step.reward, step.ended) == (False, 0.0, False)
    assert step.observation.startswith("That is no action: write search[query] or answer[text].")
    assert "Searches left: 3." in step.observation
    last = played.step(response)
    assert (last.truncated, last.terminated, last.valid) == (True, False, False)


@needs("Stemmer")
def test_searches_run_out_and_then_only_an_answer_is_taken(folder):
    played = make_environment(max_searches=1)
    played.start()
    assert played.step("search[oro]").valid
    step = played.step("search[fern]")
    assert (step.valid, step.observation) == (False, "No search is left: write answer[text].")
    assert (step.info["num_searches"], step.info["supporting_frac"]) == (1, 0.5)
    assert all(action.startswith("answer[") for action in step.admissible or ())
    assert played.step("answer[Klee]").reward == 10


@needs("Stemmer")
def test_an_answer_in_the_last_step_counts(folder):
    played = make_environment(max_steps=1)
    played.start()
    last = played.step("answer[Klee]")
    assert (last.terminated, last.truncated, last.reward) == (True, False, 10.0)


@needs("Stemmer")
def test_a_search_shows_k_passages_and_cuts_the_long_ones(folder):
    played = make_environment(1, num_passages=2, passage_words=5, k1=0.9, b=0.4)  # by these the long one is the first
    played.start()
    lines = played.step("search[honey bees]").observation.splitlines()
    assert lines[0] == f"(1) Bees: Bees make honey. They buzz. {CUT}"
    assert [line[:3] for line in lines] == ["(1)", "(2)", "Sea"]
    whole = make_environment(1, num_passages=2, passage_words=83)  # 3 words and 80
    whole.start()
    assert CUT not in whole.step("search[honey bees]").observation
    assert make_environment(1).start().observation != (nothing := played.step("search[unheard]")).observation
    assert nothing.observation == "Nothing was found.\nSearches left: 1."


@needs("Stemmer")
def test_state_keys_name_what_is_known(folder):
    def keys(state_key, *queries):
        played = make_environment(state_key=state_key, num_passages=1)
        steps = [played.start(), *(played.step(f"search[{query}]") for query in queries)]
        return [step.state_key or step.observation for step in steps]

    assert keys("passages", "oro", "klee")[-1] == keys("passages", "klee", "oro")[-1]
    assert keys("passages", "oro")[-1] != keys("passages", "klee")[-1]
    assert keys("passages", "oro")[-1] != keys("passages", "oro", "oro")[-1]  # with one search less
    assert keys("observation", "oro")[-1] == keys("observation", "lake oro")[-1]  # other words, same passage
    assert keys("observation", "oro", "klee")[-1] != keys("observation", "klee", "oro")[-1]


@needs("Stemmer")
def test_admissible_actions_are_valid_and_do_not_hold_the_answer(folder):
    for number, question in enumerate(QUESTIONS):
        for turn in range(3):
            played = make_environment(number)
            step = played.start()
            for _ in range(turn):
                step = played.step(f"search[{question['question']}]")
            for response in step.admissible or ():
                assert pickle.loads(pickle.dumps(played)).step(response).valid, response
            answers = {f"answer[{answer}]" for answer in question["answers"]}
            assert not answers & set(step.admissible or ()) - {f"answer[{passage.title}]" for passage in played.found}


def test_actions_are_written_without_brackets():
    assert action("search", "A [b]\n c]") == "search[A b c]"


@needs("Stemmer")
def test_retrievers_find_by_title_too_and_break_ties_by_id():
    passages = [Passage("b", "Same", "words"), Passage("a", "Same", "words"), Passage("c", "Other", "text")]
    assert [passage.id for passage in Bm25(passages)("same", 5)] == ["a", "b"]
    assert [passage.id for passage in Bm25(passages)("same", 1)] == ["a"]
