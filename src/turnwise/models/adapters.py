"""Add LoRA adapters to a model, one or one per role, save and load them, and choose the one that computes.

All use peft itself. transformers' own `add_adapter` and `save_pretrained` refuse releases of peft that would work:
transformers 5.24 asks for peft 0.22, when the newest was 0.21.2.
"""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from turnwise.base.errors import ConfigError, install
from turnwise.models.settings import ModelConfig

ONE = "default"
"""Name of the adapter of a model without roles."""
FILE = "adapter_model.safetensors"


def add_adapters(model: PreTrainedModel, config: ModelConfig, seed: int) -> None:
    """Add adapters to all linear layers, which change nothing yet.

    Raises:
        ConfigError: peft is not installed.
    """
    try:
        from peft import LoraConfig
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
        for name in config.adapters or (ONE,):
            _inject(settings, model, name)


def _inject(settings: Any, model: PreTrainedModel, name: str) -> None:
    from peft import inject_adapter_in_model

    with warnings.catch_warnings(action="ignore", category=UserWarning):  # that there are several
        inject_adapter_in_model(settings, model, name)


def roles_of(model: Any) -> tuple[str, ...]:
    """Return the roles that have their own adapters; empty for other models."""
    return tuple(name for name in getattr(model, "peft_config", None) or () if name != ONE)


def use_adapter(model: Any, name: str | None) -> None:
    """Let a model compute with the adapter of a role, or without any."""
    for module in model.modules():
        if hasattr(module, "lora_A") and hasattr(module, "merge"):
            # peft's set_adapter would freeze the others, which still wait for their gradients
            module._active_adapter = [] if name is None else [name]


def adapter_weights(model: Any, role: str) -> list[torch.nn.Parameter]:
    """Return the weights of a role's adapter."""
    ends = tuple(f".{part}.{role}.weight" for part in ("lora_A", "lora_B"))
    return [weight for name, weight in model.named_parameters() if name.endswith(ends)]


def begin_alike(model: Any) -> None:
    """Give all roles the weights of the first one's adapter, which a warm start has trained."""
    first, *others = [adapter_weights(model, role) for role in roles_of(model)] or [[]]
    for own in others:
        for weight, other in zip(own, first, strict=True):
            weight.data.copy_(other.data)


def save_adapters(model: PreTrainedModel, folder: Path, roles: Sequence[str] = ()) -> None:
    """Save the adapters alone, in peft's layout: one folder per role.

    Args:
        model: The model. transformers loads the adapter of one without roles together with the base model.
        folder: Where to write.
        roles: Roles to save; default: all.
    """
    from peft import get_peft_model_state_dict

    adapted: Any = model
    for role in roles or roles_of(model) or (ONE,):
        weights = get_peft_model_state_dict(adapted, save_embedding_layers=False, adapter_name=role)
        named = {f"base_model.model.{name}": weight.contiguous() for name, weight in weights.items()}
        own = folder if role == ONE else folder / role
        own.mkdir(parents=True, exist_ok=True)
        save_file(named, own / FILE, metadata={"format": "pt"})
        adapted.peft_config[role].save_pretrained(own)
    adapted.generation_config.save_pretrained(folder)


def base_of_roles(folder: Path, roles: Sequence[str]) -> str:
    """Return the name of the model that saved adapters of roles belong to."""
    from peft import LoraConfig

    return str(LoraConfig.from_pretrained(str(folder / roles[0])).base_model_name_or_path)


def load_roles(model: PreTrainedModel, folder: Path, roles: Sequence[str]) -> None:
    """Add the adapters of roles that `save_adapters` wrote to their base model."""
    from peft import LoraConfig, set_peft_model_state_dict

    for role in roles:
        _inject(LoraConfig.from_pretrained(str(folder / role), inference_mode=False), model, role)
        saved = load_file(folder / role / FILE)
        weights = {name.removeprefix("base_model.model."): weight for name, weight in saved.items()}
        wrong = set_peft_model_state_dict(model, weights, adapter_name=role).unexpected_keys
        if wrong:
            raise ValueError(f"{folder / role / FILE} has weights that the model lacks, such as {wrong[0]}")
