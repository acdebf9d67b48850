"""What `test_two_processes_agree_with_one` starts: a training run whose rollouts depend on the prompt's number only."""

import json
import os
import sys
import tempfile

import torch
import trl
from accelerate.utils import gather_object
from datasets import Dataset
from tests.rollout.chat_models import chat_model
from transformers import AutoModelForCausalLM, AutoTokenizer

import turnwise as tw
from turnwise.integrations.trl import TurnwiseGRPOTrainer

SIZE, PROMPTS = 4, 2
PROCESSES = int(os.environ["WORLD_SIZE"])


def play(prompts, trainer):
    """Rows of different lengths and turns, which depend on the row's place among those of all processes."""
    result = {"prompt_ids": [], "completion_ids": [], "logprobs": None, "env_mask": []}
    for row in range(len(prompts)):
        place = trainer.accelerator.process_index * len(prompts) + row
        draw = torch.Generator().manual_seed(place)
        mask = ([1] * (2 + place) + [0, 0]) * (place % 3) + [1, 1, 1]
        result["prompt_ids"].append([4, 5, 6])
        result["completion_ids"].append(torch.randint(4, 280, (len(mask),), generator=draw).tolist())
        result["env_mask"].append(mask)
    return result


class Kept(TurnwiseGRPOTrainer):
    """Keeps what all processes got, row by row."""

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        lengths = output["completion_mask"].sum(1).tolist()
        own = [
            (ids[:n].tolist(), row[:n].tolist())
            for ids, row, n in zip(output["completion_ids"], output["advantages"], lengths, strict=True)
        ]
        self.kept = gather_object(own)
        return output


def main():
    folder = chat_model("qwen2_5")
    trainer = Kept(
        model=AutoModelForCausalLM.from_pretrained(folder),
        reward_funcs=lambda completion_ids, **_: [(sum(ids) % 11) / 4 for ids in completion_ids],
        args=trl.GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            use_cpu=True,
            bf16=False,
            report_to=[],
            num_generations=SIZE,
            seed=0,
            max_steps=1,
            per_device_train_batch_size=SIZE * PROMPTS // PROCESSES,
            max_completion_length=64,
            learning_rate=1e-2,
            save_strategy="no",
            disable_tqdm=True,
            gradient_checkpointing=False,
            optim="sgd",
            max_grad_norm=1e9,
        ),
        train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": "go"}]}] * PROMPTS),
        processing_class=AutoTokenizer.from_pretrained(folder),
        rollout_func=play,
        method=tw.aem(tw.grpo(), min_range=0.0),
    )
    trainer.train()
    if trainer.accelerator.is_main_process:
        model = trainer.accelerator.unwrap_model(trainer.model)
        found = {
            "completion": [ids for ids, _ in trainer.kept],
            "advantage": [row for _, row in trainer.kept],
            "weights": {name: weight.flatten()[:50].tolist() for name, weight in model.named_parameters()},
        }
        with open(sys.argv[1], "w", encoding="utf-8") as file:
            json.dump(found, file)


if __name__ == "__main__":
    main()
