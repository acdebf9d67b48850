"""Load a corpus and its questions from JSON Lines, compressed or not.

corpus.jsonl       {"id": 7, "title": "Paris", "text": "Paris is ..."}
questions.jsonl    {"question_id": "q1", "question": "Who ...?", "answers": ["Ada"], "supporting": [7, 9]}
"""

import dataclasses
import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from turnwise.base.errors import DataError
from turnwise.base.jsonl import check_unique, read_objects
from turnwise.environments.splits import named_split

DATA_VARIABLE = "SEARCH_QA_DATA"


@dataclasses.dataclass(frozen=True, slots=True)
class Passage:
    """One text of the corpus, on one line."""

    id: str
    title: str
    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class SearchQuestion:
    """One question."""

    id: str  # its name; decides the split
    text: str  # the question, on one line
    answers: tuple[str, ...]  # gold answers; any of them is right
    supporting: tuple[str, ...] = ()  # ids of the passages that answer it together; empty if unknown


def find_file(name: str, path: str | Path | None) -> Path:
    """Find the file that an option names, or `name`.jsonl or `name`.jsonl.gz in $SEARCH_QA_DATA.

    Raises:
        DataError: The file does not exist.
    """
    if path:
        if not (found := Path(str(path)).expanduser()).is_file():
            raise DataError(f"environment.options.{name}={str(path)!r} is not a file; expected JSON Lines, .gz or not.")
        return found
    folder = os.environ.get(DATA_VARIABLE)
    if not folder:
        raise DataError(
            f"set environment.options.{name} to a .jsonl file, or {DATA_VARIABLE} to the folder that holds "
            "corpus.jsonl and questions.jsonl (.gz or not)."
        )
    for ending in (".jsonl", ".jsonl.gz"):
        if (found := Path(folder).expanduser() / f"{name}{ending}").is_file():
            return found
    raise DataError(
        f"{DATA_VARIABLE}={folder} holds no {name}.jsonl or {name}.jsonl.gz; "
        f"for a file elsewhere set environment.options.{name}."
    )


def load_corpus(path: Path) -> list[Passage]:
    """Load passages.

    Raises:
        DataError: The file is malformed or empty, or has an id twice.
    """
    lines = _lines(path, "id", "text", optional="title")
    passages = [Passage(line["id"], line["title"], line["text"]) for line in lines]
    check_unique(path, "passages", "id", [passage.id for passage in passages])
    return passages


def load_questions(path: Path, known: Collection[str]) -> list[SearchQuestion]:
    """Load questions.

    Raises:
        DataError: The file is malformed or empty, has an id twice, or names a passage that the corpus does not have.
    """
    questions = []
    for line in _lines(path, "question_id", "question", also="answers"):
        answers = line["answers"]
        if not isinstance(answers, list) or not answers or not all(isinstance(a, str) and a.strip() for a in answers):
            raise DataError(
                f'{path}: question {line["question_id"]!r} has answers {answers!r}; expected a list of texts, ["Ada"].'
            )
        supporting = tuple(map(str, line.get("supporting") or ()))
        if missing := set(supporting).difference(known):
            raise DataError(
                f"{path}: question {line['question_id']!r} is supported by passage {min(missing)!r}, "
                "which the corpus does not have; are the two files a pair?"
            )
        questions.append(SearchQuestion(line["question_id"], line["question"], tuple(answers), supporting))
    check_unique(path, "questions", "id", [question.id for question in questions])
    return questions


def split_questions(questions: Sequence[SearchQuestion], split: str) -> list[SearchQuestion]:
    """Return the questions of a split, by a hash of their ids, independent of other questions.

    Raises:
        ConfigError: The split is unknown.
        DataError: The split is empty.
    """
    mine = named_split(split, of="search_qa")
    chosen = [question for question in questions if mine(question.id)]
    if not chosen:
        raise DataError(f"split {split!r} is empty: there are {len(questions)} questions only; split 'all' has them.")
    return chosen


def _lines(path: Path, ids: str, text: str, *, also: str = "", optional: str = "") -> Iterator[dict[str, Any]]:
    """Read objects and put each text on one line, so that no passage imitates a line of the environment."""
    for number, line in read_objects(path, [key for key in (ids, text, also) if key]):
        line[ids] = str(line[ids])
        for key in filter(None, (text, optional)):
            if not isinstance(line.setdefault(key, ""), str):
                raise DataError(f"{path}, line {number}: {key} is {line[key]!r}, expected a text.")
            line[key] = " ".join(line[key].split())
        yield line
