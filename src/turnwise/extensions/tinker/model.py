"""Represent a model that a server of the Tinker API holds, scores and trains.

A journal keeps all changes of the weights since the last saved state. After any failure a new model is made from that
state and the journal is replayed: every change is made once, whatever the server did before it failed.
"""

import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from turnwise.base.blocking import blocking
from turnwise.base.errors import ConfigError, EngineFault, EngineLost
from turnwise.base.version import __version__
from turnwise.engines.connection import Unanswered
from turnwise.extensions.tinker.client import ANSWERS, API, CreateResult, NewSession, PassResult, Service
from turnwise.extensions.tinker.settings import TinkerEngineConfig
from turnwise.models.remote import FILE, RemoteModel
from turnwise.objective.tokens import Sequences

Request = tuple[str, dict[str, Any]]
"""Name of a request to the server, and its body."""
CHANGES = ("forward_backward", "optim_step")
MOST_TOKENS = 32768
"""Padded tokens of one request."""
ADAM = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8}


class TinkerModel(RemoteModel):
    """Represent a model on a server; see `RemoteModel`.

    Args:
        saved: What a checkpoint keeps: the server's name of the state, of its model, and its rank.
    """

    kind = "tinker"

    def __init__(self, saved: Mapping[str, Any] | None = None):
        super().__init__()
        self.state: str | None = (saved or {}).get("state")
        self.base: str | None = (saved or {}).get("base_model")
        self.sampler: str | None = None  # the server's name of the weights that `publish` saved for sampling
        self.max_context, self._name = 0, uuid.uuid4().hex[:8]
        self._settings: TinkerEngineConfig | None = None
        self._model_id: str | None = None
        self._number = self._saves = 0
        self._journal: list[Request] = []
        self._kept: set[str] = {self.state} if self.state else set()
        self._lock = threading.Lock()  # rollouts may run in a separate thread

    @property
    def settings(self) -> TinkerEngineConfig:
        """Settings of the engine that connects it."""
        assert self._settings is not None, "connect() comes first"
        return self._settings

    def connect(self, settings: TinkerEngineConfig, max_context: int) -> None:
        """Connect to a server; see `RemoteModel.connect`.

        Raises:
            ConfigError: The server does not offer the model, or not conversations of this length.
        """
        if self._settings is not None:
            return
        offered = {each.model_name: each.max_context_length for each in Service(settings).offered()}
        names = ", ".join(map(repr, offered)) or "none"
        if self.base is None:
            self.base = settings.base_model or (next(iter(offered)) if len(offered) == 1 else None)
        if self.base is None or (offered and self.base not in offered):
            asked = f"has no model {self.base!r}" if self.base else "offers several models"
            raise ConfigError(f"the server at {settings.url} {asked}: set engine.base_model to one of {names}")
        longest = offered.get(self.base) or max_context
        if longest < max_context:
            raise ConfigError(
                f"{self.base!r} on the server at {settings.url} reads {longest} tokens; lower model.max_context="
                f"{max_context}"
            )
        self._settings, self.max_context = settings, max_context

    def to_save(self) -> dict[str, Any]:
        """Return what a checkpoint keeps: the last published state."""
        assert self.state is not None, "publish() comes first"
        return {"state": self.state, "base_model": self.base}

    def save_pretrained(self, folder: Path) -> None:
        """Save what is needed to find the state again, and let the server forget states of deleted checkpoints."""
        super().save_pretrained(folder)
        beside = [path.read_text(encoding="utf-8") for path in Path(folder).parent.glob(f"*/{FILE}")]
        gone = {state for state in self._kept if not any(state in text for text in beside)}
        self._kept = self._kept - gone | {self.to_save()["state"]}
        self._forget(*gone - {self.state})

    def publish(self) -> None:
        """Have the server save its state, and the weights for sampling, unless nothing has changed since."""
        if self.sampler is not None and not self._journal:
            return
        old = [each for each in (self.state if self._journal else None, self.sampler) if each]
        self._saves += 1
        name = f"turnwise-{self._name}-{self._saves}"
        wanted = ["save_weights"] * bool(self._journal or self.state is None) + ["save_weights_for_sampler"]
        saved = self.run(*((each, {"path": name, "type": each}) for each in wanted))
        *state, self.sampler = [each.path for each in saved]
        if state:
            (self.state,), self._journal = state, []
        self._forget(*(each for each in old if each not in self._kept))

    def score(self, sequences: Sequences, temperature: float) -> tuple[np.ndarray, np.ndarray]:
        """Score in a forward pass of the server; the entropies are -log p of the tokens, an estimate."""
        if temperature != 1.0:
            raise ConfigError(
                f"a server of the Tinker API scores at temperature 1, got {temperature:g}; set rollout.temperature=1"
            )
        logprob_T = np.full(sequences.tokens.num_elements, np.nan)
        self.pass_over(sequences, np.arange(len(sequences)), logprob_T)
        return logprob_T, -logprob_T

    def pass_over(self, sequences: Sequences, chosen: np.ndarray, logprob_T: np.ndarray) -> None:
        """Fill in the log-probabilities of some sequences' generated tokens."""
        parts = list(batches(sequences, chosen))
        data = ([datum(sequences.token_ids[i], {"weights": (sequences.generated[i], 1.0)}) for i in p] for p in parts)
        results = self.run(*(("forward", {"forward_input": loss_input("cross_entropy", each)}) for each in data))
        for part, result in zip(parts, results, strict=True):
            fill(sequences, part, result, logprob_T)

    def imitate(self, demonstrations: Sequence[tuple[np.ndarray, np.ndarray]], learning_rate: float) -> float:
        """Take an optimiser step of weighted cross-entropy."""
        total = sum(float(weights[1:].sum()) for _, weights in demonstrations)
        data = [datum(ids, {"weights": (np.arange(1, len(ids)), w[1:] / total)}) for ids, w in demonstrations]
        adam = {"learning_rate": learning_rate, "weight_decay": 0.01, "grad_clip_norm": 1.0, **ADAM}
        results = self.run(
            ("forward_backward", {"forward_backward_input": loss_input("cross_entropy", data)}),
            ("optim_step", {"adam_params": adam}),
        )
        rows = [np.array(each.logprobs.data) for each in results[0].loss_fn_outputs]
        weighed = zip(rows, demonstrations, strict=True)
        return -sum(float((row * weights[1:]).sum()) for row, (_, weights) in weighed) / total

    def run(self, *requests: Request) -> list[Any]:
        """Have the server carry out requests in order, each once, and return their results.

        Raises:
            EngineLost: The server stayed unavailable for `engine.patience_s`.
            EngineFault: It rejects a request as wrong.
        """
        with self._lock:
            return blocking(self._run(requests))

    async def _run(self, requests: Sequence[Request]) -> list[Any]:
        service = Service(self.settings)

        async def attempt() -> list[Any]:
            try:
                if self._model_id is None:
                    await self._restore(service)
                return await self._carry_out(service, requests)
            except (Unanswered, EngineFault):
                self._model_id = None  # it may have done part of it
                raise

        try:
            results = await service.patiently(attempt)
        finally:
            await service.aclose()
        self._journal += [each for each in requests if each[0] in CHANGES]
        return results

    async def _restore(self, service: Service) -> None:
        """Make a model on the server that has the last saved state and the changes since."""
        session = await open_session(service)
        wanted = {"session_id": session, "model_seq_id": 0, "base_model": self.base, "type": "create_model"}
        begun = await service.begin("create_model", **wanted, lora_config={"rank": self.settings.rank, "seed": 0})
        made = await service.result(begun, CreateResult)
        self._model_id, self._number = made.model_id or begun.model_id, 0
        before: list[Request] = []
        if self.state is not None:
            before = [("load_weights", {"path": self.state, "optimizer": True, "type": "load_weights"})]
        await self._carry_out(service, [*before, *self._journal])

    async def _carry_out(self, service: Service, requests: Sequence[Request]) -> list[Any]:
        begun = []
        for name, body in requests:
            self._number += 1
            asked = await service.begin(name, model_id=self._model_id, seq_id=self._number, **body)
            begun.append((asked, ANSWERS[name]))
        return [await service.result(each, kind) for each, kind in begun]

    def _forget(self, *paths: str) -> None:
        """Let the server delete what it saved, if it can."""

        async def delete() -> None:
            service = Service(self.settings)
            try:
                for model_id, _, name in (path.removeprefix("tinker://").partition("/") for path in paths):
                    await service.tell(f"{API}training_runs/{model_id}/checkpoints/{name}", method="DELETE")
            except (Unanswered, EngineFault):
                pass
            finally:
                await service.aclose()

        if paths:
            blocking(delete())


async def open_session(service: Service) -> str:
    """Open a session, to which models and samplers belong."""
    session = {"tags": ["turnwise"], "user_metadata": None, "sdk_version": __version__, "type": "create_session"}
    return (await service.post(API + "create_session", NewSession, session)).session_id


def datum(ids: np.ndarray, values: Mapping[str, tuple[np.ndarray, Any]]) -> dict[str, Any]:
    """Convert a sequence to the server's form, with values of the tokens at some positions; elsewhere they are 0."""
    inputs = {"target_tokens": {"data": ids[1:].tolist(), "dtype": "int64", "shape": [len(ids) - 1]}}
    for name, (positions, given) in values.items():
        column = np.zeros(len(ids), dtype=np.float32)
        column[positions] = given
        inputs[name] = {"data": column[1:].tolist(), "dtype": "float32", "shape": [len(ids) - 1]}
    chunk = {"type": "encoded_text", "tokens": ids[:-1].tolist()}
    return {"model_input": {"chunks": [chunk]}, "loss_fn_inputs": inputs}


def loss_input(name: str, data: Sequence[Mapping[str, Any]], **config: float) -> dict[str, Any]:
    """Make the input of a pass."""
    return {"data": data, "loss_fn": name} | ({"loss_fn_config": config} if config else {})


def batches(sequences: Sequences, chosen: np.ndarray) -> Iterator[np.ndarray]:
    """Split sequences into those of one request each."""
    kept = np.zeros(len(sequences), dtype=bool)
    kept[chosen] = True
    for part in sequences.micro_batches(MOST_TOKENS):
        if (part := part[kept[part]]).size:
            yield part


def fill(sequences: Sequences, part: np.ndarray, result: PassResult, column_T: np.ndarray) -> None:
    """Fill in the log-probabilities that a pass over some sequences returned.

    Raises:
        EngineLost: They are not those of the tokens that were sent.
    """
    rows = [np.array(each.logprobs.data, dtype=np.float64) for each in result.loss_fn_outputs]
    lengths = [len(sequences.token_ids[i]) - 1 for i in part]
    if [len(row) for row in rows] != lengths or not all(np.isfinite(row).all() for row in rows):
        raise EngineLost(
            f"the server gave log-probabilities of {[len(row) for row in rows][:8]} tokens, expected finite ones of "
            f"{lengths[:8]}"
        )
    found = [row[sequences.generated[i] - 1] for i, row in zip(part, rows, strict=True)]
    column_T[sequences.token_index(part)] = np.concatenate(found)
