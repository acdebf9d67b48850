"""Train with TRL's GRPO trainer, in the ways that its users write an agent of several turns."""

import argparse
import tempfile
import time
import warnings
from typing import Any

import numpy as np
import torch
from benchmarks.rollout_speed import contiguous
from benchmarks.trainer_trl_parts import WARM_UP, Ends, Words
from transformers import DynamicCache

from turnwise.models.chat import chat_format
from turnwise.models.policy import frozen_copy
from turnwise.models.settings import PromptConfig

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of TRL's imports
    import trl  # pyright: ignore[reportMissingImports]
    from datasets import Dataset  # pyright: ignore[reportMissingImports]


def theirs(model: str, options: argparse.Namespace, *, cached: bool = False) -> tuple[np.ndarray, float]:
    """Train with TRL; return the same. `cached`: the rollout function keeps keys and values from turn to turn."""
    count, generated = options.groups * options.size, []
    games = [Words(task, turns=options.turns, length=options.observation) for task in range(options.groups * 8)]
    numbers = {game.start(): task for task, game in enumerate(games)}
    ends, bf16 = Ends(), options.precision == "bf16"

    def rollout(prompts: list, trainer: trl.GRPOTrainer) -> dict[str, Any]:
        began = time.perf_counter()
        policy = trainer.accelerator.unwrap_model(trainer.model)
        if bf16:
            policy = frozen_copy(policy, torch.bfloat16)
            vars(policy).pop("forward", None)  # accelerate's autocast around it, which bfloat16 weights do not need
            policy.get_output_embeddings().register_forward_pre_hook(contiguous)  # pyright: ignore
        form = chat_format(trainer.processing_class, PromptConfig())  # pyright: ignore
        begun = [Words(numbers[p[0]["content"]], turns=options.turns, length=options.observation) for p in prompts]
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

    with tempfile.TemporaryDirectory() as folder:
        trainer = trl.GRPOTrainer(
            model=model,
            reward_funcs=lambda paid, **_: paid,
            args=trl.GRPOConfig(
                output_dir=folder, use_cpu=options.device == "cpu", bf16=bf16, report_to=[], beta=0.0,
                num_generations=options.size,
                per_device_train_batch_size=options.micro, gradient_accumulation_steps=count // options.micro,
                max_completion_length=4096, max_steps=options.steps + WARM_UP, learning_rate=1e-6,
                save_strategy="no", logging_steps=1000, disable_tqdm=True, gradient_checkpointing=False,
                model_init_kwargs={"dtype": "float32"},
            ),
            train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": text}]} for text in numbers]),
            rollout_func=rollout,
            callbacks=[ends],
        )  # fmt: skip
        trainer.train()
    return ends.seconds(), float(np.mean(generated))


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
