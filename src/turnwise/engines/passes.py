"""Feed tokens of many rows to a model, each pass kernel by kernel or, on a GPU, as a graph of all its kernels.

A pass over a small model takes as long as Python takes to launch its kernels; a graph launches all of them at once. It
repeats a pass with new numbers at the same addresses. So passes are padded to few shapes, numbers are copied into
buffers that stay, and keys and values are written in place.
"""

import dataclasses
import logging
import math
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import PreTrainedModel

from turnwise.base.garbage import no_collection
from turnwise.engines.rows import Rows
from turnwise.models import attention
from turnwise.models.below import noting
from turnwise.models.caches import CACHE
from turnwise.models.logits import logit_factor
from turnwise.models.needed import reading
from turnwise.models.positions import longest

SEEN = 2
"""A shape is captured after this many passes. A capture takes the time of a few passes."""
MOST_GRAPHS = 128
"""Graphs held at a time; a new one replaces the least recently used."""
MOST_ROWS = 256
"""Rows of a graph, with padding."""
MOST_TOKENS = 4096
"""Tokens of a graph, with padding. In larger passes, the GPU computes for longer than launching takes."""
LEAST_LENGTH = 64
"""Keys per row that a graph attends to at least."""

PREFILL_TOKENS = 16384
"""Tokens of a prefill pass, padding included (a single prompt may exceed it)."""
OWN_TIME = {"cpu": (32, 1.2e7), "cuda": (128, 3e10), "graphs": (128, 3e9)}
"""What a pass takes besides its tokens, in tokens: to read the weights, and, per weight of a layer, to start a layer.

Measured on a Xeon: 3.2 ms of the default recipe's passes, 192 tokens; 120 ms of SmolLM2's, 57 tokens. On an H200 a pass
of SmolLM2 takes 22 ms however few its tokens are, as a graph 2.4 ms, and each token 2.6 us.
"""

log = logging.getLogger(__name__)


class Feed(NamedTuple):
    """What a pass feeds, int64 arrays."""

    rows: np.ndarray  # the rows, ascending, `[rows]`
    tokens: np.ndarray  # their next tokens, `[rows, tokens]`
    places: np.ndarray  # places of the tokens in their rows, `[rows, tokens]`
    last: np.ndarray  # for each wanted result, index of its row and of its token, `[2, wanted]`
    length: int  # keys per row that the wanted tokens attend to


@dataclasses.dataclass(frozen=True, slots=True)
class _Shape:
    """Sizes of a pass, and whether its rows are the first ones of the cache, which saves the attention a copy."""

    rows: int
    tokens: int
    wanted: int
    length: int
    first: bool

    def pack(self, feed: Feed, spare: int) -> np.ndarray:
        """Write a feed into one array, to be copied at once; padding goes to the spare place of any row."""
        packed = np.zeros(2 * self.rows * self.tokens + self.rows + 2 * self.wanted, dtype=np.int64)
        tokens, places, rows, last = self.split(packed)
        own = slice(feed.tokens.shape[0]), slice(feed.tokens.shape[1])
        places[:] = spare
        tokens[own], places[own] = feed.tokens, feed.places
        rows[own[0]], last[:, : feed.last.shape[1]] = feed.rows, feed.last
        return packed

    def split(self, packed: Any) -> Iterator[Any]:
        """Return tokens, places, rows and last ones, views of an array or a tensor."""
        begin = 0
        for size in ((self.rows, self.tokens), (self.rows, self.tokens), (self.rows,), (2, self.wanted)):
            end = begin + math.prod(size)
            yield packed[begin:end].reshape(size)
            begin = end


@dataclasses.dataclass(slots=True)
class _Static:
    """A pass at fixed addresses: its numbers and, on a GPU, its graph."""

    packed: torch.Tensor
    graph: torch.cuda.CUDAGraph | None = None


class Passes:
    """Passes over one KV cache.

    Args:
        num_layers: Layers of the model.
        static: Whether passes are padded to few shapes at fixed addresses, which a GPU replays as graphs. Without a GPU
            this gains nothing.
    """

    def __init__(self, num_layers: int, static: bool):
        self.num_layers, self.static = num_layers, static
        self.below = 0  # frozen layers whose states the cache notes
        self._statics: OrderedDict[_Shape, _Static] = OrderedDict()
        self._seen: Counter[_Shape] = Counter()
        self._addresses: list[int] = []  # of the weights that graphs read
        self._checked = False
        self._side: torch.cuda.Stream | None = None  # captures

        self.release()

    def release(self) -> Rows:
        """Free the memory of cache and graphs; returns the new cache, which is empty."""
        self._forget()
        self.cache, self.capacity = Rows(self.num_layers), (0, 0)
        return self.cache

    @property
    def num_graphs(self) -> int:
        """Graphs held now."""
        return sum(each.graph is not None for each in self._statics.values())

    def reserve(self, num_rows: int, num_places: int) -> None:
        """Reserve space for `num_rows` rows of `num_places` tokens; graphs write to the space before, so they go."""
        self.capacity = num_rows, num_places
        self._forget()
        self.cache.reserve(num_rows, num_places)

    def recheck(self) -> None:
        """Expect new weights from now on: graphs stay valid if these lie at the same addresses."""
        self._checked = False

    @torch.inference_mode()
    def forward(self, model: PreTrainedModel, feed: Feed) -> tuple[torch.Tensor, torch.Tensor]:
        """Feed rows their next tokens; returns float32 logits and hidden states of the wanted ones.

        The cache has a place behind all tokens that are ever fed, for padding. Results are valid until the next pass.
        """
        wanted, first = feed.last.shape[1], int(feed.rows[-1]) + 1 == len(feed.rows)
        shape = self._padded(feed, first) if self.static else None
        if shape is not None:
            self._seen[shape] += 1
            if self._seen[shape] >= SEEN:
                logits, states = self._repeat(model, shape, feed)
                return logits[:wanted], states[:wanted].clone()
        length = attention.aligned(feed.length) if attention.aligns(model.device) else feed.length
        shape = _Shape(feed.tokens.shape[0], feed.tokens.shape[1], wanted, length, first)
        logits, states = self._compute(model, shape, on_device(shape.pack(feed, 0), model.device))
        return logits.float(), states

    def _padded(self, feed: Feed, first: bool) -> _Shape | None:
        """Return the next larger shape that is captured; None if that would be too large."""
        rows, tokens = _power(len(feed.rows)), _step(feed.tokens.shape[1])
        if rows > MOST_ROWS or rows * tokens > MOST_TOKENS:
            return None
        if first:
            rows = min(rows, self.capacity[0])
        return _Shape(rows, tokens, rows, min(max(_step(feed.length), LEAST_LENGTH), self.capacity[1]), first)

    def _compute(
        self, model: PreTrainedModel, shape: _Shape, packed: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute a pass from numbers on the device, without waiting for it."""
        tokens, positions, rows, last = shape.split(packed)
        self.cache.place(None if shape.first else rows, positions, shape.length)
        sees = torch.arange(shape.length, device=packed.device) <= positions[:, None, :, None]  # [rows, 1, tokens, k]
        mask = attention.additive(sees, model.dtype)
        how: dict[str, Any] = {"cached": True} if attention.use(model) else {}
        most = longest(model.config)  # which padding exceeds, since its place is behind all tokens
        real = positions if most is None else positions.clamp(max=most - 1)
        how |= {CACHE: self.cache, "attention_mask": mask, "position_ids": real}
        read = last[0] * tokens.shape[1] + last[1]
        with reading(model, read, tokens.shape), noting(model, self.below, self.cache.note):
            hidden = model.get_decoder()(input_ids=tokens, use_cache=True, **how).last_hidden_state
        output_layer = model.get_output_embeddings()
        assert output_layer is not None
        states = hidden[last[0], last[1]]
        logits, factor = output_layer(states), logit_factor(model)
        return logits if factor == 1.0 else logits * factor, states

    def _repeat(self, model: PreTrainedModel, shape: _Shape, feed: Feed) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute a pass of a shape at its fixed addresses; the first time, capture it too."""
        if not self._checked:
            self._check(model)
        static = self._statics.get(shape)
        packed = on_device(shape.pack(feed, self.capacity[1] - 1), model.device)
        if static is None:
            self._statics[shape] = static = _Static(packed)
            if len(self._statics) > MOST_GRAPHS:
                self._seen[self._statics.popitem(last=False)[0]] = 0
            if packed.device.type == "cuda":
                return self._capture(model, shape, static)
        else:
            self._statics.move_to_end(shape)
            static.packed.copy_(packed)
        if static.graph is None:
            self._keep(*self._compute(model, shape, static.packed))
        else:
            static.graph.replay()
        assert self._results is not None
        return self._results

    def _keep(self, logits: torch.Tensor, states: torch.Tensor) -> None:
        """Write results to the buffers of all static passes."""
        if self._results is None:
            rows = min(_power(self.capacity[0]), MOST_ROWS)
            self._results = (
                logits.new_empty((rows, logits.shape[1]), dtype=torch.float32),
                states.new_empty((rows, states.shape[1])),
            )
        for kept, new in zip(self._results, (logits, states), strict=True):
            kept[: len(new)].copy_(new)

    def _capture(self, model: PreTrainedModel, shape: _Shape, static: _Static) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute a pass, and capture the same pass; without a graph from then on, anywhere, if that fails."""
        if self._side is None:
            self._side = torch.cuda.Stream(model.device)
        stream, outside = self._side, torch.cuda.current_stream(model.device)
        # Graphs are replayed one at a time, so all use the same memory, which lives as long as one of them.
        pools = (each.graph.pool() for each in self._statics.values() if each.graph is not None)
        pool = next(pools, None) or torch.cuda.graph_pool_handle()
        stream.wait_stream(outside)
        with torch.cuda.stream(stream):  # computing it there does the setup that is not allowed during a capture
            self._keep(*self._compute(model, shape, static.packed))
            try:
                graph = torch.cuda.CUDAGraph()
                # Another thread may train meanwhile, and a graph that is collected now would end the capture.
                with no_collection(), torch.cuda.graph(graph, pool, stream, capture_error_mode="thread_local"):
                    self._keep(*self._compute(model, shape, static.packed))
                static.graph = graph
            except Exception as error:  # a model may compute what cannot be captured, or memory may be short
                _abandon(pool)
                cause = error.__context__ or error  # the cause of the failed capture precedes the error that ends it
                log.warning(
                    "the local engine goes on without CUDA graphs, which is slower: capturing %s failed (%s: %s); set "
                    "engine.graphs=false", shape, type(cause).__name__, " ".join(str(cause).split())[:300],
                    exc_info=log.isEnabledFor(logging.DEBUG),
                )  # fmt: skip
                self.static = False
        outside.wait_stream(stream)
        assert self._results is not None
        results = self._results
        if not self.static:
            self._forget()
        return results

    def _check(self, model: PreTrainedModel) -> None:
        """Forget graphs whose weights have moved."""
        addresses = [each.data_ptr() for each in (*model.parameters(), *model.buffers())]
        if addresses != self._addresses:
            self._forget()
        self._addresses, self._checked = addresses, True

    def _forget(self) -> None:
        self._statics.clear()
        self._results: tuple[torch.Tensor, torch.Tensor] | None = None  # logits and states of all static passes


def own_time(model: PreTrainedModel, graphs: bool) -> float:
    """Estimate what a pass takes besides its tokens, in tokens."""
    read, started = OWN_TIME["cpu" if model.device.type == "cpu" else "graphs" if graphs else "cuda"]
    layers = model.config.get_text_config().num_hidden_layers
    return read + started * layers / model.num_parameters(exclude_embeddings=True)


def split_prompts(num_new: np.ndarray, own: float) -> list[np.ndarray]:
    """Split prompts into the passes that take least together, longest prompts first; returns their indices.

    A pass takes as long as its tokens, padding included, and `own` more. None with several prompts is too large.
    """
    order = np.argsort(-num_new, kind="stable")
    longest, firsts = np.unique(-num_new[order], return_index=True)
    sizes, bounds = (-longest).tolist(), [*firsts.tolist(), len(order)]
    most = [max(1, PREFILL_TOKENS // size) for size in sizes]  # prompts of a pass whose longest has this size
    least = [0.0]  # time of the prompts before each bound
    begun = list[int]()  # for each further bound, the size that its last pass begins with
    for end in bounds[1:]:
        times = [
            time + (end - first) * size + own * -(-(end - first) // rows)
            for time, first, size, rows in zip(least, bounds, sizes, most, strict=False)
        ]
        least.append(min(times))
        begun.append(times.index(least[-1]))
    passes, place = list[np.ndarray](), len(sizes)
    while place:
        end, place = bounds[place], begun[place - 1]
        same = range(bounds[place], end, most[place])
        passes = [order[at : min(at + most[place], end)] for at in same] + passes
    return passes


def on_device(array: np.ndarray, device: torch.device) -> torch.Tensor:
    """Copy an array to a device without waiting for its computations."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def _abandon(pool: Any) -> None:
    """Tell torch's allocator that a capture has failed: until it ends, the allocator frees less memory."""
    with suppress(AttributeError, RuntimeError):  # another version, or one that has noticed the end
        device = torch.cuda.current_device()
        torch._C._cuda_endAllocateToPool(device, pool)
        torch._C._cuda_releasePool(device, pool)


def _step(number: int) -> int:
    """Return the least of 1, 2, 3, 4, 6, 8, 12, 16 and so on that is not below a number."""
    power = _power(number)
    return power * 3 // 4 if power * 3 // 4 >= number else power


def _power(number: int) -> int:
    """Return the least power of two that is not below a number."""
    return 1 << (number - 1).bit_length()
