"""Reads a corpus and its questions: JSON Lines, compressed or not.

corpus.jsonl       {"id": 7, "title": "Paris", "text": "Paris is ..."}
questions.jsonl    {"question_id": "q1", "question": "Who ...?", "answers": ["Ada"], "supporting": [7, 9]}
"""

import dataclasses
import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from turnwise.environments.jsonl import read_objects
from turnwise.environments.splits import named_split
from turnwise.errors import DataError

DATA_VARIABLE = "SEARCH_QA_DATA"


@dataclasses.dataclass(frozen=True, slots=True)
class Passage:
    """One text of the corpus, on one line."""

    id: str
    title: str
    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """One question.

    Attributes:
        id: Its name; decides the split.
        text: The question, on one line.
        answers: All that count as right.
        supporting: Ids of the passages that answer it together; empty where unknown.
    """

    id: str
    text: str
    answers: tuple[str, ...]
    supporting: tuple[str, ...] = ()


def find_file(name: str, path: str | Path | None) -> Path:
    """The file that an option names, or else `name`.jsonl or `name`.jsonl.gz in $SEARCH_QA_DATA.

    Raises:
        DataError: There is none.
    """
    if path:
        if not (found := Path(str(path)).expanduser()).is_file():
            raise DataError(f"environment.options.{name}={str(path)!r} is no file; it must be JSON Lines, .gz or not.")
        return found
    folder = os.environ.get(DATA_VARIABLE)
    if not folder:
        raise DataError(f"set environment.options.{name} to a .jsonl file, or {DATA_VARIABLE} to the folder that holds "
                        "corpus.jsonl and questions.jsonl (.gz or not).")  # fmt: skip
    for ending in (".jsonl", ".jsonl.gz"):
        if (found := Path(folder).expanduser() / f"{name}{ending}").is_file():
            return found
    raise DataError(f"{DATA_VARIABLE}={folder} holds no {name}.jsonl or {name}.jsonl.gz; "
                    f"a file elsewhere is environment.options.{name}.")  # fmt: skip


def load_corpus(path: Path) -> list[Passage]:
    """Read passages.

    Raises:
        DataError: The file is broken, empty, or has an id twice.
    """
    lines = _lines(path, "id", "text", optional="title")
    passages = [Passage(line["id"], line["title"], line["text"]) for line in lines]
    _check_ids(path, "passages", [passage.id for passage in passages])
    return passages


def load_questions(path: Path, known: Collection[str]) -> list[Question]:
    """Read questions.

    Args:
        path: The file.
        known: Ids of the corpus.

    Raises:
        DataError: The file is broken, empty, has an id twice, or names a passage that the corpus does not have.
    """
    questions = []
    for line in _lines(path, "question_id", "question", also="answers"):
        answers = line["answers"]
        if not isinstance(answers, list) or not answers or not all(isinstance(a, str) and a.strip() for a in answers):
            raise DataError(f"{path}: question {line['question_id']!r} has answers {answers!r}; "
                            'expected a list of texts, ["Ada"].')  # fmt: skip
        supporting = tuple(map(str, line.get("supporting") or ()))
        if missing := set(supporting).difference(known):
            raise DataError(f"{path}: question {line['question_id']!r} is supported by passage {min(missing)!r}, "
                            "which the corpus does not have; are the two files a pair?")  # fmt: skip
        questions.append(Question(line["question_id"], line["question"], tuple(answers), supporting))
    _check_ids(path, "questions", [question.id for question in questions])
    return questions


def split_questions(questions: Sequence[Question], split: str) -> list[Question]:
    """The questions of a split, by a hash of their ids: other questions in the file change nothing.

    Raises:
        ConfigError: There is no such split.
        DataError: It is empty.
    """
    mine = named_split(split, of="search_qa")
    chosen = [question for question in questions if mine(question.id)]
    if not chosen:
        raise DataError(f"split {split!r} is empty: there are {len(questions)} questions only; split 'all' has them.")
    return chosen


def _lines(path: Path, ids: str, text: str, *, also: str = "", optional: str = "") -> Iterator[dict[str, Any]]:
    """Read objects; their texts come on one line, lest a line of a passage look like one of the environment's."""
    for number, line in read_objects(path, [key for key in (ids, text, also) if key]):
        line[ids] = str(line[ids])
        for key in filter(None, (text, optional)):
            if not isinstance(line.setdefault(key, ""), str):
                raise DataError(f"{path}, line {number}: {key} is {line[key]!r}, expected a text.")
            line[key] = " ".join(line[key].split())
        yield line


def _check_ids(path: Path, what: str, ids: list[str]) -> None:
    if not ids:
        raise DataError(f"{path} holds no {what}.")
    if len(set(ids)) < len(ids):
        twice = next(id for number, id in enumerate(ids) if id in ids[:number])
        raise DataError(f"{path}: id {twice!r} stands for two {what}; ids must differ.")
