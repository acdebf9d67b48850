"""Score given text in a given context, without gradient, and sample short continuations.

A context is the beginning of what the policy read in a trajectory. Its tokens are computed once for all probes in that
trajectory: a first pass keeps their keys and values, and a second one computes all probes of the trajectory side by
side, kept apart by the attention mask.
"""

import asyncio
import dataclasses
import functools
import zlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from turnwise.errors import BatchError
from turnwise.models.format import Format
from turnwise.models.policy import Policy, autocast
from turnwise.models.settings import ModelConfig
from turnwise.objective.gradient import Budget
from turnwise.objective.probe import Probe, Scores
from turnwise.objective.tokens import Sequences, chunked_logprobs, generated_states
from turnwise.rollout.blocking import blocking
from turnwise.rollout.engine import Engine, Sampling
from turnwise.segments import Segments

MASK_AT_ONCE = 2**25
"""Largest attention mask of a micro-batch (elements); a single row may exceed it."""


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

    Attributes:
        num_tokens: Tokens computed so far: each context once per call, plus the tokens of the probes.
    """

    def __init__(
        self,
        policy: Policy,
        sequences: Sequences,
        precision: ModelConfig,
        temperature: float,
        budget: Budget,
        engine: Engine | None = None,
    ):
        self.policy, self.sequences, self.temperature = policy, sequences, temperature
        self._precision, self._budget, self._engine = precision, budget, engine
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
        rows = _rows(self.sequences, probes)
        self.num_tokens += sum(row.length for row in rows)
        logprob_T, entropy_T = self._budget.spend(
            functools.partial(self._pass, rows, tokens), shortest=min(row.length for row in rows)
        )
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
        for part in _micro_batches(rows, max_tokens):
            contexts, probes, positions, mask = (torch.from_numpy(each).to(model.device) for each in _pack(part))
            with autocast(model, self._precision):
                first = model.get_decoder()(input_ids=contexts, use_cache=True)
                second = model.get_decoder()(
                    input_ids=probes,
                    attention_mask=mask[:, None],
                    position_ids=positions,
                    past_key_values=first.past_key_values,
                )
                hidden = torch.cat([first.last_hidden_state, second.last_hidden_state], 1)
                begin = contexts.shape[1]
                at = [(row, *place) for row, each in enumerate(part) for place in each.reads(begin)]
                row_T, column_T, target_T = (torch.tensor(each).to(model.device) for each in zip(*at, strict=True))
                found = chunked_logprobs(hidden[row_T, column_T], output_layer, target_T, self.temperature)
            numbers = [number for each in part for number in each.numbers]
            where = np.concatenate([np.arange(*tokens.offsets[[n, n + 1]]) for n in numbers])
            logprob_T[where], entropy_T[where] = (each.cpu().numpy() for each in found)
        return logprob_T, entropy_T

    @torch.no_grad()
    def read(self, see: Callable[[np.ndarray, torch.Tensor], None]) -> None:
        """Call `see` with the generated tokens of each micro-batch and their hidden states `[tokens, width]`.

        A state is that after the last layer at the token itself. Micro-batches hold whole sequences.
        """
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

    context: np.ndarray
    probes: list[Probe]
    numbers: list[int]

    @property
    def length(self) -> int:
        return len(self.context) + sum(len(probe.ids) for probe in self.probes)

    def reads(self, begin: int) -> Iterator[tuple[int, int]]:
        """Yield the column before each scored place, and the token to score there; the probes begin at a column."""
        for probe in self.probes:
            targets = [probe.ids[place] for place in probe.places] if probe.targets is None else probe.targets
            for place, target in zip(probe.places, targets, strict=True):
                yield (begin + place if place else probe.cut) - 1, int(target)
            begin += len(probe.ids)


def _rows(sequences: Sequences, probes: Sequence[Probe]) -> list[_Row]:
    """Collect the probes of each sequence, with the longest of their contexts."""
    members: dict[int, list[int]] = {}
    for number, probe in enumerate(probes):
        members.setdefault(probe.sequence, []).append(number)
    return [
        _Row(
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


def _pack(rows: Sequence[_Row]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Pad rows: the contexts on the right, so that a causal pass needs no mask, and likewise the probes.

    Returns:
        Token ids of contexts `[rows, context]` and probes `[rows, probe]`, positions of the probes' tokens, and the
        mask `[rows, probe, context + probe]`: a token attends to its own context, and to its probe up to itself.
    """
    most = max(len(row.context) for row in rows)
    contexts = np.zeros((len(rows), most), dtype=np.int64)
    shape = (len(rows), max(row.length - len(row.context) for row in rows))
    ids, positions, cut = np.zeros((3, *shape), dtype=np.int64)
    owner = np.full(shape, -1)
    for number, row in enumerate(rows):
        contexts[number, : len(row.context)] = row.context
        end = 0
        for index, probe in enumerate(row.probes):
            here = slice(end, end := end + len(probe.ids))
            ids[number, here], owner[number, here], cut[number, here] = probe.ids, index, probe.cut
            positions[number, here] = probe.cut + np.arange(len(probe.ids))
    column = np.arange(shape[1])
    in_context = np.arange(most) < cut[:, :, None]
    in_probe = (owner[:, None, :] == owner[:, :, None]) & (column <= column[:, None])
    return contexts, ids, positions, np.concatenate([in_context, in_probe], 2)
