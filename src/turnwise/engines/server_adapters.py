"""Give a vLLM server LoRA adapters alone, and verify that it uses them.

Every update has new names, so that no response and no cached key comes from earlier weights. The base model is the
server's own: it must be the trainer's, which the comparison of log-probabilities shows too.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from turnwise.base.errors import ConfigError, EngineFault, EngineLost
from turnwise.engines.connection import Unanswered
from turnwise.engines.vllm import Choice, Lora, Offered, Responses, VllmServer
from turnwise.models.adapters import ONE, roles_of, save_adapters, use_adapter

LOAD, UNLOAD, MODELS = "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/v1/models"
COMPARED, BEFORE = 16, 32
"""Tokens per role that server and trainer are compared on, and of the prompt before them at most."""
ENDED = ("stop", "length")
"""How a response ends that was not aborted."""


class Adapters:
    """The adapters of a trainer's model in a server.

    Args:
        model: The trainer's model.
        server: The server.
        route: Where it generates.
        max_context: Maximum conversation length (tokens).
        max_difference: See `ServerEngineConfig.max_difference`.
    """

    def __init__(self, model: Any, server: VllmServer, route: str, max_context: int, max_difference: float):
        self._model, self._server, self._route, self._bound = model, server, route, max_difference
        self._before = max(1, min(BEFORE, max_context - COMPARED - 1))
        self._roles = roles_of(model) or (ONE,)
        self._rank = max(model.peft_config[role].r for role in self._roles)
        self._places: dict[str, Path] = {}  # folder by the name in the server
        self._names: dict[str, str] = {}  # name in the server by role
        self._prompts = {role: [1 + token for token in range(8)] for role in self._roles}  # the latest of each

    @property
    def options(self) -> str:
        """Options that a server must be started with."""
        base = self._model.peft_config[self._roles[0]].base_model_name_or_path
        return (
            f"--model {base} --enable-lora --max-lora-rank {self._rank} --max-loras {len(self._roles)}, and "
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True in its environment"
        )

    def fit(self, settings: Lora) -> bool:
        """Return whether a server with these settings of LoRA can hold them."""
        return settings.max_lora_rank >= self._rank and settings.max_loras >= len(self._roles)

    def save(self, folder: Path, version: str) -> None:
        """Write the adapters, to be loaded under new names."""
        save_adapters(self._model, folder)
        self._names = {role: f"{version}-{role}" for role in self._roles}
        self._places = {name: folder if role == ONE else folder / role for role, name in self._names.items()}

    async def load(self) -> None:
        """Load the adapters into the server unless it has them, and unload those of earlier updates."""
        server = self._server
        async with server.alone:
            known = {model.id for model in (await server.get(MODELS, Offered)).data}
            for name, place in self._places.items():
                if name not in known:
                    await server.tell(LOAD, json={"lora_name": name, "lora_path": str(place)})
            run = next(iter(self._places)).partition("-")[0]
            for name in known - self._places.keys():
                if name.startswith(f"{run}-"):
                    await server.tell(UNLOAD, json={"lora_name": name})

    async def generate(self, body: Mapping[str, Any], actor: str) -> Choice:
        """Return the server's response with the adapter of a role.

        Raises:
            Unanswered: The server had lost the adapter; it has been reloaded.
        """
        role = actor if actor in self._names else self._roles[0]
        self._prompts[role] = body["token_ids"]
        try:
            asked = {**body, "model": self._names[role]}
            return (await self._server.post(self._route, Responses, asked)).choices[0]
        except ConfigError as error:
            if self._names[role] not in str(error):
                raise
            await self.load()  # it was started again
            raise Unanswered("it had lost the adapters") from error

    async def compare(self) -> None:
        """Compare log-probabilities of a response of each role with the trainer's.

        Raises:
            EngineLost: They differ by more than `engine.max_difference`.
        """
        for role in self._roles:
            prompt = self._prompts[role][-self._before :]
            how = {"max_tokens": COMPARED, "temperature": 1.0, "top_p": 1.0, "seed": 0, "logprobs": 0}
            asked = {"token_ids": prompt, "sampling_params": {**how, "ignore_eos": True, "detokenize": False}}
            choice = await self.generate(asked, role)
            if choice.finish_reason not in ENDED:
                raise Unanswered("it aborted a response")
            theirs = torch.tensor(sampled(choice)[1])

            def apart(adapter: str | None) -> float:
                return (theirs - self._own(prompt, choice.token_ids, adapter)).abs().mean().item()  # noqa: B023

            if not (found := apart(role)) <= self._bound:
                raise EngineLost(
                    f"the server at {self._server.settings.url} does not compute what the trainer does with the "
                    f"adapter {role!r}: log-probabilities differ by {found:.3f} nats per token "
                    f"(engine.max_difference={self._bound:g}), and by {apart(None):.3f} from the trainer's without "
                    f"it. Start the server with {self.options}, in the trainer's precision"
                )

    @torch.no_grad()
    def _own(self, prompt: list[int], response: list[int], role: str | None) -> torch.Tensor:
        """Compute the trainer's log-probabilities of a response, with the adapter of a role or without any."""
        use_adapter(self._model, role)
        try:
            ids = torch.tensor([[*prompt, *response]], device=self._model.device)
            logits = self._model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1].float()
        finally:
            use_adapter(self._model, self._roles[0])
        return torch.log_softmax(logits, -1).gather(-1, ids[0, len(prompt) :, None])[:, 0].cpu()


def sampled(choice: Choice) -> tuple[list[int], list[float]]:
    """Return the token ids of a choice, and their log-probabilities."""
    ids, content = choice.token_ids, choice.logprobs.content if choice.logprobs else []
    if [token.token_id for token in content] != ids:
        raise EngineFault(f"the server's {len(ids)} token ids are not those of its {len(content)} log-probabilities")
    return ids, [token.logprob for token in content]
