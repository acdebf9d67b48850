"""Train with TRL and a method of turnwise, on a tiny random model: no download, seconds on a CPU.

    pip install torch, then '.[trl]' in a clone, or 'turnwise-rl[trl]' once released
    python examples/trl_grpo.py

A change of `method` compares two methods; `tw.grpo(convention="trl")` trains as TRL itself does.
"""

import tempfile

from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig

import turnwise as tw
from turnwise.integrations.trl import TurnwiseGRPOTrainer

WORDS = ["<pad>", "<end>", "say", "go", "to", "the", "door", "now"]


def tiny_model() -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """Make a model with random weights that knows eight words; put your own in its place."""
    words = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    special = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(WORDS), max_position_embeddings=64, **sizes, **special))
    return model, PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<end>")


def reward(completions: list[str], **_) -> list[float]:
    """Pay a point for every "go"."""
    return [float(text.split().count("go")) for text in completions]


def train(folder: str, *, steps: int = 20, method: tw.Transform | None = None) -> list[dict]:
    """Train, and return what TRL logged: one dictionary per step."""
    model, tokenizer = tiny_model()
    trainer = TurnwiseGRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=reward,
        train_dataset=Dataset.from_list([{"prompt": text} for text in ("say go", "say door", "say now", "say the")]),
        args=GRPOConfig(
            output_dir=folder,
            max_steps=steps,
            num_generations=8,
            per_device_train_batch_size=32,
            max_completion_length=6,
            learning_rate=1e-2,
            logging_steps=1,
            seed=0,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        ),
        method=method or tw.aem(tw.grpo()),
    )
    trainer.train()
    return [record for record in trainer.state.log_history if "reward" in record]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        logged = train(temporary)
    print(f"reward {logged[0]['reward']:.2f} -> {logged[-1]['reward']:.2f}")
    print({name: round(value, 2) for name, value in logged[-1].items() if name.startswith("credit/")})
    print(logged[-1]["reward"] > logged[0]["reward"] + 1.0)  # True
