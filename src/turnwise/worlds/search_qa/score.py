"""Score answers: exact match and F1, as in SQuAD and HotpotQA."""

import re
import string
from collections import Counter
from collections.abc import Sequence

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_CLOSED = {"yes", "no", "noanswer"}


def normalise(answer: str) -> str:
    """Lower-case an answer, and remove punctuation, articles and extra white space.

    An answer with nothing else ("The The", "!!!") is kept; otherwise all such answers would be equal.
    """
    words = _ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split()
    return " ".join(words or answer.lower().split())


def exact_match(answer: str, gold: Sequence[str]) -> bool:
    """Return whether an answer equals a gold answer, both normalised.

    Reference: P. Rajpurkar et al., arXiv 1606.05250.
    """
    return normalise(answer) in map(normalise, gold)


def f1(answer: str, gold: Sequence[str]) -> float:
    """Compute the word-level F1 of an answer with its best matching gold answer.

        f1 = 2 * shared / (words of the answer + words of the gold answer)

    "yes" and "no" match only exactly, so that "yes or no" earns nothing (HotpotQA's rule).

    Reference: P. Rajpurkar et al., arXiv 1606.05250; Z. Yang et al., arXiv 1809.09600.
    """
    return max(_f1(normalise(answer), normalise(right)) for right in gold)


def _f1(answer: str, right: str) -> float:
    if answer == right:
        return 1.0
    if answer in _CLOSED or right in _CLOSED:
        return 0.0
    given, wanted = Counter(answer.split()), Counter(right.split())
    return 2 * (given & wanted).total() / (given.total() + wanted.total())
