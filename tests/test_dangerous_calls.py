"""Calls that run code from data stand in a list with their reasons, and nowhere else."""

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
LOADERS = {"load", "loads", "Unpickler", "open"}
CALLS = {"eval", "exec", "builtins.exec", "os.system", "os.popen", "subprocess.getoutput", "pandas.read_pickle"}
CALLS |= {"torch.load", "yaml.load", "yaml.unsafe_load"}
KEYWORDS = {"shell", "allow_pickle"}
LAST = LOADERS | {call.rpartition(".")[2] for call in CALLS}
DOWN = "the trainer, which is trusted, wrote it for a process that is less trusted"
ALLOWED: dict[tuple[str, str], tuple[int, str]] = {
    ("src/turnwise/environments/worker_process.py", "pickle.load"): (1, DOWN),
    ("src/turnwise/environments/worker_process.py", "pickle.loads"): (3, DOWN),
    ("src/turnwise/extensions/gateway/child.py", "pickle.load"): (1, DOWN),
    ("src/turnwise/environments/check_apart.py", "pickle.load"): (1, DOWN),
    ("src/turnwise/environments/tamper_apart.py", "pickle.load"): (1, DOWN),
    ("src/turnwise/environments/check.py", "pickle.loads"): (
        1,
        "a task that the same process has pickled one call before",
    ),
    ("src/turnwise/worlds/swe/inside/calls.py", "pickle.loads"): (
        1,
        "inside a sandbox; the right version of the repository pickled it, before an agent saw it",
    ),
    ("src/turnwise/extensions/tinker/served.py", "torch.load"): (1, "with weights_only=True"),
    ("src/turnwise/train/checkpoint.py", "torch.load"): (1, "with weights_only=True"),
    ("benchmarks/gateway_overhead.py", "multiprocessing"): (1, "a benchmark's own process, which plays no agent"),
}
"""By file and call: how often, and why it is safe."""


def dangerous(tree: ast.AST) -> list[str]:
    """Name the dangerous calls and imports of a file."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [each.name.partition(".")[0] for each in node.names if each.name.startswith("multiprocessing")]
        elif isinstance(node, ast.ImportFrom) and node.module:
            top = node.module.partition(".")[0]
            if top == "multiprocessing":
                found.append(top)
            found += [f"{top}.{each.name}" for each in node.names if top in MODULES and each.name in LOADERS]
        elif isinstance(node, ast.Call):
            last = getattr(node.func, "attr", getattr(node.func, "id", ""))
            keywords = {each.arg: ast.unparse(each.value) for each in node.keywords if each.arg in KEYWORDS}
            if last not in LAST and not keywords:
                continue
            name = ast.unparse(node.func)
            owner, _, called = name.rpartition(".")
            risky = name in CALLS or (owner.split(".")[-1] in MODULES and called in LOADERS)
            risky |= keywords.get("shell", "False") != "False" or keywords.get("allow_pickle", "False") != "False"
            found += [name] if risky else []
    return found


def places() -> Counter[tuple[str, str]]:
    files = [
        path
        for folder in ("src", "benchmarks", "studies", "docs", "examples")
        for path in (ROOT / folder).rglob("*.py")
    ]
    return Counter(
        (str(path.relative_to(ROOT)), call) for path in files for call in dangerous(ast.parse(path.read_text()))
    )


def test_calls_that_run_code_from_data_are_listed_with_their_reason():
    assert dict(places()) == {place: count for place, (count, _) in ALLOWED.items()}


def test_loading_a_checkpoint_runs_no_code():
    text = (ROOT / "src/turnwise/train/checkpoint.py").read_text()
    assert all("weights_only=True" in call for call in re.findall(r"torch\.load\([^)]*\)", text))


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("import pickle\npickle.loads(x)", "pickle.loads"),
        ("from pickle import loads", "pickle.loads"),
        ("import torch\ntorch.load(path)", "torch.load"),
        ("eval(text)", "eval"),
        ("exec(text)", "exec"),
        ("import yaml\nyaml.load(text)", "yaml.load"),
        ("import subprocess\nsubprocess.run(text, shell=True)", "subprocess.run"),
        ("import numpy as np\nnp.load(path, allow_pickle=True)", "np.load"),
        ("from multiprocessing.connection import Connection", "multiprocessing"),
    ],
)
def test_the_search_finds_each_kind(code, found):
    assert dangerous(ast.parse(code)) == [found]
    assert dangerous(ast.parse("model.eval()\nsubprocess.run(line)\njson.loads(text)")) == []
