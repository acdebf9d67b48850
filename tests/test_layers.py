"""The layers of the house, read from the imports, and the weight of `import turnwise`."""

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import turnwise

SOURCE = Path(turnwise.__file__).parent
FILES = {file.relative_to(SOURCE).as_posix(): file for file in sorted(SOURCE.rglob("*.py"))}

# lower layers first; a file may import its own layer and those below
CREDIT_LAYERS = [
    "errors.py",
    "imports.py",
    "segments.py",
    "columns.py",
    "batch.py",
    "transform.py",
    "transforms/",
    "methods/",
]
ALLOWED_OUTSIDE = {"numpy", "jaxtyping"}


def imports(path: str) -> set[str]:
    """Modules that a file imports, anywhere in it, in full."""
    result = set()
    for node in ast.walk(ast.parse(FILES[path].read_text())):
        if isinstance(node, ast.Import):
            result |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively; write the module in full"
            module = node.module or ""
            for alias in node.names:
                inner = f"{module}.{alias.name}"
                is_module = module.startswith("turnwise") and importlib.util.find_spec(module) is not None
                as_path = inner.removeprefix("turnwise.").replace(".", "/")
                is_inner = is_module and (f"{as_path}.py" in FILES or f"{as_path}/__init__.py" in FILES)
                result.add(inner if is_inner else module)
    return result


def layer(path: str) -> int | None:
    """Which credit layer a file belongs to."""
    return next((number for number, name in enumerate(CREDIT_LAYERS) if path == name or path.startswith(name)), None)


def as_file(module: str) -> str:
    path = module.removeprefix("turnwise").removeprefix(".").replace(".", "/")
    return f"{path}.py" if f"{path}.py" in FILES else f"{path}/__init__.py".removeprefix("/")


CREDIT_FILES = [path for path in FILES if layer(path) is not None]


def test_there_are_files_of_every_credit_layer():
    assert {layer(path) for path in CREDIT_FILES} == set(range(len(CREDIT_LAYERS)))


@pytest.mark.parametrize("path", [*CREDIT_FILES, "entropy.py"])
def test_the_credit_core_needs_numpy_only(path):
    outside = {module.split(".")[0] for module in imports(path)} - {"turnwise"} - sys.stdlib_module_names
    assert outside <= ALLOWED_OUTSIDE


@pytest.mark.parametrize("path", CREDIT_FILES)
def test_credit_layers_import_downwards_only(path):
    own = layer(path)
    assert own is not None
    for module in imports(path):
        if module.split(".")[0] == "turnwise":
            other = layer(as_file(module))
            assert other is not None, f"{path} imports {module}, which is no part of the credit core"
            assert other <= own, f"{path} imports {module}, which lies above it"


@pytest.mark.parametrize("path", [path for path in FILES if not path.startswith("integrations/")])
def test_nothing_imports_the_integrations(path):
    assert not [module for module in imports(path) if module.startswith("turnwise.integrations")]


@pytest.mark.parametrize("path", FILES)
def test_no_file_is_longer_than_400_lines(path):
    assert len(FILES[path].read_text().splitlines()) <= 400


def fresh(statement: str) -> str:
    done = subprocess.run([sys.executable, "-c", statement], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_turnwise_loads_nothing_heavy():
    heavy = {"torch", "transformers", "tokenizers", "matplotlib", "pandas", "pydantic", "pyarrow", "scipy", "rich"}
    loaded = fresh("import sys, turnwise; print(*{name.split('.')[0] for name in sys.modules})").split()
    assert not heavy & set(loaded)
    assert "numpy" in loaded


def test_importing_turnwise_takes_less_than_half_a_second():
    # processor time, which other processes on the machine do not use up; the best of three, since they share its caches
    statement = "import time; start = time.process_time(); import turnwise; print(time.process_time() - start)"
    assert min(float(fresh(statement)) for _ in range(3)) < 0.5
