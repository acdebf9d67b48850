"""Policies: a causal LM with its tokenizer and conversation format, in memory and in a folder."""

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from turnwise.errors import ConfigError, DataError
from turnwise.rollout.format import Format
from turnwise.settings import ModelConfig

SETTINGS = "policy.json"
"""File beside the model: the format and the longest conversation."""


@dataclasses.dataclass(frozen=True)
class Policy:
    """A model, how text becomes its tokens, and the longest conversation it can hold."""

    model: PreTrainedModel
    format: Format
    max_context: int

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer of the format."""
        return self.format.tokenizer

    def save(self, folder: Path) -> None:
        """Write model and tokenizer as transformers does (config.json, model.safetensors, tokenizer.json), and the format.

        A model with adapters leaves those alone (adapter_model.safetensors); its base stays where it is.
        """
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        fmt = {f.name: getattr(self.format, f.name) for f in dataclasses.fields(Format) if f.name != "tokenizer"}
        settings = {"format": fmt, "max_context": self.max_context}
        (folder / SETTINGS).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def load_policy(folder: Path) -> Policy:
    """Load a policy that `Policy.save` wrote."""
    if not (folder / SETTINGS).is_file():
        raise DataError(f"{folder} holds no policy ({SETTINGS} is missing)")
    try:
        model = load_model(str(folder))
        tokenizer = AutoTokenizer.from_pretrained(folder)
        settings = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
        return Policy(model, Format(tokenizer, **settings["format"]), settings["max_context"])
    except (OSError, ValueError, RuntimeError, TypeError, KeyError, SafetensorError) as error:
        raise DataError(
            f"cannot load the model in {folder}{_base_of(folder)}: {' '.join(str(error).split())}"
        ) from error


def _base_of(folder: Path) -> str:
    """What adapters must be loaded onto, for an error message."""
    try:
        base = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))["base_model_name_or_path"]
    except (OSError, ValueError, KeyError):
        return ""
    return f", adapters of {base!r}, which must be where it was"


def load_model(name: str) -> PreTrainedModel:
    """A causal LM in float32 with SDPA attention, ready to be played with; with its adapters, where the folder holds some.

    Without dropout: it would make other probabilities in the update than those sampled from, which no ratio means.
    """
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="sdpa", dtype=torch.float32).eval()
    for module in model.modules():
        rates = [key for key, value in vars(module).items() if isinstance(value, float) and "dropout" in key]
        for key in [*rates, *(["p"] if isinstance(module, torch.nn.Dropout) else [])]:
            setattr(module, key, 0.0)
    return model


def choose_trainable(model: PreTrainedModel, config: ModelConfig) -> None:
    """Let those weights learn that the configuration asks for, and set the model up for it."""
    if config.train == "lora":
        for name, parameter in model.named_parameters():
            parameter.requires_grad_("lora_" in name)
    elif config.train == "top":
        layers = list(model.get_decoder().layers)  # pyright: ignore
        model.requires_grad_(False)
        for part in (*layers[max(0, len(layers) - config.top_layers) :], model.get_decoder().norm):
            part.requires_grad_(True)
    if config.gradient_checkpointing:
        # transformers has renamed it, and warns of the old name
        enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
        enable({"use_reentrant": False})


def freeze_but_norms(model: PreTrainedModel) -> None:
    """Of the weights that learn, let only those of normalisation layers go on.

    Raises:
        ConfigError: There are none, as among adapters.
    """
    layers = (module for module in model.modules() if type(module).__name__.endswith("Norm"))
    gains = {parameter for layer in layers for parameter in layer.parameters(recurse=False)}
    if gains.isdisjoint(trainable(model)):
        raise ConfigError(
            "update.only_norms=true, but no normalisation layer is among the weights that model.train names"
        )
    for parameter in trainable(model):
        parameter.requires_grad_(parameter in gains)


def trainable(model: PreTrainedModel) -> list[torch.nn.Parameter]:
    """The weights that learn."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def autocast(model: PreTrainedModel, config: ModelConfig) -> torch.autocast:
    """Where the model computes: in bfloat16 where the configuration asks for it."""
    return torch.autocast(model.device.type, torch.bfloat16, enabled=config.precision == "bf16")


def rounded_copy(model: PreTrainedModel, old: PreTrainedModel | None = None) -> PreTrainedModel:
    """The model with weights in bfloat16 and its adapters, if any, merged into them: for generating only.

    Args:
        model: In float32.
        old: An earlier copy of it, to be overwritten where there are no adapters: a further one needs the memory of both.
    """
    if old is None or adapted_layers(model):
        return merged_copy(model).to(torch.bfloat16).eval().requires_grad_(False)  # pyright: ignore
    old.load_state_dict(model.state_dict())
    return old


def merged_copy(model: PreTrainedModel) -> PreTrainedModel:
    """A copy without adapters: those that the model has are merged into the weights."""
    twin = copy.deepcopy(model)
    for name in adapted_layers(model):
        layer: Any = twin.get_submodule(name)
        layer.merge()
        twin.set_submodule(name, layer.base_layer)
    twin._hf_peft_config_loaded = False  # else transformers would save the adapters alone
    return twin


def adapted_layers(model: PreTrainedModel) -> list[str]:
    """Names of the layers that have adapters."""
    return [name for name, module in model.named_modules() if hasattr(module, "lora_A") and hasattr(module, "merge")]
