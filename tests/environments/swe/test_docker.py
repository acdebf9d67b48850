"""The commands for docker, against a stand-in that carries them out here, and against containers where there are some.

    TURNWISE_DOCKER_BASE=debian:bookworm pytest tests/environments/swe/test_docker.py

`docker` may be podman; the image needs bash, coreutils, findutils, procfs' tools and Python.
"""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.environments.swe.conftest import suite, task
from tests.needs import needs

from turnwise.base.errors import ConfigError, DataError, EnvironmentFault
from turnwise.worlds.swe import container, docker
from turnwise.worlds.swe.container import check_docker
from turnwise.worlds.swe.docker import DockerWorkspace, image_of
from turnwise.worlds.swe.workspace import Limits

STAND_IN = """#!/bin/sh
echo "$@" >> {log}
case "$1" in
  info) echo "cannot connect to the daemon" >&2; exit {info};;
  run) echo container-1;;
  kill|rm) ;;
  exec) shift
    while :; do case "$1" in --workdir) cd "$2"; shift 2;; --*) shift;; *) break;; esac; done
    shift
    case "$*" in *"kill -9 -1"*) exit 0;; esac
    exec "$@";;
esac
"""


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """A `docker` that runs commands on a folder of this machine; returns its log."""
    root = tmp_path / "testbed"
    (root / ".git").mkdir(parents=True)
    (root / "a.txt").write_text("a\n")
    (root / "b.txt").write_text("b\n")
    log = tmp_path / "log"
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "docker"
    program.write_text(STAND_IN.format(log=log, info=1))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    prepare = f"rm -rf {root}/.git"
    monkeypatch.setattr(docker, "ROOT", str(root))
    monkeypatch.setattr(docker, "_PREPARE", prepare)
    return log


def test_a_container_is_begun_used_and_removed(stand_in, tmp_path):
    workspace = DockerWorkspace("image:1", Limits(memory_mb=100, processes=9, seconds=5))
    assert not (tmp_path / "testbed/.git").exists()
    outcome = workspace.run("rm a.txt; echo x > 'c d.txt'; ln -s c l; cat; exit 3", stdin=b"in")
    assert (outcome.code, outcome.output, outcome.stopped_by) == (3, b"in", "")
    assert workspace.run("sleep 30", seconds=0.3).stopped_by == "time"
    assert workspace.changes() == {"a.txt": None, "c d.txt": b"x\n"}
    workspace.close()
    said = stand_in.read_text().splitlines()
    assert said[0].startswith("run --detach --rm --memory=100m --memory-swap=100m --pids-limit=9 --cap-drop=ALL")
    given = f"--security-opt=no-new-privileges --network=none --entrypoint=bash image:1 -c {container.FIRST}"
    assert said[0].endswith(given)
    assert said[-1] == "rm --force --volumes container-1"


def test_the_first_process_outlives_what_ends_a_command():
    """In a process namespace like a container's, leftover processes are killed and reaped; the container survives."""
    namespace = ["unshare", "--fork", "--pid", "--mount-proc", "--kill-child"]
    if subprocess.run([*namespace, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs the right to make process namespaces")
    first = subprocess.Popen([*namespace, "bash", "-c", container.FIRST])
    try:
        children = Path(f"/proc/{first.pid}/task/{first.pid}/children")
        wait_for(lambda: children.read_text().split())
        within = ["nsenter", "--target", children.read_text().split()[0], "--pid", "--mount", "sh", "-c"]
        many = "i=0; while [ $i -lt 200 ]; do setsid sleep 1000 & i=$((i+1)); done; sleep 0.2"
        subprocess.run([*within, many], check=False)

        def running() -> str:
            told = subprocess.run([*within, "cat /proc/[0-9]*/cmdline"], capture_output=True, check=False).stdout
            return told.replace(b"\0", b" ").decode()

        assert running().count("sleep 1000") == 200
        begun = time.monotonic()
        subprocess.run([*within, container.END], check=True)
        assert "sleep 1000" not in running()
        assert time.monotonic() - begun < 15  # it waits for what it killed, not for the end of its patience
        wait_for(lambda: "sleep 3600" in running())  # its own sleep was killed, too
        states = subprocess.run([*within, "cat /proc/[0-9]*/stat"], capture_output=True, check=True).stdout.decode()
        assert ") Z " not in states
        assert first.poll() is None
    finally:
        first.kill()
        first.wait()


def wait_for(condition: Callable[[], object], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_silent_daemon_is_said(stand_in, data):
    check_docker.cache_clear()
    with pytest.raises(ConfigError, match=r"no daemon answers \(cannot connect to the daemon\); start one"):
        suite(data, sandbox="docker").session(task())


def test_what_docker_refuses_is_a_fault(stand_in):
    with pytest.raises(EnvironmentFault, match=r"docker exec .*failed"):
        container.docker("exec", "container-1", "sh", "-c", "exit 1")
    assert subprocess.run(["docker", "rm"], check=False).returncode == 0
    assert Path(stand_in).exists()


def test_images():
    assert image_of(task(docker_image="own")) == "own"
    assert image_of(task(instance_id="psf__requests-1")) == "swebench/sweb.eval.x86_64.psf_1776_requests-1:latest"
    with pytest.raises(DataError, match="has no docker_image"):
        image_of(task(instance_id="x"))


@pytest.fixture(scope="module")
def image() -> Iterator[str]:
    """An image with a repository, made of one that the machine has."""
    name, tag = f"turnwise-test-{os.getpid()}", f"localhost/turnwise-test:{os.getpid()}"
    files = "mkdir -p /testbed/.git /r2e_tests && echo a > /testbed/a.txt && echo b > /testbed/b.txt"
    for command in (
        ["run", "--name", name, os.environ["TURNWISE_DOCKER_BASE"], "sh", "-c", files],
        ["commit", name, tag],
        ["rm", name],
    ):
        subprocess.run(["docker", *command], check=True, capture_output=True)
    yield tag
    subprocess.run(["docker", "rmi", "--force", tag], check=True, capture_output=True)


@needs("TURNWISE_DOCKER_BASE")
def test_a_real_container_is_bounded_cut_off_and_removed(image):
    check_docker()
    workspace = DockerWorkspace(image, Limits(memory_mb=200, processes=60, seconds=5))
    outcome = workspace.run("ls -A; rm a.txt; echo x > 'c d.txt'; ln -s c l; cat; exit 3", stdin=b"in")
    assert (outcome.code, outcome.output, outcome.stopped_by) == (3, b"a.txt\nb.txt\nin", "")
    assert workspace.changes() == {"a.txt": None, "c d.txt": b"x\n"}
    assert workspace.run("sleep 30", seconds=0.5).stopped_by == "time"
    workspace.run("setsid sleep 1234 &")
    assert b"sleep 1234" not in workspace.run("cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | sed 's/cat .*//'").output
    assert workspace.run("python3 -c 'bytearray(400 * 2**20)' || exit 7").code == 7
    forked = workspace.run("for i in $(seq 100); do sleep 9 & done; echo all", seconds=3)
    assert (b"all" in forked.output, b"fork" in forked.output) == (False, True)
    assert workspace.run("ls /sys/class/net").output == b"lo\n"
    assert workspace.run("test -e /r2e_tests").code == 1
    name = workspace._container.name
    workspace.close()
    left = subprocess.run(["docker", "ps", "--all", "--quiet", "--no-trunc"], capture_output=True, check=True).stdout
    assert name not in left.decode()
