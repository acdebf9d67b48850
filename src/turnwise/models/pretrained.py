"""Load pretrained policies: SmolLM2 from the package index, or a chat model from a folder or Hugging Face's hub."""

import functools
import importlib.util
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from turnwise.base.cache import cache_folder, made_aside
from turnwise.base.errors import ConfigError, DataError, did_you_mean, install
from turnwise.base.packaged import packaged
from turnwise.models.adapters import add_adapters
from turnwise.models.chat import chat_format
from turnwise.models.policy import Policy, load_model
from turnwise.models.positions import check_positions
from turnwise.models.remote import RemoteModel
from turnwise.models.settings import ModelConfig, PromptConfig, is_missing_folder

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


def pretrained_policy(
    config: ModelConfig, prompt: PromptConfig, *, seed: int, remote: RemoteModel | None = None
) -> Policy:
    """Load the chat model that the configuration names. New adapters start at zero.

    Args:
        config: Section `[model]` of a recipe.
        prompt: Section `[prompt]`.
        seed: Seed of new adapters.
        remote: Represents its weights, which are then not loaded.

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
        model: Any = remote or load_model(name)
        shape, tokenizer = AutoConfig.from_pretrained(name), AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        cause = textwrap.shorten(str(error), 200, placeholder=" ...")
        meant = did_you_mean(name, ("tiny", "tiny-chat", "smollm2")) if "/" not in name else ""
        raise ConfigError(
            f"model.name={config.name!r} cannot be loaded ({cause}).{meant} Expected 'tiny', 'smollm2', the folder of "
            "a causal LM, or a name on the hub"
        ) from None
    check_positions(shape, config.name, config.max_context)
    if config.train == "lora":
        add_adapters(model, config, seed)
    return Policy(model, chat_format(tokenizer, prompt), config.max_context)


def smollm2() -> Path:
    """Return the folder of SmolLM2-135M-Instruct, converted once from its quantised file (538 MB, float32).

    Raises:
        ConfigError: The model, or the package that reads its file, is missing.
        DataError: The file cannot be read.
    """
    target = _converted()
    if (target / "config.json").is_file():
        return target
    source = check_smollm2()
    try:
        with made_aside(target) as temporary:
            _convert(source, temporary)
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise DataError(f"cannot convert {source / GGUF}: {' '.join(str(error).split())[:200]}") from error
    return target


def check_smollm2(by: str = "model.name='smollm2'") -> Path:
    """Return the folder that SmolLM2 will be loaded from, without loading it; `by` is for the message.

    Raises:
        ConfigError: The model, or the package that reads its file, is missing.
    """
    if (_converted() / "config.json").is_file():
        return _converted()
    source = packaged("smollm2", by=by)
    if importlib.util.find_spec("gguf") is None:
        raise ConfigError(f"{by} needs the module 'gguf' to read its file; {install('smollm2')}")
    return source


def _converted() -> Path:
    return cache_folder() / "models" / "smollm2-135m-instruct"


def _convert(source: Path, target: Path) -> None:
    """Convert the quantised file to an ordinary model, which transformers itself refuses to save."""
    with _parsed_once():
        quantised = AutoModelForCausalLM.from_pretrained(source, gguf_file=GGUF, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=GGUF)
    config = {key: value for key, value in quantised.config.to_dict().items() if key != "quantization_config"}
    with torch.device("meta"):  # draws no weights
        model = LlamaForCausalLM(LlamaConfig(**config))
    model.load_state_dict(quantised.state_dict(), assign=True)
    model.tie_weights()
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


@contextmanager
def _parsed_once() -> Iterator[None]:
    """Keep what transformers parses again for configuration, weights and tokenizer, and names that it makes per module.

    Half of the time of the conversion.
    """
    import gguf

    names = ("GGUFReader", "get_tensor_name_map")
    real = {name: getattr(gguf, name) for name in names}
    try:
        for name in names:
            setattr(gguf, name, functools.cache(real[name]))
        yield
    finally:
        for name in names:
            setattr(gguf, name, real[name])
