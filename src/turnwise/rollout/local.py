"""The local engine: any transformers causal LM in this process, one KV cache kept across the turns of all live conversations.

Rows of the cache hold conversations of different lengths without holes: every row writes its new keys and values right behind its own
last one, and a query sees exactly the keys at or before its position. Padding of a shorter row is written beyond its end, where
nobody looks, and is overwritten later.
"""

from collections.abc import Mapping, Sequence

import torch
from transformers import Cache, PreTrainedModel
from transformers.cache_utils import CacheLayerMixin

from turnwise.errors import EngineFault
from turnwise.rollout.engine import Generation, Sampling


class _Rows(CacheLayerMixin):
    """Keys and values of one layer, `[rows, heads, capacity, head size]`, written at per-row positions."""

    is_compileable = False
    is_sliding = False

    def __init__(self, plan: "_Plan"):
        super().__init__()
        self.plan = plan

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.keys = key_states.new_zeros((0, key_states.shape[1], 0, key_states.shape[3]))
        self.values = value_states.new_zeros((0, value_states.shape[1], 0, value_states.shape[3]))
        self.is_initialized = True

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args, **kwargs):
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        plan = self.plan
        assert self.keys is not None
        assert self.values is not None
        self.keys, self.values = plan.grown(self.keys), plan.grown(self.values)
        self.keys[plan.rows, :, plan.positions] = key_states.transpose(1, 2)
        self.values[plan.rows, :, plan.positions] = value_states.transpose(1, 2)
        num_rows, length = len(plan.positions), plan.length
        return self.keys[:num_rows, :, :length], self.values[:num_rows, :, :length]

    def select(self, rows: torch.Tensor) -> None:
        if self.is_initialized:
            assert self.keys is not None
            assert self.values is not None
            self.keys, self.values = self.keys[rows], self.values[rows]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.plan.length, 0

    def get_seq_length(self) -> int:
        return 0  # positions are always given explicitly

    def get_max_length(self) -> int:
        return -1


class _Plan:
    """Where the tokens of the next forward pass go: shared by all layers."""

    def __init__(self) -> None:
        self.positions = torch.zeros((0, 0), dtype=torch.long)
        self.length = 0

    def set(self, positions: torch.Tensor) -> None:
        self.positions = positions  # [rows, tokens]
        self.rows = torch.arange(len(positions), device=positions.device)[:, None]
        self.length = int(positions.max()) + 1

    def grown(self, storage: torch.Tensor) -> torch.Tensor:
        """`storage` with room for the planned rows and positions; grows by half to copy seldom."""
        num_rows, capacity = storage.shape[0], storage.shape[2]
        if num_rows >= len(self.positions) and capacity >= self.length:
            return storage
        if capacity < self.length:
            capacity = max(self.length, capacity * 3 // 2, 64)
        larger = storage.new_zeros((max(num_rows, len(self.positions)), storage.shape[1], capacity, storage.shape[3]))
        larger[:num_rows, :, : storage.shape[2]] = storage
        return larger


class LocalEngine:
    """Generate with a model in this process. The model is shared with the trainer: call `close` after an update.

    Args:
        model: A causal LM with SDPA attention, on any device.
        pad_id: Any valid token id, fed where a row has nothing to say.
    """

    def __init__(self, model: PreTrainedModel, *, pad_id: int = 0):
        self.model, self.pad_id = model, pad_id
        self.close()

    def close(self, conversations: Sequence[int] | None = None) -> None:
        """Forget conversations, all of them by default."""
        if conversations is None:
            self._plan = _Plan()
            self._layers = [_Rows(self._plan) for _ in range(self.model.config.get_text_config().num_hidden_layers)]
            self._cache = Cache(layers=list(self._layers))
            self._tokens: dict[int, list[int]] = {}  # conversation -> ids in the cache, in the order of its rows
        elif conversations:
            gone = set(conversations)
            self._keep([c for c in self._tokens if c not in gone])

    @torch.inference_mode()
    def generate(self, prompts: Mapping[int, Sequence[int]], sampling: Sampling) -> dict[int, Generation]:
        """Continue conversations; see `Engine.generate`."""
        if not prompts:
            return {}
        chunks = [self._chunk(c, list(prompt)) for c, prompt in prompts.items()]  # a fault here changes nothing
        self._arrange(list(prompts))
        cached = [self._tokens[c] for c in prompts]
        device = self.model.device
        lengths = torch.tensor([len(ids) for ids in cached], device=device)
        width = max(map(len, chunks))
        tokens = torch.tensor([chunk + [self.pad_id] * (width - len(chunk)) for chunk in chunks], device=device)
        num_new = torch.tensor([len(chunk) for chunk in chunks], device=device)
        logits = self._forward(tokens, lengths, num_new - 1)
        for ids, chunk in zip(cached, chunks, strict=True):
            ids.extend(chunk)
        lengths += num_new

        generator = torch.Generator(device=device).manual_seed(sampling.seed)
        stop = torch.tensor(sampling.stop_ids, device=device)
        live = torch.ones(len(chunks), dtype=torch.bool, device=device)
        sampled, logprobs, was_live = [], [], []
        for step in range(sampling.max_new_tokens):
            token, logprob = sample(logits, sampling, generator)
            sampled.append(token)
            logprobs.append(logprob)
            was_live.append(live)
            live = live & ~torch.isin(token, stop)
            if step + 1 == sampling.max_new_tokens or not live.any():
                break
            logits = self._forward(token[:, None], lengths, torch.zeros_like(lengths))
            lengths = lengths + live  # a finished row stays where it is: what it wrote is overwritten by its next turn
        num_tokens = torch.stack(was_live).sum(0).tolist()
        token_rows, logprob_rows = torch.stack(sampled, 1).tolist(), torch.stack(logprobs, 1).tolist()
        unfinished = live.tolist()
        result = {}
        for row, conversation in enumerate(prompts):
            ids = token_rows[row][: num_tokens[row]]
            cached[row].extend(ids[:-1])  # the last one was never fed
            result[conversation] = Generation(ids, logprob_rows[row][: num_tokens[row]], unfinished[row])
        return result

    def _chunk(self, conversation: int, prompt: list[int]) -> list[int]:
        """The part of the prompt that is not in the cache yet."""
        ids = self._tokens.get(conversation, [])
        if prompt[: len(ids)] != ids or len(prompt) == len(ids):
            raise EngineFault(f"conversation {conversation} must extend the {len(ids)} tokens that it had; it has "
                              f"{len(prompt)} and differs or adds none. Use a new conversation number, or close() it first")  # fmt: skip
        return prompt[len(ids) :]

    def _arrange(self, wanted: list[int]) -> None:
        """Bring the rows of the wanted conversations to the front, in their order."""
        present = list(self._tokens)
        order = wanted + [c for c in present if c not in set(wanted)]
        if order != present:
            self._keep(order)

    def _keep(self, order: list[int]) -> None:
        """Keep these conversations, in this order; unknown ones start empty."""
        row_of = {conversation: row for row, conversation in enumerate(self._tokens)}
        rows = [row_of.get(conversation, 0) for conversation in order]  # a new row may start with any content
        if row_of and rows != list(range(len(row_of))):
            for layer in self._layers:
                layer.select(torch.tensor(rows, dtype=torch.long, device=self.model.device))
        self._tokens = {conversation: self._tokens.get(conversation, []) for conversation in order}

    def _forward(self, tokens: torch.Tensor, lengths: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
        """Feed `tokens [rows, width]` behind `lengths [rows]` cached ones; logits at index `last [rows]` of each row, float32."""
        positions = lengths[:, None] + torch.arange(tokens.shape[1], device=tokens.device)
        self._plan.set(positions)
        keys = torch.arange(self._plan.length, device=tokens.device)
        mask = keys <= positions[:, None, :, None]  # [rows, 1, tokens, keys]
        hidden = self.model.get_decoder()(
            input_ids=tokens, attention_mask=mask, position_ids=positions, past_key_values=self._cache, use_cache=True
        ).last_hidden_state
        hidden = hidden[torch.arange(len(tokens), device=tokens.device), last]
        output_layer = self.model.get_output_embeddings()
        assert output_layer is not None
        return output_layer(hidden).float()


def sample(logits: torch.Tensor, sampling: Sampling, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw one token a row from `logits [rows, vocabulary]`; returns tokens and their log-probabilities, `[rows]` each."""
    if sampling.temperature == 0:
        logprobs = torch.log_softmax(logits, -1)
        best = logprobs.max(-1)
        return best.indices, best.values
    logprobs = torch.log_softmax(logits / sampling.temperature, -1)
    if sampling.top_p < 1:
        ranked, indices = logprobs.sort(-1, descending=True)
        before = ranked.exp().cumsum(-1) - ranked.exp()
        dropped = torch.zeros_like(before, dtype=torch.bool).scatter(-1, indices, before >= sampling.top_p)
        logprobs = torch.log_softmax(logprobs.masked_fill(dropped, -torch.inf), -1)
    token = torch.multinomial(logprobs.exp(), 1, generator=generator)
    return token[:, 0], logprobs.gather(-1, token)[:, 0]
