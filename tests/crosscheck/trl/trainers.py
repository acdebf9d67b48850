"""TRL's trainer and ours on a tiny random chat model, and what they made of each batch. It imports TRL: check for that
first.
"""

import json
import warnings

import numpy as np
import torch

import turnwise as tw
from turnwise.environments.settings import EnvironmentConfig

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of TRL's imports
    import trl
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from turnwise.integrations.trl import TurnwiseGRPOTrainer

from tests.rollout.chat_models import chat_model

SIZE, GROUPS = 4, 2  # trajectories of a prompt, prompts of a batch
OBSERVED = " you said"  # what the world of `play_turns` answers
HOUSE = EnvironmentConfig(name="household", max_steps=4, options={"size": "tiny", "num_train": 4})


def rewards_of(completion_ids, **_):
    """Differs within a group, and not by much."""
    return [(sum(ids) % 11) / 4 for ids in completion_ids]


def play_turns(prompts, trainer):
    """A rollout function: one to three turns that the model generates itself, an observation between them."""
    model, words = trainer.accelerator.unwrap_model(trainer.model), trainer.processing_class
    observed = words.encode(OBSERVED)
    result = {"prompt_ids": [], "completion_ids": [], "logprobs": None, "env_mask": []}
    for number, prompt in enumerate(prompts):
        start = words.encode(prompt[0]["content"])
        ids, mask = list(start), []
        for turn in range(1 + number % 3):
            if turn:
                ids, mask = ids + observed, mask + [0] * len(observed)
            new = model.generate(torch.tensor([ids]), max_new_tokens=2 + turn, min_new_tokens=2 + turn, do_sample=True)
            new = new[0, len(ids) :].tolist()
            ids, mask = ids + new, mask + [1] * len(new)
        result["prompt_ids"].append(start)
        result["completion_ids"].append(ids[len(start) :])
        result["env_mask"].append(mask)
    return result


def distribution(trainer, batch, state):
    """What a policy of these weights samples from at each token of a batch's completions, computed apart from TRL."""
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)
    attention = torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1)
    length = batch["completion_ids"].shape[1]
    position = (attention.cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        # a patched model hands out entropies in place of logits; the class itself computes them
        model = AutoModelForCausalLM.from_pretrained(trainer.model.name_or_path)
        model.load_state_dict(state)
        logits = model(input_ids=ids, attention_mask=attention, position_ids=position).logits
    return torch.distributions.Categorical(logits=logits[:, -length - 1 : -1] / trainer.temperature)


class Recording:
    """Keeps what a trainer made of each batch, and the entropies and weights of the policy then."""

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        policy = self.accelerator.unwrap_model(self.model)
        state = {name: weight.clone() for name, weight in policy.state_dict().items()}
        entropies = distribution(self, output, state).entropy()
        self.batches = [*getattr(self, "batches", []), {**output, "entropies": entropies}]
        self.states = [*getattr(self, "states", []), state]
        return output


class Ours(Recording, TurnwiseGRPOTrainer):
    pass


class Theirs(Recording, trl.GRPOTrainer):
    pass


class Scripted(Ours):
    """Says what a scripted player would: tool calls that a random model never makes, with one mistake and one
    farewell.
    """

    def _generate_single_turn(self, prompt_ids, *args, **kwargs):
        self.calls = getattr(self, "calls", 0) + 1
        said = []
        for number in range(len(prompt_ids)):
            command = ["go to drawer 1", "look", "inventory", "go to nowhere"][(self.calls + number) % 4]
            argument = "wrong" if number == 1 and self.calls % 3 == 2 else "command"
            call = json.dumps({"name": "play", "arguments": {argument: command}})
            text = "good bye" if self.calls % 3 == 0 else f"<tool_call>\n{call}\n</tool_call>"
            said.append(self.processing_class.encode(text + "<|im_end|>"))
        return said, None


def make(
    kind,
    folder,
    *,
    prompts=None,
    reward_funcs=rewards_of,
    method=None,
    rollout_func=None,
    environments=None,
    tools=None,
    eval_dataset=None,
    model=None,
    **options,
):
    model = model or chat_model("qwen2_5")
    arguments = trl.GRPOConfig(
        **{
            "output_dir": str(folder),
            "use_cpu": True,
            "bf16": False,
            "report_to": [],
            "num_generations": SIZE,
            "seed": 0,
            "per_device_train_batch_size": SIZE * GROUPS,
            "max_completion_length": 8,
            "max_steps": 2,
            "logging_steps": 1,
            "learning_rate": 1e-2,
            "save_strategy": "no",
            "disable_tqdm": True,
            "gradient_checkpointing": False,
            **options,
        }
    )
    prompts = prompts or [
        {"prompt": [{"role": "user", "content": text}]} for text in ("say red", "say blue", "go", "look")
    ]
    own = {} if method is None else {"method": method}
    return kind(
        model=AutoModelForCausalLM.from_pretrained(
            model, max_position_embeddings=4096
        ),  # a tool's schema is long in bytes
        reward_funcs=reward_funcs,
        args=arguments,
        train_dataset=Dataset.from_list(prompts),
        eval_dataset=eval_dataset,
        processing_class=AutoTokenizer.from_pretrained(model),
        rollout_func=rollout_func,
        environment_factory=environments,
        tools=tools,
        **own,
    )


def by_hand(method, batch, reward, *, states=None, paid=None):
    """The method on a batch of nested lists, built token by token, `[rows, length]`."""
    mask = batch["completion_mask"] * batch.get("tool_mask", 1)
    places, groups = [], []
    for row, entropy in enumerate(batch["entropies"]):
        if row % SIZE == 0:
            groups.append([])
        turns = []
        for at in range(mask.shape[1]):
            if mask[row, at]:
                if at == 0 or not mask[row, at - 1]:
                    turns.append([])
                turns[-1].append(at)
        places.append(turns)
        trajectory = [{"reward": 0.0, "entropy": entropy[turn].mean().item()} for turn in turns]
        trajectory[-1]["reward"] = float(reward[row])
        for n, response in enumerate(trajectory):
            if states is not None:
                response["state_key"], response["reward"] = states[row][n], paid[row][n]
        groups[-1].append(trajectory)
    advantage_R = method(tw.Batch.from_trajectories(groups))
    table, flat = np.zeros(mask.shape), iter(advantage_R)
    for row, turns in enumerate(places):
        for turn in turns:
            table[row, turn] = next(flat)
    return table


def lottery(completions, **_):
    return [0.5 * (n % 3) for n in range(len(completions))]
