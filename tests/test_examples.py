"""The examples run as their reader would run them, and print what their comments promise."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.needs import needs
from tests.promises import assert_printed
from tests.toys import small_config

FOLDER = Path(__file__).parents[1] / "examples"
SCRIPTS = {path.stem: path for path in sorted(FOLDER.glob("*.py"))}
NOTEBOOKS = {path.stem: path for path in sorted(FOLDER.glob("*.ipynb"))}
PROMISE = re.compile(r"print\(.*\)  # (.+)$", re.MULTILINE)
ALONE = [name for name in SCRIPTS if name not in ("trl_grpo", "read_a_run_with_pandas", "rl_loop")]
"""Those that need no run, no package beyond ours, and less than a minute."""
LONGEST = {"rl_loop": 150}
"""Lines of a program that shows a whole training; others have 80 at most."""
EXECUTE = """
import sys, nbformat
from nbclient import NotebookClient
book = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(book, timeout=300, kernel_name="python3", resources={"metadata": {"path": sys.argv[2]}}).execute()
nbformat.write(book, "executed.ipynb")
"""


def run(arguments: list, folder: Path) -> str:
    """Run Python in a folder and return what it printed; what fails shows why."""
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name", SCRIPTS)
def test_an_example_is_short_and_says_what_it_shows(name):
    text = SCRIPTS[name].read_text()
    assert len(text.splitlines()) <= LONGEST.get(name, 80)
    assert f"python examples/{name}.py" in (ast.get_docstring(ast.parse(text)) or "")


def test_an_agent_of_another_package_is_a_page_that_the_cross_check_plays():
    checked = (FOLDER.parent / "tests" / "crosscheck" / "agents" / "test_agents.py").read_text()
    listed = (FOLDER.parent / "docs" / "how-to" / "agents.md").read_text()
    agents = [*(FOLDER / "agents").glob("*.py")]
    assert len(agents) == 8
    for path in agents:
        assert len(path.read_text().splitlines()) <= 65
        assert path.stem in checked
        assert path.stem in listed


@pytest.mark.parametrize("name", ALONE)
def test_an_example_prints_what_it_promises(name, tmp_path):
    printed = run([SCRIPTS[name]], tmp_path)
    promised = PROMISE.findall(SCRIPTS[name].read_text())
    assert promised
    assert_printed(promised, printed)


@needs("pandas")
def test_a_run_is_read_with_pandas(tmp_path):
    from turnwise.train import loop

    folder = loop.train(small_config(tmp_path / "runs"))
    printed = run([SCRIPTS["read_a_run_with_pandas"], folder.path], tmp_path)
    last = [record for record in folder.metrics() if "eval/success" in record][-1]
    assert f"{last['eval/success']:.6f}" in printed
    for heading in (
        "trajectories, first and last step",
        "groups with contrast",
        "credit by turn",
        "largest advantages",
    ):
        assert heading in printed
    assert "nan" not in printed.lower()


def rates(printed: str) -> tuple[list[float], float, float]:
    """Success by step, and on held-out tasks before and after the training, as `rl_loop` prints them."""
    steps = [float(rate) for rate in re.findall(r"^step +\d+: success (\S+), loss [+-]\d", printed, re.MULTILINE)]
    ((before, after),) = re.findall(r"held-out success: (\S+) before, (\S+) after", printed)
    return steps, float(before), float(after)


@needs("gymnasium")
def test_the_parts_make_a_loop_that_reads_public_names_alone(tmp_path):
    names = [node for node in ast.walk(ast.parse(SCRIPTS["rl_loop"].read_text())) if isinstance(node, ast.Attribute)]
    assert not [node.attr for node in names if node.attr.startswith("_")]
    steps, before, after = rates(run([SCRIPTS["rl_loop"], "--steps", "2", "--warm-steps", "60"], tmp_path))
    assert len(steps) == 2
    assert {before, after} != {0.0}, "something can be learned from"


@pytest.mark.slow
@needs("gymnasium")
def test_the_loop_raises_success(tmp_path):
    steps, before, after = rates(run([SCRIPTS["rl_loop"]], tmp_path))
    assert sum(steps[-3:]) > sum(steps[:3]) + 0.6
    assert after > before + 0.05


@needs("trl")
def test_trl_trains(tmp_path):
    assert run([SCRIPTS["trl_grpo"]], tmp_path).splitlines()[-1] == "True"


@needs("nbclient", "ipykernel", "pandas")
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_executes_and_shows_pictures(name, tmp_path):
    import nbformat

    source = nbformat.read(NOTEBOOKS[name], as_version=4)
    code = [cell for cell in source.cells if cell.cell_type == "code"]
    assert all(not cell.outputs and cell.execution_count is None for cell in code), "clear the outputs before a commit"
    run(["-c", EXECUTE, NOTEBOOKS[name], FOLDER], tmp_path)
    shown = [
        output
        for cell in nbformat.read(tmp_path / "executed.ipynb", as_version=4).cells
        if cell.cell_type == "code"
        for output in cell.outputs
    ]
    assert any("image/png" in output.get("data", {}) for output in shown)
    assert not [output for output in shown if output.output_type == "error" or output.get("name") == "stderr"]


def test_the_page_on_trl_shows_the_rollout_of_the_example():
    page = (FOLDER.parent / "docs" / "how-to" / "trl.md").read_text()
    shown = page[page.index("def play(") :].partition("\n```")[0]
    assert f"\n{shown}\n" in SCRIPTS["trl_grpo"].read_text()
