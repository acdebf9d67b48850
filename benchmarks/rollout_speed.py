"""Measure the local engine: episodes, and `model.generate`; tokens per second by batch; shared prompts; waiting.

    OMP_NUM_THREADS=1 python -m benchmarks.rollout_speed             # a random Llama of 4 layers
    OMP_NUM_THREADS=1 python -m benchmarks.rollout_speed --smollm2   # SmolLM2-135M's shape, float32 and bfloat16

Both sides of a comparison run in turn in one process. Where responses may end early, stop tokens are a share of the
vocabulary, so that responses differ in length as a policy's do. Elsewhere all have equal length, so that both sides
generate the same number of tokens.
"""

import argparse
import asyncio
import statistics
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import torch
from benchmarks.common import counted, describe, interleaved, make_smollm2, one_thread
from benchmarks.tables import ratios, spread, table
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from turnwise.engines.base import Engine, Sampling
from turnwise.engines.local import LocalEngine
from turnwise.models.caches import CACHE
from turnwise.models.policy import frozen_copy

VOCABULARY = 512
STOPS = tuple(range(40))  # a response of random tokens is 13 tokens long on average where there is no limit
NO_STOP: tuple[int, ...] = ()
Play = Callable[..., Coroutine[Any, Any, int]]


def make_model(hidden: int, layers: int) -> LlamaForCausalLM:
    """Make a random Llama, whose responses are random."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=8,
        max_position_embeddings=8192,
        bos_token_id=None,  # pyright: ignore
        eos_token_id=None,  # pyright: ignore
        attn_implementation="sdpa",  # pyright: ignore
    )
    return LlamaForCausalLM(config).eval()


def prompts(count: int, turns: int, length: int) -> np.ndarray:
    """`[conversations, turns, tokens]` ids that are no stop tokens."""
    return np.random.default_rng(0).integers(len(STOPS), VOCABULARY, (count, turns, length))


async def converse(engine: Engine, number: int, added: np.ndarray, sampling: Sampling, latency_s: float) -> int:
    """Run one conversation at its own pace; return the number of generated tokens."""
    ids: list[int] = []
    generated, draw = 0, np.random.default_rng(number)
    for prompt in added.tolist():
        ids += prompt
        response = (await engine.generate(number, ids, sampling)).token_ids
        ids += response
        generated += len(response)
        await asyncio.sleep(draw.exponential(latency_s))
    engine.close([number])
    return generated


async def together(engine: Engine, added: np.ndarray, sampling: Sampling, latency_s: float = 0.0) -> int:
    """Run all conversations, each at its own pace."""
    return sum(
        await asyncio.gather(*(converse(engine, n, turns, sampling, latency_s) for n, turns in enumerate(added)))
    )


async def turn_by_turn(engine: LocalEngine, added: np.ndarray, sampling: Sampling, latency_s: float = 0.0) -> int:
    """Run all conversations in lockstep: a turn starts when all have finished the one before."""
    ids: list[list[int]] = [[] for _ in added]
    generated, draws = 0, [np.random.default_rng(number) for number in range(len(added))]
    for turn in range(added.shape[1]):
        for own, prompt in zip(ids, added[:, turn].tolist(), strict=True):
            own += prompt
        responses = await asyncio.gather(*(engine.generate(n, own, sampling) for n, own in enumerate(ids)))
        for own, response in zip(ids, responses, strict=True):
            own += response.token_ids
            generated += len(response.token_ids)
        await asyncio.sleep(max(draw.exponential(latency_s) for draw in draws))
    return generated


@torch.inference_mode()
def plain(model: PreTrainedModel, added: np.ndarray, sampling: Sampling, cache: DynamicCache | None = None) -> int:
    """`model.generate` on whole conversations, padded from the left, turn by turn.

    A cache keeps what earlier turns computed. It needs responses of one length, since padding would shift it.
    """
    torch.manual_seed(0)
    ids: list[list[int]] = [[] for _ in added]
    generated = 0
    for turn in range(added.shape[1]):
        for own, prompt in zip(ids, added[:, turn].tolist(), strict=True):
            own += prompt
        width = max(map(len, ids))
        tokens = torch.tensor([[0] * (width - len(own)) + own for own in ids], device=model.device)
        mask = torch.tensor([[0] * (width - len(own)) + [1] * len(own) for own in ids], device=model.device)
        new = model.generate(
            tokens, attention_mask=mask, **{CACHE: cache}, do_sample=True, top_k=0, pad_token_id=0,
            max_new_tokens=sampling.max_new_tokens, eos_token_id=list(sampling.stop_ids) or None,
        )[:, width:]  # fmt: skip
        for own, response in zip(ids, new.tolist(), strict=True):
            stops = (place + 1 for place, token in enumerate(response) if token in sampling.stop_ids)
            end = next(stops, len(response))
            own += response[:end]
            generated += end
    return generated


def play(engine: LocalEngine, how: Play, *arguments: object) -> Callable[[], tuple[int, int]]:
    """Run the engine from an empty cache; return generated tokens and computed prompt tokens."""

    def run() -> tuple[int, int]:
        engine.close()
        with counted(engine.model) as fed:
            return asyncio.run(how(engine, *arguments)), fed[0]

    return run


def contiguous(_: torch.nn.Module, args: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
    """Avoid a copy of the output layer per turn in `model.generate`, which torch 2.13 makes in bfloat16."""
    return (args[0].contiguous(),)


def episodes_table(title: str, engine: LocalEngine, added: np.ndarray, sampling: Sampling, repeats: int) -> None:
    """Measure whole episodes, and `model.generate` with the same weights."""
    device = engine.model.device.type
    opponent = frozen_copy(engine.trained, engine.copy_dtype) if engine.copy_dtype else engine.trained
    hook = opponent.get_output_embeddings().register_forward_pre_hook(contiguous)  # pyright: ignore

    def generate(*, keep: bool) -> tuple[int, int]:
        with counted(opponent) as fed:
            return plain(opponent, added, sampling, DynamicCache() if keep else None), fed[0]

    calls: dict[str, Callable[[], tuple[int, int]]] = {"model.generate": lambda: generate(keep=False)}
    if not sampling.stop_ids:
        calls["model.generate, cache kept"] = lambda: generate(keep=True)
    calls["turnwise"] = play(engine, together, added, sampling)
    measured = interleaved(calls, repeats, device)
    hook.remove()
    rows = [
        (name, f"{fed:,}", f"{tokens:,}", spread(wall), spread(own), f"{tokens / statistics.median(own):,.0f}")
        for name, (wall, own, (tokens, fed)) in measured.items()
    ]
    ours = measured.pop("turnwise")
    for name, theirs in measured.items():
        counts = (f"{theirs.answer[i] / ours.answer[i]:.2f}" for i in (1, 0))
        seconds = (spread(ratios(theirs.wall, ours.wall)), spread(ratios(theirs.own, ours.own)))
        rows.append((f"{name} / turnwise", *counts, *seconds, ""))
    table(title, ("", "prompt tokens computed", "generated", "wall s", "CPU s", "generated a CPU second"), rows)


def batches_table(title: str, engine: LocalEngine, counts: tuple[int, ...], new_tokens: int, repeats: int) -> None:
    """Measure tokens per second as the batch grows."""
    sampling = Sampling(max_new_tokens=new_tokens, stop_ids=NO_STOP)
    calls = {f"{count}": play(engine, together, prompts(count, 1, 32), sampling) for count in counts}
    rows = [
        (name, spread(wall), spread(own), f"{tokens / statistics.median(own):,.0f}")
        for name, (wall, own, (tokens, _)) in interleaved(calls, repeats, engine.model.device.type).items()
    ]
    table(title, ("conversations", "wall s", "CPU s", "generated a CPU second"), rows)


def sharing_table(model: PreTrainedModel, repeats: int) -> None:
    """Measure rollouts of one prompt, with a shared cache and without."""
    groups, sampling = prompts(4, 1, 400).repeat(8, axis=0), Sampling(max_new_tokens=16)
    calls = {
        name: play(LocalEngine(model, share_prefixes=share), together, groups, sampling)
        for name, share in (("not shared", False), ("shared", True))
    }
    rows = [
        (name, f"{fed:,}", spread(wall), spread(own))
        for name, (wall, own, (_, fed)) in interleaved(calls, repeats, model.device.type).items()
    ]
    title = "4 prompts of 400 tokens, 8 rollouts each, 16 tokens generated"
    table(title, ("", "prompt tokens computed", "wall s", "CPU s"), rows)


def pace_table(model: PreTrainedModel, repeats: int) -> None:
    """Measure conversations in lockstep, and each at its own pace."""
    episodes, sampling = prompts(32, 6, 20), Sampling(max_new_tokens=48, stop_ids=STOPS)
    environments = {"environments that answer at once": 0.0, "environments that take 0.1 s on average": 0.1}
    ways = {"turn by turn": turn_by_turn, "each at its own pace": together}
    calls = {
        f"{what}, {name}": play(LocalEngine(model), how, episodes, sampling, latency_s)
        for what, latency_s in environments.items()
        for name, how in ways.items()
    }
    rows = [
        (name, spread(wall), spread(own), f"{tokens / statistics.median(wall):,.0f}")
        for name, (wall, own, (tokens, _)) in interleaved(calls, repeats, model.device.type).items()
    ]
    title = "32 episodes of 6 turns, responses of up to 48 tokens"
    table(title, ("", "wall s", "CPU s", "generated a second"), rows)


def small(options: argparse.Namespace) -> None:
    """Measure everything on a small model."""
    model = make_model(options.hidden, options.layers or 4)
    print(describe(model))
    engine, added = LocalEngine(model), prompts(8, 20, 40)
    what = "8 episodes of 20 turns, 40 tokens an observation, "
    sampling = Sampling(max_new_tokens=16, stop_ids=NO_STOP)
    episodes_table(what + "responses of 16", engine, added, sampling, options.repeats)
    sampling = Sampling(max_new_tokens=24, stop_ids=STOPS)
    episodes_table(what + "responses of up to 24", engine, added, sampling, options.repeats)
    title = "One response of 64 tokens to a prompt of 32"
    batches_table(title, engine, (1, 4, 16, 64), 64, options.repeats)
    sharing_table(model, options.repeats)
    pace_table(model, options.repeats)


def smollm2(options: argparse.Namespace) -> None:
    """Measure episodes and batches on a model of realistic shape, in both precisions."""
    model = make_smollm2(options.layers or 30, options.device)
    print(describe(model))
    for rounded in (True, False):
        engine, name = LocalEngine(model, rounded=rounded), "bfloat16" if rounded else "float32"
        size = f"{options.observation} tokens an observation, responses of {options.response}"
        title = f"{name}: {options.episodes} episodes of 20 turns, {size}"
        sampling = Sampling(max_new_tokens=options.response, stop_ids=NO_STOP)
        added = prompts(options.episodes, 20, options.observation)
        episodes_table(title, engine, added, sampling, options.repeats)
        title = f"{name}: one response of 16 tokens to a prompt of 32"
        batches_table(title, engine, (1, 4, 16, 64)[: options.batches], 16, options.repeats)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smollm2", action="store_true", help="the shape of SmolLM2-135M")
    parser.add_argument("--hidden", type=int, default=256, help="of the small model")
    parser.add_argument("--layers", type=int, help="default 4, SmolLM2 30")
    parser.add_argument("--repeats", type=int, default=3)
    real = parser.add_argument_group("for --smollm2")
    real.add_argument("--episodes", type=int, default=4)
    real.add_argument("--observation", type=int, default=32, help="tokens")
    real.add_argument("--response", type=int, default=12, help="tokens")
    real.add_argument("--batches", type=int, default=4, help="how many of 1, 4, 16, 64")
    real.add_argument("--device", default="cpu")
    options = parser.parse_args()
    one_thread()
    (smollm2 if options.smollm2 else small)(options)


if __name__ == "__main__":
    main()
