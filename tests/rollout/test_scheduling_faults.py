"""Faults under continuous batching: failed, cancelled or closed requests do not affect others, and leave no trace."""

import asyncio

import pytest
import torch
from tests.rollout.models import DRAWN, GREEDY, generate, make_model, plain_greedy, same, together, tokens

from turnwise.base.errors import EngineFault, EngineLost
from turnwise.engines.base import Generation, Sampling
from turnwise.engines.local import LocalEngine


def test_a_fault_in_one_request_leaves_the_others_alone():
    model = make_model()

    async def scenario(engine: LocalEngine) -> None:
        await engine.generate(0, [1, 2, 3], GREEDY)
        results = await asyncio.gather(
            engine.generate(1, [1, 2], GREEDY),
            engine.generate(0, [9], GREEDY),
            engine.generate(2, [3, 4, 5], GREEDY),
            return_exceptions=True,
        )
        assert isinstance(results[1], EngineFault)
        for result, prompt in ((results[0], [1, 2]), (results[2], [3, 4, 5])):
            assert isinstance(result, Generation)
            assert same(result, Generation(*plain_greedy(model, prompt, 6)))

    asyncio.run(scenario(LocalEngine(model)))


def test_a_conversation_has_one_response_at_a_time():
    async def scenario(engine: LocalEngine) -> None:
        first = asyncio.ensure_future(engine.generate(0, [1], GREEDY))
        for passes in (1, 1, 2):  # while it waits, and while it grows
            for _ in range(passes):
                await asyncio.sleep(0)
            with pytest.raises(EngineFault, match="conversation 0 still waits for a response"):
                await engine.generate(0, [1, 2], GREEDY)
        await first

    asyncio.run(scenario(LocalEngine(make_model())))


def test_a_broken_model_fails_all_that_wait_with_the_cause_and_the_engine_may_recover():
    model = make_model()
    engine = LocalEngine(model, max_rows=3)
    calls = 0

    def break_(*_: object) -> None:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise RuntimeError("a kernel is missing")

    async def scenario() -> list[Generation | BaseException]:
        prompts = {n: tokens(5 + n, seed=n) for n in range(5)}
        return await asyncio.gather(
            *(engine.generate(n, p, Sampling(max_new_tokens=9)) for n, p in prompts.items()), return_exceptions=True
        )

    hook = model.get_decoder().register_forward_pre_hook(break_)
    results = asyncio.run(scenario())
    hook.remove()
    assert len(results) == 5
    for fault in results:
        assert isinstance(fault, EngineFault)
        assert str(fault) == "RuntimeError: a kernel is missing"
        assert isinstance(fault.__cause__, RuntimeError)
    again = generate(engine, {0: [1, 2, 3]}, GREEDY)[0]
    assert same(again, Generation(*plain_greedy(model, [1, 2, 3], 6)))


def test_memory_that_runs_out_ends_the_rollout():
    """Were it a fault of single trajectories, a run would go on with those that are short enough."""
    model = make_model()
    engine = LocalEngine(model)

    def break_(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3 GiB")

    hook = model.get_decoder().register_forward_pre_hook(break_)
    with pytest.raises(EngineLost, match=r"out of memory in the rollout .*engine.max_rows=N"):
        generate(engine, {0: [1, 2, 3]}, GREEDY)
    hook.remove()
    assert same(generate(engine, {0: [1, 2, 3]}, GREEDY)[0], Generation(*plain_greedy(model, [1, 2, 3], 6)))


def test_weights_that_are_not_finite_are_a_fault():
    model = make_model()
    with torch.no_grad():
        model.get_output_embeddings().weight[3] = float("nan")
    for sampling in (GREEDY, DRAWN):
        with pytest.raises(EngineFault, match="logits are not finite"):
            generate(LocalEngine(model), {0: [1, 2]}, sampling)


@pytest.mark.parametrize("passes", range(6))
def test_a_cancelled_request_leaves_no_trace(passes):
    model, long = make_model(), Sampling(max_new_tokens=12, temperature=0.0)

    async def scenario(engine: LocalEngine) -> None:
        others = asyncio.ensure_future(together(engine, {1: [5, 6, 7], 2: [8]}, long))
        cancelled = asyncio.ensure_future(engine.generate(0, [1, 2, 3], long))
        for _ in range(passes):
            await asyncio.sleep(0)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        again = await engine.generate(0, [4, 4], long)  # the number is free, and so is a row
        assert same(again, Generation(*plain_greedy(model, [4, 4], 12, stops=())))
        for number, generation in (await others).items():
            assert same(generation, Generation(*plain_greedy(model, {1: [5, 6, 7], 2: [8]}[number], 12, stops=())))

    asyncio.run(scenario(LocalEngine(model, max_rows=3)))


@pytest.mark.parametrize("everything", [True, False])
@pytest.mark.parametrize("passes", [1, 2, 3, 4])
def test_closing_midway_ends_what_is_generated_in_a_fault(passes, everything):
    model = make_model()

    async def scenario(engine: LocalEngine) -> None:
        pending = [asyncio.ensure_future(engine.generate(n, [n, 1], Sampling(max_new_tokens=9))) for n in range(3)]
        for _ in range(passes):
            await asyncio.sleep(0)
        engine.close(None if everything else [0, 1])
        lost = pending if everything else pending[:2]
        for task in lost:
            with pytest.raises(EngineFault, match="closed before its response was complete"):
                await task
        for task in pending[len(lost) :]:
            assert len((await task).token_ids) == 9
        again = await engine.generate(0, [4], GREEDY)
        assert same(again, Generation(*plain_greedy(model, [4], 6)))

    asyncio.run(scenario(LocalEngine(model)))


def test_no_task_outlives_its_work():
    async def scenario(engine: LocalEngine) -> None:
        await engine.generate(0, [1, 2], GREEDY)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(scenario(LocalEngine(make_model())))
