"""Train and sample small models for the server of the Tinker API: all their weights, or adapters."""

import asyncio
import copy
import dataclasses
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from turnwise.base.errors import EngineFault
from turnwise.base.files import replacing
from turnwise.engines.base import Decode, Sampling
from turnwise.engines.local import LocalEngine
from turnwise.extensions.gateway import call
from turnwise.extensions.gateway.errors import BadRequest
from turnwise.models.adapters import add_adapters
from turnwise.models.logits import logit_factor
from turnwise.models.policy import trainable
from turnwise.models.positions import longest
from turnwise.models.settings import ModelConfig
from turnwise.objective.gradient import Budget
from turnwise.objective.losses import policy_loss
from turnwise.objective.tokens import chunked_logprobs

LOSSES = {"cross_entropy": None, "importance_sampling": "none", "ppo": "ppo", "cispo": "cispo"}
"""Losses that the server has, and the clip of each in `turnwise.objective.losses.policy_loss`."""
THRESHOLDS = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
MOST_SAMPLES, MOST_RANK = 256, 1024

Datum = Mapping[str, Any]


class Trained:
    """One model in training, with its optimiser.

    Args:
        base: The model that the server offers; it is copied.
        rank: Rank of the adapters to train; 0 trains all weights.
        seed: Seed of the adapters.
    """

    def __init__(self, base: PreTrainedModel, rank: int, seed: int):
        self.rank, self.model = rank, _copy(base, rank, seed)
        self.optimizer = torch.optim.AdamW(trainable(self.model), lr=0.0)

    def passed(self, asked: Mapping[str, Any], *, backward: bool) -> dict[str, Any]:
        """Make a pass over data; with `backward`, add its gradient to that of earlier passes."""
        loss_fn, data = asked.get("loss_fn"), [self._read(each) for each in asked["data"]]
        if loss_fn not in LOSSES:
            raise EngineFault(f"loss_fn={loss_fn!r} is not served; this server has {', '.join(LOSSES)}")
        config = {**THRESHOLDS, **(asked.get("loss_fn_config") or {})}
        if unknown := config.keys() - THRESHOLDS.keys():
            raise EngineFault(f"loss_fn_config={sorted(unknown)} is unknown; expected {', '.join(THRESHOLDS)}")
        weights = trainable(self.model)
        before = [each.grad.clone() if backward and each.grad is not None else None for each in weights]
        try:
            return self._summed(loss_fn, data, config, backward=backward)
        except BaseException:  # what is refused leaves no part of its gradient
            for each, grad in zip(weights, before, strict=True):
                each.grad = grad if backward else each.grad
            raise

    def _summed(self, loss_fn: Any, data: Sequence[Any], config: Mapping[str, float], *, backward: bool) -> Any:
        outputs: list[Any] = [None] * len(data)
        total = 0.0
        for part in _micro_batches([len(ids) for ids, _ in data], Budget.on(self.model.device).tokens):
            with torch.set_grad_enabled(backward):
                logprobs = self._logprobs([data[i] for i in part])
                given = {name: torch.cat([data[i][1][name] for i in part]).to(logprobs) for name in data[0][1]}
                loss = _loss(loss_fn, logprobs, given, config)
            if not torch.isfinite(loss):
                raise EngineFault(f"the loss {loss_fn!r} is {loss.item()}")
            if backward:
                loss.backward()
            total += loss.item()
            lengths = [len(data[i][0]) for i in part]
            for i, row in zip(part, logprobs.detach().float().cpu().split(lengths), strict=True):
                outputs[i] = {"logprobs": {"data": row.tolist(), "dtype": "float32", "shape": [len(row)]}}
        return {"loss_fn_output_type": "ArrayRecord", "loss_fn_outputs": outputs, "metrics": {"loss:sum": total}}

    def step(self, adam: Mapping[str, float]) -> dict[str, Any]:
        """Take a step of AdamW with the gradient of the passes since the last one."""
        weights, most = trainable(self.model), float(adam.get("grad_clip_norm") or 0.0)
        norm = float(torch.nn.utils.clip_grad_norm_(weights, most or torch.inf))
        if not np.isfinite(norm):
            self.optimizer.zero_grad()
            raise EngineFault("the gradient is not finite")
        for group in self.optimizer.param_groups:
            group |= {"lr": float(adam.get("learning_rate", 1e-4)), "weight_decay": float(adam.get("weight_decay", 0))}
            group |= {"betas": (adam.get("beta1", 0.9), adam.get("beta2", 0.95)), "eps": adam.get("eps", 1e-12)}
        self.optimizer.step()
        self.optimizer.zero_grad()
        return {"metrics": {"grad_norm": norm}}

    def save(self, path: Path, *, to_sample: bool = False) -> None:
        """Save the trained weights, and the optimiser's state unless only sampling needs them."""
        state = {"rank": self.rank, "weights": weights_of(self.model)}
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as aside:
            torch.save(state if to_sample else state | {"optimizer": self.optimizer.state_dict()}, aside)

    def load(self, path: Path, *, optimizer: bool) -> None:
        """Load what `save` saved, and forget gradients."""
        state = read_state(path, self.rank)
        self.model.load_state_dict(state["weights"], strict=False)
        self.optimizer = torch.optim.AdamW(trainable(self.model), lr=0.0)
        if optimizer:
            self.optimizer.load_state_dict(state["optimizer"])

    def _read(self, datum: Datum) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        ids, inputs = tokens_of(datum["model_input"], self.model), dict(datum["loss_fn_inputs"])
        values = {name: torch.tensor(each["data"], dtype=torch.float32) for name, each in inputs.items()}
        targets = torch.tensor(inputs["target_tokens"]["data"], dtype=torch.long)
        check_tokens(targets.tolist(), self.model)
        values |= {"target_tokens": targets, "weights": values.get("weights", torch.ones(len(targets)))}
        for name in ("advantages", "logprobs"):
            values.setdefault(name, torch.zeros(len(targets)))
        if wrong := next((name for name, value in values.items() if value.shape != (len(ids),)), None):
            raise EngineFault(f"{wrong} has {len(values[wrong])} values, expected one per token of {len(ids)}")
        return torch.tensor(ids), values

    def _logprobs(self, data: Sequence[tuple[torch.Tensor, dict[str, torch.Tensor]]]) -> torch.Tensor:
        """Compute the log-probabilities of the targets; padding on the right needs no mask."""
        ids = pad_sequence([ids for ids, _ in data], batch_first=True).to(self.model.device)
        real = pad_sequence([torch.ones_like(ids, dtype=torch.bool) for ids, _ in data], batch_first=True)
        hidden = self.model.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state
        targets = torch.cat([given["target_tokens"] for _, given in data]).to(hidden.device)
        output: Any = self.model.get_output_embeddings()
        return chunked_logprobs(hidden[real.to(hidden.device)], output, targets, 1 / logit_factor(self.model))[0]


class Samplers:
    """Engines of saved weights; the least recently used are dropped."""

    def __init__(self, base: PreTrainedModel, decode: Decode, most: int):
        self.base, self.decode, self.most = base, decode, most
        self._engines: OrderedDict[Path | None, LocalEngine] = OrderedDict()
        self._conversations = 0

    async def sample(self, weights: Path | None, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Sample responses with the weights of a file; None: those of the base model."""
        options, count = asked["sampling_params"], samples_of(asked)
        prompt, longest = tokens_of(asked["prompt"], self.base), longest_of(self.base)
        most = int(options.get("max_tokens") or longest - len(prompt))
        if most < 1 or len(prompt) + most > longest:
            raise EngineFault(f"max_tokens={most} after {len(prompt)} tokens: expected at most {longest} tokens in all")
        stop, seed = options.get("stop"), options.get("seed")
        if int(options.get("top_k", -1)) > 0:
            raise EngineFault("top_k is not served; use top_p")
        try:
            drawn = call.sampling(options)
        except BadRequest as error:  # of one caller; in a batch it would fail the others
            raise EngineFault(error.message) from None
        stop = [stop] if isinstance(stop, str) else self._ends() if stop is None else list(stop)
        sampling = Sampling(
            max_new_tokens=most,
            stop_ids=tuple(each for each in stop if isinstance(each, int)),
            stop=tuple(each for each in stop if isinstance(each, str)),
            temperature=1.0 if drawn["temperature"] is None else drawn["temperature"],
            top_p=1.0 if drawn["top_p"] is None else drawn["top_p"],
            seed=int(np.random.default_rng().integers(2**31)) if seed is None else int(seed),
        )
        engine = self._engine(weights)
        first = self._conversations + 1
        self._conversations += count
        numbers = range(first, first + count)
        draws = (dataclasses.replace(sampling, draws=number - first) for number in numbers)
        try:
            made = await asyncio.gather(*map(engine.generate, numbers, [prompt] * count, draws))
        finally:
            engine.close([*numbers])
        reasons = ("length" if each.truncated else "stop" for each in made)
        sequences = [
            {"tokens": each.token_ids, "logprobs": each.logprobs, "stop_reason": reason}
            for each, reason in zip(made, reasons, strict=True)
        ]
        return {"type": "sample", "sequences": sequences, "prompt_logprobs": None}

    def forget(self, weights: Path) -> None:
        """Forget weights that are deleted."""
        self._engines.pop(weights, None)

    def _ends(self) -> list[int]:
        ends = self.base.config.get_text_config().eos_token_id
        return [] if ends is None else [ends] if isinstance(ends, int) else list(ends)

    def _engine(self, weights: Path | None) -> LocalEngine:
        if weights in self._engines:
            self._engines.move_to_end(weights)
            return self._engines[weights]
        state = None if weights is None else read_state(weights)
        model = _copy(self.base, 0 if state is None else state["rank"], 0)
        if state is not None:
            model.load_state_dict(state["weights"], strict=False)
        engine = LocalEngine(model.requires_grad_(False), decode=self.decode, max_rows=256)
        self._engines[weights] = engine
        while len(self._engines) > self.most:
            self._engines.popitem(last=False)
        return engine


def _loss(
    name: str, logprobs: torch.Tensor, given: Mapping[str, torch.Tensor], config: Mapping[str, float]
) -> torch.Tensor:
    """Sum a loss over tokens."""
    weights = given["weights"]
    if name == "cross_entropy":
        return -(weights * logprobs).sum()
    clip: Any = LOSSES[name]
    low, high = 1 - config["clip_low_threshold"], config["clip_high_threshold"] - 1
    given_T = logprobs, given["logprobs"], given["advantages"], weights
    return policy_loss(*given_T, clip=clip, clip_low=low, clip_high=high).loss


def samples_of(asked: Mapping[str, Any]) -> int:
    """Return how many responses a request wants.

    Raises:
        EngineFault: None, or more than the server makes at a time.
    """
    count = int(asked.get("num_samples", 1))
    if not 0 < count <= MOST_SAMPLES:
        raise EngineFault(f"num_samples={count}: expected 1 to {MOST_SAMPLES}")
    return count


def _copy(base: PreTrainedModel, rank: int, seed: int) -> PreTrainedModel:
    """Copy the base model to train all its weights, or adapters of a rank."""
    model = copy.deepcopy(base).requires_grad_(not rank)
    if rank:
        add_adapters(model, ModelConfig(name=base.name_or_path or "served", train="lora", lora_rank=rank), seed)
        for name, weight in model.named_parameters():
            weight.requires_grad_("lora_" in name)
    return model


def read_state(path: Path, rank: int | None = None) -> dict[str, Any]:
    """Read saved weights.

    Raises:
        EngineFault: There are none, or they are of adapters of another rank.
    """
    if not path.is_file():
        raise EngineFault(f"nothing is saved as {path.parent.name}/{path.stem}")
    state = torch.load(path, weights_only=True, map_location="cpu")
    if rank is not None and state["rank"] != rank:
        raise EngineFault(f"the saved weights have rank {state['rank']}, the model has {rank} (0: all weights)")
    return state


def weights_of(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Copy the trained weights to main memory."""
    trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    return {name: weight.detach().to("cpu", copy=True) for name, weight in trained.items()}


def tokens_of(model_input: Mapping[str, Any], model: PreTrainedModel) -> list[int]:
    """Read the tokens of an input."""
    if any(chunk.get("type", "encoded_text") != "encoded_text" for chunk in model_input["chunks"]):
        raise EngineFault("only chunks of tokens are served")
    ids = [int(token) for chunk in model_input["chunks"] for token in chunk["tokens"]]
    if not 0 < len(ids) <= longest_of(model):
        raise EngineFault(f"an input has {len(ids)} tokens, expected 1 to {longest_of(model)}")
    check_tokens(ids, model)
    return ids


def check_tokens(ids: Sequence[int], model: PreTrainedModel) -> None:
    """Raise unless the model has all these tokens."""
    size = model.config.get_text_config().vocab_size
    if wrong := next((token for token in ids if not 0 <= token < size), None):
        raise EngineFault(f"token {wrong} is not in the model's vocabulary of {size}")


def longest_of(model: PreTrainedModel) -> int:
    """Return how many tokens a model can read without depending on other conversations."""
    found = longest(model.config)
    assert found is not None
    return found


def _micro_batches(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Group sequences of similar length to passes of at most `max_tokens` padded tokens, or one sequence."""
    parts, waiting = list[list[int]](), sorted(range(len(lengths)), key=lambda i: -lengths[i])
    while waiting:
        count = max(1, max_tokens // lengths[waiting[0]])
        parts.append(waiting[:count])
        waiting = waiting[count:]
    return parts
