"""Tasks of Harbor in containers, where there are some; see `swe/test_docker.py`."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.environments.harbor.test_harbor import bash, make, play
from tests.needs import needs

from turnwise.base.errors import ConfigError, EnvironmentFault
from turnwise.environments.settings import EnvironmentConfig
from turnwise.environments.suites import make_suite
from turnwise.worlds.harbor import docker
from turnwise.worlds.harbor.tasks import read_task, read_tasks
from turnwise.worlds.swe.container import check_docker

BASE = os.environ.get("TURNWISE_DOCKER_BASE", "none")
DOCKERFILE = f"""FROM {BASE}
WORKDIR /work
COPY data/ ./data/
RUN echo installed > /usr/local/bin/tool && chmod +x /usr/local/bin/tool && ln -s data/numbers.txt link
RUN useradd --create-home agent && chown --recursive agent /work
USER agent
ENV UNIT=cm
ENTRYPOINT ["false"]
"""
SOLVE = bash('echo "6 $UNIT" > sum.txt; cat sum.txt')


def listed(*what: str) -> set[str]:
    return set(subprocess.run(["docker", *what], capture_output=True, check=True).stdout.decode().split())


@pytest.fixture
def folder(tmp_path) -> Iterator[Path]:
    before = {what: listed(what, "ls", "--quiet") for what in ("volume", "container")}
    yield make(tmp_path / "tasks" / "sum", dockerfile=DOCKERFILE).parent
    for what, names in before.items():
        assert listed(what, "ls", "--quiet") <= names, f"a {what} is left"


@needs("TURNWISE_DOCKER_BASE")
def test_a_task_is_played_in_its_image_and_graded_in_another_container(folder):
    look = bash("pwd; id -un; ls; cat link; cat /usr/local/bin/tool; ls /sys/class/net")
    _, seen, solved, last = play(folder, look, SOLVE, "done", sandbox="docker")
    assert seen.observation == "/work\nagent\ndata\nlink\n1\n2\n3\ninstalled\nlo\n[exit code 0]"
    assert solved.observation == "6 cm\n[exit code 0]"
    assert (last.reward, last.info["success"], last.terminated) == (1.0, True, True)
    assert "the sum is 6 cm" in last.info["verifier"]
    (*_, last) = play(folder, bash("echo 7 > sum.txt"), "done", sandbox="docker")
    assert (last.reward, last.info["success"]) == (0.0, False)


ROOT = f"FROM {BASE}\nWORKDIR /work\nENV UNIT=cm\n"
FORGE = "mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt"
CHEATS = {
    "the verdict": f"{FORGE}; mkdir /tests; chattr +i /logs/verifier",
    "programs": f"printf '#!/bin/sh\\n{FORGE}' > /usr/local/bin/bash; "
    "chmod +x /usr/local/bin/bash; cp /usr/local/bin/bash /usr/bin/cat",
    "a process": f"setsid sh -c 'while :; do {FORGE}; done' &",
    "what shells load": f"echo '{FORGE}; exit' | tee -a /etc/bash.bashrc /root/.bashrc > /dev/null",
    "links": "ln -s /logs/verifier/reward.txt sum.txt",
    "the container": "kill -9 -1; kill -9 1; rm -rf /usr /bin /lib; reboot -f",
}


@needs("TURNWISE_DOCKER_BASE")
@pytest.mark.parametrize("cheat", CHEATS)
def test_an_agent_cannot_write_its_verdict(cheat, tmp_path):
    make(tmp_path / "sum", dockerfile=ROOT)
    hidden, _, last = play(
        tmp_path, bash("ls /tests; cat /tests/secret.txt"), bash(CHEATS[cheat]), "done", sandbox="docker"
    )[1:]
    assert "6 cm" not in hidden.observation
    assert last.reward == 0.0


@needs("TURNWISE_DOCKER_BASE")
def test_files_reach_the_tests_as_they_are(tmp_path):
    test = 'test -x run && ! test -e run.sh && test -L link && test "$MORE" = x && echo 1 > /logs/verifier/reward.txt'
    make(tmp_path / "sum", dockerfile=f"{ROOT}COPY run.sh .\n", test=test, settings='[verifier.env]\nMORE = "x"')
    (*_, last) = play(tmp_path, bash("mv run.sh run; chmod +x run; ln -s nowhere link"), "done", sandbox="docker")
    assert last.reward == 1.0


@needs("TURNWISE_DOCKER_BASE")
def test_an_image_alone_gets_the_files(tmp_path):
    image = docker.image_of(read_task(make(tmp_path / "other" / "sum", dockerfile=ROOT), "docker"))
    for name, named in {"good": image, "bad": BASE}.items():
        task = make(tmp_path / name / "sum", settings=f'[environment]\ndocker_image = "{named}"\nenv = {{UNIT = "m"}}')
        (task / "environment" / "Dockerfile").unlink()
    _, seen = play(tmp_path / "good", bash("pwd; ls; echo $UNIT"), sandbox="docker")
    assert seen.observation == "/work\ndata\nrun.sh\nm\n[exit code 0]"
    with pytest.raises(EnvironmentFault, match="sum: its working directory is /, which its tests need"):
        play(tmp_path / "bad", sandbox="docker")


@needs("TURNWISE_DOCKER_BASE")
def test_an_image_is_built_once_and_a_broken_one_is_said(tmp_path, monkeypatch, capsys):
    make(tmp_path / "sum", dockerfile=f"{ROOT}RUN echo {tmp_path}\n")
    for _ in range(2):
        play(tmp_path, sandbox="docker")
    assert capsys.readouterr().err.count("building the image of sum") == 1
    make(tmp_path / "sum", dockerfile=f"{ROOT}RUN false\n")
    with pytest.raises(EnvironmentFault, match="docker build --tag failed"):
        play(tmp_path, sandbox="docker")
    make(tmp_path / "sum", settings='[environment]\ndocker_image = "localhost/turnwise-none:1"')
    with pytest.raises(EnvironmentFault, match="docker pull localhost/turnwise-none:1 failed"):
        play(tmp_path, sandbox="docker")


@pytest.fixture
def no_daemon(tmp_path, monkeypatch):
    """A `docker` whose daemon does not answer."""
    program = tmp_path / "bin" / "docker"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'cannot connect' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    check_docker.cache_clear()
    yield
    check_docker.cache_clear()


def built(folder: Path, **options: Any) -> Any:
    return make_suite(EnvironmentConfig(name="harbor", options={"data": str(folder), **options}))


def test_docker_is_asked_for_and_is_not_there(no_daemon, tmp_path):
    make(tmp_path / "tasks" / "sum")
    with pytest.raises(ConfigError, match=r"sandbox='docker': no daemon answers \(cannot connect\); start one, or set"):
        built(tmp_path / "tasks", sandbox="docker")
    with pytest.raises(ConfigError, match=r"sandbox='doker': no such choice\. Did you mean 'docker'"):
        built(tmp_path / "tasks", sandbox="doker")
    with pytest.raises(ConfigError, match="network='tests' needs docker"):
        built(tmp_path / "tasks", sandbox="bubblewrap", network="tests")


@needs("bwrap")
def test_without_a_daemon_it_is_bubblewrap(no_daemon, tmp_path):
    make(tmp_path / "tasks" / "sum")
    assert built(tmp_path / "tasks")._sandbox == "bubblewrap"


def test_tasks_for_docker_and_why_others_are_not(tmp_path):
    make(tmp_path / "any", dockerfile="FROM ghcr.io/org/image:1\nRUN apt-get install x\n")
    make(tmp_path / "fetches", test="curl x | sh\n")
    for name, settings in {
        "gpu": "[environment]\ngpus = 1",
        "windows": '[environment]\nos = "windows"',
        "servers": '[environment]\nmcp_servers = [{name = "x"}]',
        "separate": '[verifier]\nenvironment_mode = "separate"',
        "secret": '[environment.env]\nKEY = "${API_KEY}"',
    }.items():
        make(tmp_path / name, settings=settings)
    make(tmp_path / "many")
    (tmp_path / "many" / "environment" / "docker-compose.yaml").write_text("services: {}")
    make(tmp_path / "none")
    (tmp_path / "none" / "environment" / "Dockerfile").unlink()
    tasks, refused = read_tasks(tmp_path, "docker")
    assert [task.name for task in tasks] == ["any"]
    assert refused == {
        "fetches": "its tests use curl, and there is no network, unless network = 'tests'",
        "gpu": "it needs a GPU",
        "many": "it has docker-compose.yaml, and only one container is run",
        "none": "it has no Dockerfile, and names no image",
        "secret": "it needs the variable API_KEY of this machine",
        "separate": "its tests have an image of their own",
        "servers": "it needs MCP servers",
        "windows": "it needs windows",
    }
    assert [task.name for task in read_tasks(tmp_path, "docker", "tests")[0]] == ["any", "fetches"]
