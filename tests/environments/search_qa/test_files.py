"""Corpora, questions and their splits."""

import pytest
from tests.environments.search_qa.conftest import PASSAGES, QUESTIONS, write

from turnwise.base.errors import ConfigError, DataError
from turnwise.worlds.search_qa.files import (
    Passage,
    SearchQuestion,
    find_file,
    load_corpus,
    load_questions,
    split_questions,
)


def test_files_are_found_by_option_or_variable_compressed_or_not(folder, tmp_path, monkeypatch):
    assert find_file("corpus", None) == folder / "corpus.jsonl.gz"
    assert find_file("questions", None) == folder / "questions.jsonl"
    own = write(tmp_path / "own.jsonl", PASSAGES[:1])
    assert find_file("corpus", own) == own
    assert [passage.id for passage in load_corpus(own)] == ["0"]
    assert load_corpus(write(own, [{"id": 1, "text": "no title"}])) == [Passage("1", "", "no title")]
    monkeypatch.delenv("SEARCH_QA_DATA")
    with pytest.raises(DataError, match=r"set environment.options.corpus to a .jsonl file, or SEARCH_QA_DATA"):
        find_file("corpus", None)
    with pytest.raises(DataError, match=r"environment.options.corpus='nowhere' is not a file"):
        find_file("corpus", "nowhere")
    monkeypatch.setenv("SEARCH_QA_DATA", str(tmp_path / "empty"))
    with pytest.raises(DataError, match=r"holds no questions.jsonl or questions.jsonl.gz"):
        find_file("questions", None)


def test_texts_come_on_one_line_and_ids_as_texts(folder):
    first = load_corpus(folder / "corpus.jsonl.gz")[0]
    assert first == Passage("0", "Lake Oro", "Lake Oro is a lake. It was named by the botanist Ida Fern.")
    question = load_questions(folder / "questions.jsonl", {"0", "1", "x"})[0]
    assert (question.answers, question.supporting) == (("Klee", "The village of Klee"), ("0", "1"))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "holds no passages"),
        ([{"id": 1, "text": "a"}, {"id": "1", "text": "b"}], "id '1' occurs twice in the passages"),
        ([{"id": 1, "text": "a"}, {"id": 2}], "line 2: expected an object with id, text"),
        ([["id", "text"]], "line 1: expected an object"),
        ([{"id": 1, "text": None}], "line 1: text is None, expected a text"),
        ([{"id": 1, "text": "a"}, {"id": 2, "text": "b", "title": 3}], "line 2: title is 3, expected a text"),
    ],
)
def test_a_broken_corpus_is_named(tmp_path, lines, message):
    with pytest.raises(DataError, match=message):
        load_corpus(write(tmp_path / "c.jsonl", lines))


@pytest.mark.parametrize("name", ["c.jsonl", "c.jsonl.gz"])
def test_a_file_that_is_no_json_lines_is_named(tmp_path, name):
    (tmp_path / name).write_text("{")
    with pytest.raises(DataError, match=f"{name}, line 1: not valid JSON"):
        load_corpus(tmp_path / name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"answers": "Klee"}, r"question 'q1' has answers 'Klee'; expected a list of texts"),
        ({"answers": []}, "expected a list of texts"),
        ({"answers": [" "]}, "expected a list of texts"),
        ({"supporting": [0, 99]}, "supported by passage '99', which the corpus does not have"),
    ],
)
def test_broken_questions_are_named(tmp_path, change, message):
    with pytest.raises(DataError, match=message):
        load_questions(write(tmp_path / "q.jsonl", [QUESTIONS[0] | change]), {"0", "1"})


def test_splits_are_tenths_by_id_whatever_else_is_in_the_file():
    questions = [SearchQuestion(f"q{number}", "?", ("a",)) for number in range(2000)]
    parts = {split: {q.id for q in split_questions(questions, split)} for split in ("train", "valid", "test")}
    assert set.union(*parts.values()) == {q.id for q in questions} == {q.id for q in split_questions(questions, "all")}
    assert sum(map(len, parts.values())) == 2000
    for split, share in (("train", 0.8), ("valid", 0.1), ("test", 0.1)):
        assert abs(len(parts[split]) / 2000 - share) < 0.03
        assert {q.id for q in split_questions(questions[500:], split)} == {
            id for id in parts[split] if int(id[1:]) >= 500
        }
    # the first eight bytes of `sha256sum`, modulo 10: 3, 8 and 9
    assert ("q0" in parts["train"], "q10" in parts["valid"], "q3" in parts["test"]) == (True, True, True)
    with pytest.raises(ConfigError, match=r"search_qa has no split 'vald'. Did you mean 'valid'\?"):
        split_questions(questions, "vald")
    with pytest.raises(DataError, match="split 'test' is empty: there are 1 questions only"):
        split_questions([SearchQuestion("q0", "?", ("a",))], "test")
