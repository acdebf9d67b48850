"""Signals and kills at random moments, again and again: `python -m tests.train.signals FOLDER TIMES`.

Lives are forks of one process that has trained once, as in `tests.train.kills`. Each is the command line itself.
"""

import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from tests.toys import small_config
from tests.train.kills import whole  # also makes tqdm safe to fork

import turnwise.config
import turnwise.lab.report.write
import turnwise.train.figure
from turnwise.__main__ import main
from turnwise.base.stopping import SIGNALS
from turnwise.train import last_step
from turnwise.train.folder import RunFolder, by_step
from turnwise.train.loop import train

SETTINGS = {
    "run": {"steps": 6},
    "method": "v05+aem",  # it keeps a state
    "evaluate": {"every": 3},
    "checkpoint": {"every": 100, "keep": 9},  # only signals save, and the last step
    "update": {"learning_rate": 0.01, "warmup_steps": 0, "epochs": 2, "mini_batches": 2},
}


def live(folder: Path, command: list[str], prepare: Callable[[], None] = lambda: None) -> int:
    """Start a command in a process of its own; what it says goes to a file of the folder."""
    process = os.fork()
    if process:
        return process
    status = 1
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for fd, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(folder / name, os.O_CREAT | os.O_WRONLY | os.O_TRUNC), fd)
        torch.set_num_threads(1)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # what runs in a shell's background ignores it
        turnwise.config.load_config = lambda recipe, overrides: small_config(folder, **SETTINGS)
        prepare()
        sys.argv = ["turnwise", *command]
        status = main()
        sys.stdout.flush()
    except KeyboardInterrupt:  # before or after the command, where Python itself would end so
        status = 128 + signal.SIGINT
    finally:
        os._exit(status)


def training(folder: Path, prepare: Callable[[], None] = lambda: None) -> int:
    run, recipe = folder / "run", folder / "any.toml"
    folder.mkdir(parents=True, exist_ok=True)
    recipe.touch()
    return live(folder, ["train", "--resume", str(run)] if run.exists() else ["train", str(recipe)], prepare)


def ended(process: int) -> int:
    """Exit code of a process as a shell gives it."""
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    return 128 - code if code < 0 else code


def timed(start: Callable[[], int]) -> float:
    begun = time.monotonic()
    assert ended(start()) == 0
    return time.monotonic() - begun


def train_signals(folder: Path, times: int, long_s: float) -> dict:
    """Ask a training to end at random moments; it must lose no completed step, and end as if nobody had asked."""
    last_step.LONG_S = long_s
    moments, told = random.Random(0), {"stopped": 0, "ended": 0, "lost": [], "differing": [], "late": [], "silent": []}
    lasts = timed(lambda: training(folder / "whole"))
    expected, there = whole(folder / "whole"), folder / "stopped"
    while told["stopped"] < times or not told["ended"]:
        process, number, asked = training(there), moments.choice(SIGNALS), 0.0
        if told["stopped"] < times:
            time.sleep(moments.uniform(0.1, lasts))
            os.kill(process, number)
            asked = time.monotonic()
        code, run = ended(process), RunFolder(there / "run")
        if code == 128 + number:
            told["stopped"] += 1
            if time.monotonic() - asked > 10:
                told["late"].append(time.monotonic() - asked)
            message = (there / "err").read_text().strip().splitlines()[-1:]
            saved = max(by_step(run.checkpoints), default=-1)
            done = [r["step"] for r in run.metrics() if "rollout/success" in r]
            if saved >= 0 and max(done, default=0) != saved:
                told["lost"].append((done, saved))
            if not message or ("train --resume" in message[0]) != (saved >= 0):
                told["silent"].append(message)
        else:
            assert code == 0, (code, (there / "err").read_text())
            found = whole(there)
            told["differing"] += [name for name in expected if name != "names" and found[name] != expected[name]]
            told["ended"] += 1
            shutil.rmtree(there)
    return told


def second_signal(folder: Path, number: int) -> dict:
    """An update that never ends: the first signal says what it waits for, the second ends the process at once."""

    def stuck(self: last_step.LastStep) -> None:
        self._stop.close()
        time.sleep(60)

    process = training(folder, lambda: setattr(last_step.LastStep, "before_change", stuck))
    run = RunFolder(folder / "run")
    while not any("eval/success" in record for record in run.metrics()):
        time.sleep(0.05)
    time.sleep(1)
    os.kill(process, number)
    time.sleep(0.5)
    said = (folder / "err").read_text().splitlines()[-1]
    begun = time.monotonic()
    os.kill(process, number)
    return {"code": ended(process), "seconds": time.monotonic() - begun, "said": said}


def nohup(folder: Path) -> dict:
    """A hang-up that is ignored at the start stays ignored."""

    def ignore() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    process, run = training(folder, ignore), RunFolder(folder / "run")
    while not any("eval/success" in record for record in run.metrics()):
        time.sleep(0.02)
    assert os.waitpid(process, os.WNOHANG) == (0, 0), "it has ended before the hang-up"
    os.kill(process, signal.SIGHUP)
    return {"code": ended(process)}


def disturbed(folder: Path, times: int, command: str) -> dict:
    """Kill or stop `eval` or `report` at random moments: what they leave is whole, and the same afterwards."""
    SETTINGS["evaluate"] = {"every": 0, "final_episodes": 64}
    assert ended(training(folder)) == 0
    run, moments, told = folder / "run", random.Random(0), {"disturbed": 0, "ended": 0, "torn": [], "differing": []}
    words = [command, str(run)]
    lasts = timed(lambda: live(folder, words))
    before = contents(run)
    while told["disturbed"] < times or not told["ended"]:
        process, number = live(folder, words), moments.choice([signal.SIGKILL, *SIGNALS])
        if told["disturbed"] < times:
            time.sleep(moments.uniform(0, lasts))
            os.kill(process, number)
        code = ended(process)
        if code == 128 + number:
            told["disturbed"] += 1
            told["torn"] += torn(run)
        else:
            assert code == 0, (code, (folder / "err").read_text())
            told["ended"] += 1
            after = contents(run)
            told["differing"] += [name for name in before.keys() | after.keys() if before.get(name) != after.get(name)]
    return told


def contents(run: Path) -> dict[str, bytes]:
    """Everything in a run's folder; the name of a report's files is a time."""
    found = {path.relative_to(run): path for path in run.rglob("*") if path.is_file() and path.name != ".lock"}
    return {
        "/".join("files" if part.startswith("files-") else part for part in name.parts): (
            b"" if name.name == "index.html" else path.read_bytes()
        )
        for name, path in found.items()
    }


def torn(run: Path) -> list[str]:
    """What a reader would trip over: an unreadable table, or a page that loads from files that are not there."""
    found = []
    for path in run.glob("evaluations/*.json"):
        try:
            json.loads(path.read_text())
        except ValueError:
            found.append(path.name)
    page = run / "report" / "index.html"
    if page.exists():
        files = page.read_text().partition('src="')[2].partition("/")[0]
        found += [] if (run / "report" / files / "summary.js").exists() else [files]
    return found


if __name__ == "__main__":
    place, times = Path(sys.argv[1]), int(sys.argv[2])
    train(small_config(place / "warm", **SETTINGS))
    told = {
        "second": second_signal(place / "second", signal.SIGTERM),
        "second-interrupt": second_signal(place / "second-interrupt", signal.SIGINT),
        "nohup": nohup(place / "nohup"),
        "train": train_signals(place / "train", times, last_step.LONG_S),
        "train-copying": train_signals(place / "copying", times, -1.0),
        "eval": disturbed(place / "eval", times, "eval"),
        "report": disturbed(place / "report", times, "report"),
    }
    print(json.dumps(told))
