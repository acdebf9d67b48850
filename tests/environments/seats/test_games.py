"""Games with seats: rules, exact values, and experts that cannot be beaten."""

import pickle
import random

import numpy as np
import pytest

from turnwise.base.errors import ConfigError, EnvironmentFault
from turnwise.environments.check import check_environment
from turnwise.environments.settings import EnvironmentConfig
from turnwise.environments.suites import make_suite
from turnwise.environments.words import split_words
from turnwise.models.settings import ModelConfig
from turnwise.models.tiny import tiny_policy, word_tokenizer
from turnwise.train.evaluation.play import panel
from turnwise.worlds.seats.base import CHANCE, ENDED, POLICY, ROLES, Deal
from turnwise.worlds.seats.boards import ConnectFour, TicTacToe
from turnwise.worlds.seats.match import MatchEnvironment
from turnwise.worlds.seats.poker import KUHN, LEDUC
from turnwise.worlds.seats.suite import GAMES, Seats
from turnwise.worlds.seats.tree import solve


def suite(max_steps: int = 21, **options) -> Seats:
    made = make_suite(EnvironmentConfig(name="seats", max_steps=max_steps, success_reward=1.0, options=options))
    assert isinstance(made, Seats)
    return made


NEEDED = {"guard": {"safety": 0.5}}
"""Options without a default."""


@pytest.mark.parametrize("game", GAMES)
def test_every_game_conforms_to_the_protocol(game):
    made = suite(game=game, opponent="random", rules=True, **NEEDED.get(game, {}))
    assert check_environment(made, num_tasks=2) == []
    known = set(made.words())
    for task in [made.tasks("train")[n] for n in range(4)]:
        environment, rng = made.environment(task), random.Random(task.seed)
        step, texts = environment.start(), []
        while not step.ended:
            texts += [step.observation, *step.admissible]
            step = environment.step(rng.choice(step.admissible))
        assert set(split_words(" ".join([*texts, step.observation]))) <= known


def test_the_names_of_games_are_those_that_can_be_made():
    made = [suite(game=name, **NEEDED.get(name, {})).game.name for name in GAMES if name != "leduc"]
    assert made == [name for name in GAMES if name != "leduc"]


# The exploitabilities of the uniform strategy are those of OpenSpiel's tests (NashConv 11/12 and 4.747222, the sum over
# two seats). The value of Kuhn's poker is his own (1950), that of Leduc what OpenSpiel's solvers find.
@pytest.mark.parametrize(
    ("game", "num_situations", "uniform", "value", "iterations", "left"),
    [(KUHN, 12, 11 / 24, -1 / 18, 300, 2e-3), (LEDUC, 288, 4.747222222 / 2, -0.085606, 60, 0.06)],
)
def test_exploitability_and_values_are_exact(game, num_situations, uniform, value, iterations, left):
    tree = game.tree
    assert len(tree.situations) == num_situations
    assert tree.exploitability(tree.uniform()) == pytest.approx(uniform, abs=1e-8)
    strategy = solve(tree, iterations=iterations)
    assert 0 < tree.exploitability(strategy) < left
    assert tree.values(strategy)[0, 0] == pytest.approx(value, abs=left)
    assert tree.values(strategy)[0].sum() == pytest.approx(0, abs=1e-12)


def kuhn_strategy(alpha: float) -> np.ndarray:
    """Kuhn's equilibria: the first bets J with alpha and K with 3 alpha, and calls Q with alpha + 1/3."""
    bets = {"J": alpha, "Q": 0.0, "K": 3 * alpha}
    calls = {"J": 0.0, "Q": alpha + 1 / 3, "K": 1.0}
    second_bets, second_calls = {"J": 1 / 3, "Q": 0.0, "K": 1.0}, {"J": 0.0, "Q": 1 / 3, "K": 1.0}
    chosen = []
    for situation in KUHN.tree.situations:
        card = situation.observations[0].split()[1][0]
        facing = situation.offers[-1] == ("fold", "call")
        table = ((bets, calls), (second_bets, second_calls))[situation.seat][facing]
        chosen += [1 - table[card], table[card]]
    return np.array(chosen)


@pytest.mark.parametrize("alpha", [0.0, 0.2, 1 / 3])
def test_kuhns_own_equilibria_cannot_be_exploited(alpha):
    tree, strategy = KUHN.tree, kuhn_strategy(alpha)
    assert tree.exploitability(strategy) == pytest.approx(0, abs=1e-12)
    assert tree.values(strategy)[0, 0] == pytest.approx(-1 / 18)
    wrong = strategy.copy()
    wrong[:2] = 0.5  # the first bets its first card half of the time
    assert tree.exploitability(wrong) > 1e-3


def test_chance_deals_each_hand_as_often_as_the_deck_has_it():
    hands: dict[str, float] = {}
    for first, chance in LEDUC.chances(()).items():
        for second, then in LEDUC.chances((first,)).items():
            hands[first + second] = chance * then
    assert sum(hands.values()) == pytest.approx(1)
    assert hands["JJ"] == pytest.approx(2 / 30)
    assert hands["JQ"] == pytest.approx(4 / 30)


@pytest.mark.parametrize(
    ("game", "history", "returns"),
    [
        (KUHN, "K J check check", (1, -1)),
        (KUHN, "J K check bet fold", (-1, 1)),
        (KUHN, "J K bet call", (-2, 2)),
        (KUHN, "Q K bet fold", (1, -1)),
        (LEDUC, "J K bet raise call J check check", (5, -5)),  # a pair wins
        (LEDUC, "J K bet call Q bet raise call", (-11, 11)),
        (LEDUC, "Q Q check check K bet call", (0, 0)),
        (LEDUC, "Q Q check bet fold", (-1, 1)),
        (TicTacToe(), "1 2 4 5 7", (1, -1)),
        (TicTacToe(), "1 2 3 5 4 6 8 7 9", (0, 0)),
        (TicTacToe(), "1 3 2 5 9 7", (-1, 1)),
        (ConnectFour(), "1 2 1 2 1 2 1", (1, -1)),
        (ConnectFour(), "1 2 2 3 4 3 3 4 5 4 4", (1, -1)),  # a rising diagonal
        (ConnectFour(), "7 1 7 2 6 3 6 4", (-1, 1)),
    ],
)
def test_the_winner_is_paid(game, history, returns):
    played = tuple(history.split())
    assert game.actor(played) == ENDED
    assert game.actor(played[:-1]) not in (ENDED, CHANCE)
    assert game.returns(played) == returns


def play(game, players, seed: int) -> tuple[float, ...]:
    """Play a match with an expert or a random player at each seat."""
    rng, history = random.Random(seed), ()
    while (seat := game.actor(history)) != ENDED:
        if seat == CHANCE:
            history += (rng.choices(list(game.chances(history)), list(game.chances(history).values()))[0],)
        elif players[seat] == "expert":
            history += (game.expert(history, rng),)
        else:
            history += (rng.choice(list(game.actions(history))),)
    return game.returns(history)


def test_the_expert_of_tic_tac_toe_never_loses_and_draws_with_itself():
    game = TicTacToe()
    assert all(play(game, ("expert", "expert"), seed) == (0, 0) for seed in range(10))
    results = [play(game, ("expert", "random") if seed % 2 else ("random", "expert"), seed) for seed in range(60)]
    own = [result[1 - seed % 2] for seed, result in enumerate(results)]
    assert min(own) == 0
    assert sum(won == 1 for won in own) > 30


def test_the_expert_of_connect_four_takes_a_win_stops_one_and_beats_random_play():
    game, rng = ConnectFour(depth=3), random.Random(0)
    assert game.expert(("1", "2", "1", "2", "1", "2"), rng) == "1"
    assert game.expert(("1", "7", "1", "7", "1"), rng) == "1"
    assert sum(play(game, ("expert", "random"), seed)[0] for seed in range(4)) == 4


def test_a_match_repeats_and_an_invalid_response_plays_a_drawn_action():
    made = suite(game="leduc", opponent="random")
    task = made.tasks("train")[3]
    assert made.tasks("train")[3] == pickle.loads(pickle.dumps(task))
    told = []
    for _ in range(2):
        environment = made.environment(task)
        steps = [environment.start()]
        while not steps[-1].ended:
            steps.append(environment.step("xyzzy"))
        told.append(steps)
    assert told[0] == told[1]
    assert not any(step.valid for step in told[0][1:])
    assert told[0][-1].info["moves"]
    with pytest.raises(EnvironmentFault, match="after the end"):
        environment.step("check")


def test_a_mark_with_its_place_is_one_word():
    """Fails if marks look alike at all places: a small policy then learns the rules of tic-tac-toe, and still loses."""
    made = suite(game="tictactoe", rules=True)
    view = made.game.view(("1", "5"), 0)
    assert view == "x: x1 2 3 / 4 o5 6 / 7 8 9"
    policy = tiny_policy(made.words(), ModelConfig(hidden_size=16, num_layers=1, num_heads=2), seed=0)
    read = policy.tokenizer.convert_ids_to_tokens(policy.format.prompt_ids(made.game.rules + view, first=True))
    assert " ".join(read).endswith("x : x1 2 3 / 4 o5 6 / 7 8 9 <act>")
    assert policy.tokenizer.unk_token not in read
    every = [f"{mark}{place}" for mark in "xo" for place in range(1, 10)]
    assert len(policy.format.text_ids(" ".join(every))) == 18


def test_only_words_that_are_named_mix_letters_and_digits():
    read = word_tokenizer(["x1", "x", "go", "1", "12"]).tokenize("x1 x12 go1 1")
    assert read == ["x1", "x", "12", "go", "1", "1"]


def test_a_panel_holds_both_seats():
    tasks = suite(game="kuhn", opponent="random").tasks("valid")
    for episodes in (64, 128, 200, 512):
        seats = [task.players.index(POLICY) for task in panel(tasks, episodes)]
        assert 0.35 < np.mean(seats) < 0.65


def test_seats_see_only_what_is_theirs():
    made = suite(game="kuhn", opponent="random")
    both = Deal(seed=5, players=(POLICY, POLICY))
    environment = made.environment(both)
    first = environment.start()
    second = environment.step("check")
    assert [first.seat, second.seat] == [0, 1]
    assert [step.info["role"] for step in (first, second)] == list(ROLES)
    cards = environment.history[:2]
    assert first.observation == f"first {cards[0]}:"
    assert second.observation == f"second {cards[1]}: check"
    last = environment.step("check")
    assert [end.reward for end in last.ends] == [-last.ends[1].reward, last.ends[1].reward]
    assert [end.info["result"] for end in last.ends] in (["win", "loss"], ["loss", "win"])


def test_openings_leave_the_policy_a_chance():
    made = suite(game="tictactoe", opening=4)
    tasks = [made.tasks("valid")[n] for n in range(60)]
    assert len({task.opening for task in tasks}) > 30
    for task in tasks:
        worth = made.game.value(task.opening)
        assert worth is not None
        assert worth * (1, -1)[task.players.index(POLICY)] >= 0


def test_no_opening_ends_before_the_policy_acts():
    made = suite(game="connect_four", opening=21, depth=2, opponent="expert")
    assert not any(made.environment(made.tasks("valid")[n]).start().ended for n in range(60))


def test_the_expert_demonstrates():
    made = suite(game="tictactoe", opponent="random")
    task = made.tasks("train")[0]
    turns = made.demonstrate(task, noise=0.5, seed=1)
    assert turns == made.demonstrate(task, noise=0.5, seed=1)
    assert {turn.imitate for noisy in range(6) for turn in made.demonstrate(task, noise=0.5, seed=noisy)} == {
        True,
        False,
    }
    assert all(turn.imitate for turn in made.demonstrate(task, noise=0.0, seed=1))


@pytest.mark.parametrize(
    ("options", "max_steps", "message"),
    [
        ({"game": "poker"}, 21, r"environment.options.game='poker' is unknown"),
        ({"game": "kuhm"}, 21, r"Did you mean 'kuhn'\?"),
        ({"opponent": "exprt"}, 21, r"Did you mean 'expert'\?"),
        ({"num_train": 0}, 21, r"num_train=0: expected a whole number of matches"),
        ({"depth": 0}, 21, r"depth=0: expected 1 or more"),
        ({"game": "kuhn", "opening": 1}, 21, r"opening=1: expected 0 actions, since kuhn begins with a draw"),
        ({"game": "negotiation", "opening": 1}, 21, r"opening=1: expected 0 actions, since negotiation begins"),
        ({"game": "referential", "opening": 2}, 21, r"opening=2: expected 0 actions, since referential begins"),
        ({"game": "negotiation", "share": "both"}, 21, r"share='both': expected one of own, joint"),
        ({"game": "referential", "objects": 1}, 21, r"objects=1: expected 2 to 9, as many as differ"),
        (
            {"game": "referential", "objects": 4, "features": 1},
            21,
            r"objects=4: expected 2 to 3, as many",
        ),
        ({"game": "referential", "objects": 2.5}, 21, r"objects=2.5: expected a whole number, such as 3"),
        ({"game": "referential", "features": 3}, 21, r"features=3: expected 1 or 2"),
        ({"game": "guard"}, 21, r"safety=None: game 'guard' needs the weight of safety .* no value is published"),
        ({"game": "guard", "safety": 1.0}, 21, r"safety=1.0: .* between 0 and 1"),
        ({"game": "guard", "safety": 0.5, "pairs": 4}, 21, r"pairs=4: expected 1 to 3 pairs"),
        ({"game": "guard", "safety": 0.5}, 3, r"max_steps=3 is less than the 4 turns of a match of guard"),
        (
            {"game": "kuhn", "eval_role": "frist"},
            21,
            r"eval_role='frist': kuhn has no such role. Did you mean 'first'\?",
        ),
        ({"game": "negotiation"}, 2, r"max_steps=2 is less than the 3 turns of a match of negotiation"),
        ({"opening": -1}, 21, r"opening=-1"),
        ({"game": "tictactoe"}, 4, r"max_steps=4 is less than the 5 turns .* set environment.max_steps=5"),
    ],
)
def test_options_that_cannot_work_are_refused(options, max_steps, message):
    with pytest.raises(ConfigError, match=message):
        suite(max_steps, **options)


def test_a_game_of_two_refuses_a_step_before_the_start():
    environment = MatchEnvironment(TicTacToe(), Deal(0, (POLICY, POLICY)), reward=1.0)
    with pytest.raises(EnvironmentFault, match="before start"):
        environment.step("1")
