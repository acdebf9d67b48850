"""The commands of docs/how-to/report.md run as they stand there."""

import re
import shlex
from pathlib import Path

import pytest
from tests.report.synthetic import write_run

from turnwise.commands import cli
from turnwise.lab.report import live

PAGE = (Path(__file__).parents[2] / "docs/how-to/report.md").read_text()
BLOCKS = re.findall(r"^```bash\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
COMMANDS = [shlex.split(line, comments=True)[1:] for block in BLOCKS for line in block.splitlines()]


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_command_runs(arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("aem", "grpo"):
        write_run(Path("runs") / name, steps=1)
    served: list[list[Path]] = []
    monkeypatch.setattr(live, "serve_report", lambda runs, *_, **__: served.append(runs))
    assert cli.main(arguments) == 0
    if "--live" in arguments:
        assert served == [[Path("runs/aem")]]
    else:
        assert len(list(Path().rglob("index.html"))) == 1
