"""Decode tokens to text, so that the page can shade them."""

from collections.abc import Iterable
from pathlib import Path

from turnwise.train.folder import RunFolder


class Pieces:
    """Hold the texts of a run's tokens, decoded with the tokenizer of its newest checkpoint, if any."""

    def __init__(self, run: RunFolder):
        self._run = run
        self._tokenizer = None
        self.texts: dict[int, str] = {}

    def add(self, ids: Iterable[int]) -> None:
        """Decode new tokens."""
        new = [number for number in ids if number not in self.texts]
        if not new:
            return
        if self._tokenizer is None:
            path = tokenizer_file(self._run.checkpoints)
            if path is None:
                return
            from tokenizers import Tokenizer

            self._tokenizer = Tokenizer.from_file(str(path))
        # decode after another token, because the first token of a text may lose its leading space
        alone = self._tokenizer.decode_batch([[number] for number in new], skip_special_tokens=False)
        whole = [
            place for place, text in enumerate(alone) if text and "\ufffd" not in text
        ]  # skip parts of a character
        anchor, before = (new[whole[0]], alone[whole[0]]) if whole else (new[0], alone[0])
        pairs = self._tokenizer.decode_batch([[anchor, number] for number in new], skip_special_tokens=False)
        self.texts |= {number: pair[len(before) :] for number, pair in zip(new, pairs, strict=True)}


def tokenizer_file(checkpoints: Path) -> Path | None:
    """Return the tokenizer file of the newest checkpoint that has one."""
    return max(checkpoints.glob("step-*/**/tokenizer.json"), default=None)
