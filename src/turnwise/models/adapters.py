"""Add LoRA adapters to a model, and save them.

Both use peft itself. transformers' own `add_adapter` and `save_pretrained` refuse releases of peft that do the same:
transformers 5.24 asks for peft 0.22 when the newest was 0.21.2.
"""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import PreTrainedModel

from turnwise.base.errors import ConfigError, install
from turnwise.models.settings import ModelConfig


def add_adapters(model: PreTrainedModel, config: ModelConfig, seed: int) -> None:
    """Add adapters to all linear layers, which change nothing yet.

    Raises:
        ConfigError: peft is not installed.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ModuleNotFoundError:
        raise ConfigError(f"model.train='lora' needs peft; {install('lora')}") from None
    settings = LoraConfig(
        r=config.lora_rank,
        lora_alpha=config.lora_alpha,
        lora_dropout=0.0,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
        base_model_name_or_path=model.name_or_path,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        inject_adapter_in_model(settings, model)


def save_adapters(model: PreTrainedModel, folder: Path) -> None:
    """Save the adapters alone, in peft's layout, from which transformers loads them together with their base model."""
    from peft import get_peft_model_state_dict

    adapted: Any = model
    weights = get_peft_model_state_dict(adapted, save_embedding_layers=False)
    named = {f"base_model.model.{name}": weight.contiguous() for name, weight in weights.items()}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(named, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    adapted.peft_config["default"].save_pretrained(folder)
    adapted.generation_config.save_pretrained(folder)
