"""Define the sections `[model]` and `[prompt]` of a recipe."""

from typing import Literal

import pydantic

from turnwise.section import Section

ONLY_TINY = ("hidden_size", "num_layers", "num_heads", "tie_embeddings")
"""Settings of the tiny model's architecture."""
PRETRAINED_RECIPE = "household-qwen2.5-1.5b-aem"
"""Recipe that loads a model from the hub or a folder, for messages."""


class ModelConfig(Section):
    """Configure the policy, a causal LM."""

    name: str = "tiny"
    """Model to train. "tiny": a small Llama with random weights, one token per word.
    "smollm2": SmolLM2-135M-Instruct from turnwise[smollm2]. Else the folder of a chat model, or its name on
    Hugging Face's hub."""
    max_context: int = pydantic.Field(default=1024, ge=16)
    """Longest conversation (tokens)."""
    train: Literal["full", "top", "lora"] = "full"
    """Trainable weights: all ("full"), the upper layers ("top"), or low-rank adapters of all linear layers ("lora")."""
    top_layers: int = pydantic.Field(default=10, ge=1)
    """Trainable layers with train = "top"; embeddings stay fixed."""
    lora_rank: int = pydantic.Field(default=16, ge=1)
    """Rank of the adapters with train = "lora"."""
    lora_alpha: int = pydantic.Field(default=32, ge=1)
    """Scale of the adapters, as lora_alpha / lora_rank."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """"bf16" scores and updates under autocast and generates with bfloat16 weights; the optimiser keeps float32."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass to save memory."""
    hidden_size: int = pydantic.Field(default=64, ge=8)
    """Hidden size (units). Only for `tiny`."""
    num_layers: int = pydantic.Field(default=2, ge=1)
    """Number of layers. Only for `tiny`."""
    num_heads: int = pydantic.Field(default=4, ge=1)
    """Number of attention heads. Only for `tiny`."""
    tie_embeddings: bool = False
    """Share weights between input and output embeddings. Only for `tiny`."""

    @pydantic.model_validator(mode="after")
    def _tiny_is_possible(self) -> "ModelConfig":
        if self.hidden_size % (2 * self.num_heads):
            raise ValueError(f"hidden_size={self.hidden_size} must be a multiple of 2 * num_heads={2 * self.num_heads}")
        if self.name == "tiny" and self.train == "lora":
            raise ValueError("model.train='lora' needs a pretrained model; with model.name='tiny' use 'full' or 'top'")
        defaults = {name: type(self).model_fields[name].default for name in ONLY_TINY}
        if self.name != "tiny" and (set_ := [name for name in ONLY_TINY if getattr(self, name) != defaults[name]]):
            given = ", ".join(f"model.{name}" for name in set_)
            reset = " ".join(f"model.{name}={str(defaults[name]).lower()}" for name in set_)
            verb = "is" if len(set_) == 1 else "are"
            raise ValueError(
                f"{given} {verb} only for model.name='tiny', got name={self.name!r}; start from a recipe for a "
                f"pretrained model, such as {PRETRAINED_RECIPE}, or add {reset}"
            )
        return self


class PromptConfig(Section):
    """Configure what a chat model reads in addition to observations, and writes in addition to actions."""

    system: str = ""
    """System message; empty: the chat template's default."""
    admissible: bool = False
    """List the admissible actions in the prompt, if the environment provides them."""
    think: bool = False
    """Ask for reasoning: <think>...</think><action>...</action>. Otherwise a response is only the action."""
