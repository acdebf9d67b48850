"""Generate with a vLLM server over HTTP, token ids in and out.

Weights are passed as files. `update_weights` writes a checkpoint into a folder that the server sees, and has it loaded
while generation is paused. It then empties the prefix cache and gives the weights a version. vLLM reports the version
of every token, so responses from other weights (a restarted server, or another run's) are never used.

A server with --enable-lora gets adapters alone: `turnwise.engines.server_adapters`.
"""

import asyncio
import contextlib
import dataclasses
import hashlib
import os
import shutil
import socket
import tempfile
import uuid
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from transformers import PreTrainedModel

from turnwise.base.errors import DIVERGED, ConfigError, EngineFault, EngineLost
from turnwise.engines.base import Decode, Generation, Sampling, ends_with_stop
from turnwise.engines.connection import Unanswered
from turnwise.engines.roles import check_role
from turnwise.engines.server_adapters import ENDED, Adapters, sampled
from turnwise.engines.settings import ServerEngineConfig
from turnwise.engines.vllm import Done, Lora, Refused, Responses, Server, VllmServer, Weights
from turnwise.models.adapters import roles_of
from turnwise.models.policy import adapted_layers, merged_copy

GENERATE = "/inference/v1/generate"
PREFIX, LOCK = "turnwise-weights-", ".lock"
ROUNDED = 1e-3
"""A log-probability of a server's may be this much above 0."""
UNTOUCHED = "default"
"""vLLM's version name of the weights that a server started with."""


class ServerEngine:
    """Generate with a vLLM server; docs/how-to/vllm.md describes how to start it.

    Requests to an unavailable server are retried for `settings.patience_s`. A restarted server gets the weights again.

    Args:
        model: The trainer's model. The server must serve the same architecture; its own weights do not matter.
        settings: Address, timeouts and limits of the server.
        max_context: Tokens per conversation; the server must allow as many.
        decode: Decodes token ids to text; needed for stop texts only.
    """

    def __init__(
        self, model: PreTrainedModel, settings: ServerEngineConfig, *, max_context: int, decode: Decode | None = None
    ):
        self.model, self.settings, self.max_context, self.decode = model, settings, max_context, decode
        self._server = VllmServer(settings)
        self._run = uuid.uuid4().hex[:12]  # distinguishes our weights from those of other runs
        self._folder: Path | None = None
        self._weights: Path | None = None
        self._updates, self.version = 0, 0
        self._options_checked = False
        self._adapters: Adapters | None = None  # what the server has instead of merged weights
        self._tasks: dict[int, asyncio.Task[Generation]] = {}

    async def update_weights(self, version: int = 0) -> None:
        """Load the current weights of the trainer's model into the server; see `Engine.update_weights`.

        Raises:
            EngineLost: The server stayed unavailable, or cannot load the weights.
            ConfigError: The server was started with unsupported options.
        """
        self.version = version
        try:
            if not self._options_checked:
                await self._server.patiently(self._check_options)
                self._options_checked = True
            self._write_weights()
            await self._server.patiently(self._push)
            if self._adapters:
                await self._server.patiently(self._adapters.compare)
        finally:
            await self.aclose()

    async def generate(self, conversation: int, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        """Continue a conversation; see `Engine.generate`.

        Raises:
            EngineFault: The server rejects this request, or the conversation was closed.
            EngineLost: The server stayed unavailable.
        """
        if conversation in self._tasks:
            raise EngineFault(f"conversation {conversation} still waits for a response: await it, or call close()")
        work = self._generate(conversation, [int(token) for token in prompt_ids], sampling)
        task = self._tasks[conversation] = asyncio.ensure_future(work)
        try:
            await asyncio.wait({task})
        finally:
            if self._tasks.get(conversation) is task:
                del self._tasks[conversation]
            task.cancel()
            await asyncio.wait({task})
        if task.cancelled():
            raise EngineFault("the conversation was closed before its response was complete")
        return task.result()

    def close(self, conversations: Sequence[int] | None = None) -> None:
        """Forget conversations, by default all. The server evicts its own cache."""
        for conversation in list(self._tasks) if conversations is None else conversations:
            if task := self._tasks.pop(conversation, None):
                task.cancel()

    async def aclose(self) -> None:
        """Forget all conversations, and close the connections."""
        tasks = list(self._tasks.values())
        self.close()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._server.aclose()

    @property
    def _version(self) -> str:
        return f"{self._run}-{self._updates}"

    def _write_weights(self) -> None:
        """Write a checkpoint under a new name, because a server may cache what it read under an old one."""
        if self._folder is None:
            within = self.settings.sync_folder
            if within:
                within.mkdir(parents=True, exist_ok=True)
            _remove_orphans(within or Path(tempfile.gettempdir()))
            prefix = f"{PREFIX}{socket.gethostname()}-{os.getpid()}-"
            self._folder = Path(tempfile.mkdtemp(prefix=prefix, dir=within)).resolve()
            self._lock = FileLock(self._folder / LOCK)  # released when this process ends
            self._lock.acquire(timeout=0)
            self._folder.chmod(0o755)  # the server may run as another user
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        old, self._updates = self._weights, self._updates + 1
        self._weights = self._folder / f"{self._updates:06d}"
        if self._adapters:
            self._adapters.save(self._weights, self._version)
        else:
            _save(self.model, self._weights)
        if old:
            shutil.rmtree(old, ignore_errors=True)

    async def _push(self) -> None:
        """Make the server load the weights, unless it has them."""
        server = self._server
        if self._adapters:
            await self._adapters.load()
            return
        async with server.alone:
            if (await server.get("/weight_info", Weights)).weight_version == self._version:
                return
            await server.tell("/pause", params={"mode": "abort"})
            try:  # a server may have been started with --load-format dummy
                await self._call("update_config", overrides={"load_config": {"load_format": "auto"}})
                await self._call("reload_weights", weights_path=str(self._weights))
            except (Refused, EngineFault) as error:  # vLLM's engine does not survive it
                raise EngineLost(
                    f"the server at {self.settings.url} cannot load the weights ({error}): it must see {self._weights} "
                    f"(engine.sync_folder) and serve the trained architecture; start it again"
                ) from error
            if not (await server.post("/reset_prefix_cache", Done)).success:
                raise Unanswered("its prefix cache is in use")
            await server.tell("/resume")
            # The version is set last: after any failure, the next try starts over. What is generated before is refused.
            await server.tell("/update_weight_version", json={"new_version": self._version})

    async def _call(self, method: str, **arguments: Any) -> None:
        """Call a method of vLLM's workers."""
        await self._server.tell("/collective_rpc", json={"method": method, "kwargs": arguments})

    async def _generate(self, conversation: int, prompt: list[int], sampling: Sampling) -> Generation:
        if self._weights is None:
            raise EngineLost("the server has no weights yet: call update_weights() before the first response")
        adapters = self._adapters
        if adapters and (roles := roles_of(self.model)):
            check_role(sampling.actor, roles)
        drawn = conversation if sampling.draws is None else sampling.draws
        body = {
            "token_ids": prompt,
            "sampling_params": {
                "max_tokens": sampling.max_new_tokens - sampling.begun,
                "stop_token_ids": list(sampling.stop_ids),
                "ignore_eos": True,  # `stop_ids` holds all stop tokens
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "seed": seed_of(sampling.seed, drawn, len(prompt)),
                "logprobs": 0,  # of the sampled token only
                "detokenize": False,
                **({} if sampling.schema is None else {"structured_outputs": {"json": sampling.schema}}),
            },
        }

        async def ask() -> Generation:
            if adapters:
                choice = await adapters.generate(body, sampling.actor)
                if choice.finish_reason not in ENDED:
                    raise Unanswered("it aborted a response")
                return self._made(*sampled(choice), prompt, sampling)
            choice = (await self._server.post(GENERATE, Responses, body)).choices[0]
            versions = {span.version for span in choice.weight_versions or ()}
            for version in versions:
                if version != UNTOUCHED and not version.startswith(self._run):
                    raise EngineLost(
                        f"another run has loaded its weights ({version}) into the server at {self.settings.url}: "
                        "start one server per run"
                    )
            if versions != {self._version} or choice.finish_reason not in ENDED:
                await self._push()
                raise Unanswered(f"it used weights {sorted(versions)}, expected {self._version}, or aborted a response")
            return self._made(*sampled(choice), prompt, sampling)

        async with self._server.gate:
            return await self._server.patiently(ask)

    def _made(self, ids: list[int], logprobs: list[float], prompt: list[int], sampling: Sampling) -> Generation:
        """Make a generation of what the server sampled."""
        most = sampling.max_new_tokens - sampling.begun
        if not 0 < len(ids) <= most or len(logprobs) != len(ids):  # a later request would have the same seed
            raise EngineFault(
                f"the server gave {len(ids)} token ids with {len(logprobs)} log-probabilities, expected 1 to {most}"
            )
        # vLLM writes -9999 for values that are not finite
        if not all(-9000.0 < logprob <= ROUNDED for logprob in logprobs):
            raise EngineFault(f"the log-probabilities are not finite: {DIVERGED}; lower update.learning_rate")
        made = Generation(ids, logprobs, truncated=ids[-1] not in sampling.stop_ids, version=self.version)
        return until(sampling.stop, made, self.decode, prompt[len(prompt) - sampling.begun :])

    async def _check_options(self) -> None:
        """Check server options whose effect would not show in answers."""
        server = (await self._server.get("/server_info?config_format=json", Server)).vllm_config
        model, missing, lora = server.model, None, server.lora_config
        roles = roles_of(self.model)
        if adapted_layers(self.model) and (lora or roles):
            self._adapters = Adapters(
                self.model, self._server, GENERATE, self.max_context, self.settings.max_difference
            )
        tied, overrides = self.model.config.get_text_config().tie_word_embeddings, model.hf_overrides or {}
        if model.max_model_len < self.max_context:
            missing = (
                f"--max-model-len {self.max_context}: it allows {model.max_model_len} tokens, fewer than the "
                "policy's conversations can have"
            )
        elif model.logprobs_mode != "processed_logprobs":
            missing = (
                "--logprobs-mode processed_logprobs: its log-probabilities are not those of the distribution "
                "it samples from"
            )
        elif self._adapters and not self._adapters.fit(lora or Lora()):
            missing = f"{self._adapters.options}: adapters are loaded instead of merged weights"
        elif (
            not self._adapters
            and tied
            and server.device_config.device == "cpu"
            and overrides.get("tie_word_embeddings") is not False
        ):
            missing = (
                "--load-format dummy --hf-overrides '{\"tie_word_embeddings\": false}': on a CPU, vLLM packs tied "
                "output weights once and does not update them"
            )
        if missing:
            raise ConfigError(f"the server at {self.settings.url} must be started with {missing}")


def _remove_orphans(within: Path) -> None:
    """Remove the weights of killed runs on this machine.

    Locks identify them; process ids would not, because containers can share a host name.
    """
    for folder in within.glob(f"{PREFIX}{socket.gethostname()}-*"):
        if not (folder / LOCK).exists():
            continue
        # in use, another user's, or on a file system without locks
        with contextlib.suppress(OSError, Timeout, NotImplementedError), FileLock(folder / LOCK, timeout=0):
            shutil.rmtree(folder, ignore_errors=True)


def _save(model: PreTrainedModel, folder: Path) -> None:
    """Write a checkpoint of all weights, including an output layer that is tied to the input embeddings."""
    merged = merged_copy(model) if adapted_layers(model) else model
    weights, head = merged.state_dict(), merged.get_output_embeddings()
    for name, module in merged.named_modules():
        if module is head:
            weights[f"{name}.weight"] = weights[f"{name}.weight"].clone()
    merged.save_pretrained(folder, state_dict=weights)


def until(stop: Sequence[str], generation: Generation, decode: Decode | None, begun: Sequence[int] = ()) -> Generation:
    """Cut a response after the token that completes a stop text; with token ids only, the server cannot do so.

    Args:
        stop: Stop texts.
        generation: What the server generated.
        decode: Decodes token ids to text.
        begun: Tokens of the response before it.
    """
    if not stop:
        return generation
    if decode is None:
        raise EngineFault("stop texts need a tokenizer: pass ServerEngine(decode=tokenizer.decode)")
    for end in range(1, len(generation.token_ids) + 1):
        if ends_with_stop(stop, [*begun, *generation.token_ids[:end]], decode):
            kept = {"token_ids": generation.token_ids[:end], "logprobs": generation.logprobs[:end]}
            return dataclasses.replace(generation, **kept, truncated=False)
    return generation


def seed_of(seed: int, conversation: int, position: int) -> int:
    """Make a 63-bit seed per response; the server's draws depend on nothing else."""
    digest = hashlib.blake2b(f"{seed} {conversation} {position}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
