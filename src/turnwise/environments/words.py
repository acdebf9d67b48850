"""Split texts into words, for policies with one token per word."""

import re


def split_words(text: str) -> list[str]:
    """Split a text into runs of letters, numbers and punctuation characters; drop white space."""
    return re.findall(r"[A-Za-z]+|\d+|[^\sA-Za-z\d]", text)
