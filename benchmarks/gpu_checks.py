"""Define the checks of `benchmarks.gpu`: each takes the setting and returns figures."""

import dataclasses
import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.common import make_smollm2, timed
from benchmarks.gpu_graphs import compare, pass_times
from benchmarks.rollout_speed import NO_STOP, VOCABULARY, make_model, prompts, together
from benchmarks.scoring import make_sequences, naive_logprobs
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from turnwise.base.blocking import blocking
from turnwise.config import load_config, parse_config
from turnwise.engines.base import Sampling
from turnwise.engines.local import LocalEngine
from turnwise.models.policy import autocast, trainable
from turnwise.models.settings import ModelConfig
from turnwise.objective.gradient import Budget
from turnwise.objective.tokens import Sequences, generated_logprobs, score
from turnwise.train.display import Display
from turnwise.train.loop import train

GOAL = 0.70
"""Held-out success whose time the recipe's check notes."""
# hidden size, intermediate size, layers, heads, key and value heads, vocabulary: Qwen2.5's
SHAPES = {"0.5B": (896, 4864, 24, 14, 2, 151936), "1.5B": (1536, 8960, 28, 12, 2, 151936)}
SMALL_SHAPES = {"tiny": (32, 64, 2, 4, 2, 512)}


@dataclasses.dataclass(frozen=True)
class Setting:
    """What checks run on.

    Attributes:
        device: Device of the models.
        small: Whether sizes are such that a CPU takes seconds.
        folder: Folder for runs.
        deadline: Time of the monotonic clock at which all must have ended.
    """

    device: torch.device
    small: bool
    folder: Path
    deadline: float

    @property
    def left_s(self) -> float:
        """Seconds until the deadline."""
        return self.deadline - time.monotonic()

    @property
    def precision(self) -> ModelConfig:
        """Section `[model]` with the precision of the checks."""
        return ModelConfig(precision="bf16")


def device_name(device: torch.device) -> str:
    """Name the device."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def peak_mb(setting: Setting) -> float | None:
    """Return torch's peak memory since the last reset (MiB); None on a CPU."""
    return torch.cuda.max_memory_allocated() / 2**20 if setting.device.type == "cuda" else None


def _reset(setting: Setting) -> None:
    if setting.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()


def _second(call: Callable[[], object], setting: Setting) -> tuple[float, float | None]:
    """Measure seconds and peak memory of a second call; the first sets up what the device needs."""
    call()
    _reset(setting)
    wall, _, _ = timed(call, setting.device.type)
    return wall, peak_mb(setting)


def _model(setting: Setting) -> PreTrainedModel:
    if setting.small:
        return make_model(32, 2).to(setting.device)  # pyright: ignore
    return make_smollm2(30, setting.device.type)


def parity(setting: Setting) -> dict[str, Any]:
    """Compare the engine's log-probabilities in bfloat16 with the trainer's (nats)."""
    model = _model(setting)
    count, turns = (2, 2) if setting.small else (16, 8)
    engine, added = LocalEngine(model, rounded=True), prompts(count, turns, 16)
    blocking(engine.update_weights())
    ids: list[list[int]] = [[] for _ in range(count)]
    spans: list[list[int]] = [[] for _ in range(count)]
    sampled: list[list[float]] = [[] for _ in range(count)]
    sampling = Sampling(max_new_tokens=8, stop_ids=NO_STOP)

    async def play() -> None:
        for turn in range(turns):
            for number in range(count):
                ids[number] += added[number, turn].tolist()
                response = await engine.generate(number, ids[number], sampling)
                spans[number] += range(len(ids[number]), len(ids[number]) + len(response.token_ids))
                ids[number] += response.token_ids
                sampled[number] += response.logprobs

    blocking(play())
    sequences = _sequences(ids, spans)
    with autocast(model, setting.precision):
        logprob_T, _ = score(model, sequences)
    apart = np.abs(logprob_T - np.concatenate(sampled))
    return {"tokens": len(apart), "mean": float(apart.mean()), "p99": float(np.quantile(apart, 0.99)),
            "max": float(apart.max())}  # fmt: skip


def _sequences(ids: list[list[int]], spans: list[list[int]]) -> Sequences:
    from turnwise.credit.segments import Segments

    tokens = Segments.from_lengths([len(span) for span in spans])
    return Sequences([np.array(each) for each in ids], [np.array(each) for each in spans], tokens, np.arange(len(ids)))


def _small_sequences(share: float, count: int = 2) -> Sequences:
    sequences = make_sequences(count, 128, share)
    for ids in sequences.token_ids:
        ids %= VOCABULARY
    return sequences


def scoring(setting: Setting) -> dict[str, Any]:
    """Measure time and memory of scoring beside logits of all positions."""
    model = _model(setting)
    sequences = _small_sequences(1.0) if setting.small else make_sequences(32, 1024, 1.0)
    ids = torch.from_numpy(np.stack(sequences.token_ids)).to(setting.device)

    @torch.no_grad()
    def naive() -> Any:
        return naive_logprobs(model(input_ids=ids, use_cache=False).logits, ids)

    result: dict[str, Any] = {}
    for name, call in {"turnwise": lambda: score(model, sequences), "naive": naive}.items():
        with autocast(model, setting.precision):
            result[f"{name}_s"], result[f"{name}_peak_mb"] = _second(call, setting)
    return result


def rollout(setting: Setting) -> dict[str, Any]:
    """Measure generated tokens per second of conversations of 20 turns."""
    engine = LocalEngine(_model(setting), rounded=True)
    turns, counts = (2, (1, 2)) if setting.small else (20, (1, 16, 64))
    result: dict[str, Any] = {}
    sampling = Sampling(max_new_tokens=12, stop_ids=NO_STOP)
    for count in counts:
        for _ in range(2):  # the first call sets up what the device needs for this size
            engine.close()
            wall, _, tokens = timed(
                lambda n=count: blocking(together(engine, prompts(n, turns, 32), sampling)), setting.device.type
            )
        result[f"tokens_per_s_{count}"] = tokens / wall
    return result


def graphs(setting: Setting) -> dict[str, Any]:
    """Measure generated tokens per second with and without CUDA graphs, beside each other."""
    return compare(_model(setting), (1, 2) if setting.small else (1, 16, 64), 2 if setting.small else 20)


def passes(setting: Setting) -> dict[str, Any]:
    """Measure passes by rows and tokens, in bfloat16, with CUDA graphs and without."""
    sizes = [(1, 8), (2, 16)] if setting.small else [(1, 16), (16, 16), (16, 64), (64, 16), (64, 64), (64, 256)]
    return pass_times(_model(setting).to(torch.bfloat16), sizes)  # pyright: ignore


def waiting(setting: Setting) -> dict[str, Any]:
    """Measure steps with and without rollouts ahead, where one environment in eight is ten times slower."""
    from benchmarks.lag_speed import seconds_per_step

    size: dict[str, Any]
    size = {"fast_ms": 0.1, "steps": 5, "hidden": 16, "workers": 0} if setting.small else {"fast_ms": 20.0, "steps": 14}
    result = {f"lag_{lag}_s": seconds_per_step(lag, **size)[0] for lag in (0, 2)}
    return result | {"speedup": result["lag_0_s"] / result["lag_2_s"]}


def _learn(model: PreTrainedModel, sequences: Sequences, setting: Setting, optimizer: Any, budget: Budget) -> None:
    def accumulate(max_tokens: int) -> None:
        optimizer.zero_grad()
        for indices in sequences.micro_batches(max_tokens):
            with autocast(model, setting.precision):
                logprob, _ = generated_logprobs(model, sequences, indices)
            (-logprob.sum() / sequences.tokens.num_elements).backward()

    budget.spend(accumulate, shortest=sequences.shortest)
    optimizer.step()


def largest_batch(setting: Setting) -> dict[str, Any]:
    """Double the tokens of a micro-batch until memory runs out and the budget halves, or time does."""
    least_s = 120 * (not setting.small)
    if setting.left_s < least_s:
        return {"skipped": "no time left"}
    model, length = _model(setting), 128 if setting.small else 1024
    optimizer = torch.optim.AdamW(trainable(model), lr=1e-6)
    count, most, fitted = 2, (4 if setting.small else 2**14), 0
    while count <= most and (not fitted or setting.left_s > least_s):
        budget = Budget(count * length)
        _reset(setting)
        sequences = _small_sequences(0.2, count) if setting.small else make_sequences(count, length, 0.2)
        _learn(model, sequences, setting, optimizer, budget)
        if budget.halvings:
            return {"tokens": fitted, "halved_at": count * length}
        fitted, count = count * length, 2 * count
    late = count <= most
    return {"tokens": fitted, "halved_at": None, "cut_by_the_deadline": late, "peak_mb": peak_mb(setting)}


def shapes(setting: Setting) -> dict[str, Any]:
    """Measure scoring and updating 32 sequences of 1,024 tokens with models of larger shapes and random weights."""
    result: dict[str, Any] = {}
    for name, (hidden, inner, layers, heads, kv_heads, words) in (SMALL_SHAPES if setting.small else SHAPES).items():
        config = LlamaConfig(
            vocab_size=words, hidden_size=hidden, intermediate_size=inner, num_hidden_layers=layers,
            num_attention_heads=heads, num_key_value_heads=kv_heads, tie_word_embeddings=True,
            bos_token_id=None, eos_token_id=None, attn_implementation="sdpa",  # pyright: ignore
        )  # fmt: skip
        with setting.device:
            model = LlamaForCausalLM(config).eval()
        sequences = _small_sequences(0.2) if setting.small else make_sequences(32, 1024, 0.2)
        for ids in sequences.token_ids:
            ids %= words
        optimizer = torch.optim.AdamW(trainable(model), lr=1e-6, fused=setting.device.type == "cuda")
        budget = Budget(16384)
        scoring = functools.partial(score, model, sequences)
        learning = functools.partial(_learn, model, sequences, setting, optimizer, budget)
        with autocast(model, setting.precision):
            scored, peak = _second(scoring, setting)
        learned, update_peak = _second(learning, setting)
        result[name] = {
            "parameters_m": sum(each.numel() for each in model.parameters()) / 1e6,
            "score_s": scored, "score_peak_mb": peak, "update_s": learned, "update_peak_mb": update_peak,
            "halvings": budget.halvings,
        }  # fmt: skip
        del model, optimizer, scoring, learning
    return result


class _Late(Exception):
    """The time is up."""


class _Curve(Display):
    """Note held-out success over time, and stop at the deadline."""

    def __init__(self, setting: Setting):
        self.setting, self.begun = setting, time.monotonic()
        self.evaluations: list[dict[str, float]] = []
        self.steps = 0

    def step(self, step: int, steps: int, metrics: Any) -> None:
        self.steps = step
        if self.setting.left_s < 0:
            raise _Late

    def evaluation(self, step: int, metrics: Any, failure: str = "") -> None:
        seconds = round(time.monotonic() - self.begun, 1)
        self.evaluations.append({"step": step, "success": metrics["success"], "seconds": seconds})


def recipe(setting: Setting) -> dict[str, Any]:
    """Train SmolLM2's household recipe to its end, or to the deadline, and note the time to the goal."""
    overrides = [f"run.folder={setting.folder}", "run.name=recipe", f"run.device={setting.device.type}"]
    config = load_config(Path("household-smollm2-aem"), overrides)
    if setting.small:
        config = parse_config(
            {
                "run": {"folder": str(setting.folder), "name": "recipe", "steps": 1, "threads": 1},
                "environment": {"name": "household", "max_steps": 2, "options": {"size": "tiny", "num_train": 4}},
                "model": {"hidden_size": 16, "num_layers": 1, "max_context": 512},
                "warmstart": {"steps": 0},
                "rollout": {"groups": 1, "group_size": 2, "max_new_tokens": 4},
                "evaluate": {"final_episodes": 2},
            }
        )
    curve, late = _Curve(setting), False
    try:
        train(config, display=curve)
    except _Late:
        late = True
    reached = next((each["seconds"] for each in curve.evaluations if each["success"] >= GOAL), None)
    return {"steps": curve.steps, "of": config.run.steps, "cut_by_the_deadline": late, "seconds_to_goal": reached,
            "goal": GOAL, "evaluations": curve.evaluations}  # fmt: skip


CHECKS: dict[str, Callable[[Setting], dict[str, Any]]] = {
    "parity": parity,
    "scoring": scoring,
    "rollout": rollout,
    "graphs": graphs,
    "passes": passes,
    "shapes": shapes,
    "largest_batch": largest_batch,
    "waiting": waiting,
    "recipe": recipe,
}
"""Checks in their order; the recipe is the longest."""
