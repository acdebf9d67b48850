"""Share what is trained beside TRL: a model, an environment, and the seconds of a step."""

import time
import zlib
from typing import Any

import numpy as np
import torch
from benchmarks.common import describe
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback

from turnwise.environments.base import Step
from turnwise.train.display import Display

SPECIAL = ("<pad>", "<begin>", "<end>", "user", "assistant", "tool")
TEMPLATE = (
    "{% for message in messages %}<begin> {{ message.role }} {{ message.content }}"
    "{% for call in message.tool_calls %}{{ call.function.name }} {{ call.function.arguments }}{% endfor %}<end> "
    "{% endfor %}"
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
    """Note the processor's and the clock's seconds at the end of each step, of either trainer.

    Attributes:
        ends: Both seconds at the end of each step.
        rollouts: Seconds of the clock of each step's rollout.
        generated: Tokens that turnwise generated.
    """

    def __init__(self) -> None:
        self.ends: list[tuple[float, float]] = []
        self.rollouts: list[float] = []
        self.generated = 0.0

    def step(self, step: int, steps: int, metrics: Any) -> None:
        """Note a step of turnwise."""
        self.generated += metrics["rollout/tokens"]
        self.rollouts.append(metrics["time/rollout_s"])
        self.on_step_end()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Note a step of TRL, whose rollout function notes its own seconds."""
        self.ends.append((time.process_time(), time.perf_counter()))

    def seconds(self) -> np.ndarray:
        """Average the steps that count: seconds of the processor and of the clock, and the clock's of the rollout."""
        return np.array([*np.diff(self.ends, axis=0)[WARM_UP - 1 :].mean(axis=0), np.mean(self.rollouts[WARM_UP:])])
