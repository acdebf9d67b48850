"""Monitor how much responses depend on what they answer: their mutual information with their contexts."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from turnwise.base.shapes import Float
from turnwise.base.streams import Stream
from turnwise.extensions.monitor.settings import MonitorConfig
from turnwise.measures.base import Played
from turnwise.objective.probe import Probe
from turnwise.train.extension import Context, Extension

AT_ONCE = 4096
"""Tokens of responses that are scored in a context at once."""


class Monitor:
    """Measure the mutual information of a step's responses with their contexts, every few steps.

        l_ij = mean log p(Z_i | X_j) over the tokens of Z_i        Z_i: a response, X_j: what the policy read before j's
        mutual_information = mean_i (l_ii - log(mean_j exp(l_ij))),  at most log(number of responses)
        conditional_entropy = -mean_i l_ii
        retrieval_frac = share of the i for which no l_ij exceeds l_ii; of k equal ones, each counts 1 / k

    With `prompt.think`, Z is the reasoning alone. `mutual_information_sum` is the same with sums over tokens instead of
    means. High conditional entropy with low mutual information shows responses that no longer depend on the input.

    The contexts differ from each other: one response per context is drawn. The release may draw several.

    Reference: RAGEN-2, arXiv 2604.06268.
    """

    def __init__(self, settings: MonitorConfig, seed: int):
        self._settings, self._seed = settings, seed

    def watch(self, step: Played, number: int) -> dict[str, float]:
        """Return the metrics of a step; none if the step is not due, or has no two contexts.

        Args:
            step: Its usable trajectories.
            number: Number of the step, from 1.
        """
        if number % self._settings.every:
            return {}
        sequence_R, cut_R = step.probe.contexts(step.tokens)
        chosen = self._choose(step, sequence_R, cut_R, np.random.default_rng([self._seed, Stream.MONITOR, number]))
        if len(chosen) < 2:
            return {}
        before = step.probe.num_tokens
        spans = [step.probe.format.thought_span(step.turns[response].response_ids) for response in chosen]
        ids = [step.turns[response].response_ids[:stop] for response, (_, stop) in zip(chosen, spans, strict=True)]
        length_S = np.array([stop - first for first, stop in spans])
        total_SS = np.zeros((len(chosen), len(chosen)))  # [response, context]
        for part in _parts([len(text) for text in ids]):
            probes = [
                Probe(sequence_R[context], cut_R[context], ids[response], spans[response][0])
                for response in part
                for context in chosen
            ]
            scores = step.probe.score(probes)
            total_SS[part] = scores.tokens.sum(scores.logprob).reshape(len(part), len(chosen))
        metrics = information(total_SS / length_S[:, None])
        metrics["mutual_information_sum"] = information(total_SS)["mutual_information"]
        return {**metrics, "monitor_responses": float(len(chosen)), "monitor_tokens": step.probe.num_tokens - before}

    def _choose(
        self, step: Played, sequence_R: Sequence[int], cut_R: Sequence[int], draws: np.random.Generator
    ) -> list[int]:
        """Draw scorable responses with different contexts."""
        texts = step.probe.sequences.token_ids
        chosen: dict[bytes, int] = {}
        for response in draws.permutation(len(step.turns)).tolist():
            first, stop = step.probe.format.thought_span(step.turns[response].response_ids)
            if len(chosen) < self._settings.samples and first < stop:
                chosen.setdefault(texts[sequence_R[response]][: cut_R[response]].tobytes(), response)
        return list(chosen.values())


def information(logprob_SS: Float[np.ndarray, "S S"]) -> dict[str, float]:
    """Compute the statistics of `Monitor` from log-probabilities of responses (rows) in contexts (columns), in nats."""
    matched_S = np.diagonal(logprob_SS)
    best_S = logprob_SS.max(1)
    marginal_S = best_S + np.log(np.exp(logprob_SS - best_S[:, None]).mean(1))
    return {
        "mutual_information": float((matched_S - marginal_S).mean()),
        "conditional_entropy": float(-matched_S.mean()),
        "retrieval_frac": float(((matched_S == best_S) / (logprob_SS == best_S[:, None]).sum(1)).mean()),
    }


def _parts(lengths: Sequence[int]) -> list[list[int]]:
    """Split texts into parts of at most `AT_ONCE` tokens, or of one text; returns indices."""
    parts: list[list[int]] = []
    room = 0
    for number, length in enumerate(lengths):
        if not parts or length > room:
            parts.append([])
            room = AT_ONCE
        parts[-1].append(number)
        room -= length
    return parts


class Monitored(Extension):
    """Measure the mutual information of responses and contexts as `[monitor]` says."""

    def __init__(self, key: str, settings: Any, context: Context):
        super().__init__(key, settings, context)
        self._monitor = Monitor(settings, context.config.run.seed)

    def watch(self, played: Played, step: int) -> dict[str, float]:
        """Return the metrics of a step; none if it is not due."""
        return self._monitor.watch(played, step)
