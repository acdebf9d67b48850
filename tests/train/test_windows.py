"""Steps that learn from what they have played, also of half-played trajectories: each token once, resuming."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.methods.batches import batch_of
from tests.rollout.playing import POLICY
from tests.train.test_step_budget import Interrupted, config, numbers, tables, weights

import turnwise as tw
from turnwise.base.errors import ConfigError
from turnwise.config.methods import values_unfinished
from turnwise.credit.methods.build import build_method
from turnwise.engines.base import Generation
from turnwise.extensions.played import take as play_take
from turnwise.extensions.step_budget.line import Line
from turnwise.rollout.flight import Learned
from turnwise.rollout.metrics import shares_of_turns
from turnwise.rollout.trajectory import Trajectory, Turn
from turnwise.train import loop
from turnwise.train.checkpoint import latest_checkpoint, load_checkpoint
from turnwise.train.folder import RunFolder
from turnwise.train.loop import train

EGAE = {"name": "egae", "decay": 0.9}


def config_of(folder, *, budget: Any = None, method: Any = None, **sections: Any):
    learn = {"learn": "played", **(budget or {"tokens": 14})}
    more = {"critic": {"target": "return"}, **sections}
    return config(folder, budget=learn, method=method or EGAE, **more)


def watched(monkeypatch, given) -> tuple[list[Any], RunFolder]:
    """Train, and return what each step learned from: its batch, its sequences, and its credit."""
    steps: list[Any] = []
    update = loop._update

    def watch(run, measured, credit, step):
        steps.append((measured, credit))
        return update(run, measured, credit, step)

    monkeypatch.setattr(loop, "_update", watch)
    return steps, train(given)


def learned_tokens(steps) -> list[int]:
    """Count the tokens in the loss of each step."""
    return [int(measured.batch.tokens.lengths[credit.kept_R].sum()) for measured, credit in steps]


class Twice(play_take.PlayedTokens):
    """Known wrong: a trajectory that ends is learned from whole, so that its earlier tokens count twice."""

    def _window(self, *arguments: Any):
        window = super()._window(*arguments)
        for turn in window.turns if window and window.ended != "unfinished" else ():
            turn.put(learned=False)
        return window


class Tail(play_take.PlayedTokens):
    """Known wrong: what was played of a trajectory is learned from only when it ends."""

    def _window(self, *arguments: Any):
        window = super()._window(*arguments)
        for turn in window.turns if window and window.ended == "unfinished" else ():
            turn.put(learned=True)
        return window


@pytest.mark.parametrize("budget", [{"tokens": 14}, {"turns": 6}])
@pytest.mark.parametrize("context", ["append", "window"])
def test_each_token_is_in_the_loss_once_in_the_step_that_played_it(tmp_path, monkeypatch, budget, context):
    rollout = {"groups": 2, "group_size": 2, "max_new_tokens": 3, "context": context}
    budget = {"learn": "played", **budget}
    given = config_of(tmp_path, rollout={**rollout, "step_budget": budget})
    steps, folder = watched(monkeypatch, given)
    lines = [line for line in folder.metrics() if "rollout/spent" in line]
    assert learned_tokens(steps) == [line["rollout/tokens"] for line in lines]
    assert all(ids for table in tables(folder) for ids in table["response_ids"]), "the record has all tokens too"
    assert any(line["rollout/unfinished"] and line["credit/kept_frac"] == 1 for line in lines)
    if "tokens" in budget:
        assert [line["rollout/spent"] for line in lines] == [14.0] * 6
        assert [line["rollout/tokens"] for line in lines] == [14.0] * 6
    assert all(line["rollout/lag_max"] == 0 for line in lines)


@pytest.mark.parametrize("kind", [Twice, Tail])
def test_tokens_learned_twice_or_late_are_found(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(play_take, "PlayedTokens", kind)
    given = config_of(tmp_path, evaluate={"every": 0, "final_episodes": 1})
    steps, folder = watched(monkeypatch, given)
    lines = {line["step"]: line for line in folder.metrics() if "rollout/spent" in line}
    played = sum(line["rollout/spent"] for line in lines.values())
    learned = sum(learned_tokens(steps))
    assert learned > played if kind is Twice else learned < played


def test_tokens_count_under_the_weights_that_sampled_them(tmp_path, monkeypatch):
    steps, _ = watched(monkeypatch, config_of(tmp_path))
    inside = 0
    for measured, credit in steps:
        kept_T = measured.batch.tokens.broadcast(credit.kept_R)
        columns = measured.batch.columns
        moved_T = np.abs(columns["logprob_T"] - columns["behavior_logprob_T"])
        assert moved_T[kept_T].max() < 1e-4  # this step's weights
        inside += int((moved_T[~kept_T] > 1e-3).any())
    assert inside, "weights that differ must be told apart"


def test_the_value_at_the_cut_stands_for_the_rest():
    batch = batch_of([[3]], [0.0, 0.25, 0.0], value=[0.5, 0.25, 1.0], finished=[0.0] * 3)
    # the last delta is V - V = 0; without the bootstrap it would be -1
    expected = [0.25 - 0.5 + 0.9 * (0.25 + 1.0 - 0.25), 0.25 + 1.0 - 0.25, 0.0]
    np.testing.assert_allclose(tw.egae(decay=0.9)(batch), expected, rtol=1e-14)
    assert np.abs(tw.gae(decay=0.9)(batch) - expected).max() > 0.5


def test_egae_over_tokens_repeats_the_value_of_the_last_token():
    columns = {"value_T": [[0.5, 0.25], [1.0], [0.5], [0.75]], "finished": [0.0, 0.0, 1.0, 1.0]}
    batch, _ = tw.Batch.from_arrays(group=[0] * 4, trajectory=[0, 0, 1, 1], reward=[0.25, 0, 0, 1], columns=columns)
    trace, _ = tw.egae(decay=0.5, level="tokens").trace(batch)
    assert batch.tokens is not None
    second = 0.25 + 1.0 - 0.25
    other = 0.75 - 0.5 + 0.5 * (1 - 0.75)
    np.testing.assert_allclose(
        trace.advantage_T(batch.tokens), [0.25 - 0.5 + 0.5 * second, second, 0.0, other, 0.25], rtol=1e-14
    )


def test_turns_are_cut_where_steps_ended():
    def turn(ids, **more: Any) -> Turn:
        return Turn("o", "k", [9], ids, [-float(each) for each in ids], "r", False, **more)

    turns = [turn([1, 2, 3, 4, 5], reward=1.0, valid=False, fresh=True), turn([6])]
    pieces = play_take.cut(turns, [2, 4], [0, 0, 1, 1, 2, 2], POLICY.format)
    assert [each.response_ids for each in pieces] == [[1, 2], [3, 4], [5], [6]]
    assert [each.prompt_ids for each in pieces] == [[9], [], [], [9]]
    assert [each.behavior_logprobs for each in pieces] == [[-1, -2], [-3, -4], [-5], [-6]]
    assert [each.extras["learned"] for each in pieces] == [True, True, False, False]
    assert [each.reward for each in pieces] == [0, 0, 1, 0]
    assert [each.valid for each in pieces] == [True, True, False, True]
    assert [each.version for each in pieces] == [0, 1, 2, 2]
    assert [each.fresh for each in pieces] == [True, False, False, False]


def test_a_critic_learns_returns_of_whole_trajectories_that_have_ended(tmp_path, monkeypatch):
    steps, folder = watched(monkeypatch, config_of(tmp_path))
    lines = [line for line in folder.metrics() if "rollout/spent" in line]
    assert all(line["rollout/trajectories"] == line["rollout/ended"] for line in lines)
    for (measured, _), line in zip(steps, lines, strict=True):
        batch = measured.batch
        ended_R = batch.columns["unfinished"] == 0
        assert ("update/value_target" in line) == ended_R.any()
        if ended_R.any():
            return_R = batch.trajectories.suffix_sum(batch.reward_R)
            assert line["update/value_target"] == pytest.approx(return_R[ended_R].mean())
            assert line["rollout/reward"] == pytest.approx(return_R[ended_R & (batch.turn_R == 0)].mean())
    assert any(line["rollout/ended"] and line["credit/kept_frac"] < 1 for line in lines)
    assert any(not line["rollout/ended"] for line in lines)


def test_a_resumed_run_goes_on_inside_responses_bit_by_bit(tmp_path):
    whole = train(config_of(tmp_path / "whole", checkpoint={"every": 1}, evaluate={"every": 2}))
    killed = config_of(tmp_path / "killed", checkpoint={"every": 1}, evaluate={"every": 2})
    with pytest.raises(MemoryError):
        train(killed, display=Interrupted(2))
    states = load_checkpoint(latest_checkpoint(RunFolder(killed.run_folder)))[2]
    groups = [group for batch in states["selector"]["in_flight"] for group in batch["groups"].values()]
    last = [line[-1] for group in groups for line in group["sampled"] if line]
    assert any(each["truncated"] and len(each["token_ids"]) < 3 for each in last), "no half-played response"
    resumed = train(killed, resume=killed.run_folder)
    assert numbers(resumed) == numbers(whole)
    assert tables(resumed) == tables(whole)
    assert all(torch.equal(value, weights(whole)[name]) for name, value in weights(resumed).items())


@pytest.mark.parametrize(
    ("method", "fits"),
    [
        (EGAE, True),
        ({"name": "egae", "decay": 0.9, "level": "tokens"}, True),
        ({"name": "gae", "unfinished": "repeat"}, True),
        ({"name": "gae"}, False),
        ({"name": "ppo"}, False),
        ({"name": "grpo"}, False),
        ({"name": "mix", "parts": [EGAE, "grpo"], "weights": [1.0, 1.0]}, False),
    ],
)
def test_methods_that_need_the_rewards_of_the_group_are_told_apart(method, fits):
    options = {name: value for name, value in method.items() if name != "name"}
    assert values_unfinished(build_method(method["name"], options)) == fits


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"method": "grpo"}, r"'played' learns from half-played .*, and method 'grpo' .*; use egae"),
        (
            {"method": "gae"},
            r"'played' learns from half-played .*, and method 'gae' does not value trajectories that continue",
        ),
        ({"budget": {"tokens": 3}}, r"one or more for each of the 4 trajectories .* got rollout.step_budget.tokens=3"),
        ({"budget": {"tokens": 14, "in_progress": 5}}, r"rollout.groups=2 groups in progress; remove in_progress"),
        (
            {"continuations": {"number": 2}},
            r"'played' learns from half-played .*, and \[continuations\] continues from complete trajectories",
        ),
        (
            {"update": {"preference": {"name": "simpo"}}},
            r"'played' learns from half-played .*, and update\.preference\.name='simpo' compares .* whole",
        ),
        (
            {"critic": {"kind": "ridge", "peers": True, "visits": True}},
            r"'played' learns from half-played .*, and critic\.visits=true counts visits from the first turn",
        ),
    ],
)
def test_what_needs_whole_trajectories_is_refused_before_the_run(tmp_path, sections, message):
    with pytest.raises(ConfigError, match=message):
        config_of(tmp_path, **sections)


def test_a_failed_trajectory_is_told_once():
    failed = Trajectory(0, "task", failure="environment: broken", ended="failed")
    line = Line(by_turns=False, cuts=True, on_change=lambda: None)
    flight: Any = SimpleNamespace(number=5, watched={0: failed}, lines={0: line}, learned={0: Learned()})
    told: list[tuple[int, Trajectory]] = []
    assert play_take.PlayedTokens()._window(flight, 0, POLICY.format, told) == failed
    assert play_take.PlayedTokens()._window(flight, 0, POLICY.format, told) is None
    assert told == [(5, failed)]


def test_shares_of_responses_count_no_piece_of_one():
    """Of an invalid response that two steps cut, the last piece counts; one that goes on does not."""
    turn = Turn("o", None, [1], [2, 3, 4, 5, 6], [-1.0] * 5, "r", True, valid=False)
    pieces = play_take.cut([turn], [2, 4], [0] * 5, POLICY.format)
    assert [(piece.extras.get("whole", True), piece.valid, piece.truncated) for piece in pieces] == [
        (False, True, False),
        (False, True, False),
        (True, False, True),
    ]
    whole = [piece for piece in pieces if piece.extras.get("whole", True)]
    assert shares_of_turns(whole) == {"invalid_frac": 1.0, "truncated_frac": 1.0}
    line = SimpleNamespace(open=Generation([2, 3], [-1.0] * 2, False), prompt=[1])
    into = Trajectory(0, "", [Turn("o", None, [1], [], [], "", False)])
    (waiting,) = play_take._turns(into, line, POLICY.format)  # pyright: ignore[reportArgumentType]
    assert waiting.extras["whole"] is False
    assert "whole" not in into.turns[0].extras
