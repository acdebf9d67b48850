"""Share what the benchmarks of models need: a model of realistic shape, a clock, a count of tokens."""

import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import transformers
from benchmarks.credit_speed import cpu
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from turnwise.base.allocator import keep_freed_memory


def make_smollm2(layers: int = 30, device: str = "cpu") -> LlamaForCausalLM:
    """Make a model of SmolLM2-135M's shape with random weights, float32."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=layers, num_attention_heads=9,
        num_key_value_heads=3, max_position_embeddings=8192, tie_word_embeddings=True, initializer_range=1 / 24,
        bos_token_id=None, eos_token_id=None, attn_implementation="sdpa",  # pyright: ignore
    )  # fmt: skip
    return LlamaForCausalLM(config).eval().to(device)  # pyright: ignore


def one_thread() -> None:
    """Compute on one thread, or on OMP_NUM_THREADS; all sides keep freed memory, as `turnwise train` does."""
    keep_freed_memory()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))


def describe(model: PreTrainedModel) -> str:
    """Describe the model, the machine and the versions."""
    device = torch.cuda.get_device_name(model.device) if model.device.type == "cuda" else cpu()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    machine = f"{device}, {os.cpu_count()} cores, {torch.get_num_threads()} thread"
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    return f"{parameters / 1e6:.1f} M parameters, {machine}, Python {platform.python_version()}, {versions}"


@contextmanager
def counted(model: PreTrainedModel) -> Iterator[list[int]]:
    """Count the tokens of forward passes over more than one token, with padding."""
    fed = [0]

    def count(_, args: tuple, kwargs: dict) -> None:
        rows, width = kwargs["input_ids"].shape
        fed[0] += rows * width * (width > 1)

    hook = model.get_decoder().register_forward_pre_hook(count, with_kwargs=True)
    try:
        yield fed
    finally:
        hook.remove()


def timed(call: Callable[[], Any], device: str = "cpu") -> tuple[float, float, Any]:
    """Measure wall seconds and processor seconds of a call; return them with its result."""
    if device != "cpu":
        torch.cuda.synchronize()
    wall, own = time.perf_counter(), time.process_time()
    answer = call()
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - wall, time.process_time() - own, answer


class Rounds(NamedTuple):
    """What the rounds of a call gave: wall seconds and processor seconds of each, and the last result."""

    wall: tuple[float, ...]
    own: tuple[float, ...]
    answer: Any


def interleaved(calls: Mapping[str, Callable[[], Any]], repeats: int, device: str = "cpu") -> dict[str, Rounds]:
    """Measure each call once per round; calls take turns, so that other work on the machine slows all of them."""
    rounds = [{name: timed(call, device) for name, call in calls.items()} for _ in range(repeats)]
    columns = {name: tuple(zip(*(own[name] for own in rounds), strict=True)) for name in calls}
    return {name: Rounds(wall, own, answers[-1]) for name, (wall, own, answers) in columns.items()}
