"""The layers of the house, read from the imports, and the weight of `import turnwise`."""

import ast
import functools
import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import jaxtyping
import numpy as np
import pytest

import turnwise
from turnwise.base import register
from turnwise.base.recipes import shipped_recipes
from turnwise.credit.transforms import values

SOURCE = Path(turnwise.__file__).parent
FILES = {file.relative_to(SOURCE).as_posix(): file for file in sorted(SOURCE.rglob("*.py"))}

# lower layers first; a file may import its own layer and those below
CREDIT_LAYERS = [
    "base/version.py",
    "base/errors.py",
    "base/moved.py",
    "base/imports.py",
    "base/shapes.py",
    "credit/inputs.py",
    "credit/segments.py",
    "credit/columns.py",
    "credit/batch.py",
    "credit/trace.py",
    "credit/card.py",
    "credit/metrics.py",
    "credit/options.py",
    "credit/transform.py",
    "credit/transforms/",
    "credit/methods/",
]
ALLOWED_OUTSIDE = {"numpy"}


@functools.cache
def imports(path: str) -> frozenset[str]:
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
                result.add(inner if module.startswith("turnwise") and as_file(inner) in FILES else module)
    return frozenset(result)


def layer(path: str) -> int | None:
    """Which credit layer a file belongs to."""
    return next((number for number, name in enumerate(CREDIT_LAYERS) if path == name or path.startswith(name)), None)


def as_file(module: str) -> str:
    path = module.removeprefix("turnwise").removeprefix(".").replace(".", "/")
    return f"{path}.py" if f"{path}.py" in FILES else f"{path}/__init__.py".removeprefix("/")


CREDIT_FILES = [path for path in FILES if layer(path) is not None]


def test_there_are_files_of_every_credit_layer():
    assert {layer(path) for path in CREDIT_FILES} == set(range(len(CREDIT_LAYERS)))


def imported(paths: Iterable[str]) -> list[tuple[str, str]]:
    """Pairs of a file and a module of this package that it imports."""
    return [(path, module) for path in paths for module in sorted(imports(path)) if module.split(".")[0] == "turnwise"]


def test_the_credit_core_needs_numpy_only():
    outside = {
        (path, module)
        for path in {*CREDIT_FILES, "credit/entropy.py"} - {"base/shapes.py"}
        for module in {module.split(".")[0] for module in imports(path)} - sys.stdlib_module_names
    }
    assert {(path, module) for path, module in outside if module not in {"turnwise"} | ALLOWED_OUTSIDE} == set()


def test_credit_layers_import_downwards_only():
    pairs = [(path, module, layer(path), layer(as_file(module))) for path, module in imported(CREDIT_FILES)]
    assert [(path, module) for path, module, _, other in pairs if other is None] == [], "no part of the credit core"
    assert [(path, module) for path, module, own, other in pairs if (other or 0) > (own or 0)] == [], "lies above it"


# The rest of the package, lowest first; what stands in one line may import each other, and all that is above it.
LAYERS = [
    {"base"},
    {"credit"},
    {"environments"},
    {"worlds"},
    {"models"},
    {"engines"},
    {"rollout"},
    {"objective"},
    {"measures"},
    {"config"},
    {"train"},
    {"extensions"},
    {"lab"},
    {"integrations"},
    {"commands", "__main__"},
]
BEYOND = {"worlds", "extensions"}
CORE = {"base", "credit", "environments", "models", "engines", "rollout", "objective", "measures", "config", "train"}
"""Folders that know neither an environment nor an extension; `base/register.py` names both."""


def folder(module: str) -> str:
    """The folder or file below the package that a module is in."""
    return [*module.split("."), "__init__"][1]


def height(name: str) -> int:
    found = [number for number, layer_names in enumerate(LAYERS) if name in layer_names]
    assert found, f"{name} is in no layer: give it a place in LAYERS and in the README's map"
    return found[0]


def test_layers_of_the_package_import_downwards_only():
    inner = FILES.keys() - {"__init__.py"}  # which has the public names
    assert [
        (path, module)
        for path, module in imported(inner)
        if height(folder(module)) > height(path.split("/")[0].removesuffix(".py"))
    ] == []


def test_the_core_knows_no_environment_and_no_extension():
    core = [path for path in FILES if path.split("/")[0] in CORE]
    assert [(path, module) for path, module in imported(core) if folder(module) not in CORE | {"__init__"}] == []
    named = re.compile(rf"turnwise\.({'|'.join(BEYOND)})\.\w+\.")
    told = {"base/register.py", "base/moved.py"}
    assert [path for path in core if path not in told and named.search(FILES[path].read_text())] == []


def test_an_environment_knows_only_what_environments_are():
    allowed = {"base", "credit", "environments", "worlds", "__init__"}
    own = [path for path in FILES if path.startswith("worlds/")]
    assert [(path, module) for path, module in imported(own) if folder(module) not in allowed] == []


def test_only_two_files_lie_beside_the_folders():
    assert {path for path in FILES if "/" not in path} == {"__init__.py", "__main__.py"}


ABOUT_AEM = {
    "credit/methods/aem.py",  # defines it
    "credit/methods/__init__.py",  # registers it
    "credit/compared.py",  # what pages compare, without the import of the methods
    "credit/methods/former.py",  # reads recipes that named it by a key
    "credit/methods/empg.py",  # compares itself with it
    "credit/transforms/modulation.py",  # its coefficient
    "credit/entropy.py",  # its theory, and the analyses of its paper
    "credit/analysis/drift.py",
    "credit/analysis/tables.py",
    "lab/diagnostics/dynamics.py",
    "lab/diagnostics/surprisal.py",
}
"""Files that may name AEM. To all others it is a method like any other."""


def test_a_method_is_named_only_where_it_is_defined_registered_or_documented():
    recipes = re.compile("|".join(sorted(shipped_recipes(), key=len, reverse=True)))
    page = {file.relative_to(SOURCE).as_posix(): file for file in SOURCE.glob("lab/report/page/*.js")}
    naming = {
        path
        for path, file in (FILES | page).items()
        if re.search(r"(?<![a-z])aem(?![a-z])", recipes.sub("", file.read_text()), re.IGNORECASE)
    }
    assert naming == ABOUT_AEM


def test_no_file_is_longer_than_400_lines():
    assert [path for path, file in FILES.items() if len(file.read_text().splitlines()) > 400] == []


def test_no_public_class_name_stands_in_two_files():
    homes: dict[str, list[str]] = {}
    for path, file in FILES.items():
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(path)
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}


def test_the_core_of_rollouts_is_small():
    """What one extension needs goes to that extension."""
    assert (
        sum(len(file.read_text().splitlines()) for path, file in FILES.items() if path.startswith("rollout/")) <= 3000
    )


def fresh(statement: str) -> str:
    done = subprocess.run([sys.executable, "-c", statement], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


MEASURED = sorted({f"turnwise.{place.partition(':')[0]}" for place in register.MEASURES.places.values()})
ELSEWHERE = re.compile("integrations/(trl|verl)|__main__")
"""They need the package that they are made for, or run at once."""
MODULES = [
    ".".join(("turnwise", *Path(path).with_suffix("").parts)).removesuffix(".__init__")
    for path in FILES
    if not ELSEWHERE.search(path)
]
FIRST = """
import importlib, os, sys
import torch, transformers, transformers.models.llama.modeling_llama, pyarrow, pydantic
for module in sys.argv[1:]:
    if not (child := os.fork()):
        importlib.import_module(module)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        print(module)
"""


@pytest.mark.parametrize("modules", [MEASURED, pytest.param(MODULES, marks=pytest.mark.slow)], ids=["measures", "all"])
def test_any_module_may_be_imported_first(modules):
    """Registers import by name, so that the layers above do not show what waits for what."""
    done = subprocess.run([sys.executable, "-c", FIRST, *modules], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


@pytest.mark.parametrize("use", ["", "; turnwise.METHODS"])
def test_importing_turnwise_loads_nothing_heavy(use):
    heavy = {"torch", "transformers", "tokenizers", "matplotlib", "pandas", "pydantic", "pyarrow", "scipy", "rich"}
    heavy |= {"jaxtyping", "asyncio"}
    loaded = fresh(f"import sys, turnwise{use}; print(*{{name.split('.')[0] for name in sys.modules}})").split()
    assert not heavy & set(loaded)
    assert ("numpy" in loaded) == bool(use)


def test_shapes_of_arrays_are_checked_in_tests():
    with pytest.raises(jaxtyping.TypeCheckError):
        values.td_errors_to_end(np.ones(2), np.ones(3), turnwise.Segments.from_lengths([2]), 1.0, 1.0)


@pytest.mark.parametrize(("use", "limit"), [("", 0.2), ("; turnwise.METHODS", 0.4)])
def test_importing_turnwise_is_quick(use, limit):
    # processor time, which other processes on the machine do not use up; the best of five, since they share its caches
    statement = f"import time; start = time.process_time(); import turnwise{use}; print(time.process_time() - start)"
    assert min(float(fresh(statement)) for _ in range(5)) < limit


def names_for_type_checkers() -> dict[str, str]:
    """What `turnwise/__init__.py` tells a type checker: name to module."""
    statements = ast.parse(FILES["__init__.py"].read_text()).body
    (checked,) = (node for node in statements if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    imported = [(alias.name, str(node.module)) for node in checked.body for alias in getattr(node, "names", ())]
    whole = [module for name, module in imported if name == "*"]
    return {name: module for name, module in imported if name != "*"} | {
        name: module for module in whole for name in importlib.import_module(module).__all__
    }


def test_every_public_name_is_found_where_a_type_checker_finds_it():
    told = names_for_type_checkers()
    assert sorted(told) == sorted(turnwise.__all__)
    for name, module in told.items():
        assert getattr(turnwise, name) is getattr(importlib.import_module(module), name), name


@pytest.mark.parametrize(
    "statement",
    [
        "from turnwise import grpo; print(grpo().name)",
        "import turnwise as tw; print(tw.grpo().name)",
        "import turnwise as tw; print(tw.METHODS['grpo']().name)",
        "import turnwise as tw; print(tw.methods.grpo().name)",
        "from turnwise import methods; print(methods.grpo().name)",
        "from turnwise import *; print(grpo().name)",
        "import turnwise as tw; assert {'grpo', 'METHODS', 'Batch', 'methods'} <= set(dir(tw)); print('grpo')",
        "import inspect, turnwise as tw; print(dict(inspect.getmembers(tw))['grpo']().name)",
    ],
)
def test_names_that_are_imported_on_first_use_are_there(statement):
    assert fresh(statement).startswith("grpo")


def test_a_misspelt_name_is_an_error_with_what_python_needs_for_a_suggestion():
    with pytest.raises(AttributeError, match="module 'turnwise' has no attribute 'grop'") as raised:
        turnwise.grop  # noqa: B018
    assert (raised.value.name, raised.value.obj) == ("grop", turnwise)
    assert not hasattr(turnwise, "numpy")
    with pytest.raises(ImportError, match="cannot import name 'grop'"):
        exec("from turnwise import grop")
