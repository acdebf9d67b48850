"""Measure training steps beside TRL's GRPO trainer with a `rollout_func`: trajectories a CPU hour.

    OMP_NUM_THREADS=1 python -m benchmarks.trainer_trl                # 19 M parameters
    OMP_NUM_THREADS=1 python -m benchmarks.trainer_trl --smollm2      # SmolLM2-135M's shape

Needs what benchmarks/requirements-trl.txt lists. Both train the same random weights with GRPO on the same tasks, one
update per step, in turn in one process. Every conversation has the same number of turns and, but for a response that
ends early, of tokens; the number of generated ones is shown. TRL's rollout function generates for all conversations at
once, turn by turn, and reads each conversation anew in each turn, as TRL's own loop over tool calls does.
"""

import argparse
import tempfile
import time
import warnings
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from benchmarks.common import describe, one_thread
from benchmarks.tables import table
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from turnwise.config import parse_config
from turnwise.environments.base import Step
from turnwise.models.chat import chat_format
from turnwise.models.settings import PromptConfig
from turnwise.train.display import Display
from turnwise.train.loop import train

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of TRL's imports
    import trl  # pyright: ignore[reportMissingImports]
    from datasets import Dataset  # pyright: ignore[reportMissingImports]
    from transformers import TrainerCallback

SPECIAL = ("<pad>", "<begin>", "<end>", "user", "assistant")
TEMPLATE = (
    "{% for message in messages %}<begin> {{ message.role }} {{ message.content }}<end> {% endfor %}"
    "{% if add_generation_prompt %}<begin> assistant {% endif %}"
)
SHAPES = {
    False: {"vocab_size": 4096, "hidden_size": 384, "intermediate_size": 1024, "num_hidden_layers": 10,
            "num_attention_heads": 6, "num_key_value_heads": 6},
    True: {"vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
           "num_attention_heads": 9, "num_key_value_heads": 3},
}  # fmt: skip
WARM_UP = 1
"""First steps of each trainer, which do not count."""


class Words:
    """Says random words for a number of turns; pays at the end by a checksum of what was answered."""

    def __init__(self, task: int, *, turns: int, length: int):
        words = np.random.default_rng(task).integers(1000, 4000, (turns + 1, length))
        self.texts = [" ".join(f"w{word}" for word in text) for text in words]
        self.turn, self.paid = 0, 0.0

    def start(self) -> str:
        """Return the first text."""
        return self.texts[0]

    def step(self, response: str) -> Step:
        """Count the response."""
        self.turn += 1
        self.paid += zlib.crc32(response.encode()) % 2 / (len(self.texts) - 1)
        end = self.turn == len(self.texts) - 1
        return Step(observation=self.texts[self.turn], reward=self.paid if end else 0.0, terminated=end)


def make_model(folder: str, smollm2: bool) -> None:
    """Save a random Llama whose tokenizer has a token per word, with a chat template."""
    shape = SHAPES[smollm2]
    names = [*SPECIAL, *(f"w{number}" for number in range(shape["vocab_size"] - len(SPECIAL)))]
    inner = Tokenizer(models.WordLevel({name: number for number, name in enumerate(names)}, unk_token="<pad>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # pyright: ignore
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", eos_token="<end>", unk_token="<pad>", chat_template=TEMPLATE
    )
    torch.manual_seed(0)
    sizes: dict[str, Any] = {**shape, "max_position_embeddings": 4096, "bos_token_id": None, "eos_token_id": 2}
    model = LlamaForCausalLM(LlamaConfig(**sizes, tie_word_embeddings=True, initializer_range=1 / 24, pad_token_id=0))
    print(describe(model))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


class Ends(Display, TrainerCallback):
    """Note the processor's and the clock's seconds at the end of each step, of either trainer."""

    def __init__(self) -> None:
        self.ends: list[tuple[float, float]] = []
        self.generated = 0.0

    def step(self, step: int, steps: int, metrics: Any) -> None:
        """Note a step of turnwise."""
        self.generated += metrics["rollout/tokens"]
        self.ends.append((time.process_time(), time.perf_counter()))

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Note a step of TRL, which counts no generated tokens."""
        self.step(state.global_step, state.max_steps, {"rollout/tokens": 0.0})

    def seconds(self) -> np.ndarray:
        """`[steps, 2]` of the steps that count."""
        return np.diff(np.array(self.ends), axis=0)[WARM_UP - 1 :]


def ours(model: str, options: argparse.Namespace) -> tuple[np.ndarray, float]:
    """Train with turnwise; return the seconds of its steps and the generated tokens of a trajectory."""
    with tempfile.TemporaryDirectory() as folder:
        config = parse_config({
            "method": "grpo",
            "run": {"folder": folder, "steps": options.steps + WARM_UP, "threads": torch.get_num_threads()},
            "environment": {"name": "benchmarks.trainer_trl:Words", "max_steps": options.turns,
                            "options": {"turns": options.turns, "length": options.observation}},
            "model": {"name": model, "max_context": 4096, "precision": options.precision},
            "warmstart": {"steps": 0},
            "rollout": {"groups": options.groups, "group_size": options.size, "max_new_tokens": options.response},
            "update": {"scoring": "engine", "max_tokens": 4096, "warmup_steps": 0, "learning_rate": 1e-6},
            "evaluate": {"every": 0, "episodes": 1, "final_episodes": 1},
            "checkpoint": {"every": 1000},
        })  # fmt: skip
        ends = Ends()
        train(config, display=ends)
    return ends.seconds(), ends.generated / (options.steps + WARM_UP) / (options.groups * options.size)


def theirs(model: str, options: argparse.Namespace) -> tuple[np.ndarray, float]:
    """Train with TRL; return the same."""
    count, generated = options.groups * options.size, []
    games = [Words(task, turns=options.turns, length=options.observation) for task in range(options.groups * 8)]
    numbers = {game.start(): task for task, game in enumerate(games)}

    def rollout(prompts: list, trainer: trl.GRPOTrainer) -> dict[str, Any]:
        policy = trainer.accelerator.unwrap_model(trainer.model)
        form = chat_format(trainer.processing_class, PromptConfig())  # pyright: ignore
        begun = [Words(numbers[p[0]["content"]], turns=options.turns, length=options.observation) for p in prompts]
        first = [form.prompt_ids(game.start(), first=True) for game in begun]
        ids, masks, paid = [list(prompt) for prompt in first], [[] for _ in begun], [0.0 for _ in begun]
        for turn in range(options.turns):
            for number, response in enumerate(generate(policy, ids, options)):
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
        return {"prompt_ids": first, "completion_ids": completions, "logprobs": None, "env_mask": masks, "paid": paid}

    with tempfile.TemporaryDirectory() as folder:
        ends = Ends()
        bf16 = options.precision == "bf16"
        trainer = trl.GRPOTrainer(
            model=model,
            reward_funcs=lambda paid, **_: paid,
            args=trl.GRPOConfig(
                output_dir=folder, use_cpu=True, bf16=bf16, report_to=[], num_generations=options.size, beta=0.0,
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
    tokens = torch.tensor([[0] * (width - len(own)) + own for own in ids])
    mask = torch.tensor([[0] * (width - len(own)) + [1] * len(own) for own in ids])
    # one autocast around all tokens: weights become bfloat16 once a turn, not once a token
    with torch.autocast("cpu", torch.bfloat16, enabled=options.precision == "bf16"):
        new = model.generate(
            tokens, attention_mask=mask, do_sample=True, top_k=0, max_new_tokens=options.response
        )[:, width:]  # fmt: skip
    responses = []
    for response in new.tolist():
        end = response.index(2) + 1 if 2 in response else len(response)
        responses.append(response[:end])
    return responses


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smollm2", action="store_true", help="the shape of SmolLM2-135M")
    parser.add_argument("--groups", type=int, default=2)
    parser.add_argument("--size", type=int, default=8, help="trajectories of a group")
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--observation", type=int, default=24, help="words")
    parser.add_argument("--response", type=int, default=12, help="tokens")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--micro", type=int, default=4, help="trajectories of a micro-batch in TRL")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    options = parser.parse_args()
    one_thread()
    with tempfile.TemporaryDirectory() as model:
        make_model(model, options.smollm2)
        rounds = [{name: measure(model, options) for name, measure in TRAINERS.items()} for _ in range(options.rounds)]
    rows, count = [], options.groups * options.size
    for number, measured in enumerate(rounds, 1):
        for name, (seconds, tokens) in measured.items():
            own, wall = seconds.mean(axis=0)
            ratio = measured["TRL"][0].mean(axis=0) / (own, wall)
            rows.append((number, name, f"{tokens:,.1f}", f"{own:.1f}", f"{wall:.1f}", f"{3600 * count / own:,.0f}",
                         f"{ratio[0]:.2f}", f"{ratio[1]:.2f}"))  # fmt: skip
    header = ("round", "", "generated a trajectory", "CPU s a step", "wall s a step", "trajectories a CPU hour",
              "times TRL, CPU", "wall")  # fmt: skip
    title = f"{count} trajectories of {options.turns} turns a step, {options.precision}, {options.steps} steps"
    table(title, header, rows)


TRAINERS: dict[str, Callable[[str, argparse.Namespace], tuple[np.ndarray, float]]] = {"TRL": theirs, "turnwise": ours}

if __name__ == "__main__":
    main()
