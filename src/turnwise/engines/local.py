"""Generate in process with transformers: continuous batching over one KV cache that is kept across turns.

Requests wait until feeding their prompts together is worth a forward pass. Then each pass adds one token to every
unfinished response. A finished response is returned at once; its conversation's next prompt can be fed while others
grow.
"""

import asyncio
import dataclasses
import functools
import sys
from collections.abc import Sequence

import numpy as np
import torch
from transformers import PreTrainedModel

from turnwise.base.errors import DIVERGED, ConfigError, EngineFault, EngineLost, out_of_memory
from turnwise.engines.base import Decode, Generation, Sampling, ends_with_stop, stop_tokens
from turnwise.engines.passes import Feed, Passes, on_device, own_time, split_prompts
from turnwise.engines.prefixes import Prefixes
from turnwise.engines.sampling import sample, spread, uniform
from turnwise.models.adapters import use_adapter
from turnwise.models.attention import aligned
from turnwise.models.below import kept_states
from turnwise.models.joined import fuse
from turnwise.models.policy import frozen_copy
from turnwise.models.reordered import reorder

MANY = 16
"""From this many new conversations, prompts are looked up among sorted prefixes, not compared with every row."""


@dataclasses.dataclass(eq=False, slots=True)
class _Request:
    """A pending response."""

    conversation: int
    prompt: np.ndarray
    sampling: Sampling
    future: asyncio.Future[Generation]

    def fail(self, fault: EngineFault | EngineLost, error: Exception | None = None) -> None:
        if not self.future.done():  # otherwise nobody waits for it
            fault.__cause__ = error
            self.future.set_exception(fault)


class LocalEngine:
    """Generate with a model in this process: the trainer's own, or a copy of it.

    Args:
        trained: A causal LM with SDPA attention, on any device. Call `update_weights` when its weights have changed.
        rounded: Generate with a copy in bfloat16, adapters merged, which halves the memory read per token.
        apart: Generate with a copy, adapters merged, so that the trainer may change its weights meanwhile.
        decode: Decodes token ids to text; needed for stop texts only.
        max_rows: Conversations held at a time; further ones wait until one is closed. None: no limit.
        share_prefixes: Compute common prefixes of conversations once, and copy their keys and values.
        patience: Waiting prompts per growing response that trigger a prefill; 0 feeds prompts at once. A pass over few
            rows costs nearly as much as one over many.
        graphs: Replay CUDA graphs of passes (see `Passes`), and keep the memory of the cache when all conversations
            end. None: on a GPU.
        role: Role whose adapter generates; default: the model has one adapter or none.
    """

    def __init__(
        self,
        trained: PreTrainedModel,
        *,
        rounded: bool = False,
        apart: bool = False,
        decode: Decode | None = None,
        max_rows: int | None = None,
        share_prefixes: bool = True,
        patience: float = 0.5,
        graphs: bool | None = None,
        role: str | None = None,
    ):
        if max_rows is not None and max_rows < 1:
            raise ConfigError(f"max_rows={max_rows}: expected 1 or more, or None for no limit")
        self.trained, self.decode, self.role = trained, decode, role
        self.copy_dtype = torch.bfloat16 if rounded else trained.dtype if apart else None
        self.version = 0
        self.max_rows, self.share_prefixes, self.patience = max_rows, share_prefixes, patience
        self.graphs = trained.device.type == "cuda" if graphs is None else graphs
        self._waiting: dict[int, _Request] = {}  # conversation -> request, in order of arrival
        self._growing: dict[int, _Request] = {}  # row -> request
        self._driver: asyncio.Task[None] | None = None
        self._own_time = own_time(trained, self.graphs)
        self._passes = Passes(trained.config.get_text_config().num_hidden_layers, self.graphs)
        self._release()

    def _release(self) -> None:
        """Forget all conversations, and free the memory of the cache."""
        self._cache = self._passes.release()
        self._clear()

    def _clear(self) -> None:
        """Forget all conversations, but keep the memory of the cache."""
        self._row_of: dict[int, int] = {}  # conversation -> row
        self._free: set[int] = set()  # rows without a conversation; their prefixes can still be shared
        self._num_rows = 0
        self._below = kept_states(self.trained)
        self._passes.below = self._below.num_layers if self._below else 0
        space = self._passes.capacity
        self._ids = np.zeros(space, dtype=np.int64)  # [rows, places] tokens; the cache holds `length` of each row
        self._logprobs = np.zeros(space, dtype=np.float32)  # log-probabilities of the drawn tokens
        self._entropies = np.zeros(space, dtype=np.float32)  # entropies of the distributions they were drawn from
        self._spreads = np.zeros(space, dtype=np.float32)  # how little the most likely tokens resemble each other
        self._states: dict[int, np.ndarray] = {}  # row -> hidden state that the latest response began from
        self._length = np.zeros(space[0], dtype=np.int64)
        self._start = np.zeros(space[0], dtype=np.int64)  # place of the first drawn token of the latest response
        self._begun = np.zeros(space[0], dtype=np.int64)  # tokens of that response before it
        self._most = np.zeros(space[0], dtype=np.int64)  # most tokens that it may have, with those
        self._draws = np.zeros(space[0], dtype=np.int64)  # what the random draws depend on
        self._sampling = np.zeros(space[0], dtype=np.int64)  # index of the row's in:
        self._samplings: list[Sampling] = []

    @functools.cached_property
    def model(self) -> PreTrainedModel:
        """The generating model, made at first use and by `update_weights`."""
        return self._copy(self.copy_dtype) if self.copy_dtype else self.trained

    def _copy(self, dtype: torch.dtype, old: PreTrainedModel | None = None) -> PreTrainedModel:
        """Copy the trained model, with operators that are fast on its device."""
        return fuse(reorder(frozen_copy(self.trained, dtype, old, self.role)))

    async def generate(self, conversation: int, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        """Continue a conversation; see `Engine.generate`."""
        prompt = np.array(prompt_ids, dtype=np.int64)
        self._check(conversation, prompt)
        request = _Request(conversation, prompt, sampling, asyncio.get_running_loop().create_future())
        self._waiting[conversation] = request
        self._wake()
        try:
            return await request.future
        except asyncio.CancelledError:
            self.close([conversation])
            raise

    def _check(self, conversation: int, prompt: np.ndarray) -> None:
        row = self._row_of.get(conversation, -1)
        if conversation in self._waiting or row in self._growing:
            raise EngineFault(f"conversation {conversation} still waits for a response: await it, or call close()")
        known = self._ids[row, : self._length[row]] if row >= 0 else prompt[:0]
        if len(prompt) <= len(known) or (prompt[: len(known)] != known).any():
            raise EngineFault(
                f"conversation {conversation} must extend the {len(known)} tokens that it had; it has "
                f"{len(prompt)} and differs or adds none. Use a new conversation number, or close() it first"
            )

    def close(self, conversations: Sequence[int] | None = None) -> None:
        """Forget conversations, by default all."""
        closed = {*self._row_of, *self._waiting} if conversations is None else set(conversations)
        lost = [self._waiting.pop(conversation) for conversation in closed & self._waiting.keys()]
        if self._below and conversations is not None:
            for row in {self._row_of[each] for each in closed & self._row_of.keys()} - self._growing.keys():
                self._below.put(self._ids[row, : self._length[row]], self._cache.noted(row, self._length[row]))
        freed = {self._row_of.pop(conversation) for conversation in closed & self._row_of.keys()}
        lost += [self._growing.pop(row) for row in freed & self._growing.keys()]
        self._free |= freed
        for request in lost:
            request.fail(EngineFault("the conversation was closed before its response was complete"))
        if conversations is None and self._passes.static:  # graphs use the memory of the cache
            self._passes.recheck()
            self._clear()
        elif conversations is None:
            self._release()
        else:
            self._wake()

    async def update_weights(self, version: int = 0) -> None:
        """Load the current weights of the trainer's model; see `Engine.update_weights`."""
        self.close()
        self.version = version
        if self.copy_dtype:
            self.model = self._copy(self.copy_dtype, self.__dict__.get("model"))

    async def aclose(self) -> None:
        """Forget all conversations."""
        self.close()

    def _wake(self) -> None:
        """Start the scheduler if it is not running; it ends when no request is left."""
        if self._waiting and (self._driver is None or self._driver.done()):
            self._driver = asyncio.get_running_loop().create_task(self._drive())

    async def _drive(self) -> None:
        try:
            while True:
                ready = self._ready()
                if ready and len(ready) >= self.patience * len(self._growing):
                    self._prefill(ready)
                elif self._growing:
                    self._decode()
                else:
                    return
                await asyncio.sleep(0)  # lets callers with a finished response send their next request
        except Exception as error:  # nobody may wait forever, and the cache may be inconsistent
            lost = [*self._waiting.values(), *self._growing.values()]
            self._waiting.clear()
            self._growing.clear()
            self._release()
            cause = str(error) if isinstance(error, EngineFault) else f"{type(error).__name__}: {error}"
            kind = EngineFault
            if out_of_memory(error):  # learning only from what has ended by now, the short ones, would change the task
                kind = EngineLost
                cause = f"out of memory in the rollout ({cause[:120]}); hold fewer conversations with engine.max_rows=N"
            for request in lost:
                request.fail(kind(cause), error)

    def _ready(self) -> list[_Request]:
        """Return the waiting requests for which there is a row."""
        room = len(self._waiting) if self.max_rows is None else len(self._free) + self.max_rows - self._num_rows
        ready = []
        for request in self._waiting.values():
            new = request.conversation not in self._row_of
            if not new or room:
                ready.append(request)
                room -= new
        return ready

    @torch.inference_mode()
    def _prefill(self, ready: Sequence[_Request]) -> None:
        """Feed prompts and draw the first token of their responses."""
        rows = np.array(self._admit(ready))
        for part in split_prompts(self._start[rows] - self._length[rows], self._own_time):
            fed = np.sort(rows[part])
            logits, states = self._forward(fed, self._start[fed] - self._length[fed])
            self._length[fed] = self._start[fed]
            self._states.update(zip(fed.tolist(), states.float().cpu().numpy(), strict=True))
            self._draw(fed, logits)

    @torch.inference_mode()
    def _decode(self) -> None:
        """Feed the last token of every growing response, and draw the next one."""
        rows = np.sort(np.fromiter(self._growing, dtype=np.int64))
        top = rows[-1] + 1
        # Contiguous rows need no copy for the attention: idle rows among them are computed too, unless most are idle.
        fed = np.arange(top) if top <= 2 * len(rows) else rows
        logits, _ = self._forward(fed, np.ones_like(fed), rows)
        self._length[rows] += 1
        self._draw(rows, logits)

    def _admit(self, ready: Sequence[_Request]) -> list[int]:
        """Assign rows to requests and write their prompts; a request that should wait for another's prefix stays."""
        num_new = sum(request.conversation not in self._row_of for request in ready)
        self._reserve(
            self._num_rows + max(0, num_new - len(self._free)),
            max(len(request.prompt) + request.sampling.max_new_tokens for request in ready),
        )
        soon = self._length.copy()  # cached tokens per row after this pass
        index = None
        if self.share_prefixes and num_new >= MANY and not self._free:
            held = [self._ids[row, : self._length[row]] for row in range(self._num_rows)]
            cached = Prefixes(held)
            index = cached, cached.copy()  # cached now, and after this pass
        admitted = []
        # The longest prompt takes the row of the response that it continues; the others copy from there.
        for request in sorted(ready, key=lambda each: -len(each.prompt) if each.sampling.begun else 0):
            row = self._row_of.get(request.conversation)
            if row is None:
                row = self._seat(request, soon, index)
            if row is None:
                continue
            if index:
                index[1].add(request.prompt)
            del self._waiting[request.conversation]
            self._growing[row] = request
            soon[row] = self._start[row] = len(request.prompt)
            self._ids[row, : len(request.prompt)] = request.prompt
            self._begun[row], self._most[row] = request.sampling.begun, request.sampling.max_new_tokens
            alike = dataclasses.replace(request.sampling, begun=0, max_new_tokens=0, draws=None, actor="")
            if alike not in self._samplings:  # takes the place of one that no growing row has
                used, number = {*self._sampling[[*self._growing]].tolist()}, len(self._samplings)
                place = next((at for at in range(number) if at not in used), number)
                self._samplings[place : place + 1] = [alike]
            self._sampling[row] = self._samplings.index(alike)
            self._draws[row] = request.conversation if request.sampling.draws is None else request.sampling.draws
            admitted.append(row)
        return admitted

    def _seat(self, request: _Request, soon: np.ndarray, index: tuple[Prefixes, Prefixes] | None) -> int | None:
        """Find a row for a new conversation and copy the longest cached prefix; None: waiting for one is cheaper."""
        prompt, donor, shared = request.prompt, -1, 0
        if self.share_prefixes and self._num_rows:
            donor, shared, later = self._closest(prompt[:-1], soon, index)  # the last is always fed, for its logits
            if 2 * (later - shared) >= len(prompt) - shared:  # saves half of the computation: worth another pass
                return None
        if donor in self._free:
            row = donor
        elif self._free:
            row = min(self._free)
        else:
            row = self._num_rows
            self._num_rows += 1
        self._free.discard(row)
        if shared and row != donor:
            self._cache.copy(donor, row, shared)
        self._length[row] = shared
        self._row_of[request.conversation] = row
        return row

    def _closest(
        self, prompt: np.ndarray, soon: np.ndarray, index: tuple[Prefixes, Prefixes] | None
    ) -> tuple[int, int, int]:
        """Return the row that has most of a prompt cached, how much, and how much some row has after this pass."""
        if index:  # rows of this pass have no prefix cached that its donor, an earlier row, has not
            shared = index[0].longest(prompt)
            return index[0].first_row(prompt[:shared]) if shared else 0, shared, index[1].longest(prompt)
        used = slice(self._num_rows)
        same = np.zeros((self._num_rows, len(prompt) + 1), dtype=bool)
        np.equal(self._ids[used, : len(prompt)], prompt, out=same[:, :-1])
        alike = same.argmin(1)  # the first place that differs
        cached = np.minimum(alike, self._length[used])
        donor = int(cached.argmax())
        return donor, int(cached[donor]), int(np.minimum(alike, soon[used]).max())

    def _reserve(self, num_rows: int, num_places: int) -> None:
        """Reserve space for `num_rows` rows of `num_places` tokens; grows by half so that copies are rare."""
        rows, places = self._ids.shape
        if num_rows > rows or num_places > places:
            rows = rows if num_rows <= rows else max(num_rows, min(rows * 3 // 2, self.max_rows or sys.maxsize))
            places = places if num_places <= places else aligned(max(num_places, places * 3 // 2, 64))
            numbers = ("_length", "_start", "_begun", "_most", "_draws", "_sampling")
            for name in ("_ids", "_logprobs", "_entropies", "_spreads", *numbers):
                old = getattr(self, name)
                larger = np.zeros((rows, places)[: old.ndim], dtype=old.dtype)
                larger[tuple(map(slice, old.shape))] = old
                setattr(self, name, larger)
            self._passes.reserve(rows, places)

    def _forward(
        self, fed: np.ndarray, num_new: np.ndarray, wanted: np.ndarray | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Feed rows their next tokens; returns float32 logits and hidden states of the last ones of the wanted rows.

        Padding takes the places behind the tokens, at most the last place, which no fed token ever takes.
        """
        if self.role and not self.copy_dtype:
            use_adapter(self.trained, self.role)
        places = np.minimum(self._length[fed, None] + np.arange(num_new.max()), self._ids.shape[1] - 1)
        index = np.arange(len(fed)) if wanted is None else np.searchsorted(fed, wanted)
        last, length = np.stack([index, num_new[index] - 1]), int((self._length[fed] + num_new)[index].max())
        return self._passes.forward(self.model, Feed(fed, self._ids[fed[:, None], places], places, last, length))

    def _draw(self, rows: np.ndarray, logits: torch.Tensor) -> None:
        """Draw a token for each row from its logits, and answer the requests that it completes."""
        samplings = self._sampling[rows]
        for index in np.unique(samplings):
            own = samplings == index
            selected = logits if own.all() else logits[on_device(np.flatnonzero(own), logits.device)]
            self._draw_alike(rows[own], selected, self._samplings[index])

    def _draw_alike(self, rows: np.ndarray, logits: torch.Tensor, sampling: Sampling) -> None:
        places = self._length[rows]
        # All that the device computes is started before it is waited for, once: a GPU keeps working meanwhile.
        numbers = uniform(sampling.seed, self._draws[rows], places)
        drawn = sample(logits, sampling, on_device(numbers, logits.device))
        if sampling.spread_top:
            embeddings = self.model.get_input_embeddings().weight
            assert isinstance(embeddings, torch.Tensor)
            drawn = *drawn, spread(logits, embeddings, sampling)
        columns = torch.stack([drawn[0].int(), *(column.view(torch.int32) for column in drawn[1:])]).cpu().numpy()
        tokens, logprobs, self._entropies[rows, places], *spreads = columns[0], *columns[1:].view(np.float32)
        if spreads:
            self._spreads[rows, places] = spreads[0]
        if not np.isfinite(logprobs).all():
            raise EngineFault(f"the logits are not finite: {DIVERGED}; lower update.learning_rate")
        self._ids[rows, places], self._logprobs[rows, places] = tokens, logprobs
        stopped = (tokens == np.array(sampling.stop_ids)[:, None]).any(0)  # of few, faster than np.isin
        if sampling.stop:
            stopped |= self._ends_with_stop(sampling.stop, rows, places)
        ended = stopped | (places + 1 - self._start[rows] + self._begun[rows] >= self._most[rows])
        for row, truncated in zip(rows[ended].tolist(), (~stopped[ended]).tolist(), strict=True):
            request, response = self._growing.pop(row), slice(self._start[row], self._length[row] + 1)
            if not request.future.done():
                columns = (self._ids, self._logprobs, self._entropies, self._spreads)
                ids, logprobs_T, entropies_T, spreads_T = (column[row, response].tolist() for column in columns)
                spreads = spreads_T if sampling.spread_top else None
                rest = (self.version, spreads, self._states[row])
                request.future.set_result(Generation(ids, logprobs_T, truncated, entropies_T, *rest))

    def _ends_with_stop(self, stop: Sequence[str], rows: np.ndarray, places: np.ndarray) -> np.ndarray:
        """Return which rows' responses complete a stop text with their newest token, `[rows]` bool."""
        if self.decode is None:
            raise EngineFault("stop texts need a tokenizer: pass LocalEngine(decode=tokenizer.decode)")
        begins = np.maximum(self._start[rows] - self._begun[rows], places + 1 - stop_tokens(stop))
        responses = (
            self._ids[row, begin : place + 1].tolist() for row, begin, place in zip(rows, begins, places, strict=True)
        )
        return np.array([ends_with_stop(stop, response, self.decode) for response in responses])
