"""What an agent sent besides the observation stands folded in the card of its turn."""

import asyncio
from pathlib import Path

import pytest
from tests.gateway.test_requests_kept import asked, recorded
from tests.rollout import chat_models

from turnwise.lab.report.chunks import LONGEST, sent_besides
from turnwise.lab.report.write import write_report
from turnwise.models.chat import chat_format
from turnwise.models.settings import PromptConfig
from turnwise.train.recorded import read_step

FMT = chat_format(chat_models.tokenizer("qwen2_5"), PromptConfig())


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    trajectory, _ = asyncio.run(asked(FMT))
    trajectory.turns[3].extras["request"]["messages"][0]["content"] = "x" * (LONGEST + 1)
    return recorded(trajectory, str(tmp_path_factory.mktemp("runs") / "run"))


@pytest.fixture(scope="module")
def page_url(browser, run) -> str:
    return write_report([run], run.parent / "report", ["grpo"]).as_uri()


def test_the_page_gets_tools_and_messages_but_for_the_observation(run):
    sent = sent_besides(read_step(run / "rollouts" / "step-000001.parquet", "request")).to_pylist()
    assert sent[:3] == [["tools: look", "system: You find things."], [], ["system: You find things."]]
    assert sent[3] == [
        "tools: look",
        f"system: {'x' * LONGEST}...",
        "user: Earlier: a mug was seen.",
        "assistant: mug",
        "user: Where?",
    ]
    assert sent[4] == ["user: Thanks."]


def test_it_opens_without_choosing_the_turn(opened):
    page = opened("#step=1&rollout=0").page
    folds = page.locator(".turn .sent")
    assert folds.locator("summary").all_inner_texts()[:2] == ["2 more sent", "1 more sent"]
    chosen = page.locator(".turn.here").count()
    folds.first.locator("summary").click()
    assert folds.first.locator("p").all_inner_texts() == ["tools: look", "system: You find things."]
    assert folds.first.locator("p").first.is_visible()
    assert page.locator(".turn.here").count() == chosen
    folds.first.locator("summary").press("Enter")
    assert not folds.first.locator("p").first.is_visible()


def test_turns_of_our_own_games_have_none(tmp_path):
    from tests.report.synthetic import write_run

    step = read_step(write_run(tmp_path / "native", steps=1) / "rollouts" / "step-000001.parquet", "request")
    assert set(sent_besides(step).to_pylist()) == {None}
