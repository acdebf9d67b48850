"""Texts as words, for policies that have a token a word."""

import re


def split_words(text: str) -> list[str]:
    """Split a text into its runs of letters, its numbers and its punctuation characters; spaces vanish."""
    return re.findall(r"[A-Za-z]+|\d+|[^\sA-Za-z\d]", text)
