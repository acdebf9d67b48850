"""Who looks at a run that somebody sent runs nothing that its settings name."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.integrations.logs.test_export import played
from turnwise.base.checksums import KEY
from turnwise.commands.cli import main
from turnwise.config import parse_config
from turnwise.integrations.recorded import RecordedRun

CALLED = {"name": "subprocess:getoutput", "cmd": "touch CALLED"}
METHODS = {
    "alone": CALLED,
    "within": {"name": "aem", "base": CALLED},
    "part": {"name": "mix", "parts": ["grpo", CALLED]},
    "module": {"name": "theirs:method"},
    "around": {"name": "theirs:method", "base": {"name": "grpo"}},
}


@pytest.fixture
def run(tmp_path, monkeypatch, request) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("theirs.py").write_text("open('CALLED', 'w')\n")
    settings = {"run": {"steps": 1}, "environment": {"name": "household", "invalid_penalty": 0.0}}
    run = RecordedRun(tmp_path / "run", parse_config(settings))
    run.add([played(1.0), played(0.0, first="b")])
    run.evaluate([played(1.0), played(0.0)])
    path = run.folder.path / "config.json"
    data: dict[str, Any] = json.loads(path.read_text())
    data["config"] |= {"method": METHODS[request.param], "measures": ["theirs:measure"]}
    data.pop(KEY)
    path.write_text(json.dumps(data))
    shutil.copytree(run.folder.path, "copy")
    return run.folder.path


def test_loss_terms_and_measures_that_are_code_are_left_out():
    settings = {"measures": ["rare_tokens", "theirs:measure"], "update": {"terms": [{"name": "theirs:Term"}]}}
    plain = parse_config(settings).without_code
    assert (plain.measures, plain.update.terms) == (("rare_tokens",), ())


@pytest.mark.parametrize("run", METHODS, indirect=True)
@pytest.mark.parametrize(
    "command",
    [
        "report run --output page",
        "compare run -- copy",
        "export run --to chat",
        "export run --to sft --method gigpo",
        "analyse cost run",
        "analyse dynamics run --out drawn",
        "recredit run",
        "recredit run --method gigpo",
    ],
)
def test_a_run_is_read_without_the_code_that_it_names(run, command, capsys):
    try:
        code = main(command.split())
    except SystemExit as ended:
        code = ended.code
    assert not Path("CALLED").exists()
    said = capsys.readouterr().err
    if command == "recredit run":
        assert (code, said.splitlines()[-1].endswith("to run it, name it by --method")) == (2, True), said
    else:
        assert "theirs" not in said
        assert "getoutput" not in said
        assert code == 0 or "analyse" in command, said
