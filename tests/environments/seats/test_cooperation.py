"""Games of two seats that gain from each other: divisions, exact optima, outcomes, and what can be learned."""

import itertools
import random
from typing import Any

import numpy as np
import pytest
from tests.toys import small_config

from turnwise.rollout.record import read_rollouts
from turnwise.train.loop import train
from turnwise.worlds.seats.base import CHANCE, ENDED, POLICY, Deal, Game, History
from turnwise.worlds.seats.cooperation import OFFERS, WORTH, Negotiation, Referential
from turnwise.worlds.seats.match import MatchEnvironment

DEALT = ("2 1 1", "1 8 0", "2 1 5")
"""Two books, a hat and a ball; the first seat likes the hat, the second the ball."""


def deal(game: Game, rng: random.Random) -> History:
    history: History = ()
    while game.actor(history) == CHANCE:
        outcomes = game.chances(history)
        assert sum(outcomes.values()) == pytest.approx(1)
        history += (rng.choices(list(outcomes), list(outcomes.values()))[0],)
    return history


def play(game: Game, rng: random.Random, *, expert: bool) -> History:
    history = deal(game, rng)
    while game.actor(history) != ENDED:
        history += (game.expert(history, rng) if expert else rng.choice(list(game.actions(history))),)
    return history


# -- negotiation -------------------------------------------------------------------------------------------------------


def test_what_all_items_are_worth_is_the_same_for_both_seats():
    for seed in range(20):
        pool, *values = (tuple(map(int, text.split())) for text in deal(Negotiation(), random.Random(seed)))
        assert [np.dot(pool, each) for each in values] == [WORTH, WORTH]


def test_the_best_joint_value_is_that_of_all_divisions():
    game = Negotiation()
    for seed in range(20):
        dealt = deal(game, random.Random(seed))
        offers = [each for each in game.actions(dealt) if each.startswith("keep")]
        assert game.best(dealt) == max(game.joint((*dealt, offer, "accept")) for offer in offers)
        assert len(offers) == np.prod([int(number) + 1 for number in dealt[0].split()])


@pytest.mark.parametrize(
    ("played", "own", "joint", "result"),
    [
        (("keep 0 1 0", "accept"), (0.8, 0.9), 17, "best"),
        (("keep 2 1 0", "accept"), (1.0, 0.5), 15, "agreement"),
        (("keep 2 1 1", "keep 2 0 1", "accept"), (0.8, 0.9), 17, "best"),
        (("keep 2 1 1", "keep 2 1 1") * 2 + ("refuse",), (0.0, 0.0), 0, "none"),
        (("keep 2 1 1", "keep 2 0 1") * 2 + ("accept",), (0.8, 0.9), 17, "best"),
    ],
)
def test_a_division_pays_own_or_joint_value(played, own, joint, result):
    history = (*DEALT, *played)
    for game, paid in ((Negotiation("own"), own), (Negotiation("joint"), (joint / 17,) * 2)):
        assert game.actor(history) == ENDED
        assert game.returns(history) == pytest.approx(paid)
        assert game.joint(history) == joint
        for seat in (0, 1):
            assert game.outcome(history, seat)[:3] == (result == "best", result, pytest.approx(joint / 17))


def test_offers_end_and_values_are_private():
    game, offer = Negotiation(), "keep 2 1 1"
    assert "accept" not in game.actions(DEALT)
    assert game.actions((*DEALT, offer))[-1] == "accept"
    assert game.actions((*DEALT, *[offer] * OFFERS)) == ("accept", "refuse")
    assert game.view((*DEALT, offer), 0) == "first 2 book worth 1 , 1 hat worth 8 , 1 ball worth 0 : keep 2 1 1"
    assert game.view((*DEALT, offer), 1) == "second 2 book worth 2 , 1 hat worth 1 , 1 ball worth 5 : keep 2 1 1"


def test_experts_agree_on_more_than_chance_does():
    game = Negotiation()
    scores = {
        expert: [game.outcome(play(game, random.Random(seed), expert=expert), 0).score for seed in range(200)]
        for expert in (True, False)
    }
    assert np.mean(scores[True]) > np.mean(scores[False]) + 0.1


# -- the referential game ----------------------------------------------------------------------------------------------


def test_experts_always_understand_each_other_and_chance_picks_one_in_so_many():
    for objects in (2, 3, 9):
        game = Referential(objects)
        assert all(game.returns(play(game, random.Random(seed), expert=True)) == (1, 1) for seed in range(50))
        right = [game.returns(play(game, random.Random(seed), expert=False))[0] for seed in range(600)]
        assert np.mean(right) == pytest.approx(1 / objects, abs=0.06)


def test_only_the_first_seat_sees_the_target():
    game = Referential(3)
    dealt = ("star blue", "circle red", "square green")
    views = {}
    for target in ("1", "2", "3"):
        assert game.view((*dealt, target), 0).endswith(f"square green , star blue : target {dealt[int(target) - 1]}")
        views[target] = game.view((*dealt, target, "ba ki"), 1)
    assert set(views.values()) == {"second ba ki : 1 star blue , 2 circle red , 3 square green"}
    first = {game.view((*order, str(order.index("circle red") + 1)), 0) for order in itertools.permutations(dealt)}
    assert len(first) == 1, "the speaker does not see the listener's order"


def test_a_wrong_pick_pays_nothing_and_is_no_success():
    """Fails if success is the sign of the payoff."""
    game = Referential(3)
    seed = next(seed for seed in range(9) if play_match(game, seed)[0].reward == 0)
    for end in play_match(game, seed):
        assert (end.reward, end.info["success"], end.info["result"], end.info["score"]) == (0, False, "wrong", 0)
    right = next(seed for seed in range(99) if play_match(game, seed)[0].reward)
    assert [end.info["success"] for end in play_match(game, right)] == [True, True]


def play_match(game: Game, seed: int):
    environment = MatchEnvironment(game, Deal(seed, (POLICY, POLICY)), reward=1.0)
    environment.start()
    step = environment.step("nonsense")
    assert not step.valid
    assert step.observation.split(" :")[0].removeprefix("second ") in game.actions(environment.history[:-1])
    return environment.step("1").ends


# -- learned -----------------------------------------------------------------------------------------------------------


def config(folder, *, game: dict[str, Any], **sections: Any):
    return small_config(
        folder,
        environment={"name": "seats", "max_steps": 3, "options": game, **sections.pop("environment", {})},
        **{"method": "grpo", **sections},
    )


@pytest.mark.parametrize(
    ("method", "game", "past"),
    [
        ("mars", "negotiation", 0.0),
        ("rae", "negotiation", 0.5),
        ("rae", "referential", 0.0),
        ("mars", "referential", 0.5),
    ],
)
def test_one_policy_or_several_hold_the_seats(method, game, past, tmp_path):
    made = config(
        tmp_path,
        game={"game": game},
        method=method,
        rollout={"groups": 4, "group_size": 8, "collector": {"name": "self_play", "past": past, "every": 1}},
        model={"max_context": 256},
        evaluate={"every": 0},
    )
    folder = train(made)
    trajectories, _ = read_rollouts(folder.rollouts / "step-000002.parquet")
    assert {one.info["role"] for one in trajectories} == {"first", "second"}
    assert {one.info["actor"] for one in trajectories} >= ({"policy", "step 1"} if past else {"policy"})
    assert all(one.reward >= 0 for one in trajectories)
    assert [line["eval/success"] for line in folder.metrics() if "eval/success" in line]


def test_a_tiny_speaker_learns_to_be_understood_and_does_not_without_rewards(tmp_path, monkeypatch):
    """The teacher of the warm start speaks half of its messages at random."""
    monkeypatch.setenv("TURNWISE_CACHE", str(tmp_path / "cache"))
    players = {"name": "self_play", "train": ["first"], "expert": 1.0}
    understood = {}
    for reward in (1.0, 0.0):
        made = config(
            tmp_path,
            game={"game": "referential", "features": 1},
            environment={"success_reward": reward, "invalid_penalty": 1.0},
            run={"name": f"reward-{reward:g}", "steps": 16},
            model={"hidden_size": 64, "num_heads": 4},
            warmstart={"steps": 200, "games": 300, "noise": 0.5, "imitate_noise": True, "batch_size": 32}
            | {"observation_weight": 0.0},
            rollout={"groups": 16, "group_size": 8, "collector": players},
            method="mars",
            update={"learning_rate": 3e-3, "entropy_bonus": 0.02, "scoring": "engine"},
            evaluate={"every": 0, "final_episodes": 128, "temperature": 1.0},
        )
        lines = [line for line in train(made).metrics() if "eval/success" in line]
        understood[reward] = [line["eval/success/first"] for line in lines]
    chance = 1 / 3
    assert understood[1.0][0] == understood[0.0][0] > chance + 0.2, "both begin in the same warm start"
    assert understood[1.0][1] > 0.88
    assert understood[0.0][1] < 0.82
