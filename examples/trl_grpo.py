"""Train an agent of three turns with TRL and a turnwise method, on a tiny random model: no download, seconds on a CPU.

    pip install torch, then '.[trl]' in a clone, or 'turnwise-rl[trl]' once released
    python examples/trl_grpo.py

A signpost names a side at every turn, and the agent has to say the same; only the end is rewarded. AEM's alpha leaves 1
as soon as the policy is surer at some turns than at others. `method=tw.grpo(convention="trl")` trains as TRL does.
"""

import tempfile

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig

import turnwise as tw
from turnwise.integrations.trl import TurnwiseGRPOTrainer

WORDS = ["<pad>", "<end>", "left", "right", "up", "down", "wait", "sign"]
SIGNS, TURNS = ("left up up", "right down left", "up left right", "down right down"), 3


def tiny_model() -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """Make a model with random weights that knows eight words; put your own in its place."""
    words = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    special = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None}
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(WORDS), max_position_embeddings=64, **sizes, **special))
    return model, PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<end>")


def play(prompts: list[str], trainer: TurnwiseGRPOTrainer) -> dict[str, list]:
    """Play turn by turn: the environment shows a sign, the policy says one word. `env_mask` is 1 where it spoke."""
    model, words = trainer.accelerator.unwrap_model(trainer.model), trainer.processing_class
    signs = torch.tensor([words.encode(prompt) for prompt in prompts])
    start = ids = torch.full((len(prompts), 1), WORDS.index("sign"))
    for turn in range(TURNS):
        ids = torch.cat([ids, signs[:, turn : turn + 1]], 1)
        with torch.no_grad():
            logits = model(input_ids=ids).logits[:, -1]
        ids = torch.cat([ids, torch.multinomial(logits.softmax(-1), 1)], 1)
    spoke = [[0, 1] * TURNS for _ in prompts]
    return {"prompt_ids": start.tolist(), "completion_ids": ids[:, 1:].tolist(), "logprobs": None, "env_mask": spoke}


def reward(completion_ids: list[list[int]], **_) -> list[float]:
    """Pay a point for every turn at which the policy said what the sign said."""
    return [float(sum(sign == said for sign, said in zip(ids[::2], ids[1::2], strict=True))) for ids in completion_ids]


def train(folder: str, *, steps: int = 30, method: tw.Transform | None = None) -> list[dict]:
    """Train, and return what TRL logged: one dictionary per step."""
    model, tokenizer = tiny_model()
    sizes = {"max_steps": steps, "num_generations": 8, "per_device_train_batch_size": 32, "learning_rate": 1e-2}
    quiet = {"logging_steps": 1, "save_strategy": "no", "report_to": [], "disable_tqdm": True}
    cpu = {"use_cpu": True, "bf16": False, "gradient_checkpointing": False, "seed": 0}
    trainer = TurnwiseGRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=reward,
        rollout_func=play,
        train_dataset=Dataset.from_list([{"prompt": signs} for signs in SIGNS]),
        args=GRPOConfig(output_dir=folder, max_completion_length=2 * TURNS, **sizes, **quiet, **cpu),
        method=method or tw.aem(tw.grpo()),
    )
    trainer.train()
    return [record for record in trainer.state.log_history if "reward" in record]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        logged = train(temporary)
    print(f"reward of {TURNS}: {logged[0]['reward']:.2f} -> {logged[-1]['reward']:.2f}")
    low, high = (logged[10][f"credit/alpha_{end}"] for end in ("min", "max"))
    print(f"turns {logged[-1]['credit/turns']:.0f}, credit/alpha_min {low:.2f}, credit/alpha_max {high:.2f}")
    print(low < 0.9 < 1.1 < high and logged[-1]["reward"] > logged[0]["reward"] + 1.0)  # True
