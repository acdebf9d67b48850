"""What an environment in a worker can read and write of the trainer and of the machine, by level of isolation."""

import asyncio
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from turnwise.environments.base import Step
from turnwise.environments.isolation import clean_variables
from turnwise.environments.settings import EnvironmentConfig
from turnwise.environments.suites import make_suite
from turnwise.errors import ConfigError, EnvironmentFault
from turnwise.rollout.workers import WorkerEnvironments, make_environments

SECRET = "sentinel-5d41402abc4b2a76"
LEVELS = ["worker", "bubblewrap", "bubblewrap-offline"]


class Curious:
    """Evaluates what it is asked."""

    def __init__(self, seed: int):
        self.seed = seed

    def start(self) -> str:
        return "ask"

    def step(self, response: str) -> Step:
        try:
            return Step(observation=repr(eval(response)))
        except Exception as error:
            return Step(observation=f"{type(error).__name__}: {error}")


@pytest.fixture(params=LEVELS)
def level(request) -> str:
    if request.param != "worker" and not shutil.which("bwrap"):
        pytest.skip("no bubblewrap")
    return request.param


def ask(level: str, *questions: str, pass_variables=()) -> list[str]:
    environments = WorkerEnvironments(Curious, workers=1, isolation=level, pass_variables=pass_variables)

    async def play() -> list[str]:
        await environments.start(0, 0)
        answers = [(await environments.step(0, question)).observation for question in questions]
        await environments.aclose()
        return answers

    try:
        return asyncio.run(play())
    except EnvironmentFault:
        pytest.fail("the worker did not survive")


def test_a_worker_does_not_inherit_secrets(level, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", SECRET)
    own, of_process, variables = ask(
        level,
        "dict(__import__('os').environ)",
        "open('/proc/self/environ').read()",
        "[open(f'/proc/{p}/environ').read() for p in (__import__('os').getpid(), __import__('os').getppid())]",
    )
    assert "PATH" in own
    for answer in (own, of_process, variables):
        assert SECRET not in answer
    (passed,) = ask(level, "__import__('os').environ['WANDB_API_KEY']", pass_variables=["WANDB_API_KEY"])
    assert passed == repr(SECRET)


def test_names_that_are_passed_are_few_and_known():
    given = dict.fromkeys(
        [
            "HF_TOKEN",
            "WANDB_API_KEY",
            "AWS_SECRET_ACCESS_KEY",
            "PYTHONPATH",
            "SWE_DATA",
            "LC_ALL",
            "HOME",
            "HTTP_PROXY",
        ],
        "x",
    )
    assert set(clean_variables(given=given)) == {"PYTHONPATH", "SWE_DATA", "LC_ALL", "HOME"}


def test_bubblewrap_hides_processes_files_and_network(level, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    with socket.create_server(("127.0.0.1", 0)) as server:
        read, wrote, pids, sysctl, connected = ask(
            level,
            f"open({str(secret)!r}).read()",
            f"open({str(Path(__file__).with_name('written-by-a-worker'))!r}, 'w')",
            f"__import__('os').path.exists('/proc/{os.getpid()}/stat') "
            f"and __import__('os').readlink('/proc/{os.getpid()}/exe')",
            "open('/proc/sys/kernel/core_pattern', 'w')",
            f"__import__('socket').create_connection(('127.0.0.1', {server.getsockname()[1]}), 1)",
        )
    Path(__file__).with_name("written-by-a-worker").unlink(missing_ok=True)
    if level == "worker":
        assert SECRET in read
        return
    assert read.startswith("FileNotFoundError")
    assert wrote.startswith("OSError: [Errno 30]")
    assert pids in ("False", repr("")) or os.path.realpath(sys.executable) not in pids
    assert sysctl.startswith(("OSError: [Errno 30]", "PermissionError"))
    assert connected.startswith("<socket") == (level == "bubblewrap")


PARENT = """
import os, sys
os.environ["SECRET_TOKEN"] = "{secret}"
os.execve(sys.executable, [sys.executable, "-c", '''
import subprocess, sys
from turnwise.environments.isolation import hide_this_process
if "hide" in sys.argv:
    hide_this_process()
child = subprocess.run(["cat", "/proc/" + str(__import__("os").getpid()) + "/environ"], capture_output=True, env={{}})
print("SECRET_TOKEN" in child.stdout.decode(), child.returncode, __import__("os").getuid())
''', *sys.argv[1:]], os.environ)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux only")
@pytest.mark.parametrize("how", ["hide", "show"])
def test_a_trainer_that_is_hidden_shows_its_environment_to_nobody_but_root(how, tmp_path):
    source = Path(shutil.copytree(Path(__file__).parents[2] / "src", tmp_path / "src"))
    for place in (tmp_path, *tmp_path.parents):
        place.chmod(0o755)
        if place.name.startswith("pytest-of-"):  # above it are folders of the machine
            break
    user: Any = {"user": 65534, "group": 65534} if os.getuid() == 0 else {}
    for python in (os.path.realpath(sys.executable), "/usr/bin/python3"):  # the first may be in a folder of root's
        try:
            done = subprocess.run(
                [python, "-c", PARENT.format(secret=SECRET), how],
                env={"PYTHONPATH": str(source)},
                capture_output=True,
                text=True,
                cwd="/",
                check=False,
                **user,
            )
            break
        except (PermissionError, FileNotFoundError):
            continue
    else:
        pytest.skip("no Python that another user can run")
    assert done.stdout.split()[:2] == [str(how == "show"), "0" if how == "show" else "1"], done.stderr


def test_isolation_needs_workers():
    config = EnvironmentConfig(name="tests.toys:Colors", isolation="bubblewrap")
    with pytest.raises(ConfigError, match=r"isolation='bubblewrap' isolates workers, and environment.workers=0; set"):
        make_environments(make_suite(config), config)


def test_a_machine_without_bubblewrap_is_told_what_to_install(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    config = EnvironmentConfig(name="tests.toys:Colors", isolation="bubblewrap", workers=1)
    with pytest.raises(ConfigError, match="needs the program 'bwrap', which is not on the PATH; install your system's"):
        make_environments(make_suite(config), config)
