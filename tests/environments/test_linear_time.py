"""Texts of a policy are read in linear time, also those whose parts begin often and never end."""

import time

import pytest
from tests.needs import needs

from turnwise.environments.tool_calls import read_response
from turnwise.measures.played import action_of
from turnwise.models.subgoals import read
from turnwise.worlds.bm25 import analyse
from turnwise.worlds.search_qa.environment import SearchQaEnvironment
from turnwise.worlds.search_qa.files import SearchQuestion
from turnwise.worlds.swe.tools import _found

OPEN = {
    "actions": "<action>" * 20_000,
    "decisions": "<switch>" * 20_000,
    "calls": '<tool_call>{"a":' * 20_000,
    "brackets": "a[" * 50_000,
    "a search": "search[" + "why " * 20_000,
    "a word": "ab" * 100_000,
}


def searched(text: str) -> None:
    question = SearchQuestion("q", "Where?", ("Here",))
    environment = SearchQaEnvironment(lambda query, number: [], question, max_steps=2)
    environment.start()
    assert not environment.step(text).valid


READERS = {
    "calls": read_response,
    "action": action_of,
    "plan": lambda text: read([*text.encode()], lambda ids: bytes(ids).decode()),
    "search": searched,
    "words": pytest.param(analyse, marks=needs("Stemmer")),
}


@pytest.mark.parametrize("text", OPEN)
@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_what_does_not_end_takes_no_longer(reader, text):
    begun = time.process_time()
    reader(OPEN[text])
    assert time.process_time() - begun < 3  # each took 20 to 1,000 s when its time was quadratic


def test_a_text_that_stands_in_every_line_is_found_in_linear_time():
    begun = time.process_time()
    assert _found("ab\n" * 300_000, "a", 250_000, "file") == 3 * 249_999
    assert time.process_time() - begun < 3  # 200 s
