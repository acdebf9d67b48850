"""Train with TRL's GRPO trainer, in the ways that its users write an agent of several turns."""

import argparse
import functools
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from typing import Any
from unittest import mock

import numpy as np
import torch
from benchmarks.rollout_speed import contiguous
from benchmarks.trainer_trl_parts import WARM_UP, Ends, Words
from transformers import AutoTokenizer, DynamicCache

from turnwise.models.chat import chat_format
from turnwise.models.policy import frozen_copy
from turnwise.models.settings import PromptConfig

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of TRL's imports
    import trl  # pyright: ignore[reportMissingImports]
    from datasets import Dataset  # pyright: ignore[reportMissingImports]
    from trl.trainer import grpo_trainer  # pyright: ignore[reportMissingImports]


def theirs(model: str, options: argparse.Namespace, *, cached: bool = False) -> tuple[np.ndarray, float]:
    """Train with TRL; return a step's seconds (see `Ends.seconds`) and a trajectory's generated tokens.

    `cached`: the rollout function keeps keys and values from turn to turn.
    """
    ends, games, generated, bf16 = Ends(), _games(options), [], options.precision == "bf16"

    def rollout(prompts: list, trainer: trl.GRPOTrainer) -> dict[str, Any]:
        began = time.perf_counter()
        policy = trainer.accelerator.unwrap_model(trainer.model)
        if bf16:
            policy = frozen_copy(policy, torch.bfloat16)
            vars(policy).pop("forward", None)  # accelerate's autocast around it, which bfloat16 weights do not need
            policy.get_output_embeddings().register_forward_pre_hook(contiguous)  # pyright: ignore
        form = chat_format(trainer.processing_class, PromptConfig())  # pyright: ignore
        begun = [games[prompt[0]["content"]]() for prompt in prompts]
        first = [form.prompt_ids(game.start(), first=True) for game in begun]
        ids, masks, paid = [list(prompt) for prompt in first], [[] for _ in begun], [0.0 for _ in begun]
        session = Session(policy, options)
        for turn in range(options.turns):
            for number, response in enumerate(session.generate(ids) if cached else generate(policy, ids, options)):
                step = begun[number].step(form.text(response))
                added = form.closed(response)
                masks[number] += [1] * len(response) + [0] * (len(added) - len(response))
                ids[number] += added
                paid[number] += step.reward
                if turn + 1 < options.turns:
                    prompt = form.prompt_ids(step.observation, first=False)
                    ids[number] += prompt
                    masks[number] += [0] * len(prompt)
        completions = [own[len(prompt) :] for own, prompt in zip(ids, first, strict=True)]
        generated.extend(map(sum, masks))
        ends.rollouts.append(time.perf_counter() - began)
        return {"prompt_ids": first, "completion_ids": completions, "logprobs": None, "env_mask": masks, "paid": paid}

    parts = {"reward_funcs": lambda paid, **_: paid, "rollout_func": rollout}
    _train(trl.GRPOTrainer, model, options, games, ends, parts)
    return ends.seconds(), float(np.mean(generated))


def tools(
    model: str, options: argparse.Namespace, *, limit: str = "max_new_tokens", **settings: Any
) -> tuple[np.ndarray, float]:
    """Train with TRL's own loop over tool calls, on environments of `environment_factory`; return as `theirs`.

    A model of random weights makes no calls, so each of its responses is taken as one. `settings` are TRL's, and
    `limit` its engine's name for the tokens of a response: TRL's own limit is that of all responses of a trajectory.
    """
    ends, games, generated = Ends(), _games(options), []

    class Speaker:
        """An environment of TRL, whose tool says the words of a response."""

        def reset(self, prompt: list, **_: Any) -> None:
            """Begin the task whose first text is the prompt."""
            self._game = games[prompt[0]["content"]]()

        def say(self, words: str) -> str:
            """Say something.

            Args:
                words: The words.
            """
            return self._game.step(words).observation

        def get_reward(self) -> float:
            """Pay what has been earned; the last response, which TRL does not play, earns nothing."""
            return self._game.paid

    class Trainer(trl.GRPOTrainer):
        def _generate(self, prompts: list) -> Any:
            began = time.perf_counter()
            result = super()._generate(prompts)
            ends.rollouts.append(time.perf_counter() - began)
            return result

    def parse(tokenizer: Any, ids: list[int], **_: Any) -> dict[str, Any]:
        generated.append(len(ids))
        call = {"name": "say", "arguments": {"words": tokenizer.decode(ids, skip_special_tokens=True)}}
        return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]}

    words = AutoTokenizer.from_pretrained(model)
    words.response_schema = {}  # the parser is the one above
    settings |= {"max_tool_calling_iterations": options.turns - 1, "generation_kwargs": {limit: options.response}}
    parts = {"reward_funcs": None, "environment_factory": Speaker, "processing_class": words}
    with mock.patch.object(grpo_trainer, "parse_response", parse):
        _train(Trainer, model, options, games, ends, parts, **settings)
    return ends.seconds(), sum(generated) / len(ends.rollouts) / (options.groups * options.size)


def vllm_tools(model: str, options: argparse.Namespace) -> tuple[np.ndarray, float]:
    """Do as `tools`, with vLLM for generation, in TRL's process."""
    import vllm  # pyright: ignore[reportMissingImports]
    from trl.generation import vllm_generation  # pyright: ignore[reportMissingImports]
    from vllm import _custom_ops  # pyright: ignore[reportMissingImports]

    os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1"}
    own = {"dtype": "bfloat16" if options.precision == "bf16" else "float32", "block_size": 32}
    with (
        # on a CPU vLLM packs weights, which TRL could not replace then
        mock.patch.object(_custom_ops, "_supports_onednn", options.device != "cpu"),
        mock.patch.object(vllm_generation, "LLM", lambda **given: vllm.LLM(**{**given, **own})),
    ):
        return tools(
            model, options, limit="max_tokens", use_vllm=True, vllm_mode="colocate", vllm_max_model_length=2048
        )


def _games(options: argparse.Namespace) -> dict[str, Callable[[], Words]]:
    """Return what begins each task, by its first text."""
    tasks = range(options.groups * 8)
    games = [functools.partial(Words, task, turns=options.turns, length=options.observation) for task in tasks]
    return {begin().start(): begin for begin in games}


def _train(
    kind: type[trl.GRPOTrainer],
    model: str,
    options: argparse.Namespace,
    games: Iterable[str],
    ends: Ends,
    parts: dict[str, Any],
    **settings: Any,
) -> None:
    """Train with a trainer of TRL on the games with these first texts, its further parts and settings."""
    count = options.groups * options.size
    prompts = [{"prompt": [{"role": "user", "content": text}]} for text in games]
    with tempfile.TemporaryDirectory() as folder:
        kind(
            model=model,
            args=trl.GRPOConfig(**{
                "output_dir": folder, "use_cpu": options.device == "cpu", "bf16": options.precision == "bf16",
                "report_to": [], "beta": 0.0, "num_generations": options.size,
                "per_device_train_batch_size": options.micro, "gradient_accumulation_steps": count // options.micro,
                "max_completion_length": 4096, "max_steps": options.steps + WARM_UP, "learning_rate": 1e-6,
                "save_strategy": "no", "logging_steps": 1000, "disable_tqdm": True, "gradient_checkpointing": False,
                "model_init_kwargs": {"dtype": "float32"}, **settings,
            }),
            train_dataset=Dataset.from_list(prompts),
            callbacks=[ends],
            **parts,
        ).train()  # fmt: skip


@torch.no_grad()
def generate(model: Any, ids: list[list[int]], options: argparse.Namespace) -> list[list[int]]:
    """Sample a response to every conversation at once, padded from the left."""
    width = max(map(len, ids))
    tokens = torch.tensor([[0] * (width - len(own)) + own for own in ids], device=model.device)
    mask = torch.tensor([[0] * (width - len(own)) + [1] * len(own) for own in ids], device=model.device)
    new = model.generate(tokens, attention_mask=mask, do_sample=True, top_k=0, max_new_tokens=options.response)
    return [ended(response) for response in new[:, width:].tolist()]


def ended(response: list[int]) -> list[int]:
    """Cut a response behind its end token."""
    return response[: response.index(2) + 1] if 2 in response else response


class Session:
    """All conversations of a rollout with their cache. Each turn adds a block of tokens, padded from the left."""

    def __init__(self, model: Any, options: argparse.Namespace):
        self.model, self.options, self.cache = model, options, DynamicCache()
        self.tokens = self.mask = None
        self.held: list[int] = []  # tokens of each conversation so far

    @torch.no_grad()
    def generate(self, ids: list[list[int]]) -> list[list[int]]:
        """Sample a response to every conversation, of which the new tokens are read."""
        added = [own[held:] for own, held in zip(ids, self.held or [0] * len(ids), strict=True)]
        width = max(map(len, added))
        padding = [[0] * (width - len(own)) for own in added]
        self._append([pad + own for pad, own in zip(padding, added, strict=True)],
                     [pad + [1] * len(own) for pad, own in zip(padding, added, strict=True)])  # fmt: skip
        assert self.tokens is not None
        new = self.model.generate(
            self.tokens, attention_mask=self.mask, past_key_values=self.cache, do_sample=True, top_k=0,
            max_new_tokens=self.options.response,
        )[:, self.tokens.shape[1] :].tolist()  # fmt: skip
        responses = [ended(response) for response in new]
        self._append(new, [[1] * len(own) + [0] * (len(new[0]) - len(own)) for own in responses])
        self.held = [len(own) + len(response) for own, response in zip(ids, responses, strict=True)]
        return responses

    def _append(self, tokens: list[list[int]], mask: list[list[int]]) -> None:
        blocks = (torch.tensor(tokens, device=self.model.device), torch.tensor(mask, device=self.model.device))
        if self.tokens is None or self.mask is None:
            self.tokens, self.mask = blocks
        else:
            self.tokens, self.mask = torch.cat([self.tokens, blocks[0]], 1), torch.cat([self.mask, blocks[1]], 1)
