"""Episodes recorded in Princeton's own environment on the real catalogue: everything must be the same.

`transcripts.jsonl.gz`, in $WEBSHOP_DATA, has an episode a line:

    {"session": 7, "steps": [{"action": null, "observation": "WebShop [SEP] ...", "available": {"has_search_bar": true,
     "clickables": ["search"]}, "reward": 0.0, "done": false}, ...]}

and `goals.jsonl.gz` a goal a line, with the `session`, `instruction_text` and `price_upper` that the recording had: the
original draws limits of prices anew at every start.
"""

import dataclasses
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from turnwise.worlds.webshop.environment import WebshopEnvironment
from turnwise.worlds.webshop.goals import Goal
from turnwise.worlds.webshop.shop import Shop, Visit, load_shop
from turnwise.worlds.webshop.suite import Buyer

pytestmark = pytest.mark.data


def lines(file: Path) -> list[dict[str, Any]]:
    with gzip.open(file, "rt", encoding="utf-8") as stream:
        return [json.loads(line) for line in stream]


@pytest.fixture(scope="module")
def real(recorded: Path) -> tuple[Shop, list[Goal]]:
    return load_shop(recorded, goals="synthetic")


def test_the_goals_are_the_originals_in_its_order(recorded, real):
    known = {line["session"]: line for line in lines(recorded / "goals.jsonl.gz")}
    assert len(known) == len(real[1]) == 6910
    for goal in real[1]:
        line = known[goal.number]
        assert (goal.asin, goal.title, goal.query, goal.product_category) == (
            *(line["asin"], line["name"], line["query"]),
            line["product_category"],
        )
        assert (list(goal.attributes), dict(goal.options)) == (line["attributes"], line["goal_options"])
        clause = ", and price lower than"
        assert goal.instruction.partition(clause)[0] == line["instruction_text"].partition(clause)[0]


def test_every_observation_click_and_reward_is_the_originals(recorded, real):
    shop, goals = real
    known = {line["session"]: line for line in lines(recorded / "goals.jsonl.gz")}
    num_steps = num_purchases = 0
    for episode in lines(recorded / "transcripts.jsonl.gz"):
        line = known[episode["session"]]
        goal = dataclasses.replace(
            goals[episode["session"]], instruction=line["instruction_text"], price_upper=line["price_upper"]
        )
        environment = WebshopEnvironment(shop, goal, max_steps=1000, reward="score", success_reward=1.0)
        for recorded_step in episode["steps"]:
            action = recorded_step["action"]
            step = environment.start() if action is None else environment.step(action)
            where = f"session {episode['session']}, after {action}"
            assert step.observation == recorded_step["observation"], where
            assert (step.reward, step.terminated) == (recorded_step["reward"], recorded_step["done"]), where
            if recorded_step["available"]:
                offered = [f"click[{text}]" for text in recorded_step["available"]["clickables"] if text != "search"]
                search = recorded_step["available"]["has_search_bar"]
                assert step.admissible == ([f"search[{goal.instruction.lower()}]"] if search else offered), where
            num_steps += 1
            num_purchases += step.terminated
    assert (num_steps, num_purchases) == (780, 55)


def test_the_scripted_buyer_succeeds_on_most_goals(real):
    shop, goals = real
    scores = []
    for goal in goals[::10]:
        visit, buyer = Visit(shop, goal), Buyer(shop, goal)
        for _ in range(15):
            if visit.score is None:
                assert visit.act(buyer.act(visit))
        scores.append(visit.score.total if visit.score else 0.0)
    assert sum(score == 1 for score in scores) / len(scores) > 0.9
    assert min(scores) > 0.6  # the rest are colours that the released reward does not recognise
