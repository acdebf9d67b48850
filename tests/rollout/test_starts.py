"""Forks: shared turns are replayed, the engine is not asked for them, a difference costs its own branch only."""

from typing import Any

import numpy as np
import pytest
from tests.rollout.moody import Long, Moody
from tests.rollout.playing import FORMAT, POLICY, STOP, always
from tests.rollout.playing import play as play_tasks
from tests.toys import Colors

from turnwise.base.blocking import blocking
from turnwise.engines.base import Sampling
from turnwise.engines.local import LocalEngine
from turnwise.environments.hosts import Environments, InProcessEnvironments
from turnwise.environments.workers import WorkerEnvironments
from turnwise.rollout.agents import Request
from turnwise.rollout.collect import play
from turnwise.rollout.starts import fork


def play_forks(starts, environments: Environments, *, engine=None, window=None, seed=7):
    sampling = Sampling(max_new_tokens=3, stop_ids=(STOP,), seed=seed)
    engine = engine or LocalEngine(POLICY.model)
    how: Any = {"fmt": FORMAT, "sampling": sampling, "max_context": POLICY.max_context, "window": window}
    return blocking(play(starts, Request(engine=engine, environments=environments, **how)))


@pytest.mark.parametrize("window", [None, 1])
@pytest.mark.parametrize("turn", [0, 1, 4])
def test_a_fork_shares_the_first_turns_and_goes_on_by_itself(turn, window):
    origin = play_tasks(LocalEngine(POLICY.model), [0, 1], Long, group_size=2, max_context=64, window=window)
    starts = [fork(one, turn, one.group) for one in origin]
    forks = play_forks(starts, InProcessEnvironments(Long), window=window)
    for one, other in zip(origin, forks, strict=True):
        assert other.failure is None
        assert (other.group, other.task, other.shared) == (one.group, one.task, turn)
        assert all(a is b for a, b in zip(one.turns[:turn], other.turns[:turn], strict=True))
        assert len(other.turns) == 5
        assert other.turns[turn].observation == one.turns[turn].observation
        assert other.turns[turn].prompt_ids == one.turns[turn].prompt_ids
    assert any(
        one.turns[-1].response_ids != other.turns[-1].response_ids for one, other in zip(origin, forks, strict=True)
    )


def test_with_the_same_responses_a_fork_is_its_origin():
    (origin,) = play_tasks(always("red"), [3], Long, group_size=1)
    (other,) = play_forks([fork(origin, 2, 3)], InProcessEnvironments(Long), engine=always("red"))
    assert [turn.reward for turn in other.turns] == [turn.reward for turn in origin.turns]
    assert (other.success, other.ended, other.info) == (origin.success, origin.ended, origin.info)


def test_the_engine_is_not_asked_for_shared_turns():
    (origin,) = play_tasks(always("red"), [0], Long, group_size=1)
    engine = always("red")
    play_forks([fork(origin, 3, 0)], InProcessEnvironments(Long), engine=engine)
    assert len(engine.calls) == 2
    shared = [token for turn in origin.turns[:3] for token in (*turn.prompt_ids, *turn.response_ids)]
    assert engine.calls[0][1][: len(shared)] == shared


def test_a_prefix_that_forks_share_is_computed_once():
    (origin,) = play_tasks(always("red"), [0], Long, group_size=1)
    fed = []

    def count(module, args, kwargs) -> None:
        fed.append(kwargs["input_ids"].numel())

    hook = POLICY.model.get_decoder().register_forward_pre_hook(count, with_kwargs=True)
    try:
        play_forks([fork(origin, 4, 0)], InProcessEnvironments(Long))
        alone, fed[:] = sum(fed), []
        forks = play_forks([fork(origin, 4, 0)] * 8, InProcessEnvironments(Long))
    finally:
        hook.remove()
    prefix = sum(len(turn.prompt_ids) + len(turn.response_ids) for turn in origin.turns[:4])
    assert prefix > 12
    assert sum(fed) < alone + 8 * 2 * 3, "the prefix once, then the last prompt token and the responses of each"
    assert len({tuple(one.turns[-1].response_ids) for one in forks}) > 1, "their draws are their own"


@pytest.mark.parametrize("make", [InProcessEnvironments, lambda kind: WorkerEnvironments(kind, workers=1)])
def test_a_replay_that_differs_names_turn_and_observations_and_loses_its_branch_only(make):
    origin = play_tasks(always("red"), [0, 1], Moody, group_size=1)
    environments = make(Moody)
    try:
        forks = play_forks([fork(one, 3, one.group) for one in origin], environments, engine=always("red"))
    finally:
        blocking(environments.aclose())
    assert forks[0].usable
    assert forks[1].ended == "failed"
    assert "before turn 3" in (forks[1].failure or "")
    assert repr(origin[1].turns[2].observation) in (forks[1].failure or "")
    assert "'mood " in (forks[1].failure or "").split("expected")[0]


def test_a_replay_that_pays_or_ends_otherwise_is_refused():
    (origin,) = play_tasks(always("red"), [0], Long, group_size=1)
    origin.turns[1].reward += 1.0
    (other,) = play_forks([fork(origin, 3, 0)], InProcessEnvironments(Long))
    assert f"replay of turn 2 gave reward 0, expected {origin.turns[1].reward:g}" in (other.failure or "")
    (short,) = play_forks([fork(origin, 1, 0)], InProcessEnvironments(lambda task: Colors(task, turns=1)))
    assert "gave reward 1 and ended, expected 1" in (short.failure or "")


def test_a_fork_is_at_a_turn_that_there_is():
    (origin,) = play_tasks(always("red"), [0], Long, group_size=1)
    for turn in (-1, 5):
        with pytest.raises(ValueError, match="expected 0 to 4"):
            fork(origin, turn, 0)


def test_draws_of_forks_are_independent_of_their_origin():
    """The same seed would repeat the origin's draws; another one must not."""
    origin = play_tasks(LocalEngine(POLICY.model), [0], Long, group_size=16, seed=3)
    again = play_forks([fork(one, 0, 0) for one in origin], InProcessEnvironments(Long), seed=3)
    other = play_forks([fork(one, 0, 0) for one in origin], InProcessEnvironments(Long), seed=4)

    def agreement(forks) -> float:
        pairs = zip(origin, forks, strict=True)
        return float(np.mean([one.turns[0].response_ids == two.turns[0].response_ids for one, two in pairs]))

    assert agreement(again) == 1.0
    assert agreement(other) < 0.9
