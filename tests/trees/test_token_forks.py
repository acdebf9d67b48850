"""Forks inside a response: the engine goes on from its first tokens, and the whole response is what is recorded."""

import asyncio
import dataclasses

import numpy as np
import pytest
import torch
from tests.rollout.fake_vllm import FakeVllm
from tests.rollout.models import make_model
from tests.rollout.playing import FORMAT, POLICY, STOP
from tests.rollout.playing import play as play_tasks
from tests.rollout.test_server import make_engine, play
from tests.rollout.test_starts import Long, play_forks
from tests.toys import color_policy
from tests.trees.test_copies import Copied
from tests.trees.test_packing import Counted

from turnwise.engines.base import Sampling
from turnwise.engines.local import LocalEngine
from turnwise.environments.hosts import InProcessEnvironments
from turnwise.extensions.branching.copies import Copies
from turnwise.measures import Played
from turnwise.measures.shared_tokens import shared_tokens
from turnwise.objective.tokens import Sequences, generated_logprobs, score
from turnwise.rollout.context import make_context
from turnwise.rollout.metrics import rollout_metrics
from turnwise.rollout.record import read_rollouts, write_rollouts
from turnwise.rollout.starts import begin, fork
from turnwise.rollout.trajectory import Trajectory


def origin(turn: int, *, tokens: int = 3, kind: type = Long) -> Trajectory:
    """A trajectory whose response number `turn` has `tokens` tokens."""
    for seed in range(99):
        (one,) = play_tasks(LocalEngine(POLICY.model), [0], kind, group_size=1, seed=seed)
        if len(one.turns[turn].response_ids) == tokens:
            return one
    raise AssertionError("no response of this length")


def forked(number: int = 8, *, turn: int = 2, token: int = 2, seed: int = 7) -> list[Trajectory]:
    """A trajectory, and forks of it inside a response."""
    one = origin(turn)
    one.tree = 0
    return [one, *play_forks([fork(one, turn, 0, token)] * number, InProcessEnvironments(Long), seed=seed)]


@pytest.mark.parametrize("token", [1, 2])
def test_the_response_begins_with_the_shared_tokens_and_goes_on_by_itself(token):
    one, *others = forked(token=token)
    for other in others:
        turn = other.turns[2]
        assert other.usable
        assert other.shared == 2
        assert (turn.origin, turn.begun) == (one.turns[2], token)
        assert turn.response_ids[:token] == one.turns[2].response_ids[:token]
        assert turn.prompt_ids == one.turns[2].prompt_ids
        assert turn.response == FORMAT.text(turn.response_ids), "the environment got the whole response"
        assert len(turn.response_ids) == len(turn.behavior_logprobs) == len(turn.behavior_entropies or ())
        assert len(turn.response_ids) <= 3, "`max_new_tokens` counts the shared tokens"
        assert turn.truncated == (turn.response_ids[-1] != STOP)
    assert len({tuple(other.turns[2].response_ids) for other in others}) > 1


def test_logprobs_and_entropies_of_the_whole_response_are_those_of_the_policy():
    played = forked()
    logprob_T, entropy_T = score(POLICY.model, Sequences.from_trajectories(played))
    turns = [turn for one in played for turn in one.turns]
    np.testing.assert_allclose(np.concatenate([turn.behavior_logprobs for turn in turns]), logprob_T, atol=1e-5)
    np.testing.assert_allclose(np.concatenate([turn.behavior_entropies or [] for turn in turns]), entropy_T, atol=1e-5)


def test_the_cached_prefix_is_not_computed_again():
    fed = []
    hook = POLICY.model.get_decoder().register_forward_pre_hook(
        lambda _, args, kwargs: fed.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    engine = LocalEngine(POLICY.model)
    prompt, sampling = [5, 6, 7, 8] * 4, Sampling(max_new_tokens=12, seed=1)

    async def everything() -> None:
        whole = await engine.generate(0, prompt, sampling)
        engine.close([0])
        fed.clear()
        await asyncio.gather(
            *(
                engine.generate(1 + cut, prompt + whole.token_ids[:cut], Sampling(max_new_tokens=12, seed=1, begun=cut))
                for cut in (3, 6, 9)
            )
        )

    try:
        asyncio.run(everything())
    finally:
        hook.remove()
    new = sum(12 - cut for cut in (3, 6, 9))
    assert sum(fed) <= new + 3, "the last token before each cut, and what is new"


@pytest.mark.parametrize("copies", [False, True])
def test_the_environment_is_as_it_was_before_the_response(copies):
    one = origin(2, kind=Copied)
    environments = InProcessEnvironments(Copied)
    if not copies:
        (other,) = play_forks([fork(one, 2, 0, 1)], environments)
        assert other.usable
        assert other.turns[2].observation == one.turns[2].observation
        return
    kept = Copies(environments)

    async def go() -> None:
        step = await kept.start(0, 0)
        for turn in one.turns[:2]:
            step = await kept.step(0, FORMAT.action(turn.response)[0])
        start = fork(one, 2, 0, 1)
        context = make_context(FORMAT, 1, window=None, stride=2)
        again, copied = await begin(dataclasses.replace(start, origin=0), 1, kept, context, FORMAT)
        assert copied
        assert again.observation == step.observation == one.turns[2].observation

    asyncio.run(go())


def test_a_stop_text_may_lie_across_the_cut():
    decode = lambda ids: "".join("ab"[token % 2] for token in ids)  # noqa: E731
    engine = LocalEngine(POLICY.model, decode=decode)
    sampling = Sampling(max_new_tokens=9, stop=("ab", "bb"), seed=2, begun=1)
    made = asyncio.run(engine.generate(0, [6, 8, 7], sampling))  # "b" begins the response
    assert len(made.token_ids) <= 2
    assert decode([7, *made.token_ids])[-2:] in ("ab", "bb")
    apart = asyncio.run(engine.generate(1, [6, 8, 7], Sampling(max_new_tokens=1, stop=("bb",), seed=2)))
    assert apart.truncated, "a prompt is no part of the response"


def test_a_server_goes_on_as_the_local_engine_does():
    model = make_model()
    with FakeVllm(model) as fake:
        engine, greedy = make_engine(fake, model), Sampling(max_new_tokens=6, temperature=0.0)
        (whole,) = play(engine, {0: [1, 2, 3]}, greedy).values()
        begun = Sampling(max_new_tokens=6, temperature=0.0, begun=4)
        (rest,) = play(engine, {1: [1, 2, 3, *whole.token_ids[:4]]}, begun).values()
    assert rest.token_ids == whole.token_ids[4:]
    assert rest.logprobs == pytest.approx(whole.logprobs[4:], abs=1e-5)


def test_a_fork_is_at_a_token_that_there_is():
    one = origin(2)
    for token in (-1, 3):
        with pytest.raises(ValueError, match=f"fork at token {token} of turn 2, expected 0 to 2"):
            fork(one, 2, 0, token)
    assert fork(one, 2, 0, 0) == fork(one, 2, 0)


def test_shared_tokens_count_once():
    played = forked(2)
    one, *others = played
    own = sum(len(turn.response_ids) for other in others for turn in other.turns[2:]) - 2 * 2
    assert rollout_metrics(played)["tokens"] == sum(len(turn.response_ids) for turn in one.turns) + own
    token_T = shared_tokens.run(Played(played), {})["token_T"]
    assert len(np.unique(token_T)) == rollout_metrics(played)["tokens"]
    lengths = [sum(len(turn.response_ids) for turn in one.turns) for one in played]
    first, second, _ = np.split(token_T, np.cumsum(lengths)[:-1])
    shared = sum(len(turn.response_ids) for turn in one.turns[:2]) + 2
    np.testing.assert_array_equal(first[:shared], second[:shared])
    assert not set(first[shared:]) & set(second[shared:])
    # siblings of a trajectory that was lost still share what it began
    alone = shared_tokens.run(Played(others), {})["token_T"]
    np.testing.assert_array_equal(alone[:shared], alone[lengths[1] :][:shared])


def test_a_pass_computes_shared_tokens_once_and_has_the_gradient_of_the_paths():
    played = forked(3, turn=0)
    sequences = Sequences.from_trajectories(played)
    assert sequences.tree is not None
    assert len(set(sequences.tree.tolist())) == 1, "they share no turn, only the beginning of one"
    for turn in [one.turns[0] for one in played[1:]]:
        turn.put(origin=None)
    apart = Sequences.from_trajectories(played)
    assert apart.tree is None
    model = color_policy().model  # whose hooks no other test meets
    counted = Counted(model)
    packed = generated_logprobs(model, sequences, np.arange(4))[0]
    together, counted.decoder = counted.decoder, 0
    plain = generated_logprobs(model, apart, np.arange(4))[0]
    assert together <= counted.decoder - 3 * (len(played[0].turns[0].prompt_ids) + 2)
    torch.testing.assert_close(packed, plain, atol=1e-5, rtol=0)
    assert sum(sequences.num_added) == together


def test_a_record_keeps_where_a_response_forked(tmp_path):
    played, path = forked(2), tmp_path / "step-000001.parquet"
    write_rollouts(path, played, {})
    loaded, further = read_rollouts(path)
    assert not further
    for one, other in zip(played, loaded, strict=True):
        assert [turn.response_ids for turn in one.turns] == [turn.response_ids for turn in other.turns]
        assert [turn.begun for turn in one.turns] == [turn.begun for turn in other.turns]
    assert all(one.turns[2].origin is loaded[0].turns[2] for one in loaded[1:])
    assert rollout_metrics(loaded)["tokens"] == rollout_metrics(played)["tokens"]
