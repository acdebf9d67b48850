"""A small corpus made up here, and its questions."""

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.needs import skip_without

from turnwise.environments.settings import EnvironmentConfig
from turnwise.environments.suites import make_suite
from turnwise.worlds.search_qa.environment import SearchQaEnvironment

PASSAGES = [
    {"id": 0, "title": "Lake Oro", "text": "Lake Oro is a lake.  It was named\nby the botanist Ida Fern."},
    {"id": 1, "title": "Ida Fern", "text": "Fern was born in the village of Klee [Kleve] and kept bees."},
    {"id": 2, "title": "Lake Plata", "text": "Lake Plata is a lake that a surveyor named."},
    {"id": 3, "title": "Klee", "text": "A village known for honey."},
    {"id": "x", "title": "Bees", "text": "Bees make honey. " + "They buzz. " * 40},
]
QUESTIONS = [
    {
        "question_id": "q1",
        "question": "Where was the botanist born who named Lake Oro?",
        "answers": ["Klee", "The village of Klee"],
        "supporting": [0, 1],
    },
    {"question_id": "q2", "question": "Do bees make honey?", "answers": ["yes"], "supporting": ["x"]},
    {"question_id": "q3", "question": "What is Klee known for?", "answers": ["honey"]},
]


def write(path: Path, lines: list[Any]) -> Path:
    text = "\n".join(json.dumps(line) for line in lines) + "\n\n"
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    write(tmp_path / "corpus.jsonl.gz", PASSAGES)
    write(tmp_path / "questions.jsonl", QUESTIONS)
    monkeypatch.setenv("SEARCH_QA_DATA", str(tmp_path))
    return tmp_path


def suite(max_steps: int = 6, **options) -> Any:
    return make_suite(EnvironmentConfig(name="search_qa", max_steps=max_steps, options=options))


def make_environment(number: int = 0, **options) -> SearchQaEnvironment:
    made = suite(**options)
    return made.environment(made.tasks("all")[number])


@pytest.fixture(scope="session")
def hotpot() -> dict[str, str]:
    """Return the options that name HotpotQA's files; skips where there are none."""
    skip_without("SEARCH_QA_DATA", "Stemmer")
    folder = os.environ["SEARCH_QA_DATA"]
    for prefix in ("hotpotqa_", ""):
        files = {name: Path(folder) / f"{prefix}{name}.jsonl.gz" for name in ("corpus", "questions")}
        if all(file.is_file() for file in files.values()):
            return {name: str(file) for name, file in files.items()}
    pytest.skip("needs hotpotqa_corpus.jsonl.gz and hotpotqa_questions.jsonl.gz in SEARCH_QA_DATA")
