"""Search with BM25 exactly as Lucene does (in WebShop, and in Pyserini, which Search-R1 uses).

    index = LuceneIndex.build({"B07HRFSNL4": "nautica men's t-shirt ...", ...})
    index.search("mens t-shirts", 50)     # at most 50 names, best first

Lucene stores a document's length in one byte, treats pictographs as words, and breaks ties by name. A library that
follows only its formula (bm25s) returns less than half of the pages in Lucene's order: see docs/decisions.
"""

import array
import functools
import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from turnwise.base.cache import cache_folder, made_aside
from turnwise.environments.needs import needed

FORMAT_VERSION = 1
"""Part of the cache key; raise it if the same texts give a different index."""

K1, B = 0.9, 0.4
"""Pyserini's defaults, which WebShop uses; see `LuceneIndex.build`."""

STOP_WORDS = frozenset(
    re.findall(
        r"\w+",
        "a an and are as at be but by for if in into is it no not of on or such that the their then there "
        "these they this to was will with",
    )
)

# What Unicode calls Extended_Pictographic in version 12, without © and ®, for which Lucene makes an exception. Later
# versions have fewer.
_PICTOGRAPHS = (
    "\u203c\u2049\u2139\u2194-\u2199\u21a9\u21aa\u231a\u231b\u2328\u2388\u23cf\u23e9-\u23f3\u23f8-\u23fa\u24c2"
    "\u25aa\u25ab\u25b6\u25c0\u25fb-\u25fe\u2600-\u2605\u2607-\u2612\u2614-\u2685\u2690-\u2705\u2708-\u2712\u2714"
    "\u2716\u271d\u2721\u2728\u2733\u2734\u2744\u2747\u274c\u274e\u2753-\u2755\u2757\u2763-\u2767\u2795-\u2797"
    "\u27a1\u27b0\u27bf\u2934\u2935\u2b05-\u2b07\u2b1b\u2b1c\u2b50\u2b55\u3297\u3299\U0001f000-\U0001f1e5"
    "\U0001f200-\U0001f3fa\U0001f400-\U0001faff"
)
# Unicode's word boundaries (UAX 29) for European scripts: "o:neck", "don't" and "1,000" are words, "t-shirt" is two,
# and a fraction sign is none.
_LETTER = r"[^\W\d_]"
_SIGN = r"[^\W\u00b2\u00b3\u00b9\u00bc-\u00be\u2150-\u218b\u2460-\u24ff\u2776-\u2793]"
_APOSTROPHES = r"'\u2018\u2019\uff07"
_JOINED = (
    rf"(?<={_LETTER})[{_APOSTROPHES}.\u2024:\u00b7\uff1a](?={_LETTER})|(?<=\d)[{_APOSTROPHES}.\u2024,;\u2044](?=\d)"
)
_TOKEN = re.compile(
    rf"{_SIGN}(?:[\u0300-\u036f\u200d\ufe0f\u00ad]*(?:{_SIGN}|{_JOINED}))*"
    rf"|[{_PICTOGRAPHS}](?:\ufe0f?\u200d[{_PICTOGRAPHS}])*|[\U0001f1e6-\U0001f1ff]{{2}}"
)
_POSSESSIVE = re.compile(r"['\u2019\uff07]s$")
_LONGEST_TOKEN = 255
"""Lucene cuts longer tokens to pieces (characters)."""
_SYLLABLE = re.compile("[aeiouy][^aeiouy]")


def analyse(text: str) -> list[str]:
    """Split a text into Lucene's English terms: lower case, no possessives, no stop words, Porter's stems."""
    found = _TOKEN.findall(text.lower())
    tokens = (token[at : at + _LONGEST_TOKEN] for token in found for at in range(0, len(token), _LONGEST_TOKEN))
    words = [_POSSESSIVE.sub("", token) for token in tokens]
    return [_stem(word) for word in words if word not in STOP_WORDS and word.strip("_")]


@functools.lru_cache(maxsize=1 << 18)
def _stem(word: str) -> str:
    if len(word) <= 2:
        return word
    stem = _porter()(word)
    # Two rules that Porter added after the paper and Lucene has: "assembly" as "assemble", "technology" as
    # "technologic".
    if stem.endswith("bli") and _SYLLABLE.search(stem[:-3]):
        return _porter()(f"{stem[:-1]}e")
    return stem[:-1] if stem.endswith("logi") and _SYLLABLE.search(stem[:-4]) else stem


@functools.cache
def _porter() -> Callable[[str], str]:
    return needed("Stemmer", package="PyStemmer", by="BM25").Stemmer("porter").stemWord


def stored_length(length: int) -> int:
    """Round a document's length as Lucene's one byte does: exact below 40, then four significant bits."""
    if length < 40:
        return length
    shift = (length - 24).bit_length() - 4
    return 24 + ((length - 24) >> shift << shift)


class LuceneIndex:
    """An index of terms with their contribution to the score of each document.

        score(query, document) = sum over terms of idf * tf / (tf + k1 * (1 - b + b * length / mean length))
        idf = log(1 + (N - n + 0.5) / (n + 0.5))

    Args:
        names: Names of the documents, sorted, which is the order of ties.
        terms: Number of each term.
        starts: Offset of each term's documents, `[terms + 1]`.
        documents: Numbers of the documents of each term, one term after the other.
        impacts: Contribution of the term to each of these documents' scores.

    Reference: S. Robertson et al., Okapi at TREC-3; as in Apache Lucene 8 and later.
    """

    def __init__(
        self, names: list[str], terms: dict[str, int], starts: np.ndarray, documents: np.ndarray, impacts: np.ndarray
    ):
        self._names, self._terms = names, terms
        self._starts, self._documents, self._impacts = starts, documents, impacts

    @classmethod
    def build(cls, texts: Mapping[str, str], *, k1: float = K1, b: float = B) -> "LuceneIndex":
        """Index texts by name.

        Args:
            texts: Names and texts.
            k1: Saturation of the term frequency; 0: only the first mention counts.
            b: Weight of the document length, 0 to 1.
        """
        names = sorted(texts)
        terms: dict[str, int] = {}
        found = array.array("i")
        lengths = np.zeros(len(names), dtype=np.int64)
        for number, name in enumerate(names):
            words = analyse(texts[name])
            found.extend(terms.setdefault(word, len(terms)) for word in words)
            lengths[number] = len(words)
        places = np.frombuffer(found, dtype=np.intc) if found else np.zeros(0, dtype=np.intc)
        pairs = places.astype(np.int64) * len(names) + np.repeat(np.arange(len(names)), lengths)
        pairs, counts = np.unique(pairs, return_counts=True)
        term, document = np.divmod(pairs, max(len(names), 1))
        starts = np.searchsorted(term, np.arange(len(terms) + 1))
        num_filled, holders = np.count_nonzero(lengths), np.diff(starts)
        idf = np.log(1 + (num_filled - holders + 0.5) / (holders + 0.5))
        stored = np.array([stored_length(length) for length in lengths.tolist()], dtype=np.float64)
        damping = k1 * (1 - b + b * stored / max(lengths.sum() / max(num_filled, 1), 1e-9))
        impacts = idf[term] * counts / (counts + damping[document])
        return cls(names, terms, starts, document.astype(np.int32), impacts.astype(np.float32))

    @classmethod
    def cached(cls, texts: Mapping[str, str], *, k1: float = K1, b: float = B) -> "LuceneIndex":
        """Load the index of these texts from the cache, or build it as `build` does and store it there."""
        key = hashlib.sha256(f"{FORMAT_VERSION} {float(k1)} {float(b)}\0".encode())
        for name, text in texts.items():
            key.update(f"{name}\0{text}\0".encode("utf-8", "surrogatepass"))
        folder = cache_folder() / "bm25" / key.hexdigest()[:16]
        if not folder.exists():
            cls.build(texts, k1=k1, b=b)._store(folder)
        return cls._load(folder)

    def _store(self, folder: Path) -> None:
        with made_aside(folder) as temporary:
            (temporary / "names.json").write_text(json.dumps([self._names, list(self._terms)]), encoding="utf-8")
            for name in ("starts", "documents", "impacts"):
                np.save(temporary / f"{name}.npy", getattr(self, f"_{name}"))

    @classmethod
    def _load(cls, folder: Path) -> "LuceneIndex":
        names, terms = json.loads((folder / "names.json").read_text(encoding="utf-8"))
        arrays = [np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("starts", "documents", "impacts")]
        return cls(names, {term: number for number, term in enumerate(terms)}, *arrays)

    def search(self, query: str, limit: int) -> list[str]:
        """Return the names of the best documents; equal scores are ordered by name."""
        scores = np.zeros(len(self._names))
        for term, count in Counter(analyse(query)).items():
            number = self._terms.get(term)
            if number is not None:
                place = slice(self._starts[number], self._starts[number + 1])
                scores[self._documents[place]] += count * self._impacts[place]
        hits = np.flatnonzero(scores)
        values = scores[hits].astype(np.float32)  # Lucene compares single precision
        if len(hits) > limit:
            best = values >= np.partition(values, -limit)[-limit]
            hits, values = hits[best], values[best]
        return [self._names[hit] for hit in hits[np.argsort(-values, kind="stable")[:limit]]]
