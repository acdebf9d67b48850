"""Compare responses given in states with similar texts.

`center_by_similarity` weights all states of a group by the cosine of their TF-IDF vectors, as scikit-learn's
`TfidfVectorizer(max_features=...)` makes them. `center_by_cluster` treats texts that differ in few characters as one
state.
"""

from difflib import SequenceMatcher
from typing import Any, Literal

import numpy as np

from turnwise.base.errors import BatchError, ConfigError
from turnwise.base.shapes import Float, Int
from turnwise.credit.batch import Batch
from turnwise.credit.options import choice
from turnwise.credit.segments import Labels, Segments
from turnwise.credit.transform import Credit, block
from turnwise.credit.transforms.words import find_words

WordTies = Literal["alphabet", "scikit-learn"]
"""Order of equally frequent words at the vocabulary limit: alphabetical, or that of scikit-learn."""


def tf_idf(
    texts: list[str],
    *,
    count: Int[np.ndarray, " texts"] | None = None,
    max_features: int = 1024,
    ties: WordTies = "alphabet",
) -> tuple[Int[np.ndarray, " entries"], Int[np.ndarray, " entries"], Float[np.ndarray, " entries"]]:
    """Compute sparse TF-IDF vectors of texts.

        value = n_word_in_text * (ln((1 + n) / (1 + n_texts_with_word)) + 1), divided by the text's Euclidean norm

    Words are in lower case. The vocabulary is the `max_features` most frequent words of all texts. A text without any
    of them has no entries.

    Args:
        texts: Texts to vectorise.
        count: `[texts]` how many times each counts; default once.
        max_features: Largest size of the vocabulary.
        ties: Order of equally frequent words at that limit. "alphabet": alphabetical. "scikit-learn": that of its
            unstable sort, which can differ between processors.

    Returns:
        `[entries]` text index, word number (by frequency) and value of every nonzero entry, sorted by text.
    """
    choice("ties", ties, WordTies)
    count = np.ones(len(texts), dtype=np.int64) if count is None else count
    vocabulary, text, number = find_words(texts)
    text, number, times = _count_pairs(text, number, len(vocabulary))
    total = np.bincount(number, weights=times * count[text]).astype(np.int64)
    rank = np.empty(len(vocabulary), dtype=np.int64)
    rank[np.argsort(-total, kind="stable" if ties == "alphabet" else None)] = np.arange(len(vocabulary))
    frequent = rank[number] < max_features
    text, word, times = text[frequent], rank[number[frequent]], times[frequent]
    num_with_word = np.bincount(word, weights=count[text])
    value = times * (np.log((1.0 + count.sum()) / (1.0 + num_with_word)) + 1.0)[word]
    norm = np.sqrt(np.bincount(text, weights=value**2))
    return text, word, value / norm[text]


def _count_pairs(
    text: Int[np.ndarray, " occurrences"], number: Int[np.ndarray, " occurrences"], num_words: int
) -> tuple[Int[np.ndarray, " entries"], Int[np.ndarray, " entries"], Int[np.ndarray, " entries"]]:
    """Return the distinct pairs of text and word in order, and how often each occurs; texts are in order already."""
    bits = num_words.bit_length()
    small = len(text) > 0 and int(text[-1]) >> (31 - bits) == 0
    pairs = (text.astype(np.int32 if small else np.int64) << bits) | number.astype(np.int32 if small else np.int64)
    pairs.sort()  # vectorised; the stable sort, which uses that only the words of a text are out of order, is slower
    begins = np.flatnonzero(np.concatenate([[True], pairs[1:] != pairs[:-1]])[: len(pairs)])
    entry = pairs[begins].astype(np.int64)
    return entry >> bits, entry & ((1 << bits) - 1), np.diff(begins, append=len(pairs))


@block(needs_option="column", across_groups=lambda options: True)
def center_by_similarity(
    credit_R: Credit,
    batch: Batch,
    *,
    column: str = "state_text",
    temperature: float = 0.1,
    max_features: int = 1024,
    ties: WordTies = "alphabet",
) -> Credit:
    """Subtract the group's mean weighted by similarity of the states' texts: `A_i = G_i - sum_j u_ij G_j`.

        u_ij = exp(s_ij / temperature) / sum_j exp(s_ij / temperature)        over the group's responses j, including i

    `s_ij` is the cosine of the texts' TF-IDF vectors (`tf_idf`), with frequencies from all responses of the batch. A
    text without words has similarity 0 to every text, itself included.

    Args:
        credit_R: `[responses]` returns.
        batch: Their batch.
        column: Column of texts.
        temperature: tau; towards 0, only equal texts count.
        max_features: Largest size of the vocabulary.
        ties: Order of equally frequent words at that limit; see `tf_idf`.
    """
    if temperature <= 0.0:
        raise ConfigError(f"center_by_similarity: temperature={temperature} must be positive")
    texts_R = _texts(batch, column, needed_by="center_by_similarity")
    known = dict(zip(dict.fromkeys(texts_R), range(len(texts_R)), strict=False))
    text_R = np.fromiter(map(known.__getitem__, texts_R), dtype=np.int64)
    entries = tf_idf(list(known), count=np.bincount(text_R), max_features=max_features, ties=ties)
    groups = batch.group_responses
    excess_R = credit_R - groups.broadcast(groups.first(credit_R))  # so that equal credit gives exactly 0
    states = Labels.of(groups.ids, text_R)  # one state per group and text, numbered by group
    baseline = _average_by_similarity(
        states.sum(excess_R),
        states.lengths,
        texts=states.first(text_R),
        groups=Segments.from_sorted_ids(states.first(groups.ids)),
        entries=entries,
        temperature=temperature,
    )
    return excess_R - states.broadcast(baseline)


@block(needs_option="column")
def center_by_cluster(
    credit_R: Credit,
    batch: Batch,
    *,
    column: str = "state_text",
    similarity: float = 0.9,
    scale: bool = False,
    eps: float = 1e-6,
) -> Credit:
    """Compare responses given in states whose texts differ little: `A = G - mean(G)` over the cluster of the group.

    A text joins the first cluster of its group whose first text is similar, or else starts a new cluster. Two texts are
    similar if `difflib`'s ratio, the fraction of characters that match in order, is at least `similarity`. Clusters
    depend on the order of the batch.

    Args:
        credit_R: `[responses]` returns.
        batch: Their batch.
        column: Column of texts.
        similarity: Smallest fraction of matching characters, above 0; 1 for equal texts only.
        scale: Whether to divide by the sample standard deviation of the cluster. A single response gets 0.
        eps: Added to the standard deviation.

    Reference: GiGPO, arXiv 2505.10978; verl-agent, gigpo/core_gigpo.py, `enable_similarity`.
    """
    if not 0.0 < similarity <= 1.0:
        raise ConfigError(f"center_by_cluster: similarity={similarity} must be above 0 and at most 1")
    texts_R = _texts(batch, column, needed_by="center_by_cluster")
    clusters = Labels.of(batch.group_responses.ids, _clusters(texts_R, batch.group_responses, similarity))
    centered_R = credit_R - clusters.broadcast(clusters.mean(credit_R))
    return centered_R / (clusters.broadcast(clusters.std(credit_R, ddof=1)) + eps) if scale else centered_R


def _clusters(texts_R: np.ndarray, groups: Segments, similarity: float) -> Int[np.ndarray, " R"]:
    """Number the cluster of each response within its group."""
    result_R = np.empty(len(texts_R), dtype=np.int64)
    for start, end in zip(groups.offsets[:-1], groups.offsets[1:], strict=True):
        first: list[SequenceMatcher] = []  # one per cluster, with its first text, which it caches
        known: dict[str, int] = {}
        for row, text in enumerate(texts_R[start:end], start):
            if text not in known:
                known[text] = next(
                    (k for k, other in enumerate(first) if _resembles(text, other, similarity)), len(first)
                )
                if known[text] == len(first):
                    first.append(SequenceMatcher(None, "", text))
            result_R[row] = known[text]
    return result_R


def _resembles(text: str, other: SequenceMatcher, similarity: float) -> bool:
    """Return whether the ratio is large enough; its cheaper upper bounds are tried first."""
    other.set_seq1(text)
    return other.real_quick_ratio() >= similarity and other.quick_ratio() >= similarity and other.ratio() >= similarity


def _texts(batch: Batch, column: str, *, needed_by: str) -> np.ndarray:
    texts_R = batch.column(column, needed_by=needed_by)
    if texts_R.dtype != object:
        raise BatchError(f"{needed_by} needs texts, but column {column!r} does not hold texts; use another column")
    return texts_R


def _average_by_similarity(
    total: Float[np.ndarray, " states"],
    count: Int[np.ndarray, " states"],
    *,
    texts: Int[np.ndarray, " states"],
    groups: Segments,
    entries: tuple[np.ndarray, np.ndarray, np.ndarray],
    temperature: float,
) -> Float[np.ndarray, " states"]:
    """Compute for each state the similarity-weighted mean over its group's responses, from totals and counts."""
    entry_text, entry_word, entry_value = entries
    entry_value = entry_value / np.sqrt(temperature)  # a product of two is divided by the temperature
    begins = np.searchsorted(entry_text, np.arange(int(texts.max()) + 2))  # where the entries of each text begin
    result = np.empty_like(total)
    for start, end in zip(groups.offsets[:-1], groups.offsets[1:], strict=True):
        text = texts[start:end]
        lengths = begins[text + 1] - begins[text]
        state = np.repeat(np.arange(end - start), lengths)  # of each entry
        entry: Any = slice(begins[text[0]], begins[text[-1] + 1])
        if text[-1] - text[0] != end - start - 1:  # texts ascend, so these are not consecutive
            entry = np.arange(len(state)) + np.repeat(begins[text] - np.cumsum(lengths) + lengths, lengths)
        weight = _cosines(state, entry_word[entry], entry_value[entry], num_states=len(text))
        np.fill_diagonal(weight, (lengths > 0) / temperature)
        weight -= weight.max(axis=1, keepdims=True)
        np.exp(weight, out=weight)
        result[start:end] = (weight @ total[start:end]) / (weight @ count[start:end])
    return result


def _cosines(
    state: Int[np.ndarray, " entries"],
    word: Int[np.ndarray, " entries"],
    value: Float[np.ndarray, " entries"],
    *,
    num_states: int,
) -> Float[np.ndarray, "states states"]:
    """Compute the scalar product of each two different states, from the entries of their vectors sorted by state.

    A word of many states is a column of a matrix product. A word of few states is cheaper pair by pair.
    """
    num_with_word = np.bincount(word)
    limit = max(1, min(num_states // 16, 32))  # a 16th by measured times, 32 by memory
    frequent = num_with_word > limit
    width = np.count_nonzero(frequent)
    column = np.where(frequent, np.cumsum(frequent) - 1, width)[word]
    vectors = np.zeros(num_states * (width + 1))
    vectors[state * (width + 1) + column] = value  # all rare words in a last column, which is left out
    vectors = vectors.reshape(num_states, -1)[:, :width]
    result = vectors @ vectors.T
    if limit == 1:
        return result  # a word of one state is in no product
    rare = np.flatnonzero(column == width)
    rare = rare[np.argsort(word[rare].astype(np.min_scalar_type(len(frequent))), kind="stable")]  # linear in 16 bits
    state, word, value = state[rare], word[rare], value[rare]
    entry = np.arange(len(rare))
    later = np.cumsum(np.where(frequent, 0, num_with_word))[word] - 1 - entry  # each pair once
    one = np.repeat(entry, later)
    other = np.arange(len(one)) - np.repeat(np.cumsum(later) - later - entry - 1, later)
    place = np.concatenate([state[one] * num_states + state[other], state[other] * num_states + state[one]])
    product = np.tile(value[one] * value[other], 2)
    result += np.bincount(place, product, num_states**2).reshape(num_states, num_states)
    return result
