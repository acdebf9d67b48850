"""Spell tokens: the text of each by itself, and the bytes that it adds."""

import functools
import re
from collections.abc import Callable

from transformers import PreTrainedTokenizerBase

Spell = Callable[[int], tuple[str, bytes]]
"""Returns a token's text and its bytes."""

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_SPACE = "\u2581"
"""What represents a space in tokens of SentencePiece."""


def spell(tokenizer: PreTrainedTokenizerBase, token: int) -> tuple[str, bytes]:
    """Return the text of a token, and its own bytes: a part of a character has no text, but it has bytes."""
    text = str(tokenizer.decode([token]))
    written = tokenizer.convert_ids_to_tokens(token)
    if not isinstance(written, str) or token in tokenizer.added_tokens_decoder:
        return text, text.encode()
    if found := _BYTE.fullmatch(written):
        return text, bytes([int(found[1], 16)])
    decoder = str(getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", ""))
    if "ByteLevel" in decoder:
        alphabet = _byte_of()
        if all(character in alphabet for character in written):
            return text, bytes(alphabet[character] for character in written)
    elif _SPACE in decoder or "Metaspace" in decoder:
        return text, written.replace(_SPACE, " ").encode()
    return text, text.encode()


@functools.cache
def _byte_of() -> dict[str, int]:
    """Return the byte of each character in tokens of byte-level BPE: printable ones stand for themselves."""
    own = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    others = [byte for byte in range(256) if byte not in own]
    return {chr(byte): byte for byte in own} | {chr(256 + place): byte for place, byte in enumerate(others)}
