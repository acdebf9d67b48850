"""Task folders of Harbor are played in bubblewrap, and graded by their own tests; the rest is skipped, with reasons."""

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.needs import needs

from turnwise.base.errors import ConfigError, EnvironmentFault
from turnwise.commands.cli import main
from turnwise.environments.base import Step
from turnwise.environments.settings import EnvironmentConfig
from turnwise.environments.suites import make_suite
from turnwise.environments.tamper_apart import tamper
from turnwise.worlds.harbor import suite
from turnwise.worlds.harbor.bubblewrap import laid_out
from turnwise.worlds.harbor.environment import HarborEnvironment, _number
from turnwise.worlds.harbor.tasks import read_task, read_tasks
from turnwise.worlds.swe.workspace import CommandResult

DOCKERFILE = r"""FROM python:3.12-slim
# the numbers
WORKDIR /app
COPY data/ \
  ./data/
COPY run.sh .
ENV UNIT=cm
CMD ["bash"]
"""
TEST = """
out=$(cat sum.txt 2> /dev/null)
if [ "$out" = "6 cm" ]; then echo 1 > /logs/verifier/reward.txt; else echo 0 > /logs/verifier/reward.txt; fi
echo "the sum is $out"
"""


def make(folder: Path, *, dockerfile: str = DOCKERFILE, test: str = TEST, settings: str = "") -> Path:
    for name, text in {
        "task.toml": f'version = "1.0"\n[metadata]\ndifficulty = "easy"\n{settings}',
        "instruction.md": "Write the sum of data/numbers.txt with its unit to sum.txt.",
        "environment/Dockerfile": dockerfile,
        "environment/data/numbers.txt": "1\n2\n3\n",
        "environment/run.sh": "echo run",
        "tests/test.sh": test,
        "tests/secret.txt": "6 cm",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def bash(command: str) -> str:
    return f"<tool_call>{json.dumps({'name': 'bash', 'arguments': {'command': command}})}</tool_call>"


def play(data: Path, *responses: str, max_steps: int = 6, sandbox: str = "bubblewrap", **options: Any) -> list[Step]:
    given = {"data": str(data), "sandbox": sandbox, **options}
    config = EnvironmentConfig(name="harbor", max_steps=max_steps, options=given)

    async def played() -> list[Step]:
        suite = make_suite(config)
        environment: Any = suite.environment(suite.tasks("all")[0])
        steps = [await environment.start()]
        for response in responses:
            steps.append(await environment.step(response))
        return steps

    return asyncio.run(played())


SOLVE = bash('echo "$(paste -sd+ data/numbers.txt | bc 2> /dev/null || echo 6) $UNIT" > sum.txt; cat sum.txt')


@needs("bwrap")
def test_a_task_is_played_and_graded_by_its_tests(tmp_path):
    make(tmp_path / "sum")
    first, look, solved, last = play(tmp_path, bash("pwd; ls; sh run.sh"), SOLVE, "done")
    assert first.observation.endswith("Write the sum of data/numbers.txt with its unit to sum.txt.")
    assert look.observation == "/app\ndata\nrun.sh\nrun\n[exit code 0]"
    assert solved.observation == "6 cm\n[exit code 0]"
    assert (last.reward, last.info["success"], last.terminated) == (1.0, True, True)
    assert "the sum is 6 cm" in last.info["verifier"]
    (*_, last) = play(tmp_path, bash("echo 7 > sum.txt"), "done")
    assert (last.reward, last.info["success"]) == (0.0, False)


@needs("bwrap")
def test_the_agent_sees_no_tests_and_cannot_write_its_verdict(tmp_path):
    make(tmp_path / "sum")
    cheat = (
        "mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt; (sleep 1; echo 1 > /logs/verifier/reward.txt) &"
    )
    _, hidden, _, last = play(tmp_path, bash("ls /tests; cat /tests/secret.txt"), bash(cheat), "done")
    assert "6 cm" not in hidden.observation
    assert last.reward == 0.0
    _, *_, last = play(tmp_path, bash("touch /tests/test.sh; ln -s /app/mine /logs/verifier; mkdir mine"), "done")
    assert last.reward == 0.0


@needs("bwrap")
def test_the_files_of_a_task_are_read_once(tmp_path, monkeypatch):
    for name in ("sum", "other"):
        make(tmp_path / name)
    laid: list[str] = []
    lay_out = suite.laid_out
    monkeypatch.setattr(suite, "laid_out", lambda task: laid.append(task.name) or lay_out(task))
    given = {"data": str(tmp_path), "sandbox": "bubblewrap"}
    tasks: Any = make_suite(EnvironmentConfig(name="harbor", options=given))
    for name in ("sum", "other", "sum", "sum"):
        asyncio.run(tasks.environment(name).start())
    assert laid == ["sum", "other"]
    shutil.rmtree(tasks._snapshots["sum"])  # somebody cleans the cache
    asyncio.run(tasks.environment("sum").start())
    assert tasks._snapshots["sum"].is_dir()


@needs("bwrap")
def test_a_link_of_a_task_shows_nothing_of_the_machine(tmp_path):
    make(tmp_path / "sum")
    (tmp_path / "mine.txt").write_text("the machine's")
    (tmp_path / "sum" / "environment" / "data" / "link").symlink_to(tmp_path / "mine.txt")
    _, seen = play(tmp_path, bash("cat data/link"))
    assert "the machine's" not in seen.observation


@needs("bwrap")
def test_turns_end_and_other_responses_are_invalid(tmp_path):
    make(tmp_path / "sum", test="exit 3", settings="[verifier]\ntimeout_sec = 20")
    _, wrong, slow = play(tmp_path, "<tool_call>{</tool_call>", bash("sleep 60"), max_steps=2, command_s=0.5)
    assert (wrong.valid, wrong.observation) == (False, "Expected a call of bash with a command.")
    assert "[stopped: time]" in slow.observation
    assert (slow.truncated, slow.reward) == (True, 0.0)
    assert slow.info["verifier"].startswith("the tests wrote no reward: [exit code 3]")


@needs("bwrap")
def test_check_env_and_attacks(tmp_path, capsys):
    make(tmp_path / "sum")
    options = {"data": str(tmp_path), "sandbox": "bubblewrap"}
    given = [f"environment.options.{name}={json.dumps(value)}" for name, value in options.items()]
    settings = ["environment.train_split=all", "environment.max_steps=4"]
    assert main(["check-env", "harbor", *given, *settings]) == 0, capsys.readouterr().out
    config = EnvironmentConfig(name="harbor", train_split="all", max_steps=4, options=options)
    assert [finding for finding in tamper(config) if finding.succeeded] == []


@needs("bwrap")
@pytest.mark.parametrize("command", ["echo \0", "echo \ud800", "x" * 200_000], ids=["zero byte", "surrogate", "long"])
def test_what_is_no_command_is_invalid(command, tmp_path):
    make(tmp_path / "sum")
    _, first, _, last = play(tmp_path, bash(command), bash("echo 6 cm > sum.txt"), "done")
    assert (first.valid, first.terminated) == (False, False)
    assert last.reward == 1.0


class Lost:
    """A sandbox that its agent's commands end."""

    closed = False

    def run(self, command: str, *, output_chars: int) -> CommandResult:
        if command == "end":
            raise EnvironmentFault("docker exec failed")
        return CommandResult(code=0, output=b"")

    def test(self, *, output_chars: int) -> tuple[CommandResult, dict[str, bytes]]:
        raise EnvironmentFault("docker run failed")

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("responses", [[bash("end")], [bash("ls"), "done"]])
def test_an_agent_that_ends_its_sandbox_earns_nothing(responses):
    sandbox = Lost()
    environment = HarborEnvironment("Do it.", lambda: sandbox, max_steps=5, output_chars=100)

    async def last() -> Step:
        step = await environment.start()
        for response in responses:
            step = await environment.step(response)
        return step

    step = asyncio.run(last())
    assert (step.reward, step.terminated, sandbox.closed) == (0.0, True, True)
    assert step.info["verifier"].startswith("the sandbox is lost: docker")


REFUSED = {
    "a program is installed": (
        "FROM ubuntu:24.04\nWORKDIR /app\nRUN apt-get install x\n",
        TEST,
        "'RUN apt-get install x'",
    ),
    "another base": (
        "FROM ghcr.io/org/image:1\nWORKDIR /app\n",
        TEST,
        "begins from ghcr.io/org/image:1, which needs docker",
    ),
    "no working directory": ("FROM ubuntu\n", TEST, "its working directory is /"),
    "one of the system": ("FROM ubuntu\nWORKDIR /usr/src\n", TEST, "its working directory is /usr/src"),
    "files elsewhere": ("FROM ubuntu\nWORKDIR /app\nCOPY run.sh /opt/run.sh\n", TEST, "to /opt/run.sh, outside /app"),
    "files that are not there": ("FROM ubuntu\nWORKDIR /app\nCOPY gone .\n", TEST, "it copies gone, which"),
    "files from outside": ("FROM ubuntu\nWORKDIR /app\nCOPY ../tests/secret.txt .\n", TEST, "it copies ../tests"),
    "another stage": ("FROM ubuntu\nWORKDIR /app\nCOPY --from=x a b\n", TEST, "which needs docker"),
    "a user": ("FROM ubuntu\nWORKDIR /app\nUSER me\n", TEST, "'USER me'"),
    "up and out": ("FROM ubuntu\nWORKDIR /app\nCOPY run.sh ../../../home/me/.profile\n", TEST, "to /home/me/.profile"),
    "up and out in a path": (
        "FROM ubuntu\nWORKDIR /app\nCOPY run.sh /app/../etc/x\n",
        TEST,
        "it copies files to /etc/x",
    ),
    "up to the system": ("FROM ubuntu\nWORKDIR /app/../usr\n", TEST, "its working directory is /usr"),
    "tests that fetch": (DOCKERFILE, "uvx pytest\n", "its tests use uvx, and there is no network"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_task_that_needs_more_is_refused_with_its_reason(case, tmp_path):
    dockerfile, test, said = REFUSED[case]
    make(tmp_path / "good")
    make(tmp_path / "bad", dockerfile=dockerfile, test=test)
    tasks, refused = read_tasks(tmp_path)
    assert [task.name for task in tasks] == ["good"]
    assert said in refused["bad"]


@pytest.mark.parametrize("sandbox", ["bubblewrap", "docker"])
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ('workdir = "/w,type=bind,source=/home"', "its working directory is '/w,type=bind"),
        ('workdir = "app"', "its working directory is 'app', expected a path such as /app"),
        ('workdir = "/a\\u0000b"', "its working directory is '/a"),
        ('docker_image = "--quiet"', "docker_image is '--quiet', expected the name of an image"),
        ('env = {A = "x\\u0000--bind\\u0000/home\\u0000/host"}', "its variable 'A' has a zero character"),
    ],
)
def test_no_setting_of_a_task_becomes_an_option(sandbox, settings, said, tmp_path):
    make(tmp_path / "bad", settings=f"[environment]\n{settings}\n")
    tasks, refused = read_tasks(tmp_path, sandbox)
    assert (tasks, list(refused)) == ([], ["bad"])
    assert said in refused["bad"]


@pytest.mark.parametrize("part", ["instruction.md", "tests", "environment"])
def test_no_part_of_a_task_is_elsewhere(part, tmp_path):
    folder, away = make(tmp_path / "tasks" / "bad"), tmp_path / "away"
    (folder / part).rename(away)
    (folder / part).symlink_to(away)
    assert read_tasks(tmp_path / "tasks")[1] == {"bad": f"its {part} is a link out of the folder"}


@pytest.mark.parametrize("dockerfile", ["COPY links .\nCOPY data/numbers.txt out/\n", "COPY links .\nCOPY data out\n",
                                        "COPY links .\nCOPY data/numbers.txt file\n"])  # fmt: skip
def test_no_copy_follows_a_link_that_the_task_has_copied(dockerfile, tmp_path):
    away = tmp_path / "away"
    away.mkdir()
    (away / "file").write_text("mine")
    folder = make(tmp_path / "bad", dockerfile=f"FROM ubuntu\nWORKDIR /app\n{dockerfile}")
    links = folder / "environment" / "links"
    links.mkdir()
    (links / "out").symlink_to(away)
    (links / "file").symlink_to(away / "file")
    with pytest.raises(EnvironmentFault, match=r"bad: its image copies over the link (out|file)"):
        laid_out(read_task(folder))
    assert [(each.name, each.read_text()) for each in away.iterdir()] == [("file", "mine")]


def test_files_are_copied_as_docker_does(tmp_path):
    task = read_task(make(tmp_path / "sum"))
    environment = tmp_path / "sum" / "environment"
    assert task.copied == ((environment / "data", "/app/data"), (environment / "run.sh", "/app/run.sh"))
    assert (task.root, task.variables, task.test_s) == ("/app", (("UNIT", "cm"),), 600.0)


def test_settings_of_a_task_are_read(tmp_path):
    settings = '[environment]\nworkdir = "/data"\nenv = {A = "${HOME:-there}", B = "2"}'
    folder = make(tmp_path / "sum", dockerfile="FROM ubuntu\n", settings=settings)
    (folder / "instruction.md").write_text("<!-- a CANARY -->\n# canary 7\n\n# Sum\nAdd the canary.\n")
    task = read_task(folder)
    assert (task.root, task.instruction) == ("/data", "# Sum\nAdd the canary.\n")
    assert task.variables == (("A", "there"), ("B", "2"))


def test_a_folder_without_tasks_is_said(tmp_path):
    with pytest.raises(ConfigError, match=r"no task that can be played here: no folder with task\.toml"):
        play(tmp_path)
    make(tmp_path / "bad", dockerfile="FROM x\n")
    (tmp_path / "worse").mkdir()
    (tmp_path / "worse" / "task.toml").write_text("")
    with pytest.raises(ConfigError, match=r"bad: its image begins from x.*; worse: it has no instruction\.md"):
        play(tmp_path)


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        (b"1\n", 1.0),
        (b'{"reward": 0.5}', 0.5),
        (b'{"f1": 0.25}', 0.25),
        (b'{"passed": 3, "failed": 1}', None),
        (b"nan", None),
        (b"", None),
    ],
)
def test_rewards_are_read(text, reward):
    assert _number(text) == reward
