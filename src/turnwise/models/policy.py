"""Load and save policies: a causal LM with its tokenizer and conversation format."""

import copy
import dataclasses
import json
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from turnwise.base.errors import ConfigError, DataError
from turnwise.models.adapters import base_of_roles, load_roles, roles_of, save_adapters, use_adapter
from turnwise.models.format import Format
from turnwise.models.logits import find_logit_factor
from turnwise.models.positions import check_positions
from turnwise.models.remote import RemoteModel, load_remote
from turnwise.models.settings import ModelConfig

SETTINGS = "policy.json"
"""File next to the model: the format and the longest conversation."""


@dataclasses.dataclass(frozen=True)
class Policy:
    """Hold a model, its conversation format, and the longest conversation (tokens)."""

    model: PreTrainedModel
    format: Format
    max_context: int

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """Tokenizer of the format."""
        return self.format.tokenizer

    def decode(self, ids: Sequence[int]) -> str:
        """Decode token ids to text."""
        return str(self.tokenizer.decode(list(ids)))

    @property
    def num_words(self) -> int:
        """Tokens that the model can generate."""
        if isinstance(self.model, RemoteModel):
            return len(self.tokenizer)
        layer: Any = self.model.get_output_embeddings()
        return layer.weight.shape[0]

    def save(self, folder: Path) -> None:
        """Save model and tokenizer in transformers' layout, and the format.

        Of a model with adapters only the adapters are saved (adapter_model.safetensors).
        """
        if adapted_layers(self.model):
            save_adapters(self.model, folder)
        else:
            self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        fmt = {f.name: getattr(self.format, f.name) for f in dataclasses.fields(Format) if f.name != "tokenizer"}
        settings = {"format": fmt, "max_context": self.max_context}
        settings |= {"roles": roles} if (roles := roles_of(self.model)) else {}
        (folder / SETTINGS).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def load_policy(folder: Path) -> Policy:
    """Load a policy that `Policy.save` wrote."""
    if not (folder / SETTINGS).is_file():
        raise DataError(f"{folder} is not a policy: {SETTINGS} is missing")
    try:
        settings = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
        roles = settings.get("roles", ())
        model: Any = load_remote(folder)
        if model is None:
            model = load_model(base_of_roles(folder, roles) if roles else str(folder))
            check_positions(model.config, str(folder), settings["max_context"])
        if roles:
            load_roles(model, folder, roles)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        return Policy(model, Format(tokenizer, **settings["format"]), settings["max_context"])
    except (OSError, ValueError, RuntimeError, TypeError, KeyError, SafetensorError) as error:
        raise DataError(
            f"cannot load the model in {folder}{_base_of(folder)}: {' '.join(str(error).split())}"
        ) from error


def _base_of(folder: Path) -> str:
    """Describe the base model of adapters, for an error message."""
    try:
        base = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))["base_model_name_or_path"]
    except (OSError, ValueError, KeyError):
        return ""
    return f", adapters of {base!r}, which must still be available"


def load_model(name: str) -> PreTrainedModel:
    """Load a causal LM in float32 with SDPA attention, with its adapters if the folder holds some.

    Raises:
        ConfigError: Its logits are not those of its output layer, nor a multiple.

    Dropout is off: with it, probabilities in the update would differ from those sampled from. Weights are copied out of
    the file that they are mapped from: at its alignment, sums round differently from those of the saved weights.
    """
    model: Any = AutoModelForCausalLM.from_pretrained(name, attn_implementation="sdpa", dtype=torch.float32).eval()
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    for module in model.modules():
        rates = [key for key, value in vars(module).items() if isinstance(value, float) and "dropout" in key]
        for key in [*rates, *(["p"] if isinstance(module, torch.nn.Dropout) else [])]:
            setattr(module, key, 0.0)
    find_logit_factor(model, name)
    model._turnwise_follows_paths = None  # not tried yet; see `turnwise.objective.packing`
    return model


def choose_trainable(model: PreTrainedModel, config: ModelConfig) -> None:
    """Make the weights trainable that the configuration names; a server decides for those that it has."""
    if isinstance(model, RemoteModel):
        return
    if config.train == "lora":
        for name, parameter in model.named_parameters():
            parameter.requires_grad_("lora_" in name)
    elif config.train == "top":
        layers = list(model.get_decoder().layers)  # pyright: ignore
        model.requires_grad_(False)
        for part in (*layers[max(0, len(layers) - config.top_layers) :], model.get_decoder().norm):
            part.requires_grad_(True)
    if config.gradient_checkpointing:
        # transformers renamed it, and warns of the old name
        enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
        enable({"use_reentrant": False})


def freeze_but_norms(model: PreTrainedModel) -> None:
    """Freeze all trainable weights except those of normalisation layers.

    Raises:
        ConfigError: There are none, such as with adapters.
    """
    gains = set(trainable_norms(model))
    for parameter in trainable(model):
        parameter.requires_grad_(parameter in gains)


def trainable_norms(model: PreTrainedModel) -> list[torch.nn.Parameter]:
    """Return the trainable weights of normalisation layers.

    Raises:
        ConfigError: There are none, such as with adapters.
    """
    layers = (module for module in model.modules() if type(module).__name__.endswith("Norm"))
    gains = {parameter for layer in layers for parameter in layer.parameters(recurse=False)}
    if found := [parameter for parameter in trainable(model) if parameter in gains]:
        return found
    raise ConfigError(
        "update.only_norms=true needs trainable normalisation layers, but model.train selects none; set "
        "update.only_norms=false"
    )


def trainable(model: PreTrainedModel) -> list[torch.nn.Parameter]:
    """Return the trainable weights."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def autocast(model: PreTrainedModel, config: ModelConfig) -> torch.autocast:
    """Return the context in which the model computes: bfloat16 if the configuration asks for it."""
    return torch.autocast(model.device.type, torch.bfloat16, enabled=in_bf16(config.precision, model.device))


def in_bf16(precision: str, device: torch.device) -> bool:
    """Return whether `model.precision` means bfloat16 on a device."""
    return precision == "bf16" or (precision == "auto" and has_fast_bf16(device))


def has_fast_bf16(device: torch.device) -> bool:
    """Return whether a device has instructions for bfloat16; without them it is several times slower than float32."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type != "cpu" or not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return False
    # oneDNN supports it on every x86 processor with AVX-512, where it converts to float32 if there is nothing better
    on_x86 = platform.machine().lower() in ("x86_64", "amd64")
    return not on_x86 or torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def slow_precision_note(precision: str, device: torch.device) -> str:
    """Warn that a forced bfloat16 is slow on this device; empty if it is not."""
    if precision != "bf16" or has_fast_bf16(device):
        return ""
    return f"model.precision='bf16' is slow on this {device.type}, which has no bfloat16 instructions; set it to auto"


def frozen_copy(
    model: PreTrainedModel, dtype: torch.dtype, old: PreTrainedModel | None = None, role: str | None = None
) -> PreTrainedModel:
    """Copy the model with its adapters merged, for generation only.

    Args:
        model: Model in float32.
        dtype: Type of the copy's weights.
        old: Earlier copy, overwritten: its weights stay where they lie, without the memory of a second copy.
        role: Role whose adapter is merged; default: the only one.
    """
    if role:
        use_adapter(model, role)
    if old is None:
        return merged_copy(model).to(dtype).eval().requires_grad_(False)  # pyright: ignore
    old.load_state_dict((merged_copy(model) if adapted_layers(model) else model).state_dict())
    return old


def merged_copy(model: PreTrainedModel) -> PreTrainedModel:
    """Copy a model with its adapters merged into the weights."""
    twin = copy.deepcopy(model)
    for name in adapted_layers(model):
        layer: Any = twin.get_submodule(name)
        layer.merge()
        twin.set_submodule(name, layer.base_layer)
    twin._hf_peft_config_loaded = False  # else transformers would save the adapters alone
    return twin


def adapted_layers(model: PreTrainedModel) -> list[str]:
    """Return the names of the layers that have adapters."""
    return [name for name, module in model.named_modules() if hasattr(module, "lora_A") and hasattr(module, "merge")]
