"""A disk that takes no more is named in one line, whatever library wrote, and the run resumes when there is room."""

import contextlib
import errno
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from safetensors.torch import save_file
from tests.toys import small_config
from tests.train.kills import whole
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

import turnwise.config
from turnwise.base.errors import RunError
from turnwise.base.files import refused_by_disk, write_json
from turnwise.commands.cli import main
from turnwise.rollout.record import write_table
from turnwise.train.checkpoint import _save_states
from turnwise.train.folder import by_step
from turnwise.train.loop import train
from turnwise.train.run import Run


@pytest.fixture
def small(tmp_path) -> Iterator[Path]:
    """A file system of its own, with room for 1 MB."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = shutil.which("mount") and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], capture_output=True, check=False
    )
    if not mounted or mounted.returncode:
        pytest.skip("needs the right to mount a file system")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def a_tokenizer(path: Path) -> None:
    Tokenizer(WordLevel({f"{number:030}": number for number in range(100_000)}, unk_token=f"{0:030}")).save(str(path))


def an_array(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, np.zeros(10**6))


WRITERS: dict[str, Callable[[Path], None]] = {
    "torch": lambda path: _save_states({"a": torch.zeros(10**6)}, path),
    "safetensors": lambda path: save_file({"a": torch.zeros(10**6)}, path),
    "tokenizers": a_tokenizer,
    "numpy": an_array,
    "pyarrow": lambda path: write_table(path, pa.table({"a": np.random.default_rng(0).random(10**6)})),
    "json": lambda path: write_json(path, {"a": "x" * 2**21}),
}


@pytest.mark.parametrize("library", WRITERS)
def test_the_error_of_every_library_is_recognised(library, small):
    error: Exception | None = None
    try:
        WRITERS[library](small / "file")
    except Exception as raised:  # each library has a type of its own, tokenizers none
        error = raised
    assert error is not None
    refused = refused_by_disk(error)
    assert refused is not None, repr(error)
    assert refused.errno == errno.ENOSPC


@pytest.mark.parametrize(
    "error", [RuntimeError("shape (os error 2)"), OSError(errno.EACCES, "no"), ValueError("28"), OSError("odd")]
)
def test_other_errors_are_not_of_the_disk(error):
    assert refused_by_disk(error) is None


@pytest.mark.parametrize("what", ["a checkpoint", "a step"])
def test_a_full_disk_is_one_line_and_the_run_resumes_from_the_last_checkpoint(
    what, small, tmp_path, monkeypatch, capsys
):
    sections = {"run": {"steps": 4}, "checkpoint": {"every": 1}, "model": {"hidden_size": 32}}
    config = small_config(small, **sections)
    train(small_config(tmp_path / "whole", **sections))
    monkeypatch.setattr(turnwise.config, "load_config", lambda *_: config)
    function, filler = getattr(Run, name := "save" if what == "a checkpoint" else "measure"), small / "filler"

    def filling(self, *given):
        if self.step == 2:
            with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
                while True:
                    file.write(b"x" * 4096)
        return function(self, *given)

    with monkeypatch.context() as patched:
        patched.setattr(Run, name, filling)
        (tmp_path / "any.toml").touch()
        assert main(["train", str(tmp_path / "any.toml")]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("turnwise: cannot write")
    assert f"no space left on {small}" in said
    filler.unlink()
    last = 1 if what == "a checkpoint" else 2
    assert max(by_step(config.run_folder / "checkpoints")) == last
    assert main(["train", "--resume", str(config.run_folder)]) == 0
    found, expected = whole(small), whole(tmp_path / "whole")
    assert [name for name in expected if name != "names" and found[name] != expected[name]] == []


def test_another_error_of_a_checkpoint_is_not_about_the_disk(tmp_path, monkeypatch):
    def wrong(*_):
        raise RuntimeError("odd")

    monkeypatch.setattr(torch, "save", wrong)
    with pytest.raises(RunError, match=r"cannot write the checkpoint .*: odd$"):
        train(small_config(tmp_path))
