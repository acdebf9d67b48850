"""Score given text in a given context, without gradient, and sample short continuations.

A context is the beginning of what the policy read in a trajectory. Its keys and values are those that the step's
scoring pass has kept, or are computed once for all probes in that trajectory; then one pass computes all probes of
the trajectory side by side, kept apart by the attention mask.
"""

import asyncio
import dataclasses
import functools
import zlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from turnwise.base.blocking import blocking
from turnwise.base.errors import BatchError
from turnwise.credit.segments import Segments
from turnwise.engines.base import Engine, Sampling
from turnwise.models.attention import additive
from turnwise.models.caches import CACHE
from turnwise.models.format import Format
from turnwise.models.logits import logit_factor
from turnwise.models.policy import Policy, autocast
from turnwise.models.settings import ModelConfig
from turnwise.objective.contexts import Computed, Contexts
from turnwise.objective.gradient import Budget
from turnwise.objective.probe import Probe, Scores
from turnwise.objective.tokens import Sequences, chunked_logprobs, generated_states

MASK_AT_ONCE = 2**25
"""Largest attention mask of a micro-batch (elements); a single row may exceed it."""
SIDE_BY_SIDE = 128
"""Tokens of probes that a row holds where its context need not be computed again for the next row."""


class Prober:
    """Score probes with the policy as it was at the start of the step, at the temperature of the rollout.

    The pass runs on the trainer's weights, whatever engine played.

    Args:
        policy: Model and format.
        sequences: Sequences of the step, as the policy read them.
        precision: Section `[model]` of the recipe.
        temperature: Divisor of the logits.
        budget: Padded tokens per micro-batch.
        engine: Samples continuations, for `sample` only.
        contexts: What a pass of the same weights has kept of the sequences. None: nothing.

    Attributes:
        num_tokens: Tokens computed so far: those of the probes, and each context that was not kept once per call.
    """

    def __init__(
        self,
        policy: Policy,
        sequences: Sequences,
        precision: ModelConfig,
        temperature: float,
        budget: Budget,
        engine: Engine | None = None,
        contexts: Contexts | None = None,
    ):
        self.policy, self.sequences, self.temperature = policy, sequences, temperature
        self._precision, self._budget, self._engine = precision, budget, engine
        self._contexts = contexts or Contexts(policy.model)
        self.num_tokens = 0

    @property
    def format(self) -> Format:
        """Conversation format of the policy."""
        return self.policy.format

    def contexts(self, responses: Segments) -> tuple[list[int], list[int]]:
        """Return the sequence of each response, and the length of its context: its first token's position there."""
        firsts = responses.offsets[:-1]
        position_T = np.concatenate(self.sequences.generated)
        return self.sequences.tokens.ids[firsts].tolist(), position_T[firsts].tolist()

    def score(self, probes: Sequence[Probe]) -> Scores:
        """Score probes, in their order.

        Raises:
            BatchError: A log-probability is not finite.
        """
        if not probes:
            return Scores(np.zeros(0), np.zeros(0), Segments.from_lengths([]))
        tokens = Segments.from_lengths([len(probe.places) for probe in probes])
        rows, kept, full = _rows(self.sequences, probes), self._contexts.sequences, self._budget.tokens
        self.num_tokens += sum(row.length - len(row.context) * (row.sequence in kept) for row in rows)

        def run(max_tokens: int) -> tuple[np.ndarray, np.ndarray]:
            if max_tokens < full:  # memory ran out
                self._contexts.clear()
            return self._pass(rows, tokens, max_tokens)

        logprob_T, entropy_T = self._budget.spend(run, shortest=min(row.length for row in rows))
        if not np.isfinite(logprob_T).all():
            raise BatchError("the log-probability of a probe is not finite: lower update.learning_rate")
        return Scores(logprob_T, entropy_T, tokens)

    @torch.no_grad()
    def _pass(self, rows: Sequence["_Row"], tokens: Segments, max_tokens: int) -> tuple[np.ndarray, np.ndarray]:
        logprob_T = np.full(tokens.num_elements, np.nan)
        entropy_T = np.full_like(logprob_T, np.nan)
        model = self.policy.model
        output_layer = model.get_output_embeddings()
        assert output_layer is not None
        for part, context in self._with_contexts(rows, max_tokens):
            begin = context.hidden.shape[1]
            probes, positions, mask = (torch.from_numpy(each).to(model.device) for each in _pack(part, begin))
            with autocast(model, self._precision):
                output = model.get_decoder()(
                    input_ids=probes,
                    attention_mask=additive(mask[:, None], context.hidden.dtype),
                    position_ids=positions,
                    **{CACHE: context.cache()},
                )
                hidden = torch.cat([context.hidden, output.last_hidden_state], 1)
                at = np.concatenate([each.reads(row, begin) for row, each in enumerate(part)], 1)
                row_T, column_T, target_T = torch.from_numpy(at).to(model.device)
                divisor = self.temperature / logit_factor(model)
                found = chunked_logprobs(hidden[row_T, column_T], output_layer, target_T, divisor)
            numbers = [number for each in part for number in each.numbers]
            where = np.concatenate([np.arange(*tokens.offsets[[n, n + 1]]) for n in numbers])
            logprob_T[where], entropy_T[where] = (each.cpu().numpy() for each in found)
        return logprob_T, entropy_T

    def _with_contexts(self, rows: Sequence["_Row"], max_tokens: int) -> Iterator[tuple[list["_Row"], Computed]]:
        """Yield micro-batches of rows with what is known of their contexts: kept, or computed now."""
        model, left = self.policy.model, {row.sequence: row for row in rows}
        for kept in self._contexts:
            mine = [left.pop(sequence) for sequence in kept.sequences.tolist() if sequence in left]
            mine = [piece for row in mine for piece in row.split()]
            for part in _micro_batches(mine, max_tokens):
                yield part, kept.select([row.sequence for row in part], max(len(row.context) for row in part))
        for part in _micro_batches([*left.values()], max_tokens):
            # With padding on the right, no token attends to it: no mask is needed.
            ids = pad_sequence([torch.from_numpy(row.context) for row in part], batch_first=True).to(model.device)
            with autocast(model, self._precision):
                output = model.get_decoder()(input_ids=ids, use_cache=True)
            yield part, Computed.of(np.array([row.sequence for row in part]), output)

    @torch.no_grad()
    def read(self, see: Callable[[np.ndarray, torch.Tensor], None]) -> None:
        """Call `see` with the generated tokens of each micro-batch and their hidden states `[tokens, width]`.

        A state is that after the last layer at the token itself. Micro-batches hold whole sequences.
        """
        if len(self._contexts.sequences) == len(self.sequences):
            for kept in self._contexts:
                columns = [self.sequences.generated[sequence] for sequence in kept.sequences]
                rows = np.repeat(np.arange(len(columns)), [len(each) for each in columns])
                at = torch.from_numpy(np.stack([rows, np.concatenate(columns)])).to(kept.hidden.device)
                see(self.sequences.token_index(kept.sequences), kept.hidden[at[0], at[1]].float())
            return
        self.num_tokens += sum(map(len, self.sequences.token_ids))

        def run(max_tokens: int) -> None:
            for indices in self.sequences.micro_batches(max_tokens):
                with autocast(self.policy.model, self._precision):
                    states, _ = generated_states(self.policy.model, self.sequences, indices)
                see(self.sequences.token_index(indices), states.hidden[states.rows, states.columns].float())

        self._budget.spend(run, shortest=self.sequences.shortest)

    def sample(
        self, contexts: Sequence[tuple[int, int]], then: Sequence[Sequence[int]], sampling: Sampling, *, num: int
    ) -> list[list[int]]:
        """Sample `num` short continuations of each context followed by given tokens; nothing is learned from them.

        Args:
            contexts: Sequence and number of tokens of each context.
            then: Tokens that follow each context.
            sampling: Sampling settings. Its seed is replaced by one that depends on the contexts alone, so that a
                resumed run samples the same.
            num: Continuations per context.

        Returns:
            Token ids of the continuations, `num` adjacent ones per context.
        """
        engine = self._engine
        assert engine is not None, "probes that sample need an engine"
        prompts = [
            [*self.sequences.token_ids[sequence][:cut].tolist(), *ids]
            for (sequence, cut), ids in zip(contexts, then, strict=True)
        ]
        seed = functools.reduce(lambda seed, ids: zlib.crc32(np.array(ids).tobytes(), seed), prompts, 0)
        settings = dataclasses.replace(sampling, seed=seed)

        async def one(number: int, ids: list[int]) -> list[int]:
            generation = await engine.generate(number, ids, settings)
            engine.close([number])
            return generation.token_ids

        async def everything() -> list[list[int]]:
            numbered = enumerate(ids for ids in prompts for _ in range(num))
            try:
                return await asyncio.gather(*(one(number, ids) for number, ids in numbered))
            finally:
                await engine.aclose()

        sampled = blocking(everything())
        self.num_tokens += sum(map(len, sampled))
        return sampled


@dataclasses.dataclass(frozen=True, slots=True)
class _Row:
    """A context with the probes that share it."""

    sequence: int
    context: np.ndarray
    probes: list[Probe]
    numbers: list[int]

    @property
    def length(self) -> int:
        return len(self.context) + sum(len(probe.ids) for probe in self.probes)

    def split(self) -> "Iterator[_Row]":
        """Yield rows of at most `SIDE_BY_SIDE` tokens of probes (a single probe may exceed it), short contexts first.

        Masked parts are computed too: the context beyond a probe's own, and the probes next to it.
        """
        members: list[int] = []
        size = 0
        for index in sorted(range(len(self.probes)), key=lambda index: self.probes[index].cut):
            if members and size + len(self.probes[index].ids) > SIDE_BY_SIDE:
                yield self._only(members)
                members, size = [], 0
            members.append(index)
            size += len(self.probes[index].ids)
        yield self._only(members)

    def _only(self, members: Sequence[int]) -> "_Row":
        probes = [self.probes[index] for index in members]
        context = self.context[: max(probe.cut for probe in probes)]
        return _Row(self.sequence, context, probes, [self.numbers[index] for index in members])

    def reads(self, row: int, begin: int) -> np.ndarray:
        """Return `[3, scored]`: row, column before each scored place, and token there; the probes begin at a column."""
        parts = []
        for probe in self.probes:
            places = np.array(probe.places)
            targets = np.array(probe.ids)[places] if probe.targets is None else np.array(probe.targets)
            parts.append([np.full_like(places, row), np.where(places, begin + places, probe.cut) - 1, targets])
            begin += len(probe.ids)
        return np.concatenate(parts, 1, dtype=np.int64)


def _rows(sequences: Sequences, probes: Sequence[Probe]) -> list[_Row]:
    """Collect the probes of each sequence, with their longest context."""
    members: dict[int, list[int]] = {}
    for number, probe in enumerate(probes):
        members.setdefault(probe.sequence, []).append(number)
    return [
        _Row(
            sequence,
            sequences.token_ids[sequence][: max(probes[number].cut for number in numbers)],
            [probes[number] for number in numbers],
            numbers,
        )
        for sequence, numbers in members.items()
    ]


def _micro_batches(rows: Sequence[_Row], max_tokens: int) -> Iterator[list[_Row]]:
    """Split rows into micro-batches of similar length, bounded in padded tokens and in the size of their mask."""
    ordered = sorted(rows, key=lambda row: -row.length)
    start = 0
    while start < len(ordered):
        longest = ordered[start].length
        stop = start + max(1, min(max_tokens // longest, MASK_AT_ONCE // longest**2))
        yield ordered[start:stop]
        start = stop


def _pack(rows: Sequence[_Row], length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Concatenate the probes of each row, padded on the right, after contexts padded to `length`.

    Returns:
        Token ids of the probes `[rows, probe]`, their positions, and the mask `[rows, probe, length + probe]`: a token
        attends to its own context, and to its probe up to itself.
    """
    shape = (len(rows), max(row.length - len(row.context) for row in rows))
    ids, positions = np.zeros((2, *shape), dtype=np.int64)
    owner, cut = np.full(shape, -1, dtype=np.int32), np.zeros(shape, dtype=np.int32)
    for number, row in enumerate(rows):
        end = 0
        for index, probe in enumerate(row.probes):
            here = slice(end, end := end + len(probe.ids))
            ids[number, here], owner[number, here], cut[number, here] = probe.ids, index, probe.cut
            positions[number, here] = probe.cut + np.arange(len(probe.ids))
    column = np.arange(shape[1], dtype=np.int32)
    in_context = np.arange(length, dtype=np.int32) < cut[:, :, None]
    in_probe = (owner[:, None, :] == owner[:, :, None]) & (column <= column[:, None])
    return ids, positions, np.concatenate([in_context, in_probe], 2)
