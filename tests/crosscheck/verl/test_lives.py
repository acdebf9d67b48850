"""verl's real trainer with the plug-in and without, several worker processes each: killed, resumed, and what it costs.

    <python with verl and turnwise> -m pytest tests/crosscheck/verl/test_lives.py -m crosscheck -p no:cacheprovider -s

The figures that it prints are processor and wall seconds a step, and MiB, of all processes.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tests.crosscheck.verl import test_two_steps
from tests.crosscheck.verl.test_two_steps import PATIENT, SCRIPT, as_played, torch
from tests.rollout.chat_models import chat_model

import turnwise as tw

pytestmark = test_two_steps.pytestmark
STEPS = 4
SEVERAL = [
    "trainer.n_gpus_per_node=2", "actor_rollout_ref.rollout.agent.num_workers=2",
    f"trainer.total_training_steps={STEPS}", "trainer.save_freq=1", "trainer.resume_mode=auto",
]  # fmt: skip


class Life:
    """A training in processes of its own."""

    def __init__(self, folder: Path, *overrides: str):
        folder.mkdir(exist_ok=True)
        self.folder, self.most_mb = folder, 0.0
        self.seconds: dict[int, float] = {}  # of the processor, by process
        self.spent: list[float] = []  # those of all when the end of each step was seen
        command = [sys.executable, str(SCRIPT), str(folder), str(chat_model("qwen2_5")), *SEVERAL, *overrides]
        with (folder / "log").open("a") as log:
            self.process = subprocess.Popen(command, env=os.environ | PATIENT, stdout=log, stderr=log)

    def lines(self) -> list[dict]:
        """What the steps that have ended said."""
        path = self.folder / "metrics.json"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def family(self) -> list[int]:
        """All processes of this life."""
        parents = {}
        for status in Path("/proc").glob("[0-9]*/status"):
            with_parent = [line for line in _text(status).splitlines() if line.startswith("PPid:")]
            if with_parent:
                parents[int(status.parent.name)] = int(with_parent[0].split()[1])
        found = [self.process.pid]
        for pid in found:
            found += [child for child, parent in parents.items() if parent == pid]
        return found

    def wait(self, until=lambda: False) -> int | None:
        """Wait for the end, or until something is so, and measure memory; returns the exit status, if it has ended."""
        deadline = time.monotonic() + 3000
        while self.process.poll() is None and not until():
            assert time.monotonic() < deadline, _text(self.folder / "log")[-4000:]
            self.seconds |= {pid: _processor_s(pid) for pid in self.family()}
            self.spent += [sum(self.seconds.values())] * (len(self.lines()) - len(self.spent))
            shares = [_text(Path(f"/proc/{pid}/smaps_rollup")) for pid in self.family()]
            kib = [int(line.split()[1]) for text in shares for line in text.splitlines() if line.startswith("Pss:")]
            self.most_mb = max(self.most_mb, sum(kib) / 1024)
            time.sleep(0.5)
        self.spent += [sum(self.seconds.values())] * (len(self.lines()) - len(self.spent))
        return self.process.poll()

    def kill(self) -> None:
        """End all processes at once."""
        for pid in self.family():
            os.kill(pid, signal.SIGKILL)
        self.process.wait()


def _processor_s(pid: int) -> float:
    fields = _text(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # the process has ended
        return ""


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Life:
    """A life that nothing disturbs."""
    life = Life(tmp_path_factory.mktemp("whole"), "+algorithm.turnwise.method=grpo+aem")
    assert life.wait() == 0, _text(life.folder / "log")[-4000:]
    return life


def test_a_killed_training_goes_on_behind_its_last_checkpoint(tmp_path):
    first = Life(tmp_path / "run", "+algorithm.turnwise.method=grpo+aem")
    saved = tmp_path / "run" / "latest_checkpointed_iteration.txt"
    first.wait(lambda: _text(saved).strip() == "2")
    assert first.process.poll() is None, _text(first.folder / "log")[-4000:]
    first.kill()
    behind = int(_text(saved))
    before = len(first.lines())
    again = Life(tmp_path / "run", "+algorithm.turnwise.method=grpo+aem")
    assert again.wait() == 0, _text(again.folder / "log")[-4000:]
    assert [line["step"] for line in again.lines()[before:]] == [*range(behind + 1, STEPS + 1)]
    for step in range(1, STEPS + 1):
        batch, written = as_played(torch.load(tmp_path / "run" / f"step{step}.pt", weights_only=False))
        np.testing.assert_allclose(written, tw.aem(tw.grpo())(batch), rtol=1e-5, atol=1e-6)
    assert all(np.isfinite(line["actor/pg_loss"]) for line in again.lines())


def test_the_plug_in_costs_little_beside_the_same_run_without_it(whole, tmp_path):
    plain = Life(tmp_path / "plain", "plain")
    assert plain.wait() == 0, _text(plain.folder / "log")[-4000:]
    seconds = {}
    for name, life in (("verl", plain), ("verl with turnwise", whole)):
        ends = [line["at"] for line in life.lines()]
        assert len(ends) == len(life.spent) == STEPS
        seconds[name] = np.diff(life.spent).mean()
        print(f"{name}: {seconds[name]:.2f} processor s a step, {np.diff(ends).mean():.2f} s, {life.most_mb:,.0f} MiB")
    assert seconds["verl with turnwise"] < 1.5 * seconds["verl"]
    assert whole.most_mb < 1.25 * plain.most_mb
