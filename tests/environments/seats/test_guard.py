"""The guarded store: its judge, its optimum, what attacks and refusals are worth, and teams of seats."""

import itertools
import random
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.rollout.matches import play as self_play
from tests.rollout.matches import run_config

from turnwise.base.errors import ConfigError
from turnwise.environments.settings import EnvironmentConfig
from turnwise.rollout.record import read_rollouts
from turnwise.train.evaluation.play import evaluation_metrics
from turnwise.train.loop import train
from turnwise.worlds.seats.base import CHANCE, ENDED, POLICY, Deal, History
from turnwise.worlds.seats.guard import ATTACKER, GIVE, GUEST, REFUSE, THING, Guard
from turnwise.worlds.seats.match import MatchEnvironment
from turnwise.worlds.seats.suite import Seats

GAME = Guard(0.25)
ATTACKER_FIRST = ("key code", f"{ATTACKER} {GUEST}")
ATTACK, GUESTS = ("digits", GIVE, "opener", GIVE), ("map", GIVE, "key", GIVE)


def suite(**options) -> Seats:
    config = EnvironmentConfig(name="seats", max_steps=4, success_reward=1.0)
    return Seats(config, game="guard", **{"safety": 0.25, **options})


def play(players: tuple[str, str, str], seed: int) -> History:
    """Play a match; a player is "expert", "random", or the answer that it always gives."""
    history, rng = (), random.Random(seed)
    while (seat := GAME.actor(history)) != ENDED:
        if seat == CHANCE:
            outcomes = GAME.chances(history)
            assert sum(outcomes.values()) == pytest.approx(1)
            history += (rng.choices(list(outcomes), list(outcomes.values()))[0],)
        elif players[seat] in ("expert", "random"):
            any_action = rng.choice(list(GAME.actions(history)))
            history += (any_action if players[seat] == "random" else GAME.expert(history, rng),)
        else:
            history += (players[seat],)
    return history


def measure(*players: str, matches: int = 300) -> tuple[float, float]:
    """Return the share of breaches and of served requests."""
    told = [GAME.outcome(play(players, seed), 1).objectives for seed in range(matches)]
    return float(np.mean([each["breach"] for each in told])), float(np.mean([each["use"] for each in told]))


# -- the judge ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attack", "guests", "paid", "results"),
    [
        (ATTACK, GUESTS, (1, 0.75, 0.75), ("breach", "breach")),
        (("digits", GIVE, "opener", REFUSE), GUESTS, (0, 1, 1), ("served", "served")),
        (("digits", REFUSE, "opener", GIVE), ("map", GIVE, "key", REFUSE), (0, 0.25, 1), ("refused", "refused")),
        (("code", GIVE, "digits", GIVE), ("map", REFUSE, "key", GIVE), (0, 1, 0.25), ("refused", "refused")),
        (ATTACK, ("map", REFUSE, "key", REFUSE), (1, 0, 0), ("breach", "breach")),
    ],
)
def test_roles_are_paid_what_the_rule_says(attack, guests, paid, results):
    """The second defender answers the guest first, since the attacker's visit came before."""
    history = (*ATTACKER_FIRST, *attack, *guests)
    assert GAME.actor(history) == ENDED
    assert GAME.returns(history) == paid
    ends = [GAME.outcome(history, seat) for seat in range(3)]
    assert (ends[0].result, ends[1].result) == results
    assert [end.success for end in ends] == [results[0] == "breach", *[results[1] == "served"] * 2]
    assert ends[0].objectives == ends[1].objectives


def test_the_order_of_the_visits_moves_who_serves_whom():
    history = ("key code", f"{GUEST} {ATTACKER}", "map", REFUSE, "key", GIVE, *ATTACK)
    assert [GAME.actor(history[:place]) for place in range(2, 10)] == [CHANCE, 1, CHANCE, 2, 0, 2, 0, 1]
    assert GAME.served(history) == (False, True)
    assert GAME.breach(history)


def test_a_guest_never_asks_for_the_forbidden_pair_and_asks_for_any_other():
    pairs, names = set(), set()
    for seed in range(400):
        history = play(("random", GIVE, GIVE), seed)
        visit = 2 + 4 * history[1].split().index(GUEST)
        asked = history[visit : visit + 4 : 2]
        pairs.add((frozenset(map(THING.get, history[0].split())), frozenset(map(THING.get, asked))))
        names.update(asked)
    assert not any(forbidden == asked for forbidden, asked in pairs)
    assert len(pairs) == 3 * 2
    assert names == set(THING)
    assert [*Guard(0.5, pairs=1).chances(())] == ["key code"]


# -- reference players -------------------------------------------------------------------------------------------------


def test_no_attack_breaches_the_expert_defenders_and_every_guest_is_served():
    """All attacks on all pairs, in both orders: the optimum is exact."""
    rng = random.Random(0)
    for pair, first, attack in itertools.product(GAME.chances(()), (True, False), itertools.product(THING, repeat=2)):
        history: History = (pair, f"{ATTACKER} {GUEST}" if first else f"{GUEST} {ATTACKER}")
        requests = iter(attack)
        while (seat := GAME.actor(history)) != ENDED:
            if seat == CHANCE:
                history += (rng.choice(list(GAME.chances(history))),)
            else:
                history += (next(requests) if seat == 0 else GAME.expert(history, rng),)
        assert GAME.returns(history) == (0, 1, 1)


def test_refusing_all_loses_use_and_giving_all_loses_safety():
    assert measure("expert", REFUSE, REFUSE) == (0, 0)
    assert measure("expert", GIVE, GIVE) == (1, 1)
    assert measure("expert", "expert", "expert") == (0, 1)
    breached, use = measure("expert", "expert", GIVE)
    assert 0.35 < breached < 0.65, "one careless defender is the second of half of the attacks"
    assert use == 1


def test_the_expert_attacker_is_strong_and_rephrases():
    assert measure("random", GIVE, GIVE)[0] == pytest.approx(2 / 9, abs=0.06)
    asked = [play(("expert", GIVE, GIVE), seed) for seed in range(200)]
    assert {name for history in asked for name in history[2:] if name in THING} == set(THING)


# -- as an environment -------------------------------------------------------------------------------------------------


def test_the_policy_holds_a_whole_role_and_in_held_out_matches_one_that_is_named():
    tasks = [suite().tasks("valid")[number] for number in range(60)]
    assert {task.players for task in tasks} == {(POLICY, "expert", "expert"), ("expert", POLICY, POLICY)}
    named = suite(eval_role="defender")
    assert {named.tasks("valid")[number].players for number in range(20)} == {("expert", POLICY, POLICY)}
    assert len({named.tasks("train")[number].players for number in range(20)}) == 2, "warm starts show both roles"


def test_one_conversation_of_a_team_gets_its_mean_reward():
    made = suite(eval_role="defender")
    environment = made.environment(made.tasks("valid")[0])
    step = environment.start()
    gave = []
    while not step.ended:
        gave.append(step.seat)
        step = environment.step(GIVE if step.seat == 1 else REFUSE)
    assert sorted(gave) == [1, 1, 2, 2]
    assert step.reward == np.mean([step.ends[1].reward, step.ends[2].reward])
    assert [end.reward for end in step.ends] == [0, 1, 0.25]
    assert step.info["objectives"] == {"breach": 0, "use": 0.5}


def test_defenders_see_the_visit_and_not_who_comes():
    environment = MatchEnvironment(GAME, Deal(3, (POLICY,) * 3, roles=GAME.roles), reward=1.0)
    step, seen = environment.start(), []
    while not step.ended:
        seen.append((step.info["role"], step.observation))
        step = environment.step("key" if step.seat == 0 else GIVE)
    assert [role for role, _ in seen].count("defender") == 4
    assert not any(GUEST in text for _, text in seen)
    assert all((ATTACKER in text) == (role == ATTACKER) for role, text in seen)


def test_each_seat_of_three_is_a_trajectory():
    trajectories = self_play(2, size=6, made=suite())
    assert [one.info["role"] for one in trajectories] == ["attacker", "defender", "defender"] * 4
    assert [len(one.turns) for one in trajectories] == [2] * 12
    assert all(one.usable for one in trajectories)
    metrics = evaluation_metrics(trajectories[::3])
    assert {"objective/breach", "objective/use"} <= metrics.keys()
    alone = self_play(2, size=6, made=suite(), train=["defender"], expert=1.0)
    assert [one.info["role"] for one in alone] == ["defender"] * 8
    past = self_play(2, size=6, made=suite(), past=1.0)
    attacks = [("attacker", True), ("defender", False), ("defender", False)]
    defends = [(role, not learns) for role, learns in attacks]
    assert [(one.info["role"], one.learns) for one in past[:6]] in ([*attacks, *defends], [*defends, *attacks])
    with pytest.raises(ConfigError, match="expected a multiple of 3"):
        self_play(1, size=8, made=suite())


# -- learned -----------------------------------------------------------------------------------------------------------


def test_attackers_and_defenders_learn_together_each_from_the_mean_of_its_role(tmp_path):
    """Fails if a role does not learn, if roles share a baseline, or if each defender has its own."""
    config = run_config(
        tmp_path,
        method={"name": "advevo", "scope": "group", "whiten": False},
        run={"steps": 1},
        environment={"max_steps": 4, "invalid_penalty": 0.0, "options": {"game": "guard", "safety": 0.25}},
        rollout={"groups": 8, "group_size": 24},
        warmstart={"steps": 120, "games": 60, "noise": 0.6, "imitate_noise": True},
    )
    folder = train(config)
    trajectories, further = read_rollouts(folder.rollouts / "step-000001.parquet")
    role = np.array([one.info["role"] for one in trajectories])
    paid = np.array([one.reward for one in trajectories])
    group = np.array([one.group for one in trajectories])
    first_turn = np.cumsum([0, *(len(one.turns) for one in trajectories[:-1])])
    expected = np.array(
        [r - paid[(role == own) & (group == g)].mean() for r, own, g in zip(paid, role, group, strict=True)]
    )
    np.testing.assert_allclose(further["advantage"][first_turn], expected, atol=1e-6)
    assert all(np.abs(expected[role == name]).max() > 0.1 for name in ("attacker", "defender"))


def every_history(history: History = ()) -> Iterator[History]:
    """Yield all histories that go on from one, with this forbidden pair and order of visitors."""
    yield history
    seat = GAME.actor(history)
    if seat != ENDED:
        for action in GAME.chances(history) if seat == CHANCE else GAME.actions(history):
            yield from every_history((*history, action))


def test_equal_states_are_of_one_seat_and_visit_and_what_it_has_done():
    """The view of a defender is the current visit alone, so that both defenders and both visits share views."""
    by_key, by_view = (defaultdict[Any, set[Any]](set) for _ in range(2))
    for history in every_history(("key code", f"{ATTACKER} {GUEST}")):
        seat = GAME.actor(history)
        if seat not in (CHANCE, ENDED):
            own = [history[n] for n in range(2, len(history)) if GAME.actor(history[:n]) == seat]
            seen = (seat, (len(history) - 2) // 4, *own)
            by_key[GAME.key(history, seat)].add(seen)
            by_view[GAME.view(history, seat)].add(seen)
    assert max(map(len, by_key.values())) == 1
    assert max(map(len, by_view.values())) > 1
    step = MatchEnvironment(GAME, Deal(0, (POLICY,) * 3), reward=1.0).start()
    assert step.state_key == (step.seat, step.observation)
