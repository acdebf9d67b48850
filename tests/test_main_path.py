"""How much a newcomer reads, from the command to the gradient of an advantage."""

import ast
import re
from pathlib import Path

import turnwise

SOURCE = Path(turnwise.__file__).parent
ROOT = Path(__file__).parents[1]
MAX_FILES, MAX_LINES, MAX_CONFIGS = 20, 2500, 15


def main_path() -> list[Path]:
    """The files of CONTRIBUTING's map that are to be read in order: those of the first table below its heading."""
    _, _, below = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Map of the code")
    table = re.search(r"(?:^\|.*\n)+", below, re.MULTILINE)
    assert table, "CONTRIBUTING has no table below 'Map of the code'"
    return [ROOT / path for path in re.findall(r"`(src/turnwise/[\w/]+\.py)`", table[0])]


def test_the_main_path_can_be_read_in_one_sitting():
    path = main_path()
    lines = {file.name: len(file.read_text(encoding="utf-8").splitlines()) for file in path}
    assert 10 < len(path) <= MAX_FILES
    assert len(set(path)) == len(path)
    assert sum(lines.values()) <= MAX_LINES, lines


def test_the_main_path_leads_from_the_command_to_the_loss():
    names = [file.relative_to(SOURCE).as_posix() for file in main_path()]
    assert names[0] == "commands/train.py"
    for name in ("train/loop.py", "rollout/pool.py", "measures/plan.py", "train/credit.py", "train/update.py"):
        assert name in names
    assert names[-1] == "objective/losses.py"


def test_few_functions_take_the_whole_configuration():
    takes = []
    for file in SOURCE.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if re.search(r":\s*Config\b", text) else ():
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                hints = [ast.unparse(argument.annotation) for argument in given if argument.annotation]
                takes += [f"{file.relative_to(SOURCE)}:{node.name}"] * hints.count("Config")
    assert len(takes) <= MAX_CONFIGS, takes
